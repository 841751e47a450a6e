"""Which windows of a streaming job may get batches that were aggregated before the exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tidegate
from tidegate import Pipeline, tumbling
from tidegate.api.grouped_stream import GroupedStream
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.discard import Discard
from tidegate.plan.execution_plan import make_execution_plan
from tidegate.plan.partial_aggregation import pre_aggregated_windows

SCHEMA = pa.schema([("k", pa.string()), ("ts", pa.timestamp("ms")), ("v", pa.int64()), ("d", pa.decimal128(9, 2))])
NUMBERS = {"n": tidegate.count(), "total": tidegate.sum("v"), "most": tidegate.max("v"), "mean": tidegate.mean("v")}


def nothing(numbers: Any) -> dict[str, Any]:
    raise AssertionError("no source is read here")


def may_pre_aggregate(draw: Callable[[GroupedStream], Any]) -> bool:
    p = Pipeline()
    keyed = p.read(DataGen(nothing, SCHEMA, rows=1), uid="rows").with_watermark("ts", "0 s").group_by("k")
    draw(keyed).write(Discard(), uid="out")
    graph = make_execution_plan(p.build(), 2, 128).graph
    (node,) = [node for node in graph.nodes if node.uid == "w"]
    spec = pre_aggregated_windows(graph, node)
    assert spec is None or spec is node.spec
    return spec is not None


@pytest.mark.parametrize("window", [tumbling("1 min"), tidegate.sliding("3 min", "1 min")], ids=["tumbling", "sliding"])
def test_windows_with_aggregates_of_numbers_may(window: Any) -> None:
    assert may_pre_aggregate(lambda keyed: keyed.window(window).agg(**NUMBERS, uid="w"))


@pytest.mark.parametrize(
    "draw",
    [
        lambda keyed: keyed.window(tumbling("1 min")).agg(first=tidegate.first("v"), uid="w"),
        lambda keyed: keyed.window(tumbling("1 min")).agg(values=tidegate.collect("v"), uid="w"),
        lambda keyed: keyed.window(tumbling("1 min")).agg(kinds=tidegate.count_distinct("v"), uid="w"),
        lambda keyed: keyed.window(tumbling("1 min")).agg(total=tidegate.sum("d"), uid="w"),
        lambda keyed: keyed.window(tumbling("1 min"), allowed_lateness="1 s").agg(**NUMBERS, uid="w"),
        lambda keyed: keyed.window(tidegate.tumbling("1 day", timezone="Europe/Berlin")).agg(**NUMBERS, uid="w"),
        lambda keyed: keyed.window(tidegate.sliding("20 s", "1 min")).agg(**NUMBERS, uid="w"),
        lambda keyed: keyed.window(tidegate.session("1 min")).agg(**NUMBERS, uid="w"),
        lambda keyed: keyed.agg(**NUMBERS, uid="w"),
    ],
    ids=["order", "lists", "distinct", "decimals", "lateness", "calendar", "gaps", "sessions", "no windows"],
)
def test_other_operators_get_every_row(draw: Callable[[GroupedStream], Any]) -> None:
    """S4.4, S8.2."""
    assert not may_pre_aggregate(draw)


def test_windows_whose_late_rows_are_read_get_every_row() -> None:
    """S4.4."""

    def draw(keyed: GroupedStream) -> Any:
        windows = keyed.window(tumbling("1 min")).agg(**NUMBERS, uid="w")
        windows.side_output("late").write(Discard(), uid="late")
        return windows

    assert not may_pre_aggregate(draw)
