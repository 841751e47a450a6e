"""Writes departures from New York to a table of Parquet files. The input is a replayed stream of flights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate import Files, Parquet, Pipeline, Replay

SECONDS_PER_DAY = 86_400


def build(args: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline.

    Args:
        args: `flights`, `airlines`: Parquet files or folders; `out`: folder of the table; `speed`: days of flights that
            play in one second.
    """
    p = Pipeline()
    replay = Replay(args["flights"], time_column="time_hour", speedup=float(args["speed"]) * SECONDS_PER_DAY)
    airlines = p.read(Files(args["airlines"]), uid="airlines")
    (
        p.read(replay, uid="flights")
        .with_watermark("time_hour", "1 hour")
        .select("time_hour", "carrier", "flight", "origin", "dest", "dep_delay")
        .join(airlines.broadcast(), on="carrier", uid="airline-name")
        .write(Parquet(args["out"]), uid="departures")
    )
    return p
