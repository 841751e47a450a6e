"""Aggregates without windows, whole streams, and the best rows of each group: operators and whole jobs (S7.1, S8.2)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders.batches import batch_of
from builders.operators import open_operator
from builders.rescaling import StoredState, rows_by_subtask
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate as td
from tidegate.channel.elements import MAX_WATERMARK
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import PipelineError, SnapshotError
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate, RunningAggSpec
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

GROUPS = 8
INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("different", pa.int64())])
AGGREGATES = (BoundAggregate("n", "count"), BoundAggregate("different", "count_distinct", "v"))
_sinks = itertools.count()


def spec(output: Any) -> RunningAggSpec:
    return RunningAggSpec(("k",), AGGREGATES, INPUT, OUTPUT, output)


def opened(running: RunningAggSpec, subtask: int = 0, parallelism: int = 1) -> Any:
    return open_operator(running, INPUT, subtask=subtask, parallelism=parallelism, max_parallelism=GROUPS)


def batch(rows: list[tuple[int | None, int]]) -> pa.RecordBatch:
    return batch_of(INPUT, rows)


def given_by(out: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for b in out for row in b.to_pylist()]


def test_updates_come_for_the_keys_of_each_batch_with_all_rows_so_far() -> None:
    operator = opened(spec("update"))
    assert given_by(operator.process(batch([(1, 5), (None, 5), (1, 5)]), 0)) == [(1, 2, 1), (None, 1, 1)]
    assert given_by(operator.process(batch([(2, 1), (1, 6)]), 0)) == [(1, 3, 2), (2, 1, 1)]
    assert given_by(operator.on_watermark(MAX_WATERMARK)) == given_by(operator.finish()) == []


def test_final_results_come_once_with_what_comes_after_the_last_watermark() -> None:
    operator = opened(spec("final"))
    assert given_by(operator.process(batch([(1, 5), (2, 5)]), 0)) == []
    assert given_by(operator.on_watermark(7)) == given_by(operator.on_watermark(MAX_WATERMARK)) == []
    assert given_by(operator.process(batch([(2, 6)]), 0)) == []
    assert given_by(operator.finish()) == [(1, 1, 1), (2, 2, 2)]


def test_a_checkpoint_between_the_last_watermark_and_the_end_makes_no_result_come_twice() -> None:
    """S6.2: what comes out in `finish` has come out when the subtask is recorded as ended, and not before."""
    operator = opened(spec("final"))
    list(operator.process(batch([(1, 5), (2, 5)]), 0))
    given = given_by(operator.on_watermark(MAX_WATERMARK))
    again = opened(spec("final"))
    again.restore(operator.snapshot(1)())
    given += given_by(again.on_watermark(MAX_WATERMARK)) + given_by(again.finish())
    assert given == [(1, 1, 1), (2, 1, 1)]


def test_state_of_other_aggregates_is_refused() -> None:
    operator = opened(spec("final"))
    list(operator.process(batch([(1, 5)]), 0))
    other = RunningAggSpec(("k",), AGGREGATES[:1], INPUT, OUTPUT.remove(2), "final")
    with pytest.raises(SnapshotError, match="'groups'.*'count_distinct:different'"):
        opened(other).restore(operator.snapshot(1)())


@settings(deadline=None, max_examples=30)
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=9), max_size=5),
    rescales=st.lists(st.integers(1, 3), min_size=5, max_size=5),
)
def test_the_last_update_of_each_key_is_its_final_result_across_rescales(
    batches: list[list[tuple[int, int]]], rescales: list[int]
) -> None:
    for output in ("update", "final"):
        operators, last = [opened(spec(output))], {}
        for rows, parallelism in zip(batches, rescales, strict=False):
            stored = StoredState.of(operators)
            operators = [opened(spec(output), i, parallelism) for i in range(parallelism)]
            stored.restore(operators, GROUPS)
            for i, part in rows_by_subtask(batch(rows), ["k"], parallelism, GROUPS):  # type: ignore[arg-type]
                last.update({r[0]: r for r in given_by(operators[i].process(part, 0))})
        for operator in operators:
            last.update({r[0]: r for r in given_by(operator.finish())})
        every = [row for rows in batches for row in rows]
        expected = {
            key: (key, sum(k == key for k, _ in every), len({v for k, v in every if k == key}))
            for key in {k for k, _ in every}
        }
        assert last == expected


SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
ROWS = 2000


def numbers(n: Any) -> dict[str, Any]:
    return {"k": n % 7, "v": (n * 7919) % 1009, "ts": pa.array(n).cast(pa.timestamp("ms"))}


def results_of(draw: Callable[[td.Stream], td.Stream], *, crash: bool = True) -> pa.Table:
    """What a job of two subtasks commits; it crashes in the middle and goes on from a checkpoint."""
    sink = f"running-{next(_sinks)}"

    def pipeline() -> td.Pipeline:
        p = td.Pipeline()
        stream = p.read(td.DataGen(numbers, SCHEMA, rows=ROWS, splits=2, batch_rows=64), uid="in")
        draw(stream.with_watermark("ts", "0 s")).write(CollectSink(sink), uid="out")
        return p

    job = InProcessJob(pipeline, {"parallelism": 2})
    run = job.submit()
    if crash:
        run.pump(6)
        run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
        run.pump(3)
        run.crash()
        run = job.rerun()
    assert isinstance(run.to_end(), RunEnded)
    table = collected(sink).table()
    clear_collected(sink)
    return table


def test_rows_without_an_event_time_count_where_it_only_orders_equal_ones() -> None:
    columns = {"by": pa.array([2, 1, 1, 1, 3]), "t": pa.array([1, None, 9, 8, None]), "v": list("abcde")}
    given = pa.record_batch({"k": [0] * 5, **columns})
    aggs = [
        BoundAggregate("least", "min_by", "v", ("by", "t"), orders=2),
        BoundAggregate("best", "top_n", "v", ("by", "t"), 2, 2),
    ]
    aggs += [
        BoundAggregate("worst", "bottom_n", "v", ("by", "t"), 4, 2),
        BoundAggregate("last", "last", "v", ("t",), orders=1),
    ]
    lists = [pa.field(name, pa.list_(pa.string())) for name in ("best", "worst")]
    fields = [pa.field("k", pa.int64()), pa.field("least", pa.string()), *lists, pa.field("last", pa.string())]
    running = RunningAggSpec(("k",), tuple(aggs), given.schema, pa.schema(fields), "update")
    for cuts in ([0, 5], [0, 2, 3, 5]):
        operator = opened(running)
        for first, end in itertools.pairwise(cuts):
            (out,) = operator.process(given.slice(first, end - first), 0)
        expected = {"k": 0, "least": "d", "best": ["e", "a"], "worst": ["d", "c", "b", "a"], "last": "c"}
        assert out.to_pylist() == [expected]


def test_aggregates_of_a_whole_stream_are_put_together_by_one_subtask() -> None:
    values = numbers(np.arange(ROWS))["v"]
    table = results_of(
        lambda s: s.agg(
            output="final", n=td.count(), total=td.sum("v"), spread=td.stddev("v"), last=td.last("k"), uid="a"
        )
    )
    (row,) = table.to_pylist()
    assert (row["n"], row["total"], row["last"]) == (ROWS, int(values.sum()), (ROWS - 1) % 7)
    assert row["spread"] == pytest.approx(np.std(values, ddof=1))
    updates = results_of(lambda s: s.agg(n=td.count(), uid="a"))
    assert max(updates["n"].to_pylist()) == ROWS


def test_windows_of_a_whole_stream_have_no_keys() -> None:
    table = results_of(lambda s: s.window_all(td.tumbling("1 s")).agg(n=td.count(), uid="w"))
    assert table.schema.names == ["window_start", "window_end", "n"]
    assert sorted(table["n"].to_pylist()) == [1000, 1000]


def test_the_best_rows_of_each_key_come_with_their_ranks() -> None:
    table = results_of(lambda s: s.group_by("k").top_n(3, by="v", output="final", uid="t")).sort_by(
        [("k", "ascending"), ("rank", "ascending")]
    )
    every = numbers(np.arange(ROWS))
    expected = []
    for key in range(7):
        mine = sorted(((-v, n) for n, v in enumerate(every["v"].tolist()) if n % 7 == key))[:3]
        expected += [(key, rank + 1, -v) for rank, (v, _) in enumerate(mine)]
    rows = list(zip(*(table[name].to_pylist() for name in ("k", "rank", "v")), strict=True))
    assert rows == expected and table.schema.names == ["k", "rank", "v", "ts"]


def test_the_best_rows_of_each_window() -> None:
    table = results_of(lambda s: s.window_all(td.tumbling("1 s")).top_n(1, by="ts", uid="t"))
    assert sorted(table["k"].to_pylist()) == sorted([999 % 7, 1999 % 7])
    assert table.schema.names == ["window_start", "window_end", "rank", "k", "v", "ts"]


def test_final_results_of_what_never_ends_are_refused_with_the_line() -> None:
    p = td.Pipeline()
    stream = p.read(td.DataGen(numbers, SCHEMA), uid="in")
    with pytest.raises(PipelineError, match=r"final aggregates of an unbounded stream.*test_running_aggregates.py:"):
        stream.group_by("k").agg(n=td.count(), output="final", uid="a")
    with pytest.raises(PipelineError, match="output must be .*, but is 'later'"):
        stream.group_by("k").agg(n=td.count(), output="later", uid="a")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="top_n must be an integer above 0, but is 0"):
        stream.group_by("k").top_n(0, by="v", uid="a")
