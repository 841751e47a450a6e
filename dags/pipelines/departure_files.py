"""Publishes files with departures on a Kafka topic: each record of each file once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidegate import Files, KafkaSink, Parquet, Pipeline, Watch
from tidegate.formats import Json

DEPARTURE = pa.schema(
    [
        ("origin", pa.string()),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("time_hour", pa.timestamp("us")),
        ("dep_delay", pa.float64()),
    ]
)
"""Fields of a line of a file, and of a record. `dep_delay`: minutes; null if the flight was cancelled."""


def build(args: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline.

    Args:
        args: `incoming`: folder with JSON-lines files; `published`: folder for files that were read; `rejected`:
            folder for lines that cannot be read; `servers`, `topic`, `protocol` and `mechanism` of Kafka.
    """
    p = Pipeline()
    files = Files(
        f"{args['incoming']}/*.jsonl",
        schema=DEPARTURE,
        on_bad_record="dead_letter",
        # A file is moved when a checkpoint has completed in which it was read to its end.
        watch=Watch("5 s", archive=args["published"]),
    )
    departures = p.read(files, uid="departures")
    departures.side_output("bad_records").write(Parquet(args["rejected"]), uid="rejected")
    departures.write(
        KafkaSink(
            args["topic"],
            servers=args["servers"],
            key="origin",
            value=Json(DEPARTURE),
            settings={
                "security.protocol": args["protocol"],
                "sasl.mechanism": args["mechanism"],
                # The DAG passes both to the driver, from an Airflow connection.
                "sasl.username": "secret:env/KAFKA_USER",
                "sasl.password": "secret:env/KAFKA_PASSWORD",
            },
        ),
        uid="topic",
    )
    return p
