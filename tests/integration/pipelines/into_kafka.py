"""Numbers as records of a Kafka topic: the key is a text of few values, the value is the number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate import DataGen, KafkaSink, Pipeline

KEYS = 17
NUMBERS = pa.schema([("n", pa.int64())])
RECORDS = pa.schema([("key", pa.string()), ("value", pa.string())])


def rows(numbers: np.ndarray) -> dict[str, Any]:
    """Rows by number."""
    return {"n": numbers}


def records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Key and value as texts."""
    for batch in batches:
        keys = pa.array(batch["n"].to_numpy() % KEYS).cast(pa.string())
        yield pa.record_batch([keys, batch["n"].cast(pa.string())], schema=RECORDS)


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: rows, rate (rows per second; 0: no limit), batch_rows, keyed, out (servers and topic, with a space
    between).
    """
    servers, _, topic = str(args["out"]).partition(" ")
    p = Pipeline()
    total, rate, batch_rows = int(args["rows"]), float(args["rate"]) or None, int(args.get("batch_rows", 256))
    source = DataGen(rows, NUMBERS, rows=total, splits=2, rate=rate, batch_rows=batch_rows)
    (
        p.read(source, uid="numbers")
        .map_in_arrow(records, RECORDS, uid="records")
        .write(KafkaSink(topic, servers=servers, key="key" if args.get("keyed", True) else ()), uid="out")
    )
    return p
