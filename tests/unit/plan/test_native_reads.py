"""What a batch job asks of a DataFrame in place of all its rows (S8.1)."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate import Discard, Pipeline, SparkFrame, Stream, count, max, sum, tumbling
from tidegate.plan.batch_plan import with_sinks_last
from tidegate.plan.spark_pushdown import SparkRead, full_read, plan_spark_read

SCHEMA = pa.schema(
    [("k", pa.int64()), ("v", pa.int64()), ("x", pa.float64()), ("ts", pa.timestamp("us")), ("note", pa.string())]
)
K, V, X, NOTE = (pc.field(name) for name in ("k", "v", "x", "note"))


def read_of(
    draw: Callable[[Stream], Stream], accepts: Callable[[str], bool] = lambda name: True
) -> tuple[str, SparkRead]:
    """Its text, and it, of a pipeline that ends in a sink. Args: accepts: columns of which conditions may be asked."""
    p = Pipeline()
    draw(p.read(SparkFrame(lambda spark: spark.range(1), schema=SCHEMA), uid="rows")).write(Discard(), uid="out")
    graph = with_sinks_last(p.build())
    from tidegate.plan.pushdown_conditions import fields_of

    read = plan_spark_read(graph, graph.by_uid("rows"), lambda condition: all(map(accepts, fields_of(condition))))
    return read.describe(graph), read


def windowed(stream: Stream) -> Stream:
    return stream.group_by("k").window(tumbling("1 s")).agg(n=count(), total=sum("v"), uid="sums")


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda s: s, "k, v, x, ts, note"),
        (lambda s: s.select("v"), "v, which is all of rows.project"),
        (lambda s: s.filter(V > 1).select("k"), "k where v > 1, which is all of rows.filter, rows.project"),
        (lambda s: s.select(a=K, big=V > 1), "a=k, big=v > 1, which is all of rows.project"),
        (
            lambda s: s.select(a=V).select(b=pc.field("a")).filter(pc.field("b") > 1),
            "b=v where v > 1, which is all of rows.project, rows.project-2, rows.filter",
        ),
        (lambda s: s.filter((V > 1) & (K + 1 > 2)).select("note"), "k, v, note where v > 1"),
        (
            lambda s: s.filter(K + 1 > 2).filter(NOTE == "a").select("v"),
            "k, v where note == a, which is all of rows.filter-2",
        ),
        (
            lambda s: s.with_columns(v=V * 2).filter(K > 1).select("v"),
            "v where k > 1, which is all of rows.filter",
        ),
        (lambda s: s.with_columns(v=V * 2).filter(V > 1).select("k"), "k, v"),
        (lambda s: s.with_columns(y=V / K).select("x"), "k, v, x"),
        (lambda s: s.map_in_arrow(lambda batches: batches, SCHEMA).filter(V > 1).select("k"), "k, v, x, ts, note"),
        (lambda s: s.filter(pc.starts_with(NOTE, "a")).select("k"), "k, note"),
        (lambda s: windowed(s.with_watermark("ts", "1 s")), "k, v, ts"),
        (
            lambda s: windowed(s.with_watermark("ts", "1 s").filter(X > 1.5)),
            "k, v, ts where x > 1.5, which is all of rows.filter",
        ),
        (
            lambda s: s.with_watermark("ts", "1 s").group_by("k").window(tumbling("1 s")).agg(last=max("x"), uid="m"),
            "k, x, ts",
        ),
        (lambda s: s.with_watermark("ts", "1 s").deduplicate("k", uid="once"), "k, v, x, ts, note"),
    ],
)
def test_what_is_asked_for(draw: Callable[[Stream], Stream], text: str) -> None:
    assert read_of(draw)[0] == text


def test_columns_that_nobody_reads_are_nulls_in_the_schema_that_operators_know() -> None:
    _, read = read_of(lambda s: windowed(s.with_watermark("ts", "1 s")))
    assert (read.rows.schema, read.rows.present, read.rows.runs) == (SCHEMA, ("k", "v", "ts"), frozenset())


def test_a_condition_that_the_frame_cannot_answer_stays_with_all_behind_it() -> None:
    """A column of another type than was declared."""
    text, _ = read_of(lambda s: s.filter((V > 1) & (K > 1)).select("k"), lambda name: name != "v")
    assert text == "k, v where k > 1"
    assert read_of(lambda s: s.select(a=V > 1), lambda name: False)[0] == "v"
    assert read_of(lambda s: s.select(a=V), lambda name: False)[0] == "a=v, which is all of rows.project"


def test_rows_that_several_read_come_with_all_columns_unless_all_say_what_they_read() -> None:
    def twice(stream: Stream) -> Stream:
        stream.filter(V > 1).write(Discard(), uid="other")
        return stream.select("k")

    assert read_of(twice)[0] == "k, v, x, ts, note"


def test_what_is_behind_a_sink_reads_what_the_sink_reads() -> None:
    def noted(stream: Stream) -> Stream:
        stream.write(Discard(), uid="other")
        return stream

    assert read_of(lambda s: noted(s.filter(V > 1)))[0] == "k, v, x, ts, note where v > 1, which is all of rows.filter"


def test_one_column_comes_though_nobody_reads_any() -> None:
    """Rows have to be counted."""
    assert read_of(lambda s: s.select(one=pc.scalar(1)))[0] == "k"


def test_explain_shows_it() -> None:
    p = Pipeline()
    rows = p.read(SparkFrame(lambda spark: spark.range(1), schema=SCHEMA), uid="rows")
    rows.filter(V > 1).select("k").write(Discard(), uid="out")
    assert "in batch Spark reads k where v > 1, which is all of rows.filter, rows.project" in p.explain()


def test_a_source_that_may_not_be_asked_gives_all() -> None:
    p = Pipeline()
    p.read(SparkFrame(lambda spark: spark.range(1), schema=SCHEMA), uid="rows").write(Discard(), uid="out")
    graph = p.build()
    read = full_read(graph.by_uid("rows"))
    assert read.describe(graph) == "k, v, x, ts, note"
    assert read.rows.runs == frozenset()
