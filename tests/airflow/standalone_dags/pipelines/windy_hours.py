"""A bounded pipeline without state: the hours with wind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from tidegate import Files, Parquet, Pipeline


def build(args: Mapping[str, Any]) -> Pipeline:
    """Hours with more than 20 mph."""
    return _windy(args, "wind_speed")


def build_with_typo(args: Mapping[str, Any]) -> Pipeline:
    """Names a column that is not there."""
    return _windy(args, "wind_sped")


def _windy(args: Mapping[str, Any], column: str) -> Pipeline:
    p = Pipeline()
    weather = p.read(Files(args["weather"]), uid="weather")
    weather.select("origin", "time_hour", "wind_speed").filter(pc.field(column) > 20).write(
        Parquet(args["out"]), uid="windy"
    )
    return p
