"""SinkOperator: which transactions a snapshot holds and a permit publishes (S7.4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count

import pyarrow as pa
import pytest

from tidegate.connectors.discard import Discard, DiscardWriter
from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.sink_operator import COMMITTABLES_SCHEMA, SinkOperator
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.operators.stream_operator import CommitPermit
from tidegate.snapshot.parts import OWNER_COLUMN, AsyncSnapshot, StatePart
from tidegate.testing.collect_sink import Collection, CollectSink, clear_collected, collected
from tidegate.testing.one_sink_job import TestWriter, numbers

_names = count()


class Job:
    """One sink subtask over a fresh collection."""

    def __init__(self) -> None:
        self.name = f"operator-{next(_names)}"
        self.identity = TestWriter()
        self.operator = self.start()

    def start(self) -> SinkOperator:
        operator = SinkOperator(CollectSink(self.name))
        operator.open(self.identity.operator_context())
        self.operator = operator
        return operator

    def write(self, first: int, rows: int) -> None:
        assert list(self.operator.process(numbers(first, rows), 0)) == []

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot:
        work = self.operator.snapshot(checkpoint_id)
        assert work is not None
        return work

    def published(self) -> list[int]:
        table: pa.Table = collected(self.name).table()
        return sorted(table.column("n").to_pylist()) if table.num_columns else []


def permit(checkpoint_id: int) -> CommitPermit:
    return CommitPermit(checkpoint_id, 1, checkpoint_id)


def ids(parts: Sequence[StatePart]) -> list[int]:
    (part,) = parts
    assert (part.name, part.kind, part.table.schema) == ("committables", "list", COMMITTABLES_SCHEMA)
    return [int(i) for i in part.table.column("checkpoint_id").to_pylist()]


def run(work: Callable[[], None] | None) -> None:
    assert work is not None
    work()


def test_a_snapshot_holds_every_transaction_that_is_not_committed() -> None:
    job = Job()
    job.write(0, 1)
    first = job.snapshot(1)
    job.write(1, 1)
    second = job.snapshot(2)
    assert ids(first()) == [1]
    assert ids(second()) == [1, 2]
    run(job.operator.commit(permit(1)))
    job.write(2, 1)
    assert ids(job.snapshot(3)()) == [2, 3]


def test_a_later_snapshot_holds_an_earlier_transaction_whose_own_asynchronous_part_never_ran() -> None:
    job = Job()
    job.write(0, 1)
    job.snapshot(1)
    job.operator.aborted(1)
    job.write(1, 1)
    assert ids(job.snapshot(2)()) == [1, 2]
    run(job.operator.commit(permit(2)))
    assert job.published() == [0, 1]


def test_a_permit_covers_its_checkpoint_and_those_before_and_nothing_later() -> None:
    """S7.4."""
    job = Job()
    for checkpoint_id in (1, 2, 3):
        job.write(checkpoint_id, 1)
        job.snapshot(checkpoint_id)()
    run(job.operator.commit(permit(2)))
    assert job.published() == [1, 2]


def test_a_permit_that_covers_nothing_gives_no_work() -> None:
    job = Job()
    assert job.operator.commit(permit(1)) is None
    job.write(0, 1)
    job.snapshot(2)()
    assert job.operator.commit(permit(1)) is None


def test_two_works_for_the_same_permit_publish_once() -> None:
    job = Job()
    job.write(0, 1)
    job.snapshot(1)()
    first, second = job.operator.commit(permit(1)), job.operator.commit(permit(1))
    run(first)
    run(second)
    assert collected(job.name).repeated_commits == []
    assert job.published() == [0]


def test_an_idle_checkpoint_holds_nothing() -> None:
    assert ids(Job().snapshot(1)()) == []


def test_restore_and_recover_publish_what_the_snapshot_holds_and_drop_what_came_later() -> None:
    job = Job()
    job.write(0, 1)
    parts = job.snapshot(1)()
    job.write(1, 1)
    job.snapshot(2)()
    job.identity.run = 2
    job.start().restore(parts)
    run(job.operator.recover(permit(1)))
    assert job.published() == [0]
    assert collected(job.name).staged == {}
    assert ids(job.snapshot(3)()) == []


def test_what_still_awaits_an_approval_survives_a_restore_and_its_data_too() -> None:
    """S7.8."""
    job = Job()
    job.write(0, 1)
    job.snapshot(1)()
    job.write(1, 1)
    parts = job.snapshot(2)()
    job.identity.generation = 2
    job.start().restore(parts)
    run(job.operator.recover(permit(1)))
    assert job.published() == [0]
    assert ids(job.snapshot(3)()) == [2]
    run(job.operator.commit(permit(2)))
    assert job.published() == [0, 1]


def test_a_fork_publishes_and_removes_nothing_of_its_original() -> None:
    """S7.4."""
    job = Job()
    job.write(0, 1)
    parts = job.snapshot(1)()
    original = job.operator
    job.identity = TestWriter("lineage-2")
    job.start().restore(parts)
    run(job.operator.recover(None))
    assert job.operator.commit(permit(9)) is None
    assert job.published() == []
    run(original.commit(permit(1)))
    assert job.published() == [0]


class FailingWriter(DiscardWriter):
    """Fails to stage the first transaction, and to commit as long as told to."""

    def __init__(self) -> None:
        super().__init__()
        self.refuse_commits = True
        self.committed: list[str] = []

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        def stage() -> Sequence[Committable]:
            if checkpoint_id == 1:
                raise OSError("disk full")
            return [Committable(f"t{checkpoint_id}", {})]

        return stage

    def commit(self, committables: Sequence[Committable]) -> None:
        if self.refuse_commits:
            raise OSError("network down")
        self.committed += [c.transaction_id for c in committables]


class FailingSink(Sink):
    def __init__(self) -> None:
        self.writer = FailingWriter()

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        return self.writer


def opened(sink: Sink) -> SinkOperator:
    operator = SinkOperator(sink)
    operator.open(TestWriter().operator_context())
    return operator


def test_no_checkpoint_completes_without_a_transaction_that_could_not_be_staged() -> None:
    """S2.1, S7.4."""
    operator = opened(FailingSink())
    first, second = operator.snapshot(1), operator.snapshot(2)
    assert first is not None and second is not None
    for work in (first, second, first):
        with pytest.raises(OSError, match="disk full"):
            work()


def test_a_failed_commit_raises_and_keeps_its_transactions_for_the_next() -> None:
    sink = FailingSink()
    operator = opened(sink)
    work = operator.snapshot(2)
    assert work is not None
    work()
    with pytest.raises(OSError, match="network down"):
        run(operator.commit(permit(2)))
    sink.writer.refuse_commits = False
    run(operator.commit(permit(3)))
    assert sink.writer.committed == ["t2"]


def test_asynchronous_parts_that_start_in_any_order_on_many_threads_agree() -> None:
    job = Job()
    works: list[AsyncSnapshot] = []
    for checkpoint_id in range(1, 9):
        job.write(checkpoint_id, 1)
        works.append(job.snapshot(checkpoint_id))
    held: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda i=i, w=w: held.update({i: ids(w())}))
        for i, w in reversed(list(enumerate(works, 1)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert held == {i: list(range(1, i + 1)) for i in range(1, 9)}


def test_a_one_phase_sink_has_no_state_and_counts() -> None:
    operator = opened(Discard())
    assert list(operator.process(numbers(0, 3), 0)) == []
    assert operator.snapshot(1) is None
    assert operator.commit(permit(1)) is None
    assert isinstance(operator.writer, DiscardWriter)
    assert operator.writer.rows == 3


def test_the_collection_reports_lost_and_repeated_records() -> None:
    name = f"operator-{next(_names)}"
    writer = CollectSink(name, two_phase=False).create_writer(TestWriter().context())
    writer.write(numbers(0, 2))
    writer.write(numbers(1, 1))
    collection: Collection = collected(name)
    assert collection.duplicates() == {(1,): 2}
    collection.assert_exactly([(0,), (1,), (1,)])
    with pytest.raises(AssertionError, match="1 rows too many"):
        collection.assert_exactly([(0,), (1,)])
    with pytest.raises(AssertionError, match="1 rows lost"):
        collection.assert_exactly([(0,), (1,), (1,), (5,)])
    clear_collected(name)
    assert collected(name).rows() == []


def test_each_handle_keeps_its_first_owner_over_restores() -> None:
    """S5.5, S7.4: at another parallelism it goes to who looks after that subtask's leftovers, however often."""
    job = Job()
    job.write(0, 1)
    (part,) = job.snapshot(1)()
    assert part.table.column(OWNER_COLUMN).to_pylist() == [0]
    moved = part.table.set_column(3, COMMITTABLES_SCHEMA.field(OWNER_COLUMN), pa.array([6], pa.int32()))
    restored = job.start()
    restored.restore([StatePart(part.name, part.kind, moved)])
    job.write(1, 1)
    (again,) = job.snapshot(2)()
    assert again.table.column(OWNER_COLUMN).to_pylist() == [6, 0]
    assert again.table.schema == COMMITTABLES_SCHEMA


def test_state_that_the_first_version_wrote_is_read() -> None:
    """S5.5: it does not tell the owner."""
    job = Job()
    job.write(0, 1)
    (part,) = job.snapshot(1)()
    restored = job.start()
    restored.restore([StatePart(part.name, part.kind, part.table.drop_columns([OWNER_COLUMN]))])
    restored.recover(permit(1))()
    assert job.published() == [0]


def test_what_is_withheld_is_not_published_on_its_way_and_held_until_it_is_there() -> None:
    """S7.8: a permit that comes before the move has been made leaves it out; so does recovery; and a snapshot of then
    holds its handle, so that the run which restores it can make the move."""
    job = Job()
    for n in (1, 2, 3):
        job.write(n, 1)
        job.snapshot(n)()
    withheld = WithheldRange(1, (2,))
    folder = (MemoryStore("withheld"), "quarantine")
    move = job.operator.quarantine(withheld, lambda: folder)
    assert job.operator.quarantine(WithheldRange(7, (8,)), lambda: folder) is None
    run(job.operator.commit(permit(3)))
    assert job.published() == [1, 3] and not job.operator.needs_commit_permit(3)
    held = job.snapshot(4)()
    run(job.operator.commit(permit(4)))
    assert ids(held) == [2] and job.published() == [1, 3]
    run(move)
    assert ids(job.snapshot(5)()) == [] and len(collected(job.name).quarantined) == 1
    job.identity.run = 2
    later = job.start()
    later.restore(held)
    again = later.quarantine(withheld, lambda: folder)
    later.recover(permit(4))()
    assert job.published() == [1, 3], "recovery before the move publishes nothing of it"
    run(again)
    assert ids(job.snapshot(6)()) == []


def test_the_writer_is_told_that_nothing_more_comes() -> None:
    """S7.2: before the last snapshot is asked for."""
    told: list[str] = []

    class Writer(DiscardWriter):
        def end_input(self) -> None:
            told.append("end")

    class Target(Discard):
        def create_writer(self, ctx: SinkContext) -> SinkWriter:
            return Writer()

    operator = SinkOperator(Target())
    operator.open(TestWriter().operator_context())
    assert list(operator.process(numbers(0, 1), 0)) == [] and told == []
    assert list(operator.finish()) == [] and told == ["end"]
