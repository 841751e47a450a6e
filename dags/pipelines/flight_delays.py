"""Departure delays from New York: a replayed stream of flights, joined with two bounded sources, in two windows.

The replay of the flights is an unbounded stream. The sources of airlines and of hourly weather are read to their end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from tidegate import Files, Parquet, Pipeline, Replay, count, max, mean, tumbling

SECONDS_PER_DAY = 86_400


def build(args: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline.

    Args:
        args: `flights`, `airlines`, `weather`: Parquet files or folders; `out`: folder of the two tables `daily` and
            `hourly`; `speed`: days of flights that play in one second.
    """
    p = Pipeline()
    replay = Replay(args["flights"], time_column="time_hour", speedup=float(args["speed"]) * SECONDS_PER_DAY)
    departed = (
        p.read(replay, uid="flights")
        .with_watermark("time_hour", "1 hour")
        .select("time_hour", "carrier", "origin", "dep_delay")
        .filter(pc.field("dep_delay").is_valid())
    )
    airlines = p.read(Files(args["airlines"]), uid="airlines")
    weather = p.read(Files(args["weather"]), uid="weather").select("origin", "time_hour", "wind_speed")

    (
        departed.join(airlines.broadcast(), on="carrier", uid="airline-name")
        .group_by("name")
        .window(tumbling("1 day"))
        .agg(flights=count(), delay=mean("dep_delay"), uid="daily-delay")
        .write(Parquet(f"{args['out']}/daily"), uid="daily")
    )
    (
        departed.join(weather.broadcast(), on=["origin", "time_hour"], how="left", uid="weather-at-departure")
        .group_by("origin")
        .window(tumbling("1 hour"))
        .agg(flights=count(), delay=mean("dep_delay"), wind=max("wind_speed"), uid="hourly-delay")
        .write(Parquet(f"{args['out']}/hourly"), uid="hourly")
    )
    return p
