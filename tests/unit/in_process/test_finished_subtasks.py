"""Subtasks that have finished while others run: what is recorded, what a restore runs again, what union and broadcast
state allow (S6). Whole jobs in one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from builders.sinks import new_sink_name

from tidegate.api.draft.graph_draft import DraftNode
from tidegate.api.pipeline import Pipeline
from tidegate.api.stream import Stream
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.interface import SourceContext, SourceReader
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.operators.operator_registry import register_operator
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.snapshot.metadata import SnapshotMetadata, read_metadata
from tidegate.snapshot.parts import AsyncSnapshot, StateKind, StatePart
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

SCHEMA = pa.schema([("v", pa.int64())])
ROWS = 480


@dataclass
class Diary:
    """What was asked of the operators and readers of one test: (what, subtask, value)."""

    entries: list[tuple[str, int, Any]] = field(default_factory=list)

    def of(self, what: str) -> list[tuple[int, Any]]:
        return [(subtask, value) for name, subtask, value in self.entries if name == what]


@dataclass(frozen=True)
class Seen(OperatorSpec):
    """An operator with one row of state in a subtask: how many records it has seen. Passes records on."""

    diary: Diary
    kind: StateKind

    def describe(self) -> str:
        return "Seen"


register_operator(Seen, f"{__name__}:SeenOperator")


class SeenOperator(StreamOperator):
    def __init__(self, spec: Seen) -> None:
        self.diary, self.kind, self.seen = spec.diary, spec.kind, 0

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self.diary.entries.append(("open", ctx.subtask, None))

    def restore(self, parts: Sequence[StatePart]) -> None:
        rows = [tuple(row.values()) for part in parts for row in part.table.to_pylist()]
        self.diary.entries.append(("restore", self.ctx.subtask, sorted(rows)))

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        self.seen += batch.num_rows
        yield batch

    def finish(self) -> Iterator[Output]:
        self.diary.entries.append(("finish", self.ctx.subtask, None))
        yield from ()

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        rows = pa.table({"subtask": [self.ctx.subtask], "seen": [self.seen]})
        return lambda: [StatePart("seen", self.kind, rows)]


class TellingSource(DataGen):
    """Notes every reader that is made."""

    diary: Diary

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        self.diary.entries.append((f"reader {ctx.uid}", ctx.subtask, None))
        return super().create_reader(ctx)


class Finishing:
    """A job with a diary and sinks of its own."""

    def __init__(self, build: Callable[[Finishing], Pipeline], **options: Any) -> None:
        self.name = new_sink_name()
        self.diary = Diary()
        self.job = InProcessJob(lambda: build(self), {"parallelism": 2, "retained_checkpoints": 9, **options})

    def read(self, p: Pipeline, uid: str, rows: int | None = ROWS, splits: int = 3) -> Stream:
        """With 3 splits subtask 0 has twice as much to read as subtask 1."""
        source = TellingSource(lambda numbers: {"v": numbers}, SCHEMA, rows=rows, splits=splits, batch_rows=8)
        source.diary = self.diary
        return p.read(source, uid=uid)

    def seen(self, stream: Stream, kind: StateKind, uid: str = "seen") -> Stream:
        node = DraftNode(uid, "seen", stream._forward(), SCHEMA, "t.py:1", stateful=True, spec=Seen(self.diary, kind))
        return stream._then(node, stream._event_time)

    def sink(self, name: str = "out") -> CollectSink:
        return CollectSink(f"{self.name}-{name}")

    def rows(self, name: str = "out") -> list[Any]:
        return sorted(row[0] for row in collected(f"{self.name}-{name}").rows())  # type: ignore[type-var]

    def metadata(self, checkpoint_id: int) -> SnapshotMetadata:
        entries = (d for d in self.job.log.read() if d.kind == "complete")
        return read_metadata(
            self.job.store, next(d.data["path"] for d in entries if d.data["checkpoint_id"] == checkpoint_id)
        )

    def statuses(self, checkpoint_id: int) -> dict[str, str]:
        return {op.uid: op.status for op in self.metadata(checkpoint_id).operators}


def checkpoint(run: InProcessRun, name: str) -> ev.CommandAnswer:
    answer = run.ask(ev.SnapshotRequest("checkpoint", request_id=name))
    assert answer is not None
    return answer


def until_ended(run: InProcessRun, subtasks: int) -> None:
    """So many subtasks have told that their data has ended."""
    states = run.run.coordinator._subtasks.by_subtask
    run.until(lambda: sum(state in ("ended", "finished") for state in states.values()) >= subtasks)


def with_state(kind: StateKind, apart: bool = False) -> Callable[[Finishing], Pipeline]:
    """Source, stateful operator, sink. `apart`: the operator's chain is not the source's, which feeds it subtask by
    subtask."""

    def build(job: Finishing) -> Pipeline:
        p = Pipeline()
        numbers = job.read(p, "numbers")
        if apart:
            numbers.filter(pc.field("v") < 0).write(job.sink("none"), uid="none")
        job.seen(numbers, kind).write(job.sink(), uid="out")
        return p

    return build


@pytest.mark.parametrize("apart", [False, True])
def test_what_some_subtasks_of_an_operator_have_finished_is_recorded_as_partially_finished(apart: bool) -> None:
    """S6.2: in the source's chain and in one of its own; then as fully finished, with the rest of the job."""
    finishing = Finishing(with_state("list", apart))
    run = finishing.job.submit()
    assert checkpoint(run, "early").ok
    until_ended(run, 3 if apart else 1)
    assert checkpoint(run, "late").ok
    run.to_end()
    wanted = ["numbers", "seen", "out"]
    assert [finishing.statuses(1)[uid] for uid in wanted] == ["running"] * 3
    assert [finishing.statuses(2)[uid] for uid in wanted] == ["partially_finished"] * 3
    assert [finishing.statuses(3)[uid] for uid in wanted] == ["finished"] * 3
    assert finishing.rows() == list(range(ROWS))


def test_a_partially_finished_operator_runs_on_with_the_state_of_its_running_subtasks() -> None:
    """S6.2: the finished subtask's part is no more; its successor runs, reads nothing, and ends again."""
    finishing = Finishing(with_state("list"))
    run = finishing.job.submit()
    until_ended(run, 1)
    assert checkpoint(run, "one").ok
    run.until(lambda: any(s.is_finished for s in run.slot._subtasks))
    assert checkpoint(run, "two").ok
    (left,) = [s for s in finishing.metadata(2).operators[1].subtasks if s.handle is not None]
    run.crash()
    finishing.diary.entries.clear()
    again = finishing.job.rerun()
    restored = dict(finishing.diary.of("restore"))
    assert [(i, [row[0] for row in rows]) for i, rows in sorted(restored.items())] == [(0, [0]), (1, [])]
    assert left.index == 0
    assert again.to_end() == RunEnded(None, None, None, None)
    assert finishing.rows() == list(range(ROWS))


def until_written(run: InProcessRun, parts: int) -> None:
    """So many parts of snapshots lie with the writers, which are held."""
    run.until(lambda: len(run.writers._waiting) >= parts)


@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
def test_a_branch_that_has_ended_writes_its_part_of_every_snapshot_before_it_closes(kind: Any) -> None:
    """S7.3: an older checkpoint lets the branch finish while it writes its part of a newer snapshot."""

    def build(job: Finishing) -> Pipeline:
        p = Pipeline()
        job.seen(job.read(p, "short", rows=8, splits=1), "list", "seen-short").write(job.sink("short"), uid="out-short")
        job.seen(job.read(p, "long", rows=None, splits=1), "list", "seen-long").write(job.sink("long"), uid="out-long")
        return p

    finishing = Finishing(build, parallelism=1, max_concurrent_checkpoints=2, state_size_threshold="0 B")
    run = finishing.job.submit()
    until_ended(run, 1)
    run.writers.held = True
    run.run.handle_command(ev.SnapshotRequest("checkpoint", request_id="older"))
    until_written(run, 6)
    run.run.handle_command(ev.SnapshotRequest(kind, request_id="newer"))
    until_written(run, 12)
    newer = run.writers._waiting[6:]
    del run.writers._waiting[6:]
    run.writers.release()
    run.until(lambda: "older" in finishing.job.answers)
    run.pump(50)
    assert "newer" not in finishing.job.answers, finishing.job.answers["newer"].message
    for work in newer:
        work()
    run.until(lambda: "newer" in finishing.job.answers)
    assert [finishing.job.answers[name].ok for name in ("older", "newer")] == [True, True]
    run.until(lambda: any(subtask.is_finished for subtask in run.slot._subtasks))


@pytest.mark.parametrize("apart", [False, True])
def test_union_state_of_a_partially_finished_operator_aborts_the_checkpoint_and_not_the_job(apart: bool) -> None:
    """S6.3: with a reason, uncounted; it works before, and again when all subtasks have finished."""
    finishing = Finishing(with_state("union", apart), tolerable_checkpoint_failures=0)
    run = finishing.job.submit()
    assert checkpoint(run, "early").ok
    until_ended(run, 3 if apart else 1)
    assert finishing.diary.of("finish") == [(1, None)]
    for name in ("one", "two"):
        answer = checkpoint(run, name)
        assert (answer.ok, answer.code) == (False, "aborted")
        assert "operator 'seen' has union state, and 1 of its 2 subtasks have finished" in answer.message
    savepoint = run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert savepoint is not None and not savepoint.ok
    assert run.to_end() == RunEnded(None, None, None, None)
    aborts = [d.data for d in finishing.job.log.read() if d.kind == "abort"]
    assert [(a["code"], a["counts"]) for a in aborts] == [("partially_finished", False)] * 3
    assert [d.data["kind"] for d in finishing.job.log.read() if d.kind == "complete"] == ["checkpoint", "final"]
    assert finishing.rows() == list(range(ROWS))


def test_union_state_of_all_subtasks_comes_to_every_subtask() -> None:
    """S5.1, S6.3."""
    finishing = Finishing(with_state("union"))
    run = finishing.job.submit()
    run.pump(3)
    assert checkpoint(run, "one").ok
    run.crash()
    finishing.job.rerun()
    restored = dict(finishing.diary.of("restore"))
    assert restored[0] == restored[1] and [row[0] for row in restored[0]] == [0, 1]


def test_a_suspend_that_finds_union_state_partially_finished_costs_a_restart_and_nothing_else() -> None:
    """S6.3, S7.7: some subtasks have called finish(), those that were suspended have not."""
    finishing = Finishing(with_state("union"))
    run = finishing.job.submit()
    assert checkpoint(run, "early").ok
    until_ended(run, 1)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    answer = finishing.job.answers["stop"]
    assert answer.code == "savepoint_failed_job_continues" and "union state" in answer.message
    run.crash()
    finishing.job.rerun().to_end()
    assert finishing.rows() == list(range(ROWS))


def test_a_restored_job_takes_broadcast_state_from_a_subtask_that_was_running() -> None:
    """S6.3: the finished one's copy is older."""
    finishing = Finishing(with_state("broadcast"))
    run = finishing.job.submit()
    until_ended(run, 1)
    assert checkpoint(run, "one").ok
    assert finishing.statuses(1)["seen"] == "partially_finished"
    run.crash()
    finishing.job.rerun()
    restored = dict(finishing.diary.of("restore"))
    assert restored[0] == restored[1] and [row[0] for row in restored[0]] == [0]


def beside_an_endless_one(job: Finishing) -> Pipeline:
    """A bounded branch that finishes as a whole, beside one that never does."""
    p = Pipeline()
    job.seen(job.read(p, "short", 40), "list").write_through(job.sink("short"), uid="short-out")
    job.read(p, "long", None).write(job.sink("long"), uid="long-out")
    return p


def finished_branch(build: Callable[[Finishing], Pipeline] = beside_an_endless_one) -> Finishing:
    """Crashed after a checkpoint past the finished branch."""
    finishing = Finishing(build)
    run = finishing.job.submit()
    until_ended(run, 2)
    assert checkpoint(run, "one").ok and checkpoint(run, "two").ok
    assert [finishing.statuses(2)[u] for u in ("short", "seen", "short-out", "long")] == ["finished"] * 3 + ["running"]
    run.crash()
    finishing.diary.entries.clear()
    return finishing


def test_a_finished_operator_runs_none_of_its_code_after_a_restore_and_its_source_makes_no_reader() -> None:
    """S6.2: also in the snapshots of the new run, and in those that are restored from them."""
    finishing = finished_branch()
    for name in ("three", "four"):
        run = finishing.job.rerun()
        run.pump(20)
        assert checkpoint(run, name).ok
        run.pump(20)
        assert {what for what, _, _ in finishing.diary.entries} == {"reader long"}
        run.crash()
    assert [finishing.statuses(4)[u] for u in ("short", "seen", "short-out", "long")] == ["finished"] * 3 + ["running"]
    assert finishing.rows("short") == list(range(40))


def test_a_new_operator_behind_a_finished_one_gets_its_end_and_ends() -> None:
    """S6.4: the finished subtasks send MAX_WATERMARK and EndOfData; it reads nothing and waits for nothing."""
    finishing = finished_branch()

    def upgraded(job: Finishing) -> Pipeline:
        p = Pipeline()
        written = job.seen(job.read(p, "short", 40), "list").write_through(job.sink("short"), uid="short-out")
        job.read(p, "long", None).write(job.sink("long"), uid="long-out")
        bounded = written.union(written)  # two readers: a chain of its own
        job.seen(bounded, "list", "added").write(job.sink("added"), uid="added-out")
        return p

    finishing.job.build = lambda: upgraded(finishing)
    run = finishing.job.submit(RestoreFrom("checkpoint", checkpoint_id=2))
    added = [
        s for s in run.slot._subtasks if s.contexts() and s.contexts()[0][0].startswith(("added", "short-out.union"))
    ]
    run.until(lambda: sorted(finishing.diary.of("finish")) == [(0, None), (1, None)])
    assert len(added) == 2 and checkpoint(run, "three").ok
    run.until(lambda: all(s.is_finished for s in added))
    assert {s.watermark_us for s in added} == {2**63 - 1}
    assert finishing.rows("added") == [] and finishing.rows("short") == list(range(40))


def test_a_new_source_in_front_of_a_finished_operator_is_refused() -> None:
    """S6.4: at the submission, naming both."""
    finishing = finished_branch()

    def upgraded(job: Finishing) -> Pipeline:
        p = Pipeline()
        short = job.read(p, "short", 40).union(job.read(p, "new", 40))
        job.seen(short, "list").write_through(job.sink("short"), uid="short-out")
        job.read(p, "long", None).write(job.sink("long"), uid="long-out")
        return p

    finishing.job.build = lambda: upgraded(finishing)
    with pytest.raises(SnapshotError, match="which has not finished, is upstream of 'seen', which has"):
        finishing.job.submit(RestoreFrom("checkpoint", checkpoint_id=2))


def test_a_drained_source_and_what_it_feeds_are_recorded_as_drained_and_read_on_when_restored() -> None:
    """S6.2, S7.5: beside them the branch that had ended by itself stays finished."""
    finishing = Finishing(beside_an_endless_one)
    run = finishing.job.submit()
    until_ended(run, 2)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="drain"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    metadata = read_metadata(finishing.job.store, outcome.path)
    assert metadata.drained_operators == ()  # nothing fired early
    assert {op.uid: op.status for op in metadata.operators} == {
        "short": "finished",
        "seen": "finished",
        "short-out": "finished",
        "long": "running",
        "long-out": "running",
    }
    before = len(finishing.rows("long"))
    finishing.diary.entries.clear()
    again = finishing.job.submit(RestoreFrom("savepoint", path=outcome.path, allow_drained=True))
    again.pump(30)
    again.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop2", stop="suspend"))
    assert {what for what, _, _ in finishing.diary.entries} == {"reader long"}
    rows = finishing.rows("long")
    assert len(rows) > before and len(set(rows)) == len(rows)
    assert finishing.rows("short") == list(range(40))
