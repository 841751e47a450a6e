"""Push sources (S4.1): no snapshot holds records without their position, or a position without its records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tidegate.connectors.interface import Boundedness, PollResult, Source, SourceContext, SourceReader, Split
from tidegate.connectors.push import (
    ENTRY_BYTES,
    MAX_PUSH_ROWS,
    PushClosedError,
    PushContext,
    Pusher,
    PushReader,
    PushSource,
)
from tidegate.errors import PipelineError
from tidegate.testing.source_conformance import SourceConformance

SCHEMA = pa.schema([("n", pa.int64())])
PATIENCE_S = 60
"""For what another thread does at once; only a defect makes a test wait so long."""
Run = Callable[[PushContext], None]


pytestmark = pytest.mark.usefixtures("quick_thread_switches")


def batch_of(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())}, schema=SCHEMA)


def count_up(push: PushContext, limit: int | None, step: int = 1) -> None:
    """Each split's records are 0, 1, 2, ...; its position is how many were emitted."""
    at = {split.split_id: split.position or 0 for split in push.splits}
    while at:
        for split_id in list(at):
            stop = at[split_id] + step if limit is None else min(at[split_id] + step, limit)
            push.emit(batch_of(*range(at[split_id], stop)), split_id=split_id, position=stop)
            at[split_id] = stop
            if stop == limit:
                del at[split_id]
                push.finish_split(split_id)


class Counted(PushSource):
    """`limit` records a split, or without end."""

    buffer_bytes = 8 * ENTRY_BYTES

    def __init__(self, limit: int | None = None, splits: int = 2, run: Run | None = None) -> None:
        self._limit = limit
        self._splits = splits
        self.run = run or (lambda push: count_up(push, limit, 7))

    @property
    def boundedness(self) -> Boundedness:
        return "unbounded" if self._limit is None else "bounded"

    def schema(self) -> pa.Schema:
        return SCHEMA

    def discover(self, parallelism: int) -> Sequence[Split]:
        return [Split(f"s{i}", {}) for i in range(self._splits)]

    def create_pusher(self, ctx: SourceContext) -> Pusher:
        return Running(self.run)


class Running(Pusher):
    def __init__(self, run: Run) -> None:
        self._run = run
        self.stops = 0

    def run(self, push: PushContext) -> None:
        self._run(push)

    def stop(self) -> None:
        self.stops += 1


class TestBoundedPush(SourceConformance):
    def make_source(self) -> Source:
        return Counted(limit=150)


class TestUnboundedPush(SourceConformance):
    enough_rows = 100

    def make_source(self) -> Source:
        return Counted()


class ThreadOfTheTest:
    """Stands for a thread: runs nothing by itself. The test calls the pusher where it wants it to run."""

    def __init__(self, *, target: Callable[..., None], args: tuple[PushContext], name: str, daemon: bool) -> None:
        self.ident = None
        self.name = name
        self.live = False
        self.run = lambda: target(*args)
        self.push = args[0]
        self.joined_s: list[float] = []

    def start(self) -> None:
        self.live = True

    def join(self, timeout_s: float) -> None:
        self.joined_s.append(timeout_s)

    def is_alive(self) -> bool:
        return self.live


class Steps(threading.Condition):
    """A condition that calls `between` wherever another thread could get in: before the lock is taken, after it is
    released, and while somebody waits."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())
        self.between: Callable[[str], None] = lambda step: None
        self.held = 0
        self.told = 0

    def notify_all(self) -> None:
        self.told += 1
        super().notify_all()

    def __enter__(self) -> bool:
        self.between("before")
        entered = super().__enter__()
        self.held += 1
        return entered

    def __exit__(self, *error: Any) -> None:
        self.held -= 1
        super().__exit__(*error)
        self.between("after")

    def wait(self, timeout: float | None = None) -> bool:
        self.held -= 1
        self.release()
        self.between("waiting")
        self.acquire()
        self.held += 1
        return True


class PushHarness:
    """A reader whose pusher's thread is the test's."""

    def __init__(self, *, splits: Sequence[Split] = (Split("s", {}),), bounded: bool = False, **options: Any) -> None:
        self.woken = 0
        self.conditions: list[Steps] = []
        self.threads: list[ThreadOfTheTest] = []
        self.pusher = Running(options.pop("run", lambda push: None))
        self.reader = PushReader(
            self.pusher,
            SourceContext("events", 3, 4, self.wake),
            schema=SCHEMA,
            boundedness="bounded" if bounded else "unbounded",
            condition=self.make_condition,
            make_thread=self.make_thread,
            **options,
        )
        self.reader.add_splits(splits)
        self.first = self.reader.poll(0)

    def make_condition(self) -> threading.Condition:
        self.conditions.append(Steps())
        return self.conditions[-1]

    def make_thread(self, **options: Any) -> Any:
        self.threads.append(ThreadOfTheTest(**options))
        return self.threads[-1]

    def wake(self) -> None:
        self.woken += 1

    @property
    def push(self) -> PushContext:
        return self.threads[0].push

    @property
    def steps(self) -> Steps:
        return self.conditions[-1]

    def position(self, split_id: str = "s") -> Any:
        (split,) = (s for s in self.reader.snapshot() if s.split_id == split_id)
        return split.position


def polled(reader: SourceReader) -> list[int]:
    """Records until there is nothing now."""
    found: list[int] = []
    while (answer := reader.poll(0)).batch is not None:
        found += answer.batch["n"].to_pylist()
    return found


@pytest.mark.parametrize("taken_at", range(16))
def test_at_every_step_of_an_emission_a_snapshot_holds_the_position_of_exactly_what_was_polled(taken_at: int) -> None:
    """S4.1: the loop gets in between any two steps of the pusher, polls there or does not, and snapshots."""
    harness = PushHarness(buffer_bytes=1)
    seen: list[int] = []
    moments: list[str] = []

    def between(step: str) -> None:
        if harness.steps.held:
            return
        moments.append(step)
        chosen = len(moments) - 1 == taken_at
        harness.steps.between = lambda step: None
        if chosen or step == "waiting":
            answer = harness.reader.poll(0)
            seen.extend(answer.batch["n"].to_pylist() if answer.batch is not None else [])
        assert harness.position() == (len(seen) or None)
        harness.steps.between = between

    harness.steps.between = between
    for number in range(5):
        harness.push.emit(batch_of(number), split_id="s", position=number + 1)
    harness.steps.between = lambda step: None
    assert seen == list(range(len(seen)))
    assert harness.position() == (len(seen) or None)
    assert {"before", "waiting", "after"} <= set(moments) and len(moments) > 12
    assert [*seen, *polled(harness.reader)] == [0, 1, 2, 3, 4] and harness.position() == 5


def test_the_lock_is_held_while_records_and_position_are_handed_over() -> None:
    """S4.1: there is no moment between the two at which the loop could get in."""
    harness = PushHarness()
    inside: list[bool] = []

    handover: Any = harness.reader._handover
    append = handover._append

    def appending(entry: Any) -> None:
        inside.append(harness.steps.acquire(blocking=False))
        assert entry.batch is not None and entry.position == 1
        append(entry)

    handover._append = appending
    harness.push.emit(batch_of(0), split_id="s", position=1)
    assert inside == [False]


def test_a_thread_that_emits_as_fast_as_it_can_never_separates_records_from_their_position() -> None:
    """S4.1, with a real thread: at each of many thousand snapshots the position is that of exactly what was polled."""
    source = Counted(limit=4_000, splits=2, run=lambda push: count_up(push, 4_000))
    reader = source.create_reader(SourceContext("events", 0, 1))
    reader.add_splits(source.discover(1))
    seen = {"s0": 0, "s1": 0}
    try:
        while (answer := reader.poll(0)).state != "end":
            if answer.batch is not None:
                assert answer.split_id is not None
                assert answer.batch["n"].to_pylist() == [seen[answer.split_id]]
                seen[answer.split_id] += 1
            found = {split.split_id: split.position or 0 for split in reader.snapshot()}
            assert found == seen
    finally:
        reader.close()
    assert seen == {"s0": 4_000, "s1": 4_000}
    assert all(split.finished for split in reader.snapshot())


def test_what_was_emitted_and_not_polled_is_in_no_snapshot_and_is_emitted_again_after_a_restore() -> None:
    """S4.1, S4.2."""
    harness = PushHarness()
    for number in range(3):
        harness.push.emit(batch_of(number), split_id="s", position={"next": number + 1})
    harness.reader.poll(0)
    taken = harness.reader.snapshot()
    assert [(split.split_id, split.position, split.finished) for split in taken] == [("s", {"next": 1}, False)]
    again = PushHarness(splits=taken)
    assert [split.position for split in again.push.splits] == [{"next": 1}]


def test_a_position_that_the_pusher_changes_afterwards_stays_as_it_was_emitted() -> None:
    harness = PushHarness()
    offsets = {"a": 1}
    harness.push.emit(batch_of(1), split_id="s", position=offsets)
    offsets["a"] = 99
    harness.reader.poll(0)
    assert harness.position() == {"a": 1}


def test_records_without_any_rows_move_the_position_alone() -> None:
    harness = PushHarness()
    harness.push.emit(batch_of(), split_id="s", position=7)
    assert harness.position() is None
    assert harness.reader.poll(0).batch is None
    assert harness.position() == 7


def test_an_emission_waits_while_the_buffer_is_full_and_goes_on_when_a_batch_is_polled() -> None:
    """Backpressure: the lock is released meanwhile, or the poll could not come in; waking without room changes
    nothing."""
    harness = PushHarness(buffer_bytes=2 * (ENTRY_BYTES + 8))
    waits: list[int] = []

    def between(step: str) -> None:
        if step != "waiting":
            return
        waits.append(harness.reader.progress()["buffered_bytes"])
        if len(waits) % 3 == 0:
            harness.steps.between = lambda step: None
            told = harness.steps.told
            assert harness.reader.poll(0).batch is not None
            assert harness.steps.told == told + 1, "a waiting pusher must hear of the room"
            harness.steps.between = between

    harness.steps.between = between
    for number in range(10):
        harness.push.emit(batch_of(number), split_id="s", position=number)
    assert len(waits) == 3 * 8
    assert max(waits) <= 3 * (ENTRY_BYTES + 10)
    assert harness.reader.progress() == {"buffered_bytes": waits[-1]}


def test_positions_without_records_fill_the_buffer_too() -> None:
    harness = PushHarness(buffer_bytes=10 * ENTRY_BYTES)
    harness.steps.between = lambda step: harness.reader.close() if step == "waiting" else None
    with pytest.raises(PushClosedError):
        for number in range(100):
            harness.push.emit(batch_of(), split_id="s", position=number)


def test_one_batch_larger_than_the_buffer_passes() -> None:
    harness = PushHarness(buffer_bytes=1)
    harness.push.emit(batch_of(*range(1_000)), split_id="s", position=1_000)
    assert len(polled(harness.reader)) == 1_000


def test_an_emission_wakes_the_loop_when_there_was_nothing() -> None:
    harness = PushHarness()
    assert harness.first.state == "nothing_now" and not harness.first.idle
    harness.push.emit(batch_of(1), split_id="s", position=1)
    harness.push.emit(batch_of(2), split_id="s", position=2)
    assert harness.woken == 1
    polled(harness.reader)
    harness.push.emit(batch_of(3), split_id="s", position=3)
    assert harness.woken == 2


def test_what_the_pusher_raises_comes_out_of_the_next_poll_with_its_own_traceback() -> None:
    """The run fails with it as root cause."""

    def run(push: PushContext) -> None:
        push.emit(batch_of(1), split_id="s", position=1)
        raise ConnectionError("the broker has gone")

    harness = PushHarness(run=run)
    harness.threads[0].run()
    assert harness.woken == 2
    with pytest.raises(ConnectionError, match="the broker has gone") as caught:
        harness.reader.poll(0)
    assert any(entry.name == "run" and "test_push_sources" in str(entry.path) for entry in caught.traceback)
    assert harness.position() is None


def test_a_pusher_of_an_unbounded_source_that_returns_is_an_error() -> None:
    harness = PushHarness()
    harness.threads[0].run()
    with pytest.raises(PipelineError, match=r"'events', subtask 3.*run\(\) returned.*wait_until_closed"):
        harness.reader.poll(0)


def test_a_thread_that_exits_is_an_error_that_the_loop_can_report() -> None:
    def run(push: PushContext) -> None:
        raise SystemExit(3)

    harness = PushHarness(run=run)
    harness.threads[0].run()
    with pytest.raises(PipelineError, match="SystemExit: 3"):
        harness.reader.poll(0)


def test_a_pusher_of_a_bounded_source_that_returns_has_read_every_split_to_its_end() -> None:
    def run(push: PushContext) -> None:
        push.emit(batch_of(1), split_id="a", position=1)

    harness = PushHarness(
        splits=[Split("a", {}), Split("b", {}), Split("c", {}, position=5, finished=True)], bounded=True, run=run
    )
    assert [split.split_id for split in harness.push.splits] == ["a", "b"]
    harness.threads[0].run()
    assert harness.reader.active_splits() == {"a", "b"}, "the ends have not been polled"
    assert polled(harness.reader) == [1]
    assert harness.reader.poll(0).state == "end"
    assert [(s.position, s.finished) for s in harness.reader.snapshot()] == [(1, True), (None, True), (5, True)]


def test_a_split_ends_behind_its_last_records_and_the_watermark_hears_of_it() -> None:
    """S4.4: a split that has ended holds the watermark back no longer, whatever comes from the others."""
    harness = PushHarness(splits=[Split("a", {}), Split("b", {})])
    harness.push.emit(batch_of(1), split_id="a", position=1)
    harness.push.finish_split("a")
    harness.push.emit(batch_of(2), split_id="b", position=1)
    first = harness.reader.poll(0)
    assert (first.split_id, first.splits_changed) == ("a", True)
    assert harness.reader.active_splits() == {"b"}
    assert not harness.reader.poll(0).splits_changed
    harness.push.finish_split("b")
    harness.push.finish_split("b")
    last = harness.reader.poll(0)
    assert (last.batch, last.splits_changed, last.state, last.idle) == (None, True, "nothing_now", True)


def test_idleness_begins_behind_what_was_emitted_and_ends_with_the_next_emission() -> None:
    """S4.4: idleness is explicit."""
    harness = PushHarness()
    harness.push.emit(batch_of(1), split_id="s", position=1)
    harness.push.idle()
    answers: list[PollResult] = [harness.reader.poll(0), harness.reader.poll(0)]
    assert [answer.idle for answer in answers] == [False, True]
    harness.push.emit(batch_of(2), split_id="s", position=2)
    answers = [harness.reader.poll(0), harness.reader.poll(0)]
    assert [answer.idle for answer in answers] == [False, False]


@pytest.mark.parametrize(
    ("emit", "said"),
    [
        (
            lambda p: p.emit(pa.record_batch({"m": [1]}), split_id="s", position=1),
            "the wrong schema.*declared n: int64",
        ),
        (lambda p: p.emit([1], split_id="s", position=1), "the wrong schema.*emitted list"),
        (lambda p: p.emit(batch_of(1), split_id="s", position=None), "without a position"),
        (lambda p: p.emit(batch_of(1), split_id="s", position={1, 2}), "not JSON"),
        (lambda p: p.emit(batch_of(1), split_id="x", position=1), "'x', which is not assigned to this subtask.*'s'"),
        (lambda p: p.emit(batch_of(1), split_id="done", position=1), "'done', which has ended"),
        (lambda p: p.finish_split("x"), "'x', which is not assigned to this subtask"),
        (lambda p: p.emit(batch_of(*range(MAX_PUSH_ROWS + 1)), split_id="s", position=1), "65537 rows at once"),
    ],
)
def test_a_wrong_emission_is_an_error_that_names_source_and_subtask(emit: Any, said: str) -> None:
    harness = PushHarness(splits=[Split("s", {}), Split("done", {}, finished=True)])
    with pytest.raises(PipelineError, match=said) as caught:
        emit(harness.push)
    assert "source 'events', subtask 3" in str(caught.value)
    assert harness.reader.poll(0).batch is None


class Announcing(threading.Condition):
    """Says that somebody waits, while that one still holds the lock: nobody gets in before it really does."""

    def __init__(self, waits: threading.Event) -> None:
        super().__init__(threading.Lock())
        self._waits = waits

    def wait(self, timeout: float | None = None) -> bool:
        self._waits.set()
        return super().wait(timeout)


def test_closing_ends_a_pusher_that_waits_for_room() -> None:
    waits = threading.Event()
    reader = PushReader(
        Running(lambda push: count_up(push, None)),
        SourceContext("events", 0, 1),
        schema=SCHEMA,
        boundedness="unbounded",
        buffer_bytes=1,
        condition=lambda: Announcing(waits),
    )
    reader.add_splits([Split("s", {})])
    reader.poll(0)
    assert waits.wait(PATIENCE_S)
    thread = reader._thread
    reader.close()
    assert thread is not None and not thread.is_alive()


def test_closing_ends_a_pusher_that_waits_for_its_callbacks_and_tells_it_to_stop_once() -> None:
    ended: list[bool] = []

    def run(push: PushContext) -> None:
        ended.append(push.wait_until_closed(PATIENCE_S))
        assert push.is_closed

    pusher = Running(run)
    reader = PushReader(pusher, SourceContext("events", 0, 1), schema=SCHEMA, boundedness="unbounded")
    reader.add_splits([Split("s", {})])
    reader.poll(0)
    reader.close()
    reader.close()
    assert (ended, pusher.stops) == ([True], 1)


def test_a_pusher_that_does_not_stop_is_named_and_can_emit_nothing_any_more(caplog: pytest.LogCaptureFixture) -> None:
    harness = PushHarness(stop_s=2.5)
    harness.reader.close()
    assert harness.threads[0].joined_s == [2.5]
    said = caplog.text
    assert "Running" in said and "'events', subtask 3" in said and "2.5 s" in said
    for call in (
        lambda: harness.push.emit(batch_of(1), split_id="s", position=1),
        lambda: harness.push.finish_split("s"),
        harness.push.idle,
    ):
        with pytest.raises(PushClosedError):
            call()


def test_what_a_pusher_raises_after_the_end_troubles_nobody() -> None:
    def run(push: PushContext) -> None:
        raise OSError("socket closed by stop()")

    harness = PushHarness(run=run)
    harness.threads[0].live = False
    harness.reader.close()
    harness.threads[0].run()
    assert harness.reader.poll(0).batch is None


def test_no_thread_is_made_before_the_first_poll_or_without_a_split_to_read() -> None:
    made = PushHarness(splits=[], bounded=True)
    assert made.first.state == "end" and made.threads == []
    made = PushHarness(splits=[Split("s", {}, position=3, finished=True)])
    assert made.first.idle and made.threads == []
    source = Counted()
    reader: Any = source.create_reader(SourceContext("events", 0, 1))
    reader.add_splits(source.discover(1))
    assert reader._thread is None
    reader.close()
