"""Flights and minutes of delay per airport and day: totals that can be added.

The input is a replayed stream of flights. Each day is one window. A day's window may fire more than once: at a drain,
and again when the restored job has read the rest of the day. Both result columns are sums, so adding the rows of a day
gives the right total.

`build` is the version that normally runs. `with_late_flights` is its next version. `broken` is a faulty version.
`interval` is the same calculation with an end, for a fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate import Parquet, Pipeline, Replay, Stream, count, sum, tumbling

SECONDS_PER_DAY = 86_400
LATE_MINUTES = 120


def build(args: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline.

    Args:
        args: `flights`: Parquet file or folder; `out`: folder of the table; `speed`: days of flights that play in one
            second.
    """
    p = Pipeline()
    _totals(_departed(p, args), args)
    return p


def with_late_flights(args: Mapping[str, Any]) -> Pipeline:
    """Build a version that also writes flights that are over two hours late, to the folder `out`-late.

    Existing operators keep their uids, and so their state.
    """
    p = Pipeline()
    departed = _departed(p, args)
    _totals(departed, args)
    _late(departed, args)
    return p


def broken(args: Mapping[str, Any]) -> Pipeline:
    """Build a version that can be restored from snapshots of the other two versions, but fails at the first flight."""
    p = Pipeline()
    departed = _departed(p, args)
    departed = departed.map_in_arrow(_divide_by_zero, departed.schema)
    _totals(departed, args)
    _late(departed, args)
    return p


def interval(args: Mapping[str, Any]) -> Pipeline:
    """Build a bounded version: it replays the flights as fast as it can, and ends.

    Args:
        args: `until`: flights before this time, as text in UTC; empty: all. `speed` is ignored.
    """
    p = Pipeline()
    departed = _departed(p, {**args, "speed": None})
    if args.get("until"):
        departed = departed.filter(pc.field("time_hour") < pa.scalar(datetime.fromisoformat(args["until"])))
    _totals(departed, args)
    return p


def _divide_by_zero(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise ZeroDivisionError("this version was never tested")
    yield from ()


def _departed(p: Pipeline, args: Mapping[str, Any]) -> Stream:
    speed = args["speed"]
    replay = Replay(
        args["flights"],
        time_column="time_hour",
        speedup=None if speed is None else float(speed) * SECONDS_PER_DAY,
        at_end="end" if speed is None else "idle",
    )
    return (
        p.read(replay, uid="flights")
        .with_watermark("time_hour", "1 hour")
        .select("time_hour", "origin", "dep_delay")
        .filter(pc.field("dep_delay").is_valid())
    )


def _totals(departed: Stream, args: Mapping[str, Any]) -> None:
    (
        departed.group_by("origin")
        .window(tumbling("1 day"))
        .agg(flights=count(), minutes_late=sum("dep_delay"), uid="daily-totals")
        .write(Parquet(args["out"]), uid="totals")
    )


def _late(departed: Stream, args: Mapping[str, Any]) -> None:
    departed.filter(pc.field("dep_delay") > LATE_MINUTES).write(Parquet(f"{args['out']}-late"), uid="late")
