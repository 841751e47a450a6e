"""A batch job and its drivers, one after the other, without Spark (S8.1)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate import DataGen, Pipeline
from tidegate.connectors.split_documents import assign_splits
from tidegate.coordinator.batch_commit import BatchCommit, StagedReport
from tidegate.coordinator.driver_job import DriverJob
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Decision, RestoreFrom, Spec
from tidegate.jobs.status import derive_durable
from tidegate.jobs.stores.store_registry import open_store
from tidegate.plan.batch_plan import plan_batch
from tidegate.plan.execution_plan import make_execution_plan
from tidegate.snapshot.handles import SnapshotStreams, StateHandle
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.streams import encode_parts
from tidegate.spark.batch.stage_compiler import compile_batch
from tidegate.spark.batch.stage_task import BatchJob
from tidegate.testing.batch import LocalFrames, run_and_collect
from tidegate.testing.collect_sink import CollectSink, collected

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

    def driver(self, *, only_commits: bool = False) -> tuple[DriverJob, BatchCommit]:
        """The next one, with a run that has not begun; or whoever only commits."""
        log = DecisionLog(self.store, self.layout, now_iso=lambda: AT, nonce=lambda: next(self._nonces))
        graph = self.build().build()
        job = DriverJob(
            root=self.store.url,
            storage_options={},
            store=self.store,
            layout=self.layout,
            spec=self.spec,
            options=self.given,
            graph=graph,
            plan=make_execution_plan(graph, 3, 128),
            log=log,
            generation_log=log.begin_generation(spec=1, launch=1, only_commits=only_commits),
            now_iso=lambda: AT,
            specs=lambda: [self.spec],
        )
        return job, BatchCommit(job, f"{next(self._runs):06d}r")

    def staged(self, job: DriverJob, commit: BatchCommit, attempt: int = 1) -> Sequence[StagedReport]:
        """What the stages of a run leave. Args: attempt: of their tasks; from the second on beside the first."""
        if attempt == 1:
            commit.clean()
        batch_plan = plan_batch(job.graph, 3, 128)
        factory = SnapshotStreams(self.store, commit.path)
        generation = job.generation_log.generation

        def store(uid: str, subtask: int, parts: Sequence[StatePart]) -> StateHandle:
            return factory.store(f"{uid}-{subtask}-g{generation}-{attempt}.state", encode_parts(parts))

        run_id = f"{commit.run_id}-{attempt:04d}"
        place = BatchJob(batch_plan, self.given, "job", "l", generation, run_id, commit.checkpoint_id, 0, store)
        splits = job.splits(None)
        return [
            StagedReport.from_json(told)
            for told in run_and_collect(compile_batch(batch_plan, assign_splits(splits, 3), LocalFrames(place)))
        ]

    def visible(self) -> list[int]:
        """What readers see."""
        return sorted(value for (value,) in collected(self.name).rows())  # type: ignore[misc]

    def view(self) -> Any:
        """Of the job."""
        return derive_durable([self.spec], self.decisions())

    def decisions(self) -> Sequence[Decision]:
        """The whole log."""
        return DecisionLog(self.store, self.layout, now_iso=lambda: AT, nonce=lambda: "x").read()
