"""`join` of two streams: what it gives, and each mistake with its place, cause and remedy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate import DataGen, Pipeline, Stream, count, session, sliding, tumbling
from tidegate.errors import PipelineError
from tidegate.operators.joins.join_specs import IntervalMatch, SessionMatch, StreamJoinSpec, WindowMatch

ORDERS = pa.schema(
    [
        pa.field("order", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us"), nullable=False),
        pa.field("country", pa.dictionary(pa.int8(), pa.string())),
    ]
)
PAYMENTS = pa.schema(
    [
        pa.field("order", pa.int64()),
        pa.field("ms", pa.int64(), nullable=False),
        pa.field("amount", pa.float64(), nullable=False),
        pa.field("country", pa.string()),
    ]
)


def read(p: Pipeline, schema: pa.Schema, uid: str, rows: int | None = None) -> Stream:
    return p.read(DataGen(lambda n: {}, schema, rows=rows), uid=uid)


@pytest.fixture
def orders(p: Pipeline) -> Stream:
    return read(p, ORDERS, "orders").with_watermark("time", "0 s")


@pytest.fixture
def payments(p: Pipeline) -> Stream:
    return read(p, PAYMENTS, "payments").with_watermark("ms", "0 s", unit="ms")


def spec_of(stream: Stream) -> StreamJoinSpec:
    spec = stream._draft._nodes[stream._node_id].spec
    assert isinstance(spec, StreamJoinSpec)
    return spec


def refusal(call: Callable[[], Any]) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        call()
    assert caught.value.where and caught.value.remedy and __file__ in caught.value.where
    return caught.value


def shown(stream: Stream) -> list[str]:
    return [f"{f.name} {f.type}{'' if f.nullable else ' not null'}" for f in stream.schema]


def test_an_inner_join_gives_the_columns_of_both_and_the_keys_once(orders: Stream, payments: Stream) -> None:
    joined = orders.join(payments, on="order", between=("0 s", "1 h"), suffix="_paid", uid="j")
    assert shown(joined) == [
        "order int64 not null",
        "time timestamp[us] not null",
        "country string",
        "ms int64 not null",
        "amount double not null",
        "country_paid string",
    ]
    assert not joined.bounded
    edges = joined._draft._nodes[joined._node_id].inputs
    assert [(e.exchange, e.keys) for e in edges] == [("hash", ("order",))] * 2


@pytest.mark.parametrize(
    ("how", "not_null"),
    [
        ("inner", {"order", "time", "ms", "amount"}),
        ("left", {"order", "time"}),
        ("right", {"ms", "amount"}),
        ("full", set()),
    ],
)
def test_columns_of_a_side_that_may_be_missing_are_nullable(
    orders: Stream, payments: Stream, how: Any, not_null: set[str]
) -> None:
    joined = orders.join(payments, "order", how, between=("0 s", "1 h"), suffix="_p", uid="j")
    assert {f.name for f in joined.schema if not f.nullable} == not_null


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_semi_and_anti_joins_give_the_columns_of_this_stream(orders: Stream, payments: Stream, how: Any) -> None:
    joined = orders.join(payments, "order", how, ttl="1 day", suffix="_p", uid="j")
    assert joined.schema.names == ORDERS.names
    windowed = orders.join(payments, "order", how, window=tumbling("1 h"), suffix="_p", uid="w")
    assert windowed.schema.names == [*ORDERS.names, "window_start", "window_end"]


def test_keys_of_different_names_both_stay(orders: Stream, p: Pipeline) -> None:
    parcels = read(p, pa.schema([("of", pa.int64()), ("t", pa.timestamp("s"))]), "parcels").with_watermark("t", "0 s")
    joined = orders.join(parcels, left_on="order", right_on="of", between=("0 s", "9 days"), uid="j")
    assert joined.schema.names == [*ORDERS.names, "of", "t"]
    assert spec_of(joined).describe() == "inner join on order = of between 0 s and 777600 s"


def test_keys_that_differ_as_a_dictionary_from_its_values_are_compared(orders: Stream, payments: Stream) -> None:
    joined = orders.join(payments, on=["order", "country"], between=("0 s", "1 h"), uid="j")
    assert joined.schema.names == ["order", "time", "country", "ms", "amount"]


@pytest.mark.parametrize(
    ("arguments", "bounds"),
    [
        ({"between": ("-5 min", "10 min")}, IntervalMatch(-300_000_000, 600_000_000)),
        ({"between": ("- 5 s", "+1 s")}, IntervalMatch(-5_000_000, 1_000_000)),
        ({"between": (timedelta(seconds=-2), timedelta(0))}, IntervalMatch(-2_000_000, 0)),
        ({"ttl": "1 day"}, IntervalMatch(-86_400_000_000, 86_400_000_000)),
        ({"window": tumbling("1 h", "5 min")}, WindowMatch(3_600_000_000, 3_600_000_000, 300_000_000)),
        ({}, None),
    ],
)
def test_bounds_on_times_are_taken_as_they_are_written(
    orders: Stream, payments: Stream, arguments: Any, bounds: Any
) -> None:
    assert spec_of(orders.join(payments, on="order", suffix="_p", uid="j", **arguments)).bounds == bounds


@pytest.mark.parametrize(("how", "column"), [("inner", "time"), ("left", "time"), ("semi", "time"), ("right", "ms")])
def test_event_time_is_that_of_the_side_whose_rows_are_always_there(
    orders: Stream, payments: Stream, how: Any, column: str
) -> None:
    joined = orders.join(payments, "order", how, between=("0 s", "1 h"), suffix="_p", uid="j")
    assert joined._event_time.column == column
    assert joined.group_by("order").window(tumbling("1 h")).agg(n=count(), uid="w").schema.names[0] == "order"


@pytest.mark.parametrize(
    ("how", "arguments", "why"),
    [("full", {"ttl": "1 h"}, "either side may be missing"), ("inner", {}, "whenever their match arrives")],
)
def test_other_joins_have_no_event_time_and_a_window_says_why(
    orders: Stream, payments: Stream, how: Any, arguments: Any, why: str
) -> None:
    joined = orders.join(payments, "order", how, suffix="_p", uid="j", **arguments)
    assert why in refusal(lambda: joined.group_by("order").window(tumbling("1 h"))).cause


def test_a_join_is_bounded_when_both_sides_are(p: Pipeline) -> None:
    schema = pa.schema([("k", pa.int64())])
    one, two, endless = read(p, schema, "one", 1), read(p, schema, "two", 1), read(p, schema, "endless")
    assert one.join(two, "k", uid="a").bounded and not one.join(endless, "k", uid="b").bounded


CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "no keys": ({"on": None}, "missing or incomplete"),
    "half of the keys": ({"on": None, "left_on": "order"}, "missing or incomplete"),
    "keys twice": ({"left_on": "order", "right_on": "order"}, "both on and left_on or right_on"),
    "unequal keys": ({"on": None, "left_on": ["order"], "right_on": ["order", "country"]}, "1 key columns"),
    "missing": ({"on": "ordr"}, "no column 'ordr', did you mean 'order'?"),
    "types": ({"on": None, "left_on": "order", "right_on": "country"}, "'order' is int64 on the left"),
    "key twice": ({"on": ["order", "order"]}, "two columns named"),
    "kind": ({"how": "outer"}, "join does not support how='outer', did you mean 'full'?"),
    "clash": ({"suffix": None}, "both sides of the join have a column 'country'"),
    "suffix": ({"suffix": 3}, "suffix must be a string, but is 3"),
    "two bounds": ({"ttl": "1 h"}, "one bound on times, but the call has between and ttl"),
    "no pair": ({"between": "1 h"}, "must be a pair of durations"),
    "turned round": ({"between": ("1 h", "-1 h")}, "between=('1 h', '-1 h') contains no time"),
    "no duration": ({"between": (1, 2)}, "between=1 is not a duration"),
    "negative ttl": ({"between": None, "ttl": "-1 h"}, "ttl='-1 h' is not positive"),
    "no window": ({"between": None, "window": "1 h"}, "window= must be a window"),
    "clock": ({"between": None, "window": tumbling("1 h", time="processing")}, "windows over event time only"),
    "no condition": ({"where": pc.field("amount")}, "true or false"),
    "unknown column": ({"where": pc.field("amont") > 3}, "did you mean 'amount'?"),
    "no uid": ({"uid": None}, "no uid"),
    "renamed": ({"renamed": {"old": "new"}}, "renamed contains 'new'"),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_does_not_fit_is_refused(orders: Stream, payments: Stream, case: str) -> None:
    arguments, says = CALLS[case]
    plain: dict[str, Any] = {"on": "order", "between": ("0 s", "1 h"), "suffix": "_paid", "uid": "j"}
    assert says in refusal(lambda: orders.join(payments, **{**plain, **arguments})).what


@pytest.mark.parametrize("bound", [{"between": ("0 s", "1 h")}, {"ttl": "1 h"}, {"window": tumbling("1 h")}])
def test_bounds_on_times_need_event_time_on_both_sides(p: Pipeline, orders: Stream, bound: Any) -> None:
    timeless = read(p, pa.schema([("order", pa.int64())]), "timeless")
    error = refusal(lambda: orders.join(timeless, "order", uid="j", **bound))
    assert "the join has no event time" in error.what and "right side" in error.where
    assert "left side" in refusal(lambda: timeless.join(orders, "order", uid="j", **bound)).where


@pytest.mark.parametrize(
    ("how", "bounded", "refused"),
    [
        ("left", (False, True), None),
        ("left", (True, False), "right"),
        ("anti", (True, False), "right"),
        ("right", (True, False), None),
        ("right", (False, True), "left"),
        ("full", (True, True), None),
        ("full", (True, False), "right"),
        ("inner", (False, False), None),
        ("semi", (False, False), None),
    ],
)
def test_rows_that_would_wait_for_ever_are_refused(p: Pipeline, how: Any, bounded: Any, refused: str | None) -> None:
    schema = pa.schema([("k", pa.int64())])
    left, right = (read(p, schema, uid, 1 if ends else None) for uid, ends in zip(("a", "b"), bounded))
    if refused is None:
        assert left.join(right, "k", how, uid="j").schema.names == ["k"]
        return
    error = refusal(lambda: left.join(right, "k", how, uid="j"))
    assert f"needs a bounded {refused} side" in error.what and "ttl=" in error.remedy


def test_windows_may_slide_or_be_sessions_but_not_of_the_clock(orders: Stream, payments: Stream) -> None:
    joined = orders.join(payments, "order", window=sliding("60 s", "20 s", "5 s"), suffix="_p", uid="j")
    assert spec_of(joined).bounds == WindowMatch(60_000_000, 20_000_000, 5_000_000)
    call: dict[str, Any] = {"on": "order", "suffix": "_p", "uid": "s"}
    together = orders.join(payments, window=session("5 min"), **call)
    assert spec_of(together).bounds == SessionMatch(300_000_000)
    assert together.schema.names[-2:] == ["window_start", "window_end"] and together._event_time.column == "time"
    error = refusal(lambda: orders.join(payments, window=session("5 min", time="processing"), **call))
    assert "over event time only" in error.what
    assert 'session("30 min")' in refusal(lambda: orders.join(payments, window=3, **call)).remedy


def test_a_key_of_the_name_that_the_state_uses_is_refused(p: Pipeline) -> None:
    schema = pa.schema([("span_start_us", pa.int64()), ("t", pa.timestamp("us"))])
    left, right = (read(p, schema, uid).with_watermark("t", "0 s") for uid in "ab")
    call = {"on": "span_start_us", "suffix": "_r", "uid": "j"}
    assert "'span_start_us'" in refusal(lambda: left.join(right, ttl="1 s", **call)).what  # type: ignore[arg-type]


def test_a_broadcast_side_takes_no_bounds(p: Pipeline, orders: Stream) -> None:
    names = read(p, pa.schema([("order", pa.int64()), ("name", pa.string())]), "names", 1).broadcast()
    assert "does not support ttl" in refusal(lambda: orders.join(names, on="order", ttl="1 h", uid="j")).what


def test_columns_that_no_state_keeps_are_refused(p: Pipeline) -> None:
    odd = pa.schema([("k", pa.int64()), ("v", pa.list_(pa.dictionary(pa.int8(), pa.string())))])
    left, right = read(p, odd, "a"), read(p, pa.schema([("k", pa.int64())]), "b")
    assert "cannot be part of a state" in refusal(lambda: left.join(right, "k", uid="j")).what


def test_a_join_as_of_a_time_gives_the_version_beside_the_row(orders: Stream, payments: Stream) -> None:
    joined = orders.join_as_of(payments, "order", "left", tolerance="1 h", suffix="_v", uid="j")
    assert joined.schema.names == [*ORDERS.names, "ms", "amount", "country_v"]
    assert {f.name for f in joined.schema if not f.nullable} == {"order", "time"}
    assert joined._event_time.column == "time"
    assert spec_of(joined).describe() == "left join as of time within 3600 s on order"


AS_OF: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"how": "full"}, "does not support how='full'"),
    "tolerance": ({"tolerance": "-1 s"}, "tolerance='-1 s' is negative"),
    "no duration": ({"tolerance": 3}, "tolerance=3 is not a duration"),
    "clash": ({"suffix": None}, "both sides of the join have a column 'country'"),
    "no keys": ({"on": None}, "missing or incomplete"),
    "no uid": ({"uid": None}, "no uid"),
}


@pytest.mark.parametrize("case", AS_OF)
def test_what_does_not_fit_as_of_a_time_is_refused(orders: Stream, payments: Stream, case: str) -> None:
    arguments, says = AS_OF[case]
    plain: dict[str, Any] = {"on": "order", "suffix": "_paid", "uid": "j"}
    assert says in refusal(lambda: orders.join_as_of(payments, **{**plain, **arguments})).what


def test_a_join_as_of_a_time_needs_event_time_on_both_sides_and_no_broadcast(p: Pipeline, orders: Stream) -> None:
    timeless = read(p, pa.schema([("order", pa.int64())]), "timeless", 1)
    assert "right side" in refusal(lambda: orders.join_as_of(timeless, "order", uid="j")).where
    assert (
        "does not support a broadcast side"
        in refusal(lambda: orders.join_as_of(timeless.broadcast(), "order", uid="j")).what
    )


@pytest.mark.parametrize(
    ("how", "names"),
    [
        ("inner", ["order", "time", "country", "code", "country_name"]),
        ("left", ["order", "time", "country", "code", "country_name"]),
        ("semi", ["order", "time", "country"]),
        ("anti", ["order", "time", "country"]),
    ],
)
def test_a_broadcast_join_takes_keys_of_other_names_a_suffix_and_a_condition(
    p: Pipeline, orders: Stream, how: Any, names: list[str]
) -> None:
    countries = read(p, pa.schema([("code", pa.string()), ("country", pa.string())]), "countries", 1).broadcast()
    where = pc.field("country_name") > "A"
    joined = orders.join(countries, how=how, left_on="country", right_on="code", suffix="_name", where=where, uid="j")
    assert joined.schema.names == names
    assert joined._event_time.column == "time"
    text = joined._draft._nodes[joined._node_id].spec.describe()  # type: ignore[union-attr]
    assert text == f'{how} broadcast join on country = code where (country_name > "A")'


def test_a_broadcast_join_that_gives_no_columns_of_the_other_side_refuses_none(p: Pipeline, orders: Stream) -> None:
    payments = read(p, PAYMENTS, "payments", 1).broadcast()
    assert orders.join(payments, on="order", how="anti", uid="j").schema.names == ORDERS.names
