"""The one checkpoint of a batch job, and drivers that die around it (S8.1, S7.4)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate import DataGen, Pipeline, PipelineError, SparkWriter
from tidegate.connectors.splits import assign
from tidegate.contract.errors import FencedError
from tidegate.contract.layout import JobLayout
from tidegate.contract.log import DecisionLog
from tidegate.contract.options import JobOptions
from tidegate.contract.records import RestoreFrom, Spec
from tidegate.contract.status import derive_durable
from tidegate.contract.store import open_store
from tidegate.coordinator.batch_commit import BatchCommit, Told, completed_before, refuse_restore
from tidegate.coordinator.events import Ruling
from tidegate.coordinator.job import Job
from tidegate.coordinator.late_commit import commit_late
from tidegate.plan.batch import plan_batch
from tidegate.plan.execution import plan
from tidegate.snapshot.handles import StateHandle, StreamFactory
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.streams import encode_parts
from tidegate.spark.batch_compiler import compile_batch
from tidegate.spark.batch_task import BatchJob
from tidegate.testing.batch import LocalFrames, told_of
from tidegate.testing.collect import CollectSink, collected

AT = "2026-01-01T00:00:00+00:00"
SCHEMA = pa.schema([("v", pa.int64())])
_names = itertools.count(1)


def rows(numbers: np.ndarray) -> dict[str, Any]:
    """Rows by number."""
    return {"v": numbers}


@dataclass
class Drivers:
    """A batch job of three subtasks, and one driver after the other."""

    options: dict[str, Any] = field(default_factory=dict)
    restore: RestoreFrom | None = None
    sink: Callable[[str], Any] = CollectSink

    def __post_init__(self) -> None:
        self.name = f"batch-commit-{next(_names)}"
        self.store, self.layout = open_store(f"memory://{self.name}"), JobLayout("job")
        self.given = JobOptions(parallelism=3, execution_mode="batch", **self.options)
        options = self.given.to_mapping()
        self.spec = Spec("job", 1, "s", "m:f", "", {}, options, "local", {}, {}, self.restore, "l", None, AT, "test")
        self._nonces = map(str, itertools.count())
        self._runs = itertools.count(1)

    def build(self) -> Pipeline:
        p = Pipeline()
        p.read(DataGen(rows, SCHEMA, rows=100, splits=3), uid="numbers").write(self.sink(self.name), uid="out")
        return p

    def driver(self) -> tuple[Job, BatchCommit]:
        """The next one, with a run that has not begun."""
        log = DecisionLog(self.store, self.layout, now_iso=lambda: AT, nonce=lambda: next(self._nonces))
        graph = self.build().build()
        job = Job(
            root=self.store.url,
            storage_options={},
            store=self.store,
            layout=self.layout,
            spec=self.spec,
            options=self.given,
            graph=graph,
            plan=plan(graph, 3, 128),
            log=log,
            reign=log.reign(spec=1, launch=1),
            now_iso=lambda: AT,
            specs=lambda: [self.spec],
        )
        return job, BatchCommit(job, f"{next(self._runs):06d}r")

    def staged(self, job: Job, commit: BatchCommit, attempt: int = 1) -> Sequence[Told]:
        """What the stages of a run leave. Args: attempt: of their tasks; from the second on beside the first."""
        if attempt == 1:
            commit.clean()
        batch_plan = plan_batch(job.graph, 3, 128)
        factory = StreamFactory(self.store, commit.path)
        generation = job.reign.generation

        def store(uid: str, subtask: int, parts: Sequence[StatePart]) -> StateHandle:
            return factory.store(f"{uid}-{subtask}-g{generation}-{attempt}.state", encode_parts(parts))

        run_id = f"{commit.run_id}-{attempt:04d}"
        place = BatchJob(batch_plan, self.given, "job", "l", generation, run_id, commit.checkpoint_id, 0, store)
        splits = job.splits(None)
        return [
            Told.from_json(told) for told in told_of(compile_batch(batch_plan, assign(splits, 3), LocalFrames(place)))
        ]

    def visible(self) -> list[int]:
        """What readers see."""
        return sorted(value for (value,) in collected(self.name).rows())  # type: ignore[misc]

    def view(self) -> Any:
        """Of the job."""
        log = DecisionLog(self.store, self.layout, now_iso=lambda: AT, nonce=lambda: "x")
        return derive_durable([self.spec], log.read())


def test_output_is_visible_when_the_checkpoint_is_complete_and_published_and_not_before() -> None:
    drivers = Drivers()
    job, commit = drivers.driver()
    commit.claim()
    told = drivers.staged(job, commit)
    assert drivers.visible() == []
    commit.complete(told, job.splits(None), 5)
    assert drivers.visible() == []
    commit.publish()
    commit.publish()
    assert drivers.visible() == list(range(100))
    assert commit.committed() == ()
    (view,) = drivers.view().checkpoints
    assert (view.kind, view.status, view.committed, view.sinks) == ("final", "completed", True, ("out",))
    assert [source.uid for source in drivers.view().sources if source.end_of_data] == ["numbers"]


def test_a_driver_that_dies_before_the_checkpoint_is_complete_leaves_nothing_and_its_successor_begins_anew() -> None:
    drivers = Drivers()
    job, commit = drivers.driver()
    commit.claim()
    drivers.staged(job, commit)
    staged = set(collected(drivers.name).staged)
    second, again = drivers.driver()
    assert completed_before(second.log.read(), 1) is None
    again.claim()
    assert again.checkpoint_id == 2
    told = drivers.staged(second, again)
    assert not staged & set(collected(drivers.name).staged), "what the first has staged is removed"
    again.complete(told, {}, 5)
    again.publish()
    assert drivers.visible() == list(range(100))
    with pytest.raises(FencedError):
        commit.complete([], {}, 5)


def test_a_driver_that_dies_behind_the_completion_is_followed_by_one_that_commits() -> None:
    drivers = Drivers()
    job, commit = drivers.driver()
    commit.claim()
    commit.complete(drivers.staged(job, commit), {}, 5)
    second, again = drivers.driver()
    found = completed_before(second.log.read(), 1)
    assert found is not None
    again.checkpoint_id, again.path = found
    again.publish()
    assert again.committed() == ()
    assert drivers.visible() == list(range(100))
    assert drivers.view().checkpoints[0].committed


def test_a_gated_batch_job_waits_for_its_verdict_and_is_committed_without_running() -> None:
    """S7.8."""
    drivers = Drivers({"commit": "on_request"})
    job, commit = drivers.driver()
    commit.claim()
    commit.complete(drivers.staged(job, commit), job.splits(None), 5)
    commit.publish()
    assert commit.committed() == (1,)
    job.status("FINISHED_COMMIT_PENDING", uncommitted=[1])
    assert drivers.visible() == []
    late, _ = drivers.driver()
    result = commit_late(late, "late", Ruling("c", True, 1, "test"))
    assert (result.committed, result.waiting) == (1, ())
    assert drivers.visible() == list(range(100))
    assert drivers.view().status.value == "FINISHED"


@pytest.mark.parametrize("options", [{}, {"commit": "on_request"}], ids=["at once", "gated"])
def test_what_a_task_staged_that_spark_ran_twice_goes_with_the_commit_and_what_counts_stays(
    options: dict[str, Any],
) -> None:
    """S7.4: a job that has ended has no next run that would remove it."""
    drivers = Drivers(options)
    job, commit = drivers.driver()
    commit.claim()
    drivers.staged(job, commit)
    told = drivers.staged(job, commit, attempt=2)
    drivers.staged(job, commit, attempt=3)
    assert len(collected(drivers.name).staged) == 9
    commit.complete(told, job.splits(None), 5)
    commit.publish()
    assert len(collected(drivers.name).staged) == (3 if options else 0)
    assert drivers.visible() == ([] if options else list(range(100)))
    if options:
        job.status("FINISHED_COMMIT_PENDING", uncommitted=list(commit.committed()))
        commit_late(drivers.driver()[0], "late", Ruling("c", True, 1, "test"))
    collected(drivers.name).assert_exactly([(n,) for n in range(100)])
    assert not collected(drivers.name).staged


def test_a_run_that_fails_aborts_what_it_had_claimed() -> None:
    drivers = Drivers()
    _, commit = drivers.driver()
    commit.claim()
    commit.abort("a stage failed")
    assert [(c.status, c.reason) for c in drivers.view().checkpoints] == [("aborted", "a stage failed")]


def test_a_batch_job_starts_from_no_snapshot() -> None:
    job, _ = Drivers(restore=RestoreFrom("latest")).driver()
    with pytest.raises(PipelineError, match="cannot start from a snapshot"):
        refuse_restore(job)


@pytest.mark.parametrize("options", [{"execution_mode": "streaming"}, {"commit": "on_request"}])
def test_a_writer_of_spark_is_refused_where_it_cannot_commit(options: dict[str, Any]) -> None:
    drivers = Drivers(sink=lambda name: SparkWriter(format="parquet", path=f"/tmp/{name}"))
    drivers.given = JobOptions(**{"parallelism": 3, "execution_mode": "batch", **options})
    with pytest.raises(PipelineError, match="sink 'out' at .*test_batch_commit.py"):
        drivers.driver()
