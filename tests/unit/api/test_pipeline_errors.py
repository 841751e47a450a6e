"""Each mistake in a pipeline is one PipelineError that names the place, the cause and the remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate
from tidegate import (
    DataGen,
    Discard,
    KeyedProcess,
    KeyedRows,
    Pipeline,
    ProcessContext,
    Stream,
    count,
    list_state,
    map_state,
    reducing_state,
    tumbling,
    value_state,
)
from tidegate.errors import PipelineError
from tidegate.plan.execution_plan import make_execution_plan

SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us")),
        ("ts", pa.int64()),
        ("carrier", pa.string()),
        ("dep_delay", pa.float64()),
        ("seats", pa.int32()),
        ("price", pa.decimal128(10, 2)),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("where", pa.struct([("gate", pa.string())])),
    ]
)
AIRLINES = pa.schema([("carrier", pa.string()), ("name", pa.string())])


def nothing(numbers: Any) -> dict[str, Any]:
    raise AssertionError("a pipeline runs nothing while it is built")


def read(p: Pipeline, schema: pa.Schema = SCHEMA, uid: str = "flights", rows: int | None = None) -> Stream:
    return p.read(DataGen(nothing, schema, rows=rows), uid=uid)


@pytest.fixture
def flights(p: Pipeline) -> Stream:
    return read(p)


@pytest.fixture
def timed(flights: Stream) -> Stream:
    return flights.with_watermark("time", "0 s")


def refusal(call: Callable[[], object]) -> PipelineError:
    """The error that `call` raises; it must name this file and a remedy."""
    with pytest.raises(PipelineError) as caught:
        call()
    assert "test_pipeline_errors.py:" in caught.value.where, str(caught.value)
    assert caught.value.remedy
    return caught.value


def test_a_typo_in_a_column_names_the_nearest_one_the_uid_and_the_line(flights: Stream) -> None:
    line = sys._getframe().f_lineno + 1
    error = refusal(lambda: flights.with_watermark("tiem", "0 s", uid="lateness"))
    assert error.what == "there is no column 'tiem', did you mean 'time'?"
    assert error.where == f"watermark 'lateness' at {__file__}:{line}"
    assert "dep_delay" in error.cause


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.filter(pc.field("dep_delai") > 0),
        lambda s: s.select("dep_delai"),
        lambda s: s.select(pc.field("dep_delai"), x=pc.field("dep_delai")),
        lambda s: s.select(x=pc.field("dep_delai") + 1),
        lambda s: s.with_columns(x=pc.coalesce(pc.field("seats"), pc.field("dep_delai"))),
        lambda s: s.group_by("dep_delai"),
        lambda s: (
            s.with_watermark("time", "0 s")
            .group_by("carrier")
            .window(tumbling("1 h"))
            .agg(uid="w", x=tidegate.mean("dep_delai"))
        ),
    ],
    ids=["filter", "select", "unnamed", "expression", "with_columns", "group_by", "agg"],
)
def test_a_missing_column_is_named_by_every_call(call: Callable[[Stream], object], flights: Stream) -> None:
    error = refusal(lambda: call(flights))
    assert "did you mean 'dep_delay'?" in error.what or "has no name" in error.what


def test_a_column_like_no_other_gets_no_guess(flights: Stream) -> None:
    assert refusal(lambda: flights.select("zzz")).what == "there is no column 'zzz'"


def test_a_missing_column_with_odd_characters_is_named_whole(flights: Stream) -> None:
    assert "'a) b'" in refusal(lambda: flights.select(x=pc.field("a) b"))).what


def test_a_missing_member_of_a_struct_is_named(flights: Stream) -> None:
    error = refusal(lambda: flights.select(x=pc.field("where", "gaet")))
    assert error.what == "column 'where' has no member 'gaet', did you mean 'gate'?"


def test_a_member_of_a_column_that_is_not_there_names_the_column(flights: Stream) -> None:
    assert "no column 'wher', did you mean 'where'?" in refusal(lambda: flights.select(x=pc.field("wher", "x"))).what


def test_a_column_number_out_of_range_is_refused(flights: Stream) -> None:
    assert "by name" in refusal(lambda: flights.select(x=pc.field(99))).remedy


def test_types_that_do_not_fit_are_refused_with_the_reason(flights: Stream) -> None:
    assert "string" in refusal(lambda: flights.with_columns(x=pc.field("carrier") + 1)).cause


def test_a_filter_that_is_no_boolean_is_refused(flights: Stream) -> None:
    assert "returns double" in refusal(lambda: flights.filter(pc.field("dep_delay"))).what


def test_an_untyped_null_is_refused(flights: Stream) -> None:
    assert "has no type" in refusal(lambda: flights.with_columns(x=pc.scalar(None))).what


@pytest.mark.parametrize("value", ["dep_delay", 3, None, tidegate.count()], ids=str)
def test_what_is_no_expression_is_refused(value: Any, flights: Stream) -> None:
    assert "an expression" in refusal(lambda: flights.with_columns(x=value)).what
    assert "an expression" in refusal(lambda: flights.filter(value)).what


def test_an_expression_without_a_name_is_refused(flights: Stream) -> None:
    assert "select(name=" in refusal(lambda: flights.select(pc.field("seats") + 1)).remedy


def test_a_column_named_twice_is_refused(flights: Stream) -> None:
    assert "two columns named 'seats'" in refusal(lambda: flights.select("seats", seats=pc.field("ts"))).what


def test_a_projection_of_nothing_is_refused(flights: Stream) -> None:
    refusal(flights.select)
    refusal(flights.with_columns)


# ---------------------------------------------------------------- uids


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda p, s: p.read(DataGen(nothing, SCHEMA)), "source"),
        (lambda p, s: s.write(Discard()), "sink"),
        (lambda p, s: s.join(read(p, AIRLINES, "airlines", rows=1).broadcast(), on="carrier"), "join"),
        (lambda p, s: s.group_by("carrier").window(tumbling("1 h")).agg(n=count()), "window"),
    ],
    ids=["source", "sink", "join", "window"],
)
def test_a_uid_is_needed_where_state_is_kept(
    call: Callable[[Pipeline, Stream], object], kind: str, p: Pipeline, timed: Stream
) -> None:
    error = refusal(lambda: call(p, timed))
    assert error.what == f"the {kind} has no uid"
    assert error.where.startswith(f"{kind} at ")


def test_a_uid_given_twice_names_both_places(p: Pipeline, flights: Stream) -> None:
    error = refusal(lambda: flights.write(Discard(), uid="flights"))
    assert error.what == "the uid 'flights' is used twice"
    assert "the source at " in error.cause


@pytest.mark.parametrize("uid", ["", "../x", "a/b", "a b", ".hidden", "x" * 101, 7], ids=str)
def test_a_uid_that_cannot_be_part_of_a_file_name_is_refused(uid: Any, p: Pipeline) -> None:
    assert "is not a valid uid" in refusal(lambda: read(p, uid=uid)).what


# ---------------------------------------------------------------- event time and windows


def test_a_window_without_a_watermark_is_refused(flights: Stream) -> None:
    error = refusal(lambda: flights.group_by("carrier").window(tumbling("1 h")))
    assert error.what == "the window has no event time"
    assert "with_watermark" in error.remedy


@pytest.mark.parametrize(
    ("call", "how"),
    [
        (lambda s: s.select("carrier", "seats"), "dropped or changed by select at "),
        (lambda s: s.with_columns(time=pc.field("time").cast(pa.timestamp("s"))), "by with_columns at "),
        (lambda s: s.map_in_arrow(iter, pa.schema([("carrier", pa.string())])), "by map_in_arrow at "),
        (
            lambda s: s.map_in_arrow(iter, pa.schema([("carrier", pa.string()), ("time", pa.string())])),
            "by map_in_arrow at ",
        ),
        (
            lambda s: s.group_by("carrier").window(tumbling("1 h")).agg(n=count(), uid="first"),
            "the window 'first' at ",
        ),
    ],
    ids=["select", "with_columns", "map drops", "map changes", "window"],
)
def test_event_time_lost_on_the_way_names_who_lost_it(
    call: Callable[[Stream], Stream], how: str, timed: Stream
) -> None:
    error = refusal(lambda: call(timed).group_by("carrier").window(tumbling("1 day")))
    assert how in error.cause
    assert "(with_watermark at " in error.cause


def test_a_union_with_a_stream_without_event_time_has_none(p: Pipeline, timed: Stream) -> None:
    for union in (timed.union(read(p, uid="a")), read(p, uid="b").union(timed)):
        error = refusal(lambda union=union: union.group_by("carrier").window(tumbling("1 h")))  # type: ignore[misc]
        assert "different event-time columns" in error.cause


@pytest.mark.parametrize("column", ["carrier", "seats", "dep_delay"])
def test_a_watermark_needs_a_time_column(column: str, flights: Stream) -> None:
    assert "cannot be event time" in refusal(lambda: flights.with_watermark(column, "0 s")).what


def test_an_integer_event_time_without_unit_is_refused(flights: Stream) -> None:
    assert 'unit="ms"' in refusal(lambda: flights.with_watermark("ts", "0 s")).remedy


def test_a_wrong_unit_is_refused(flights: Stream) -> None:
    assert "unit='minutes' is unknown" in refusal(lambda: flights.with_watermark("ts", "0 s", unit="minutes")).what  # type: ignore[arg-type]
    assert "Remove unit=" in refusal(lambda: flights.with_watermark("time", "0 s", unit="ms")).remedy


@pytest.mark.parametrize("delay", ["1 hours ago", 5, "-1 s", None], ids=str)
def test_a_delay_that_is_no_duration_is_refused(delay: Any, flights: Stream) -> None:
    what = refusal(lambda: flights.with_watermark("time", delay)).what
    assert what in (f"delay={delay!r} is not a duration", f"delay={delay!r} is negative")


def test_a_window_that_is_no_duration_or_empty_is_refused() -> None:
    assert "size='daily' is not a duration" in refusal(lambda: tumbling("daily")).what
    assert "offset='x' is not a duration" in refusal(lambda: tumbling("1 day", offset="x")).what
    assert "empty" in refusal(lambda: tumbling("0 s")).what


def test_a_window_is_over_event_time_or_over_the_clocks_whole_milliseconds() -> None:
    assert 'time="event"' in refusal(lambda: tumbling("1 min", time="procesing")).remedy  # type: ignore[arg-type]
    for size, offset in (("1500 us", None), ("1 ms", "10 us")):
        assert "whole milliseconds" in refusal(lambda s=size, o=offset: tumbling(s, o, time="processing")).cause  # type: ignore[misc]
    assert tumbling("1500 us").size_us == 1500, "event time may be finer"


def test_a_window_over_processing_time_needs_no_event_time(flights: Stream) -> None:
    stream = flights.group_by("carrier").window(tumbling("1 h", time="processing")).agg(n=count(), uid="hourly")
    assert stream.schema.names == ["carrier", "window_start", "window_end", "n"]
    error = refusal(lambda: stream.group_by("carrier").window(tumbling("1 day")))
    assert "gives records of its own" in error.cause or "no with_watermark upstream" in error.cause


def test_a_window_must_be_one(timed: Stream) -> None:
    assert refusal(lambda: timed.group_by("carrier").window("1 day")).remedy == "Write tumbling('1 day')"  # type: ignore[arg-type]


# ---------------------------------------------------------------- keys and aggregates


def test_a_type_that_cannot_be_a_key_is_refused_with_those_that_can(flights: Stream) -> None:
    error = refusal(lambda: flights.group_by("where"))
    assert "cannot be a key" in error.what
    assert "decimals, dates, times" in error.cause
    assert ".with_columns(where=pc.field('where').cast(...))" in error.remedy


def test_a_dictionary_key_comes_out_as_its_values(timed: Stream) -> None:
    stream = timed.group_by("kind", "price").window(tumbling("1 h")).agg(n=count(), uid="hourly")
    assert stream.schema.types[:2] == [pa.string(), pa.decimal128(10, 2)]


@pytest.mark.parametrize(
    ("window", "what"),
    [
        (
            lambda: tidegate.sliding("7 days", "1 day", timezone="Europe/Berlin"),
            "sliding windows do not support a time zone",
        ),
        (lambda: tidegate.sliding("1 month", "1 day"), "a window of 1 month has no fixed length"),
        (lambda: tidegate.sliding("1 h", "0 s"), "a slide of 0 s is not positive"),
        (lambda: tidegate.sliding("1 day", timedelta(microseconds=7_000_001)), "slices"),
        (lambda: tidegate.sliding("1 s", timedelta(microseconds=500), time="processing"), "not in whole milliseconds"),
    ],
)
def test_sliding_windows_that_cannot_be_are_refused(window: Any, what: str) -> None:
    assert what in refusal(window).what


def test_lateness_is_a_duration_of_event_time(timed: Stream) -> None:
    grouped = timed.group_by("carrier")
    assert "not a duration" in refusal(lambda: grouped.window(tumbling("1 h"), allowed_lateness="soon")).what
    by_clock = tumbling("1 h", time="processing")
    assert "do not support lateness" in refusal(lambda: grouped.window(by_clock, allowed_lateness="1 h")).what


def test_keys_must_be_some_and_different(flights: Stream) -> None:
    assert "no key columns" in refusal(flights.group_by).what
    assert "two columns named" in refusal(lambda: flights.group_by("carrier", "carrier")).what


@pytest.mark.parametrize(
    "aggregate",
    [
        tidegate.sum("carrier"),
        tidegate.mean("price"),
        tidegate.sum("time"),
        tidegate.mean("time"),
        tidegate.var("carrier"),
        tidegate.min("where"),
        tidegate.count_distinct("where"),
        tidegate.max_by("time", by="where"),
    ],
    ids=str,
)
def test_an_aggregate_of_a_type_that_does_not_fit_is_refused(aggregate: Any, timed: Stream) -> None:
    windows = timed.group_by("carrier").window(tumbling("1 h"))
    error = refusal(lambda: windows.agg(x=aggregate, uid="w"))
    assert " does not support column " in error.what and " of type " in error.what
    assert error.where.startswith("window 'w' at ")
    assert ".cast(" in error.remedy


@pytest.mark.parametrize("name", ["carrier", "window_start", "window_end"])
def test_an_aggregate_cannot_take_the_name_of_a_key_or_a_bound(name: str, timed: Stream) -> None:
    windows = timed.group_by("carrier").window(tumbling("1 h"))
    assert "two columns named" in refusal(lambda: windows.agg(uid="w", **{name: count()})).what


class NoState(tidegate.ArrowAggregate):
    """Declares nothing."""


class NoResult(tidegate.ArrowAggregate):
    """Declares no result."""

    state = pa.schema([("n", pa.int64())])


@pytest.mark.parametrize(
    ("aggregate", "what"),
    [
        (tidegate.bool_or("carrier"), "bool_or does not support column 'carrier'"),
        (tidegate.top_n("seats", 0), "top_n cannot keep 0 rows"),
        (tidegate.var("seats", ddof=2), "var does not accept ddof=2"),
        (tidegate.max_by("time", by="prise"), "did you mean 'price'"),
        (tidegate.user_aggregate(NoState(), "time"), "NoState does not declare a state"),
        (tidegate.user_aggregate(NoResult(), "time"), "NoResult does not declare a result_type"),
        (tidegate.user_aggregate(NoResult, "time"), "needs an ArrowAggregate"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_an_aggregate_that_says_too_little_is_refused(aggregate: Any, what: str, timed: Stream) -> None:
    windows = timed.group_by("carrier").window(tumbling("1 h"))
    assert what in refusal(lambda: windows.agg(x=aggregate, uid="w")).what


def test_what_is_no_aggregate_is_refused(timed: Stream) -> None:
    windows = timed.group_by("carrier").window(tumbling("1 h"))
    assert "Python's own" in refusal(lambda: windows.agg(x=max, uid="w")).cause  # type: ignore[arg-type]
    assert "agg(...) has no aggregates" in refusal(lambda: windows.agg(uid="w")).what
    assert "needs a column" in refusal(lambda: windows.agg(x=tidegate.sum(None), uid="w")).what  # type: ignore[arg-type]


# ---------------------------------------------------------------- joins and unions


def test_a_join_with_an_unbounded_side_is_refused(p: Pipeline, flights: Stream) -> None:
    endless = read(p, AIRLINES, "airlines")
    assert "unbounded" in refusal(lambda: flights.join(endless.broadcast(), on="carrier", uid="j")).what


@pytest.mark.parametrize(
    ("columns", "on", "says"),
    [
        ({"name": pa.string()}, "carrier", "there is no column 'carrier'"),
        ({"code": pa.string()}, "code", "there is no column 'code'"),
        ({"carrier": pa.large_string()}, "carrier", "large_string on the right"),
        ({"carrier": pa.string(), "seats": pa.int64()}, "carrier", "both sides of the join have a column 'seats'"),
        ({"where": pa.struct([("gate", pa.string())])}, "where", "cannot be a key"),
        ({"carrier": pa.string()}, [], "has no key column"),
        ({"carrier": pa.string()}, ["carrier", "carrier"], "two columns named"),
    ],
    ids=["not right", "not left", "types", "clash", "key type", "no key", "key twice"],
)
def test_a_join_whose_sides_do_not_fit_is_refused(
    columns: dict[str, pa.DataType], on: Any, says: str, p: Pipeline, flights: Stream
) -> None:
    other = read(p, pa.schema(list(columns.items())), "other", rows=1)
    assert says in refusal(lambda: flights.join(other.broadcast(), on=on, uid="j")).what


def test_a_join_keeps_the_name_of_its_own_column_in_its_state(p: Pipeline) -> None:
    mine = read(p, pa.schema([("k", pa.int64()), ("__owner", pa.int64())]), "mine")
    names = read(p, pa.schema([("k", pa.int64()), ("name", pa.string())]), "names", rows=1).broadcast()
    assert "'__owner'" in refusal(lambda: mine.join(names, on="k", uid="j")).what


def test_another_kind_of_join_is_refused(p: Pipeline, flights: Stream) -> None:
    other = read(p, AIRLINES, "airlines", rows=1).broadcast()
    assert "'full'" in refusal(lambda: flights.join(other, "carrier", "full", uid="j")).what


def test_streams_of_two_pipelines_do_not_meet(flights: Stream) -> None:
    other = read(Pipeline(), uid="other", rows=1)
    assert "two pipelines" in refusal(lambda: flights.union(other)).what
    names = read(Pipeline(), AIRLINES, "airlines", rows=1).broadcast()
    assert "two pipelines" in refusal(lambda: flights.join(names, on="carrier", uid="j")).what


def test_a_union_of_other_columns_or_types_is_refused(p: Pipeline, flights: Stream) -> None:
    one = read(p, pa.schema([("a", pa.int64())]), "one")
    more = read(p, pa.schema([("a", pa.int64()), ("b", pa.int64())]), "more")
    text = read(p, pa.schema([("a", pa.string())]), "text")
    assert "'b' is only in the other stream" in refusal(lambda: one.union(more)).what
    assert "'b' is only in the first stream" in refusal(lambda: more.union(one)).what
    assert "int64 in the first stream of the union, but string" in refusal(lambda: one.union(text)).what
    assert "union(...) has no other stream" in refusal(one.union).what
    assert "the other stream must be a stream" in refusal(lambda: one.union("text")).what  # type: ignore[arg-type]


# ---------------------------------------------------------------- ends


def test_a_pipeline_without_sink_is_refused(p: Pipeline, flights: Stream) -> None:
    assert refusal(p.build).what == "the pipeline has no sink"
    with pytest.raises(PipelineError, match="the pipeline has no sink"):
        Pipeline().build()


def test_records_that_go_nowhere_are_refused(p: Pipeline, flights: Stream) -> None:
    flights.write(Discard(), uid="out")
    flights.filter(pc.field("seats") > 0)
    error = refusal(p.build)
    assert error.what == "no operator or sink reads the records of the filter"
    assert error.where is not None and error.where.startswith("filter 'flights.filter' at "), "it has no uid of its own"


@pytest.mark.parametrize("given", ["data/*.parquet", None], ids=str)
def test_what_is_no_source_or_sink_is_refused(given: Any, p: Pipeline, flights: Stream) -> None:
    assert "must be a source" in refusal(lambda: p.read(given, uid="x")).what
    assert "the argument of write(...) must be a sink" in refusal(lambda: flights.write(given, uid="x")).what


def test_what_a_source_says_comes_with_the_place_of_the_read(p: Pipeline) -> None:
    class Missing(DataGen):
        def schema(self) -> pa.Schema:
            raise PipelineError("there is no file", where="/data/x", cause="typo", remedy="Look again")

    error = refusal(lambda: p.read(Missing(nothing, SCHEMA), uid="flights"))
    assert error.where.startswith("/data/x, source 'flights' at ")
    assert (error.what, error.cause, error.remedy) == ("there is no file", "typo", "Look again")


@pytest.mark.parametrize(
    "schema", [pa.schema([]), pa.schema([("a", pa.int8()), ("a", pa.int8())])], ids=["none", "twice"]
)
def test_a_source_needs_columns_of_different_names(schema: pa.Schema, p: Pipeline) -> None:
    class Odd(DataGen):
        def schema(self) -> pa.Schema:
            return schema

    assert "column" in refusal(lambda: p.read(Odd(nothing, SCHEMA), uid="odd")).what


def test_a_map_needs_a_function_and_a_schema(flights: Stream) -> None:
    assert "must be a function" in refusal(lambda: flights.map_in_arrow(None, SCHEMA)).what  # type: ignore[arg-type]
    assert "must be a pyarrow.Schema" in refusal(lambda: flights.map_in_arrow(iter, {"a": 1})).what
    twice = pa.schema([("a", pa.int8()), ("a", pa.int8())])
    assert "two columns named 'a'" in refusal(lambda: flights.map_in_arrow(iter, twice)).what


class Counts(KeyedProcess):
    states = (value_state("count", {"n": pa.int64()}),)

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        raise AssertionError("a pipeline runs nothing while it is built")


def of_states(*states: Any) -> KeyedProcess:
    process = Counts()
    process.states = states
    return process


@pytest.mark.parametrize(
    ("process", "what"),
    [
        (Counts, "but is the class Counts"),
        (lambda rows, ctx: None, "but is function"),
        (KeyedProcess(), "has no method process"),
        (of_states(value_state("a", {"n": pa.int64()}), value_state("a", {"m": pa.int64()})), "two states named 'a'"),
        (of_states("count"), "must hold states only, but holds 'count'"),
    ],
    ids=["class", "function", "empty", "twice", "text"],
)
def test_a_process_that_is_none_is_refused_where_it_is_given(process: Any, what: str, flights: Stream) -> None:
    """S5.1."""
    error = refusal(lambda: flights.group_by("carrier").process(process, schema=AIRLINES, uid="p"))
    assert what in error.what and "process 'p' at" in error.where


def test_a_process_needs_a_uid_and_a_schema(flights: Stream) -> None:
    grouped = flights.group_by("carrier")
    assert "no uid" in refusal(lambda: grouped.process(Counts(), schema=AIRLINES)).what
    assert "must be a pyarrow.Schema" in refusal(lambda: grouped.process(Counts(), schema="name", uid="p")).what  # type: ignore


def test_a_process_without_group_by_is_refused_with_the_call_that_is_missing(flights: Stream) -> None:
    """S5.1: state of its kind is kept by key."""
    assert "group_by" in refusal(lambda: flights.process(Counts(), schema=AIRLINES, uid="p")).remedy


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: value_state("a:b", {"n": pa.int64()}), "is not a valid name of a state"),
        (lambda: value_state("a", {}), "must not be empty"),
        (lambda: value_state("a", {"n": "whole number"}), "must be names and types"),
        (lambda: value_state("a", [("n", pa.int64()), ("n", pa.int64())]), "two columns named 'n'"),
        (lambda: value_state("a", {"n": pa.dictionary(pa.int8(), pa.string())}), "cannot be part of a state"),
        (lambda: value_state("a", {"n": pa.list_(pa.dictionary(pa.int8(), pa.string()))}), "which contains dictionary"),
        (
            lambda: list_state("a", {"n": pa.struct([("m", pa.list_(pa.null()))])}),
            "which contains null, cannot be part",
        ),
        (
            lambda: map_state("a", {"k": pa.int64()}, {"n": pa.map_(pa.struct([]), pa.string())}),
            "which contains struct<>",
        ),
        (
            lambda: value_state("a", {"n": pa.list_(pa.int64(), 2)}),
            "'n' of type fixed_size_list<item: int64>[2] cannot",
        ),
        (lambda: value_state("a", {"n": pa.binary(0)}), "'n' of type fixed_size_binary[0] cannot"),
        (lambda: map_state("a", {"k": pa.binary(0)}, {"n": pa.int64()}), "'k' of type fixed_size_binary[0] cannot"),
        (lambda: value_state("a", {"n": pa.int64()}, ttl=5), "not a duration"),
        (lambda: value_state("a", {"n": pa.int64()}, ttl="0 s"), "ttl='0 s' is too short"),
        (lambda: value_state("a", {"n": pa.int64()}, ttl_on_read=True), "there is no ttl"),
        (lambda: value_state("a", {"n": pa.int64()}, renamed={"m": "o"}), "renamed contains 'o'"),
        (lambda: map_state("a", {"k": pa.list_(pa.int64())}, {"n": pa.int64()}), "cannot be part of a map key"),
        (lambda: map_state("a", {"n": pa.int64()}, {"n": pa.int64()}), "two columns named 'n'"),
        (lambda: reducing_state("a", {"n": "summ"}), "did you mean 'sum'"),
        (lambda: reducing_state("a", "sum"), "must be a dict with at least one column"),
        (
            lambda: reducing_state("a", {"n": ("sum", pa.decimal128(10, 2))}),
            "'n' of type decimal128(10, 2) does not support 'sum'",
        ),
        (lambda: reducing_state("a", {"n": ("sum", pa.timestamp("us"))}), "does not support 'sum'"),
        (lambda: reducing_state("a", {"n": ("sum", pa.string())}), "'n' of type string does not support 'sum'"),
        (lambda: reducing_state("a", {"n": ("min", pa.list_(pa.int64()))}), "does not support 'min'"),
        (lambda: reducing_state("a", {"n": ("max", pa.float16())}), "does not support 'max'"),
        (lambda: reducing_state("a", {"n": ("max", pa.bool_())}), "does not support 'max'"),
        (lambda: reducing_state("a", {"n": ("first", pa.decimal64(10, 2))}), "does not support 'first'"),
        (lambda: tidegate.aggregating_state("a", {"n": pa.int64()}, "sum"), "merge must be a function"),
    ],
)
def test_a_state_that_cannot_be_is_refused_where_it_is_declared(call: Callable[[], object], what: str) -> None:
    assert what in refusal(call).what


def test_what_cannot_be_reduced_can_be_aggregated() -> None:
    error = refusal(lambda: reducing_state("a", {"n": ("sum", pa.decimal128(10, 2))}))
    assert "integers, floats and booleans" in error.cause and "aggregating_state" in error.remedy


@pytest.mark.parametrize(
    ("reduction", "type_"),
    [
        ("sum", pa.bool_()),
        ("sum", pa.float16()),
        ("min", pa.decimal128(10, 2)),
        ("max", pa.timestamp("us", "UTC")),
        ("max", pa.string()),
        ("first", pa.list_(pa.int64())),
        ("count", pa.decimal32(5, 2)),
    ],
)
def test_what_both_back_ends_reduce_can_be_declared(reduction: Any, type_: pa.DataType) -> None:
    assert reducing_state("a", {"n": (reduction, type_)}).columns.field("n").type == type_


def test_the_plan_tells_a_process_with_its_keys_and_states(flights: Stream, p: Pipeline) -> None:
    flights.group_by("carrier").process(Counts(), schema=AIRLINES, uid="p").write(Discard(), uid="out")
    assert "process Counts by carrier: count (value)" in p.explain()


def test_a_side_output_that_is_not_declared_names_those_that_are(timed: Stream) -> None:
    results = timed.group_by("carrier").window(tumbling("1 day")).agg(n=count(), uid="daily")
    error = refusal(lambda: results.side_output("lates"))
    assert "'lates'" in error.what and "'late'" in error.cause and "'daily'" in error.cause
    error = refusal(lambda: timed.side_output("late"))
    assert error.cause.endswith("has none")
    error = refusal(lambda: results.filter(pc.field("n") > 1).side_output("late"))
    assert "Call side_output directly" in error.remedy


@pytest.mark.parametrize(
    ("declared", "what"),
    [
        (["bad"], "side_outputs must be a dict of names and schemas, but is a list"),
        ({"main": AIRLINES}, "'main' is not a valid name"),
        ({"a b": AIRLINES}, "'a b' is not a valid name"),
        ({"bad": {"line": "string"}}, "the schema of side output 'bad' must be a pyarrow.Schema, but is a dict"),
        ({"bad": pa.schema([("a", pa.int8()), ("a", pa.int8())])}, "'a'"),
    ],
)
def test_side_outputs_that_cannot_be_declared_are_refused(flights: Stream, declared: Any, what: str) -> None:
    error = refusal(lambda: flights.map_in_arrow(lambda b: b, AIRLINES, side_outputs=declared))
    assert what in error.what


def test_a_main_output_that_goes_nowhere_is_refused_though_a_side_output_is_read(p: Pipeline, timed: Stream) -> None:
    results = timed.group_by("carrier").window(tumbling("1 day")).agg(n=count(), uid="daily")
    results.side_output("late").write(Discard(), uid="late")
    error = refusal(lambda: p.build())
    assert error.what == "no operator or sink reads the records of the window"
    results.write(Discard(), uid="out")
    nodes = {node.uid: node for node in p.build().nodes}
    assert nodes["daily.late"].schema == timed.schema and nodes["daily.late"].kind == "side_output"


def test_exchanges_refuse_what_they_cannot_route_by(flights: Stream) -> None:
    assert ".rebalance()" in refusal(lambda: flights.repartition()).remedy
    assert "did you mean 'carrier'" in refusal(lambda: flights.repartition("carier")).what
    assert "cannot be a key" in refusal(lambda: flights.repartition("where")).what
    assert "two columns named 'carrier'" in refusal(lambda: flights.repartition("carrier", "carrier")).what
    assert 'repartition("k")' in refusal(lambda: flights.partition_by("carrier")).remedy  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"uid": None}, "the map_async has no uid"),
        ({"fn": "fetch"}, "the argument of map_async(...) must be a function, but is a str"),
        (
            {"schema": None},
            "schema= of map_async must be a pyarrow.Schema",
        ),
        ({"capacity": 0}, "capacity must be an integer above 0, but is 0"),
        ({"batch_rows": 2.5}, "batch_rows must be an integer above 0, but is 2.5"),
        ({"timeout": 10}, "timeout=10 is not a duration"),
        ({"timeout": "0 s"}, "timeout='0 s' is too short"),
        ({"on_timeout": "drop"}, "on_timeout='drop' is not supported"),
        ({"on_timeout": "side_output", "side_outputs": {"timed_out": AIRLINES}}, "two columns named 'timed_out'"),
    ],
)
def test_asynchronous_calls_that_cannot_be_made_are_refused(flights: Stream, given: dict[str, Any], what: str) -> None:
    call: dict[str, Any] = {"fn": lambda batch: batch, "schema": AIRLINES, "uid": "fetch", **given}
    assert what in refusal(lambda: flights.map_async(**call)).what


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"idle_after": 5}, "idle_after=5 is not a duration"),
        ({"idle_after": "0 s"}, "idle_after='0 s' is not positive"),
        ({"group": "g"}, "group and max_drift must be set together"),
        ({"max_drift": "1 s"}, "group and max_drift must be set together"),
        ({"group": "a b", "max_drift": "1 s"}, "'a b' is not a valid name of an alignment group"),
        ({"group": "g", "max_drift": "0 s"}, "max_drift='0 s' is not positive"),
    ],
)
def test_idleness_and_alignment_that_mean_nothing_are_refused(
    flights: Stream, given: dict[str, Any], what: str
) -> None:
    assert what in refusal(lambda: flights.with_watermark("time", "0 s", **given)).what


def test_a_watermark_that_cannot_pause_its_source_cannot_align(p: Pipeline, flights: Stream) -> None:
    flights.filter(pc.field("seats") > 0).write(Discard(), uid="raw")
    flights.with_watermark("time", "0 s", group="g", max_drift="1 s").write(Discard(), uid="out")
    error = refusal(lambda: make_execution_plan(p.build(), 2, 128))
    assert "group 'g' does not follow its source" in error.what


@pytest.mark.parametrize("name", ["localtime", "Factory", "Europe/Berlinn"])
def test_a_time_zone_that_is_none_everywhere_is_refused(name: str) -> None:
    with pytest.raises(PipelineError, match="the time zone .* is unknown"):
        tumbling("1 day", timezone=name)
