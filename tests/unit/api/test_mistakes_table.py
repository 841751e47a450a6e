"""The mistakes that a pipeline's author makes, each refused when the pipeline is built, with the line of the call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate
from tidegate import DataGen, Discard, KeyedProcess, KeyedRows, Pipeline, ProcessContext, Stream, count, tumbling
from tidegate.errors import PipelineError

SCHEMA = pa.schema([("time", pa.timestamp("us")), ("shop", pa.string()), ("price", pa.int64())])


class Counting(KeyedProcess):
    """Keeps one number for each key."""

    seen = tidegate.value_state("seen", {"n": pa.int64()})

    def process(self, rows: KeyedRows, context: ProcessContext) -> pa.RecordBatch | None:
        return None


def nothing(numbers: Any) -> dict[str, Any]:
    raise AssertionError("a pipeline runs nothing while it is built")


MISTAKES: dict[str, tuple[Callable[[Stream], object], str, str]] = {
    "missing column": (
        lambda s: s.filter(pc.field("prise") > 0),
        "there is no column 'prise', did you mean 'price'?",
        "Use 'price'",
    ),
    "missing key": (
        lambda s: s.group_by("shp"),
        "there is no column 'shp', did you mean 'shop'?",
        "Use 'shop'",
    ),
    "wrong type in an expression": (
        lambda s: s.with_columns(x=pc.field("shop") + 1),
        "(shop, 1) does not fit the types of the columns",
        "Cast",
    ),
    "wrong type of a condition": (
        lambda s: s.filter(pc.field("price")),
        "returns int64",
        "",
    ),
    "wrong type of an aggregate": (
        lambda s: s.group_by("shop").window(tumbling("1 h")).agg(x=tidegate.sum("shop"), uid="w"),
        "sum does not support column 'shop' of type string",
        "cast it first",
    ),
    "wrong type of event time": (
        lambda s: s.with_watermark("shop", "0 s"),
        "column 'shop' of type string cannot be event time",
        "Cast it first",
    ),
    "duplicate uid": (
        lambda s: s.group_by("shop").window(tumbling("1 h")).agg(n=count(), uid="orders"),
        "the uid 'orders' is used twice",
        "a different uid",
    ),
    "no uid": (
        lambda s: s.group_by("shop").window(tumbling("1 h")).agg(n=count()),
        "the window has no uid",
        'uid="..."',
    ),
    "sort": (lambda s: s.sort("price"), "a stream cannot be sorted as a whole: sort is not supported", "when you read"),
    "order_by": (lambda s: s.order_by("price"), "order_by is not supported", "Sort within keys and windows"),
    "state without keys": (
        lambda s: s.process(Counting(), schema=SCHEMA, uid="p"),
        "",
        "group_by(",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_an_error_with_the_line_of_the_call_and_what_to_do(name: str) -> None:
    call, what, remedy = MISTAKES[name]
    p = Pipeline()
    stream = p.read(DataGen(nothing, SCHEMA), uid="orders").with_watermark("time", "0 s")
    with pytest.raises(PipelineError) as caught:
        call(stream)
    lines, first = inspect.getsourcelines(call)
    at = int(caught.value.where.rpartition(":")[2])
    assert caught.value.where.rpartition(":")[0].endswith(__file__)
    assert first <= at < first + len(lines), "it is the line of the call, not of the test"
    assert what in caught.value.what
    assert remedy in caught.value.remedy and caught.value.remedy


def test_an_unbounded_stream_says_why_it_cannot_be_sorted() -> None:
    p = Pipeline()
    endless, bounded = (p.read(DataGen(nothing, SCHEMA, rows=rows), uid=f"r{rows}") for rows in (None, 5))
    for stream, says in ((endless, True), (bounded, False)):
        with pytest.raises(PipelineError) as caught:
            stream.sort("price")
        assert ("the stream is unbounded" in caught.value.cause) is says


def test_a_pipeline_explains_itself_before_it_is_finished() -> None:
    p = Pipeline()
    stream = p.read(DataGen(nothing, SCHEMA), uid="orders").filter(pc.field("price") > 0)
    assert p.explain().splitlines()[0].startswith("[orders.filter] filter")
    assert stream.explain() == p.explain()
    stream.write(Discard(), uid="out")
    assert p.explain().splitlines()[0].startswith("[out] Discard")
    assert Pipeline().explain() == ""
