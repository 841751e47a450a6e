"""Session windows: joining, lateness, restores, the clock, and tables that are packed (S4.4, S5.2, S7.6)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders.batches import batch_of
from builders.operators import open_operator
from builders.rescaling import StoredState, subtask_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.errors import SnapshotError, TidegateError
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.stream_operator import SideOutput
from tidegate.operators.windows import session_store, session_table
from tidegate.operators.windows.session_specs import SessionAggSpec
from tidegate.snapshot.parts import Blob, StatePart
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.copy_on_write import CHUNK_ENTRIES

GROUPS = 8
INPUT = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.int64())])
BOUNDS = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
OUTPUT = pa.schema([("k", pa.int64()), *BOUNDS, ("n", pa.int64()), ("values", pa.list_(pa.int64()))])
AGGREGATES = (BoundAggregate("n", "count"), BoundAggregate("values", "collect", "v", ("t",), orders=1))
Result = tuple[int, int, int, int]
_place_of_state: Any = dict


@pytest.fixture(autouse=True, scope="module")
def in_every_back_end(place_of_state: Any) -> None:
    global _place_of_state
    _place_of_state = place_of_state


def spec(gap: int = 10, lateness: int = 0, time: str | None = "t") -> SessionAggSpec:
    aggregates = AGGREGATES if time else (AGGREGATES[0], BoundAggregate("values", "collect", "v"))
    return SessionAggSpec(("k",), time, "us", gap, aggregates, INPUT, OUTPUT, (), lateness)


def opened(
    sessions: SessionAggSpec, subtask: int = 0, parallelism: int = 1, now_ms: Any = lambda: 0, end: Any = "fire"
) -> Any:
    place = {"subtask": subtask, "parallelism": parallelism, "max_parallelism": GROUPS, "processing_time_ms": now_ms}
    operator = open_operator(sessions, INPUT, **place, processing_time_on_end=end, **_place_of_state())
    operator.portable = True
    return operator


def batch(*pairs: tuple[int | None, int | None]) -> pa.RecordBatch:
    return batch_of(INPUT, [(k, t, t) for k, t in pairs])


def results(out: Any) -> list[Result]:
    """(key, start, end, rows) of each result, in order."""
    return [
        (row["k"], int(start), int(end), row["n"])
        for b in out
        for row, start, end in zip(
            b.to_pylist(),
            b.column("window_start").cast(pa.int64()).to_pylist(),
            b.column("window_end").cast(pa.int64()).to_pylist(),
            strict=True,
        )
    ]


def feed(operator: Any, *pairs: tuple[int | None, int | None]) -> list[Result]:
    return results(operator.process(batch(*pairs), 0))


def restored(sessions: SessionAggSpec, old: list[Any], parallelism: int) -> list[Any]:
    new = [opened(sessions, index, parallelism) for index in range(parallelism)]
    StoredState.of(old).restore(new, GROUPS)
    return new


def test_rows_at_most_a_gap_apart_are_one_session_and_a_row_may_join_several() -> None:
    operator = opened(spec())
    feed(operator, (1, 0), (1, 9), (1, 30), (None, 5), (1, 18))
    feed(operator, (1, 50))
    assert results(operator.on_watermark(27)) == [(None, 5, 15, 1)]
    feed(operator, (1, 27), (1, 32))
    assert results(operator.on_watermark(49)) == [(1, 0, 42, 6)]
    assert results(operator.on_watermark(MAX_WATERMARK)) == [(1, 50, 60, 1)]


def test_rows_exactly_a_gap_apart_are_one_session_whenever_the_watermark_comes() -> None:
    """S4.4, S8.2: as in Flink and Spark, but decided by the records alone."""
    together = opened(spec())
    feed(together, (1, 0), (1, 10), (1, 21), (2, 5), (2, 15))
    wanted = [(1, 0, 20, 2), (2, 5, 25, 2), (1, 21, 31, 1)]
    assert results(together.on_watermark(MAX_WATERMARK)) == wanted
    one_by_one, found = opened(spec()), []
    for row in ((1, 0), (2, 5), (1, 10), (2, 15), (1, 21)):
        found += results(one_by_one.on_watermark(row[1])) + feed(one_by_one, row)
    found += results(one_by_one.on_watermark(MAX_WATERMARK))
    assert found == wanted and one_by_one.ctx.counters == {}


def of_version_0_1(operator: Any) -> list[StatePart]:
    """The parts of a snapshot that version 0.1 took with a gap of 10: there a gap of 10 was what one of 9 is now."""
    parts = decode_parts(encode_parts(operator.snapshot(1)()))
    for number, part in enumerate(parts):
        if part.name == "progress":
            at = part.table.schema.get_field_index("gap_us")
            gaps = pa.array(np.full(part.table.num_rows, 10))
            parts[number] = replace(part, table=part.table.set_column(at, part.table.schema.field(at), gaps))
    return parts


@pytest.mark.parametrize("order", [(0, 10, 20), (20, 0, 10), (10, 20, 0), (0, 20, 10)])
def test_sessions_a_gap_apart_of_a_snapshot_of_version_0_1_become_one(order: tuple[int, ...]) -> None:
    """S5.5: whatever order they are stored in."""
    old = opened(spec(gap=9))
    for time in order:
        feed(old, (1, time), (2, time + 40 * (time > 0)))
    again = opened(spec())
    again.restore(of_version_0_1(old))
    assert results(again.on_watermark(30)) == [(2, 0, 10, 1)]
    assert results(again.on_watermark(31)) == [(1, 0, 30, 3)]
    (out,) = again.on_watermark(MAX_WATERMARK)
    assert results([out]) == [(2, 50, 70, 2)] and out.column("values").to_pylist() == [[50, 60]]


def test_a_session_of_version_0_1_that_had_fired_fires_again_only_when_it_grows() -> None:
    """S4.4, S5.5: with an allowed lateness both are still held."""
    old = opened(spec(gap=9, lateness=20))
    feed(old, (1, 0), (1, 10), (2, 0), (2, 10))
    assert sorted(results(old.on_watermark(20))) == [(1, 0, 9, 1), (1, 10, 19, 1), (2, 0, 9, 1), (2, 10, 19, 1)]
    again = opened(spec(lateness=20))
    again.restore(of_version_0_1(old))
    assert results(again.on_watermark(21)) == []
    assert feed(again, (1, 5)) == [(1, 0, 20, 3)]
    assert results(again.on_watermark(MAX_WATERMARK)) == []


def test_one_batch_may_join_sessions_one_after_the_other() -> None:
    operator = opened(spec())
    feed(operator, *((1, t) for t in (0, 15, 30, 45, 60)))
    feed(operator, (1, 52), (1, 22), (1, 7), (1, 37))
    (out,) = operator.on_watermark(MAX_WATERMARK)
    assert results([out]) == [(1, 0, 70, 9)]
    assert out.column("values").to_pylist() == [[0, 7, 15, 22, 30, 37, 45, 52, 60]]


def test_a_late_row_counts_where_an_open_session_takes_it_and_else_is_dropped() -> None:
    operator = opened(spec())
    feed(operator, (1, 20), (2, None))
    list(operator.on_watermark(25))
    assert feed(operator, (1, 12), (1, 0), (2, 15), (2, 16)) == []
    assert operator.ctx.counters == {"late_dropped": 1, "null_event_time_dropped": 1}
    assert results(operator.on_watermark(MAX_WATERMARK)) == [(2, 15, 26, 2), (1, 12, 30, 2)]


def test_a_session_fires_again_within_the_allowed_lateness_as_what_it_has_become() -> None:
    operator = opened(spec(lateness=20))
    feed(operator, (1, 0), (1, 25))
    assert results(operator.on_watermark(12)) == [(1, 0, 10, 1)]
    assert feed(operator, (1, 1)) == [(1, 0, 11, 2)]
    assert feed(operator, (1, 9), (1, 18)) == [], "joined to the one that is open"
    assert results(operator.on_watermark(35)) == []
    assert results(operator.on_watermark(36)) == [(1, 0, 35, 5)]
    assert results(operator.on_watermark(55)) == []
    assert feed(operator, (1, 34)) == [(1, 0, 44, 6)]
    assert feed(operator, (2, 24)) == []
    assert operator.ctx.counters == {"late_dropped": 1}
    assert results(operator.on_watermark(MAX_WATERMARK)) == []


def test_a_session_that_has_fired_and_grows_past_the_watermark_waits_again() -> None:
    operator = opened(spec(lateness=20))
    feed(operator, (1, 0))
    assert results(operator.on_watermark(12)) == [(1, 0, 10, 1)]
    assert feed(operator, (1, 9)) == []
    assert results(operator.on_watermark(19)) == []
    assert results(operator.on_watermark(20)) == [(1, 0, 19, 2)]


def test_what_has_fired_is_known_after_a_restore_and_another_gap_is_refused() -> None:
    operator = opened(spec(lateness=20))
    feed(operator, (1, 0), (2, 4))
    assert results(operator.on_watermark(12)) == [(1, 0, 10, 1)]
    (again,) = restored(spec(lateness=20), [operator], 1)
    assert results(again.on_watermark(15)) == [(2, 4, 14, 1)]
    assert feed(again, (1, 3)) == [(1, 0, 13, 2)]
    with pytest.raises(SnapshotError, match=r"gap in us were 10; in the pipeline, 11"):
        restored(spec(gap=11), [operator], 1)


def test_less_lateness_than_before_closes_sessions_that_were_kept_for_it() -> None:
    operator = opened(spec(lateness=50))
    feed(operator, (1, 0), (2, 14))
    assert results(operator.on_watermark(22)) == [(1, 0, 10, 1)]
    for less in (0, 10):
        (again,) = restored(spec(lateness=less), [operator], 1)
        assert again.snapshot(1)()[0].table.num_rows == 1, "the one that has not fired"
        assert feed(again, (1, 1)) == []
        assert again.ctx.counters == {"late_dropped": 1}
        assert results(again.on_watermark(MAX_WATERMARK)) == [(2, 14, 24, 1)]


def test_of_equal_times_the_order_of_arrival_counts_also_where_sessions_are_joined() -> None:
    output = pa.schema([("k", pa.int64()), *BOUNDS, ("first", pa.int64()), ("last", pa.int64())])
    aggregates = tuple(BoundAggregate(name, name, "v", ("t",), orders=1) for name in ("first", "last"))  # type: ignore[arg-type]
    operator = opened(SessionAggSpec(("k",), "t", "us", 6, aggregates, INPUT, output))
    for times, values in (([10], [1]), ([0], [2]), ([5, 10, 0], [3, 4, 5])):
        rows = batch(*((1, time) for time in times))
        assert not list(operator.process(rows.set_column(2, "v", pa.array(values)), 0))
    (out,) = operator.on_watermark(MAX_WATERMARK)
    assert out.select(["first", "last"]).to_pylist() == [{"first": 2, "last": 4}]


def test_rows_that_come_after_the_last_watermark_fire_at_the_end() -> None:
    operator = opened(spec())
    feed(operator, (1, 3))
    list(operator.on_watermark(MAX_WATERMARK))
    assert feed(operator, (2, 7)) == []
    assert results(operator.finish()) == [(2, 7, 17, 1)]
    assert results(operator.finish()) == []


def test_an_absurd_event_time_names_column_and_remedy() -> None:
    with pytest.raises(TidegateError, match="'t' has an event time.*'op'.*unit"):
        feed(opened(spec()), (1, 2**63 - 1))


def test_sessions_of_the_clock_are_over_when_nothing_came_for_a_gap() -> None:
    now = [0]
    operator = opened(spec(gap=5_000, time=None), now_ms=lambda: now[0])
    feed(operator, (1, None))
    now[0] = 4
    feed(operator, (1, None), (2, None))
    assert (operator.next_processing_time_ms(), operator.has_pending_rows()) == (6, True)
    assert results(operator.on_processing_time(6)) == []
    assert operator.next_processing_time_ms() == 10
    again = opened(spec(gap=5_000, time=None), now_ms=lambda: now[0])
    again.restore(decode_parts(encode_parts(operator.snapshot(1)())))
    assert results(again.on_processing_time(9)) == []
    assert sorted(results(again.on_processing_time(10))) == [(1, 0, 9_000, 2), (2, 4_000, 9_000, 1)]
    assert (again.next_processing_time_ms(), again.has_pending_rows()) == (None, False)


@pytest.mark.parametrize(("end", "count"), [("fire", 1), ("drop", 0)])
def test_at_the_end_of_the_input_sessions_of_the_clock_fire_or_are_dropped_and_counted(end: str, count: int) -> None:
    operator = opened(spec(gap=5_000, time=None), end=end)
    feed(operator, (1, None))
    assert len(results(operator.on_watermark(MAX_WATERMARK))) == count
    assert results(operator.finish()) == []
    feed(operator, (1, None))
    assert operator.ctx.counters["processing_time_dropped"] == 2 - count


def test_many_sessions_in_memory_are_written_in_chunks_and_unchanged_ones_keep_their_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "_place_of_state", dict)
    keys = 2 * CHUNK_ENTRIES + 100
    operator = opened(spec())
    numbers = pa.array(np.arange(keys))
    times = pa.array(np.zeros(keys, np.int64))
    list(operator.process(pa.record_batch([numbers, times.cast(pa.timestamp("us")), times], schema=INPUT), 0))
    first = operator.snapshot(1)()[0]
    held = [(blob.id, blob.read()) for blob in first.blobs]
    feed(operator, (3, 5))
    second = [blob.id for blob in operator.snapshot(2)()[0].blobs]
    assert [new == old for new, (old, _) in zip(second, held, strict=True)] == [False, True, True]
    again = opened(spec())
    kept = tuple(Blob(id_, lambda data=data: data) for id_, data in held)
    again.restore([StatePart(first.name, "keyed", first.table, blobs=kept)])
    assert sum(b.num_rows for b in again.on_watermark(MAX_WATERMARK)) == keys


BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 90)), min_size=1, max_size=8), max_size=8)


def owner(key: int, parallelism: int) -> int:
    return subtask_of(key, parallelism, GROUPS)


class Model:
    """Sessions of one key, batch by batch: the rows of a batch join one another before they are held against what is
    open."""

    def __init__(self, gap: int) -> None:
        self.gap = gap
        self.open: list[list[int]] = []
        self.late = 0

    def feed(self, times: list[int], watermark: int) -> None:
        runs: list[list[int]] = []
        for time in sorted(times):
            if runs and time - runs[-1][-1] <= self.gap:
                runs[-1].append(time)
            else:
                runs.append([time])
        for run in runs:
            joined = [s for s in self.open if s[0] - self.gap <= run[-1] and run[0] <= s[-1] + self.gap]
            if not joined and run[-1] + self.gap < watermark:
                self.late += len(run)
                continue
            self.open = [s for s in self.open if s not in joined] + [sorted(sum(joined, run))]

    def fire(self, watermark: int) -> list[tuple[int, int, int]]:
        due = [s for s in self.open if s[-1] + self.gap < watermark]
        self.open = [s for s in self.open if s[-1] + self.gap >= watermark]
        return [(s[0], s[-1] + self.gap, len(s)) for s in due]


@settings(deadline=None, max_examples=50)
@given(
    batches=BATCHES,
    gap=st.sampled_from([1, 6, 25]),
    rescales=st.lists(st.sampled_from([0, 1, 2, 3]), min_size=8, max_size=8),
    slow=st.integers(0, 60),
    packs=st.booleans(),
)
def test_sessions_with_late_rows_and_restores_equal_a_model(
    batches: list[list[tuple[int, int]]], gap: int, rescales: list[int], slow: int, packs: bool
) -> None:
    operators, models = [opened(spec(gap))], {key: Model(gap) for key in range(5)}
    found: Counter[Result] = Counter()
    expected: Counter[Result] = Counter()
    watermark, late = -100, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_store, "MIN_DEAD", 0 if packs else session_table.MIN_DEAD)
        for number, rows in enumerate(batches):
            if rescales[number]:
                late += sum(o.ctx.counters.get("late_dropped", 0) for o in operators)
                operators = restored(spec(gap), operators, rescales[number])
            for i, operator in enumerate(operators):
                mine = [row for row in rows if owner(row[0], len(operators)) == i]
                if mine:
                    found.update(feed(operator, *mine))
            for key in {key for key, _ in rows}:
                models[key].feed([t for k, t in rows if k == key], watermark)
            watermark = max([watermark, *(t - slow for _, t in rows)])
            for operator in operators:
                found.update(results(operator.on_watermark(watermark)))
            expected.update((key, *fired) for key, model in models.items() for fired in model.fire(watermark))
        for operator in operators:
            found.update(results(operator.on_watermark(MAX_WATERMARK)))
    expected.update((key, *fired) for key, model in models.items() for fired in model.fire(MAX_WATERMARK))
    assert found == expected
    late += sum(o.ctx.counters.get("late_dropped", 0) for o in operators)
    assert late == sum(model.late for model in models.values())


class LateModel(Model):
    """The sessions of a key that fire again within an allowed lateness, held against the latest watermark that its key
    group has seen."""

    def __init__(self, gap: int, lateness: int) -> None:
        super().__init__(gap)
        self.lateness = lateness
        self.passed = -100
        self.fired: Counter[tuple[int, int, int]] = Counter()
        self._waiting: list[list[int]] = []

    def take(self, times: list[int]) -> None:
        known = list(self.open)
        self.feed(times, self.passed - self.lateness)
        self._waiting = [s for s in self.open if s in self._waiting or s not in known]
        self._fire()

    def advance(self, watermark: int) -> None:
        self.passed = max(self.passed, watermark)
        self._fire()
        self.open = [s for s in self.open if s[-1] + self.gap + self.lateness >= self.passed]

    def _fire(self) -> None:
        due = [s for s in self._waiting if s[-1] + self.gap < self.passed]
        self.fired.update((s[0], s[-1] + self.gap, len(s)) for s in due)
        self._waiting = [s for s in self._waiting if s not in due]


@settings(deadline=None, max_examples=50)
@given(
    batches=BATCHES,
    gap=st.sampled_from([1, 6, 10]),
    lateness=st.sampled_from([0, 5, 30]),
    rescales=st.lists(st.sampled_from([0, 1, 2, 3]), min_size=8, max_size=8),
    apart=st.lists(st.integers(0, 30), min_size=8, max_size=8),
)
def test_sessions_that_fire_again_equal_a_model_where_watermarks_differ_between_subtasks(
    batches: list[list[tuple[int, int]]], gap: int, lateness: int, rescales: list[int], apart: list[int]
) -> None:
    operators, models = [opened(spec(gap, lateness))], {key: LateModel(gap, lateness) for key in range(5)}
    found: Counter[Result] = Counter()
    latest = -100
    for number, rows in enumerate(batches):
        if rescales[number]:
            operators = restored(spec(gap, lateness), operators, rescales[number])
        latest = max([latest, *(time for _, time in rows)])
        for i, operator in enumerate(operators):
            keys = [key for key in models if owner(key, len(operators)) == i]
            mine = [row for row in rows if row[0] in keys]
            if mine:
                found.update(feed(operator, *mine))
            watermark = max([latest - apart[(number + i) % 8], *(models[key].passed for key in keys[:1])])
            found.update(results(operator.on_watermark(watermark)))
            for key in keys:
                models[key].take([time for k, time in rows if k == key])
                models[key].advance(watermark)
    for operator in operators:
        found.update(results(operator.on_watermark(MAX_WATERMARK)))
    expected: Counter[Result] = Counter()
    for key, model in models.items():
        model.advance(MAX_WATERMARK)
        expected.update({(key, *fired): n for fired, n in model.fired.items()})
    assert found == expected


def test_late_rows_go_to_the_side_output_as_they_came_where_something_reads_it() -> None:
    operator = opened(spec())
    operator.ctx.side_outputs = frozenset({"late"})
    list(operator.on_watermark(25))
    (out,) = operator.process(batch((1, 3), (1, 30), (2, 7)), 0)
    assert isinstance(out, SideOutput) and out.name == "late"
    assert sorted(out.batch.column("v").to_pylist()) == [3, 7] and out.batch.schema.equals(INPUT)
    assert operator.ctx.counters == {}
