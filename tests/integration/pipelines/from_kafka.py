"""Records of a topic, sent to the subtask of their number, and written once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate import Kafka, Parquet, Pipeline

SCHEMA = pa.schema([("partition", pa.int32()), ("n", pa.int64())])


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: out (folder of the results); a file `kafka.json` beside it has arguments of the source."""
    options = json.loads((Path(str(args["out"])).parent / "kafka.json").read_text())
    p = Pipeline()
    source = Kafka(with_columns=["partition"], discover_every="500 ms", **options)
    numbers = p.read(source, uid="kafka").map_in_arrow(numbered, SCHEMA, uid="numbers")
    numbers.repartition("n").write(Parquet(str(args["out"])), uid="out")
    return p


def numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The number that a value is."""
    for batch in batches:
        n = batch.column("value").cast(pa.string()).cast(pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column("partition"), n], schema=SCHEMA)
