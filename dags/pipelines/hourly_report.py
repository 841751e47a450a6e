"""Reports one interval of a table of departures, per airport and hour: a bounded job on the output of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate import Files, Parquet, Pipeline, count, max, tumbling


def build(args: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline.

    Args:
        args: `table`: folder of the departures; `start`, `end`: times with zone, as text, between which the rows are
            reported; `out`: folder of the report.
    """
    start, end = (
        pa.scalar(datetime.fromisoformat(args[n]).astimezone(UTC).replace(tzinfo=None)) for n in ("start", "end")
    )
    p = Pipeline()
    (
        p.read(Files(f"{args['table']}/*.parquet"), uid="departures")
        .filter((pc.field("time_hour") >= start) & (pc.field("time_hour") < end))
        .with_watermark("time_hour", "1 hour")
        .group_by("origin")
        .window(tumbling("1 hour"))
        .agg(flights=count(), latest=max("dep_delay"), uid="hours")
        .write(Parquet(args["out"], if_exists="overwrite"), uid="report")
    )
    return p
