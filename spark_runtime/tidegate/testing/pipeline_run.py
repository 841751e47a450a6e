"""`tidegate.testing.run`: runs a pipeline on rows of a test, in this process and in milliseconds.

It uses the real coordinator, slot and operators, with a clock that the test moves, without Spark or threads.
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
from tidegate.log_format import set_up_if_nobody_has
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
    """One completed checkpoint, at its completion.

    Attributes:
        rows: sink uid -> rows committed with it.
        watermarks: see `Outcome.watermarks`.
    """

    checkpoint_id: int
    rows: Mapping[str, list[dict[str, Any]]]
    watermarks: Mapping[str, datetime | None]


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes:
        rows: sink uid -> all committed rows, in order of publication.
        tables: the same as Arrow tables.
        checkpoints: the checkpoints that the script requested, in order.
        watermarks: uid -> watermark that the operator had emitted before the end of the script, the minimum over
            subtasks, in UTC; None: none yet. `datetime.max`: all its input had ended.
        counters: uid -> counters of the last run, such as `late_dropped`.
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
    """Run a pipeline on rows to its end, and return the rows that its sinks would publish.

    Every element of `inputs` is fully processed before the next one is played. Bounded sources that `inputs` does not
    name read their real input. Sinks write nothing: their rows are in the outcome. Rows of a sink that does not commit
    occur as often as they were written. ::

        rows = [{"id": 1, "time": "2026-01-01 10:00"}, Watermark("2026-01-01 11:00"), Checkpoint()]
        out = run(lambda: build(arguments), {"orders": rows})
        assert out["totals"] == [{"id": 1, "n": 1}]

    Args:
        pipeline: a pipeline, or a function that creates one, called once.
        inputs: source uid -> rows, watermarks and actions (`Checkpoint`, `Crash`, `Advance`): first the first element
            of each source, then the second, and so on. Or a list of such mappings and of actions, played one after the
            other.
        drain: True: the input ends with the script, and open windows fire. False: the job is stopped with a savepoint,
            and they do not fire.
        clock: processing time at the start, in UTC.
        options: JobOptions, such as `parallelism=2`.

    Raises:
        PipelineError: the pipeline is invalid, rows do not fit, a source is unknown, or an element follows the end of
            its source.
        OptionError: an invalid option.
        TidegateError: the job failed; the cause is an operator's error, with its uid.
    """
    set_up_if_nobody_has("text")
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
    """Wraps a finished graph as a pipeline."""

    def __init__(self, graph: JobGraph) -> None:
        super().__init__()
        self._graph = graph

    def build(self, *, check_sinks: bool = True) -> JobGraph:
        """Return the graph."""
        return self._graph


class _PipelineRun:
    """Runs one job with its script."""

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
        """Play the script; see `run`."""
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
        """Delete the data that the process stores for the run."""
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
        """Return whether a checkpoint has completed, of the script or by `checkpoint_interval`."""
        return any(decision.kind == "complete" for decision in self._job.log.read())

    def _checkpoint(self) -> None:
        request = ev.SnapshotRequest("checkpoint", request_id=f"checkpoint-{len(self._checkpoints) + 1}")
        watermarks = _moments(self._run.watermarks())
        answer = self._run.ask(request)
        self._settle()
        if answer is None or not answer.ok:
            cause = answer.message if answer is not None else "the job ended before the checkpoint completed"
            raise TidegateError(
                "the checkpoint of the script failed",
                where="inputs, Checkpoint()",
                cause=cause,
                remedy="Fix the cause, or remove Checkpoint() from the inputs",
            )
        checkpoint_id = int(answer.data["checkpoint_id"])
        committed = {uid: self._committed_with(uid, checkpoint_id) for uid in self._sinks}
        self._checkpoints.append(Completed(checkpoint_id, committed, watermarks))

    def _committed_with(self, uid: str, checkpoint_id: int) -> list[dict[str, Any]]:
        transactions = collected(self._prefix + uid).committed.items()
        own = [batches for name, batches in transactions if parse_transaction_id(name).checkpoint_id == checkpoint_id]
        return [row for batches in own for batch in batches for row in batch.to_pylist()]

    def _settle(self) -> None:
        """Process all elements, without advancing the clock."""
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
        cause="a source ends with End(); a bounded broadcast side of a join ends with its last element",
        remedy="Remove the element from the inputs, or move it before the end of the source",
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
