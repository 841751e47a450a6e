"""Processes in a pipeline: what is drawn, and each mistake as one PipelineError with the line of the user's file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate import (
    BroadcastProcess,
    CoProcess,
    DataGen,
    Discard,
    KeyedBroadcastProcess,
    KeyedCoProcess,
    KeyedProcess,
    Pipeline,
    Process,
    Stream,
    broadcast_state,
    keyed_raw_state,
    operator_list_state,
    raw_state,
    tumbling,
    union_list_state,
    value_state,
)
from tidegate.errors import PipelineError
from tidegate.plan.execution_plan import make_execution_plan

ORDERS = pa.schema([("time", pa.timestamp("us")), ("order", pa.int64()), ("kind", pa.string())])
PAID = pa.schema([("paid_at", pa.timestamp("us")), ("order_id", pa.int64()), ("order", pa.string())])
RULES = pa.schema([("kind", pa.string()), ("limit", pa.int64())])
LIST = operator_list_state("rows", {"n": pa.int64()})
VALUE = value_state("count", {"n": pa.int64()})


def read(p: Pipeline, schema: pa.Schema, uid: str) -> Stream:
    return p.read(DataGen(lambda n: {}, schema), uid=uid)


@pytest.fixture
def orders(p: Pipeline) -> Stream:
    return read(p, ORDERS, "orders")


@pytest.fixture
def paid(p: Pipeline) -> Stream:
    return read(p, PAID, "paid")


@pytest.fixture
def rules(p: Pipeline) -> Stream:
    return read(p, RULES, "rules")


def refusal(call: Callable[[], object]) -> PipelineError:
    """The error that `call` raises; it must name this file and a remedy."""
    with pytest.raises(PipelineError) as caught:
        call()
    assert "test_process_errors.py:" in caught.value.where, str(caught.value)
    assert caught.value.remedy
    return caught.value


def made(base: Any, *methods: str, **attributes: Any) -> Any:
    """An instance of a subclass that has these methods."""
    return type("Made", (base,), {**{method: lambda *a: None for method in methods}, **attributes})()


ONE = made(Process, "process")
TWO = made(CoProcess, "process_left", "process_right")
TWO_KEYED = made(KeyedCoProcess, "process_left", "process_right")
RULED = made(BroadcastProcess, "process", "process_broadcast")
RULED_KEYED = made(KeyedBroadcastProcess, "process", "process_broadcast")
KEYED = made(KeyedProcess, "process")
ALL = (ONE, KEYED, TWO, TWO_KEYED, RULED, RULED_KEYED)


def calls(orders: Stream, paid: Stream, rules: Stream) -> dict[int, Any]:
    """What takes each of ALL."""
    return {
        0: orders,
        1: orders.group_by("order"),
        2: orders.connect(paid),
        3: orders.connect(paid).group_by("order", right="order_id"),
        4: orders.connect(rules.broadcast()),
        5: orders.connect(rules.broadcast()).group_by("kind"),
    }


@pytest.mark.parametrize("given", range(6))
@pytest.mark.parametrize("place", range(6))
def test_each_call_takes_its_own_kind_of_process_and_says_where_others_go(
    given: int, place: int, orders: Stream, paid: Stream, rules: Stream
) -> None:
    """S5.1."""
    target = calls(orders, paid, rules)[place]
    if given == place:
        assert target.process(ALL[given], schema=RULES, uid="p").schema == RULES
        return
    error = refusal(lambda: target.process(ALL[given], schema=RULES, uid="p"))
    assert error.what == f"the argument of process(...) must be a {type(ALL[place]).__mro__[1].__name__}, but is Made"
    assert error.remedy.startswith("Write ") and ".process(...)" in error.remedy


@pytest.mark.parametrize("place", range(6))
def test_every_process_needs_a_uid_a_schema_its_methods_and_an_instance(
    place: int, orders: Stream, paid: Stream, rules: Stream
) -> None:
    target, process = calls(orders, paid, rules)[place], ALL[place]
    base = type(process).__mro__[1]
    assert "no uid" in refusal(lambda: target.process(process, schema=RULES)).what
    assert (
        "schema= of process must be a pyarrow.Schema"
        in refusal(lambda: target.process(process, schema=[], uid="p")).what
    )
    assert "has no method process" in refusal(lambda: target.process(base(), schema=RULES, uid="p")).what
    assert "Create an instance" in refusal(lambda: target.process(type(process), schema=RULES, uid="p")).remedy
    assert "Subclass" in refusal(lambda: target.process(lambda rows: rows, schema=RULES, uid="p")).remedy


@pytest.mark.parametrize(
    ("process", "what"),
    [
        (made(Process, "process", states=(VALUE,)), "state 'count' of process Made is kept by key"),
        (
            made(Process, "process", "write_raw", "read_raw", states=(keyed_raw_state("raw"),)),
            "state 'raw' of process Made is kept by key",
        ),
        (made(Process, "process", "on_timers"), "Made has the method on_timers, but the stream has no keys"),
        (made(Process, "process", states=(LIST, LIST)), "two states named 'rows'"),
        (made(Process, "process", states=(raw_state("raw"),)), "declares raw state, but has no method write_raw"),
        (
            made(Process, "process", "write_raw", states=(raw_state("raw"),)),
            "declares raw state, but has no method read_raw",
        ),
        (made(Process, "process", "on_processing_time"), "on_processing_time, but not `every`"),
        (made(Process, "process", every="5 s"), "defines `every`, but not on_processing_time"),
        (made(Process, "process", "on_processing_time", every="soon"), "soon"),
        (made(Process, "process", "on_processing_time", every="0 s"), "too short"),
    ],
    ids=["keyed", "keyed raw", "timers", "twice", "write_raw", "read_raw", "how often", "what", "duration", "zero"],
)
def test_what_a_process_without_keys_cannot_have_is_refused(process: Any, what: str, orders: Stream) -> None:
    """S5.1."""
    error = refusal(lambda: orders.process(process, schema=RULES, uid="p"))
    assert what in error.what and "process 'p' at" in error.where


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: operator_list_state("a:b", {"n": pa.int64()}), "is not a valid name of a state"),
        (lambda: union_list_state("a", {}), "must not be empty"),
        (lambda: operator_list_state("a", {"__owner": pa.int64()}), "has a column '__owner'"),
        (lambda: operator_list_state("a", {"n": pa.int64()}, renamed={"m": "o"}), "renamed contains 'o'"),
        (lambda: broadcast_state("a", {"k": pa.list_(pa.int8())}, {"n": pa.int64()}), "cannot be part of a key"),
        (lambda: broadcast_state("a", {"n": pa.int64()}, {"n": pa.int64()}), "two columns named 'n'"),
        (lambda: raw_state(""), "is not a valid name of a state"),
        (lambda: keyed_raw_state("timers:event"), "is not a valid name of a state"),
        (lambda: union_list_state("rocksdb", {"n": pa.int64()}), "a state cannot be named 'rocksdb'"),
    ],
)
def test_a_state_that_cannot_be_is_refused_where_it_is_declared(call: Callable[[], object], what: str) -> None:
    assert what in refusal(call).what


def test_streams_that_cannot_be_connected_are_refused(orders: Stream, paid: Stream, rules: Stream) -> None:
    elsewhere = read(Pipeline(), PAID, "paid")
    assert "two pipelines" in refusal(lambda: orders.connect(elsewhere)).what
    assert "the other stream must be a stream" in refusal(lambda: orders.connect("paid")).what  # type: ignore[arg-type]
    grouped = paid.group_by("order_id")
    assert "a stream that is not grouped" in refusal(lambda: orders.connect(grouped)).what  # type: ignore[arg-type]
    assert "a stream that is not grouped" in refusal(lambda: orders.group_by("order").connect(paid)).what  # type: ignore
    connected = orders.connect(paid)
    assert "'order' is string on the right" in refusal(lambda: connected.group_by("order")).what
    assert "did you mean 'order_id'" in refusal(lambda: connected.group_by("order", right="order_ids")).what
    assert "2 key columns on the left and 1" in refusal(lambda: connected.group_by("order", "kind", right="order")).what
    assert "no key columns" in refusal(lambda: connected.group_by()).what
    with_rules = orders.connect(rules.broadcast())
    assert "has no keys" in refusal(lambda: with_rules.group_by("kind", right="kind")).what
    other = orders.group_by("order").connect(paid.group_by("order_id"))
    assert other.process(TWO_KEYED, schema=RULES, uid="p").schema == RULES


def test_the_graph_has_an_exchange_for_each_input(p: Pipeline, orders: Stream, paid: Stream, rules: Stream) -> None:
    together = orders.connect(paid).group_by("order", right="order_id").process(TWO_KEYED, schema=ORDERS, uid="co")
    ruled = together.group_by("kind").connect(rules.broadcast()).process(RULED_KEYED, schema=ORDERS, uid="ruled")
    ruled.process(ONE, schema=ORDERS, uid="one").write(Discard(), uid="out")
    graph = p.build()
    edges = {uid: [(e.exchange, e.keys) for e in graph.by_uid(uid).inputs] for uid in ("co", "ruled", "one")}
    assert edges == {
        "co": [("hash", ("order",)), ("hash", ("order_id",))],
        "ruled": [("hash", ("kind",)), ("broadcast", ())],
        "one": [("forward", ())],
    }
    assert [graph.by_uid(uid).kind for uid in edges] == ["co-process", "broadcast-process", "process"]
    assert "process Made by left order, right order_id: no states" in p.explain()
    assert make_execution_plan(graph, 2, 128).digest == make_execution_plan(p.build(), 2, 128).digest


def test_event_time_goes_through_a_process_that_keeps_its_column(orders: Stream, paid: Stream, rules: Stream) -> None:
    """S4.4."""
    timed = orders.with_watermark("time", "0 s")
    timed.process(ONE, schema=ORDERS, uid="a").group_by("kind").window(tumbling("1 h"))
    timed.connect(rules.broadcast()).process(RULED, schema=ORDERS, uid="b").group_by("kind").window(tumbling("1 h"))
    timed.connect(paid).process(TWO, schema=ORDERS, uid="c").group_by("kind").window(tumbling("1 h"))
    lost = timed.process(ONE, schema=RULES, uid="d").group_by("kind")
    assert "dropped or changed by process 'd'" in refusal(lambda: lost.window(tumbling("1 h"))).cause
    paid_too = paid.with_watermark("paid_at", "0 s")
    both = timed.connect(paid_too).process(TWO, schema=ORDERS, uid="e").group_by("kind")
    assert "different event-time columns" in refusal(lambda: both.window(tumbling("1 h"))).cause
    same = paid.select("order_id", time=pc.field("paid_at")).with_watermark("time", "0 s")
    timed.connect(same).process(TWO, schema=ORDERS, uid="f").group_by("kind").window(tumbling("1 h"))


def test_a_broadcast_stream_that_is_unbounded_makes_the_result_unbounded(p: Pipeline, orders: Stream) -> None:
    bounded = p.read(DataGen(lambda n: {}, ORDERS, rows=1), uid="bounded")
    rules = p.read(DataGen(lambda n: {}, RULES, rows=1), uid="few")
    assert bounded.connect(rules.broadcast()).process(RULED, schema=ORDERS, uid="a").bounded
    assert not bounded.connect(orders).process(TWO, schema=ORDERS, uid="b").bounded
