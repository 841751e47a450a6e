"""Counts departures for each airport and hour: from a Kafka topic to an Iceberg table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate import Iceberg, Kafka, Pipeline, count, sum, tumbling
from tidegate.formats import Json

DEPARTURE = {"origin": "string", "time_hour": "timestamp[us]", "dep_delay": "float64"}
"""Fields of a record. `dep_delay`: minutes; null if the flight was cancelled."""


def build(args: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline.

    Args:
        args: `topic` and `servers` of Kafka; `table` and `catalog` (properties of pyiceberg) of the Iceberg table.
    """
    p = Pipeline()
    departures = Kafka(args["topic"], servers=args["servers"], value=Json(DEPARTURE), discover_every="10 s")
    (
        p.read(departures, uid="departures")
        .with_watermark("time_hour", "1 hour")
        .group_by("origin")
        .window(tumbling("1 hour"))
        .agg(flights=count(), departed=count("dep_delay"), minutes_late=sum("dep_delay"), uid="hourly")
        .write(
            Iceberg(args["table"], catalog=args["catalog"], create=True, partition_by=["day(window_start)"]),
            uid="table",
        )
    )
    return p
