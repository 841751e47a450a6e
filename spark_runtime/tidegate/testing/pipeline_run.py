"""`tidegate.testing.run`: a pipeline on rows given by a test, in this process and in milliseconds.

The runtime's own coordinator, slot and operators run, on a clock that the test moves; there is no Spark and no thread.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import duration_us
from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.connectors.transactions import parse_transaction_id
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunFailed
from tidegate.errors import PipelineError, TidegateError
from tidegate.jobs.records import RestoreFrom
from tidegate.plan.job_graph import JobGraph
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.collect_sink import clear_collected, collected
from tidegate.testing.fed_source import Feed
from tidegate.testing.graph_substitution import MARKS, check_fed, ends_early, substituted
from tidegate.testing.in_process_job import InProcessJob, InProcessRun
from tidegate.testing.script import (
    Advance,
    Checkpoint,
    Crash,
    End,
    Inputs,
    Step,
    Watermark,
    fed_uids,
    moment_us,
    steps_of,
)

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Completed:
    """One completed checkpoint, at the moment when it was.

    Attributes:
        rows: sink uid -> the rows that were committed with it.
        watermarks: see `Outcome.watermarks`.
    """

    checkpoint_id: int
    rows: Mapping[str, list[dict[str, Any]]]
    watermarks: Mapping[str, datetime | None]


@dataclass(frozen=True)
class Outcome:
    """What became of the rows.

    Attributes:
        rows: sink uid -> all rows committed, in order of publication.
        tables: the same as Arrow tables.
        checkpoints: those that the script asked for, in order.
        watermarks: uid -> event time that the operator had told downstream before the script's end was played, the
            least over subtasks, in UTC; None: none yet. `datetime.max`: all its input had ended.
        counters: uid -> counts of the last run, such as `late_dropped`.
    """

    rows: Mapping[str, list[dict[str, Any]]]
    tables: Mapping[str, pa.Table]
    checkpoints: tuple[Completed, ...]
    watermarks: Mapping[str, datetime | None]
    counters: Mapping[str, Mapping[str, int]]

    def __getitem__(self, sink: str) -> list[dict[str, Any]]:
        return self.rows[sink]


def run(
    pipeline: Pipeline | Callable[[], Pipeline],
    inputs: Inputs,
    *,
    drain: bool = True,
    clock: str | datetime = "2024-01-01",
    **options: Any,
) -> Outcome:
    """Run a pipeline on given rows to its end, and give what its sinks were to publish.

    Every element of `inputs` is worked off before the next one is played. Bounded sources that it does not name read
    what they read. Sinks write nothing: their rows are in the outcome, those of a sink that does not commit as often as
    they were written. ::

        rows = [{"id": 1, "time": "2026-01-01 10:00"}, Watermark("2026-01-01 11:00"), Checkpoint()]
        out = run(lambda: build(arguments), {"orders": rows})
        assert out["totals"] == [{"id": 1, "n": 1}]

    Args:
        pipeline: or a function that makes one, called once.
        inputs: source uid -> rows, watermarks and actions (`Checkpoint`, `Crash`, `Advance`): first the first element
            of each source, then the second. Or a list of such mappings and of actions, one after the other.
        drain: at the end of the script the input ends: windows that are open give their results. False: the job is
            stopped with a savepoint, and they do not.
        clock: processing time at the start, in UTC.
        options: JobOptions, such as `parallelism=2`.

    Raises:
        PipelineError: what the pipeline says, rows that do not fit, no such source, or an element behind its end.
        OptionError: a wrong option.
        TidegateError: the job failed; the cause is an operator's, with its uid.
    """
    graph = (pipeline if isinstance(pipeline, Pipeline) else pipeline()).build(check_sinks=False)
    steps, fed = steps_of(inputs), fed_uids(inputs)
    check_fed(graph, fed)
    with tempfile.TemporaryDirectory(prefix="tidegate-trial-") as scratch:
        trial = _PipelineRun(graph, fed, steps, options, moment_us(clock, "clock") // 1000, scratch)
        try:
            return trial.play(drain=drain)
        except OperatorFailure as failure:
            raise _failed(failure.uid, failure.subtask, failure.message, failure.traceback) from failure
        finally:
            trial.forget()


class _Built(Pipeline):
    """A finished graph in the place of a pipeline."""

    def __init__(self, graph: JobGraph) -> None:
        super().__init__()
        self._graph = graph

    def build(self, *, check_sinks: bool = True) -> JobGraph:
        """The graph."""
        return self._graph


class _PipelineRun:
    """One job on its script."""

    def __init__(
        self,
        graph: JobGraph,
        fed: Sequence[str],
        steps: Sequence[Step],
        options: Mapping[str, Any],
        now_ms: int,
        scratch: str,
    ) -> None:
        self._steps = steps
        self._feeds = {uid: Feed(uid, graph.by_uid(uid).schema) for uid in fed}
        self._early = {uid for uid in fed if ends_early(graph, uid)}
        self._sinks = [node.uid for node in graph.nodes if node.sink is not None]
        self._prefix = f"trial-{next(_numbers)}:"
        marked = {step.uid for step in steps if isinstance(step.what, Watermark)}
        built = _Built(substituted(graph, self._feeds, marked, self._prefix))
        self._job = InProcessJob(lambda: built, dict(options), scratch=scratch)
        self._job.now_ms = now_ms
        self._run: InProcessRun = self._job.submit()
        self._checkpoints: list[Completed] = []

    def play(self, *, drain: bool) -> Outcome:
        """See `run`."""
        self._settle()
        for step in self._steps:
            if step.uid and self._feeds[step.uid].ended:
                raise _too_late(f"{step.what!r} comes after the end of source {step.uid!r}")
            if self._run.outcome is not None:
                raise _too_late(f"the job has ended before {step.what!r}")
            if step.uid:
                self._feed(step)
            else:
                self._act(step.what)
            self._settle()
        watermarks = self._run.watermarks()
        if drain:
            for feed in self._feeds.values():
                feed.ended = True
        elif self._run.outcome is None:
            self._run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
        self._run.to_end()
        self._refuse_failure()
        tables = {uid: collected(self._prefix + uid).table() for uid in self._sinks}
        rows = {uid: table.to_pylist() for uid, table in tables.items()}
        return Outcome(rows, tables, tuple(self._checkpoints), _moments(watermarks), self._run.counters())

    def forget(self) -> None:
        """Drop what the process keeps of it."""
        for uid in self._sinks:
            clear_collected(self._prefix + uid)
        for path in self._job.store.walk(""):
            self._job.store.delete(path)

    def _feed(self, step: Step) -> None:
        feed = self._feeds[step.uid]
        match step.what:
            case Watermark() as watermark:
                feed.items.append(watermark.time_us)
            case End():
                feed.ended = True
            case Checkpoint() | Crash() | Advance():
                raise AssertionError(f"an action of one source: {step}")
            case rows:
                feed.add(rows)
        if step.last and step.uid in self._early:
            feed.ended = True

    def _act(self, action: object) -> None:
        match action:
            case Checkpoint():
                self._checkpoint()
            case Advance(by):
                self._run.tick(duration_us(by, "by", "Advance(...)") // 1000)
            case Crash(parallelism):
                self._run.crash()
                if parallelism is None:
                    self._run = self._job.rerun()
                else:
                    self._job.options = {**self._job.options, "parallelism": parallelism}
                    self._run = self._job.submit(RestoreFrom("latest") if self._has_checkpoint() else None)

    def _has_checkpoint(self) -> bool:
        """Of the script, or by `checkpoint_interval`."""
        return any(decision.kind == "complete" for decision in self._job.log.read())

    def _checkpoint(self) -> None:
        request = ev.SnapshotRequest("checkpoint", request_id=f"checkpoint-{len(self._checkpoints) + 1}")
        watermarks = _moments(self._run.watermarks())
        answer = self._run.ask(request)
        self._settle()
        if answer is None or not answer.ok:
            cause = answer.message if answer is not None else "the job ended meanwhile"
            raise TidegateError("there was no checkpoint", where="inputs, Checkpoint()", cause=cause)
        checkpoint_id = int(answer.data["checkpoint_id"])
        committed = {uid: self._committed_with(uid, checkpoint_id) for uid in self._sinks}
        self._checkpoints.append(Completed(checkpoint_id, committed, watermarks))

    def _committed_with(self, uid: str, checkpoint_id: int) -> list[dict[str, Any]]:
        transactions = collected(self._prefix + uid).committed.items()
        own = [batches for name, batches in transactions if parse_transaction_id(name).checkpoint_id == checkpoint_id]
        return [row for batches in own for batch in batches for row in batch.to_pylist()]

    def _settle(self) -> None:
        """Work off all there is; the clock stands still."""
        while self._run.outcome is None and self._run.pump():
            pass
        self._refuse_failure()

    def _refuse_failure(self) -> None:
        outcome = self._run.outcome
        if isinstance(outcome, RunFailed):
            raise _failed(outcome.operator, outcome.subtask, outcome.message, outcome.traceback)


def _too_late(what: str) -> PipelineError:
    return PipelineError(
        what,
        where="inputs",
        cause="a source ends with End(), and bounded as the broadcast side of a join with its last element",
        remedy="Take it away, or put it in front of the end",
    )


def _failed(operator: str | None, subtask: int | None, message: str, traceback: str | None) -> TidegateError:
    where = f"operator {operator!r}, subtask {subtask}" if operator else ""
    error = TidegateError("the job failed", where=where, cause=message)
    if traceback:
        error.add_note(traceback)
    return error


def _moments(times_us: Mapping[str, int]) -> dict[str, datetime | None]:
    return {uid: _moment(time_us) for uid, time_us in times_us.items() if not uid.endswith(MARKS)}


def _moment(time_us: int) -> datetime | None:
    if time_us == MIN_WATERMARK:
        return None
    if time_us == MAX_WATERMARK:
        return datetime.max.replace(tzinfo=UTC)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
