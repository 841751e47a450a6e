"""A batch task inside a Python worker of Spark: builds the pipeline from its pinned artifact, then runs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.connectors.found_schema import FoundSchemas
from tidegate.connectors.storage import absolute_url
from tidegate.connectors.transactions import job_storage
from tidegate.coordinator.job_run import RunFailed
from tidegate.errors import PipelineError, TidegateError
from tidegate.jobs.artifacts.artifact import unpack_artifact
from tidegate.jobs.json_documents import parse_json, read_bounded
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Spec, read_record
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.log_format import LogFormat, set_up
from tidegate.plan.batch_plan import BatchPlan, plan_batch
from tidegate.snapshot.handles import SnapshotStreams, StateHandle
from tidegate.snapshot.location import open_location
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.streams import encode_parts
from tidegate.spark.batch.exchange import TARGET
from tidegate.spark.batch.stage_task import INDEX_SCHEMA, BatchJob, Counters, Task
from tidegate.spark.scratch import ScratchFolder
from tidegate.subtask.chain import OperatorFailure
from tidegate.subtask.failure_codes import failure_code

FAILURE = "tidegate-failure "
"""Prefix of a failed task's report, as JSON, in the text of its exception.

Spark passes only this text on to the driver.
"""


COUNTERS = "counters"
"""Folder of a batch checkpoint."""


@dataclass(frozen=True)
class WorkerPlace:
    """Parameters with which a worker joins a run; sent in Spark's closure, without the user's code.

    Attributes:
        digest: digest of the driver's batch plan.
        schemas: schemas that sources found when the job was first built (S5.5).
        checkpoint_path: location for the sinks' state.
        now_ms: the time at which the run began, milliseconds since the epoch.
    """

    root: str
    storage_options: Mapping[str, Any]
    job_id: str
    spec: int
    generation: int
    run_id: str
    digest: str
    schemas: FoundSchemas
    checkpoint_id: int
    checkpoint_path: str
    now_ms: int
    log_format: LogFormat


class TaskFailedError(Exception):
    """Transports the root cause of a failed task to the driver, in its text."""


@dataclass(frozen=True)
class WorkerTask:
    """A task as Spark calls it, with the batches of one partition."""

    place: WorkerPlace
    task: Task
    parallelism: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the task's batches. Raises TaskFailedError."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        index, given = subtask_of(batches, context.partitionId() % self.parallelism)
        yield from self.run(index, given)
        # Spark uses a worker again only if it has read all its input. A stage that reads a source reads no rows.
        for _ in given:
            pass

    def run(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task whose subtask is known. Raises TaskFailedError."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        set_up(self.place.log_format, job=self.place.job_id, generation=self.place.generation, slot=index)
        try:
            with worker_job(self.place, index, context.taskAttemptId()) as job:
                yield from self.task.run(job, index, batches)
        except Exception as error:
            raise TaskFailedError(FAILURE + json.dumps(failure_report(error))) from error


def subtask_of(batches: Iterable[pa.RecordBatch], partition: int) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the number of the subtask, and the batches.

    The number is read from rows that were sent to the subtask, or from its index row. Otherwise it is the number of the
    partition, which differs where Spark puts several partitions into one task.
    """
    given = iter(batches)
    first = next((batch for batch in given if batch.num_rows), None)
    if first is None:
        return partition, iter(())
    for name in (TARGET, INDEX_SCHEMA.names[0]):
        if first.schema.names[0] == name:
            return int(first.column(0)[0].as_py()), itertools.chain([first], given)
    return partition, itertools.chain([first], given)


@contextlib.contextmanager
def worker_job(place: WorkerPlace, index: int, attempt: int) -> Iterator[BatchJob]:
    """Yield the job for the tasks of this worker, with a scratch folder that exists within the context.

    Args:
        attempt: number of the task's attempt, unique in the application, greater for later ones.
    """
    built = _built(place, index)
    spec, options = built.spec, built.options
    scratch = ScratchFolder(f"slot{index}")
    try:
        where, folder = open_location(built.store, spec, place.checkpoint_path)
        factory = SnapshotStreams(where, folder, options.state_size_threshold_bytes)
        yield BatchJob(
            plan=built.plan,
            options=options,
            job_id=place.job_id,
            lineage=spec.lineage,
            generation=place.generation,
            # Padded with zeros, because run ids are compared as texts.
            run_id=f"{place.run_id}-{attempt:010d}",
            checkpoint_id=place.checkpoint_id,
            now_ms=place.now_ms,
            store_state=partial(_store, factory, f"g{place.generation}-{place.run_id}"),
            store_counters=partial(_store_counters, where, folder),
            scratch=scratch.path,
            staging=(f"{absolute_url(place.root).rstrip('/')}/{place.checkpoint_path}", place.storage_options),
            sink_storage=job_storage(built.store, spec),
        )
    finally:
        scratch.remove()


@dataclass(frozen=True)
class _BuiltJob:
    """A submission's pipeline. `code`: folder of its files, from which functions may import more later."""

    store: Store
    spec: Spec
    options: JobOptions
    plan: BatchPlan
    code: ScratchFolder


_built_before: dict[tuple[str, str, int], _BuiltJob] = {}
"""Pipeline of this worker, which Spark uses for several tasks: at most one."""


def _built(place: WorkerPlace, index: int) -> _BuiltJob:
    """Rebuild the pipeline from the pinned artifact: nothing is unpickled."""
    key = place.root, place.job_id, place.spec
    if key not in _built_before:
        _built_before.clear()
        store, layout = open_store(place.root, place.storage_options), JobLayout(place.job_id)
        spec = read_record(store, layout.spec(place.spec), Spec)
        options = JobOptions.from_mapping(spec.options)
        scratch = ScratchFolder(f"slot{index}")
        code = os.path.join(scratch.path, "artifact")
        unpack_artifact(store, layout, spec.artifact, code)
        graph = load_pipeline(
            code,
            spec.pipeline,
            dict(spec.arguments),
            check_sinks=False,
            paths=spec.relative_paths,
            schemas=place.schemas,
        )
        allowed = options.allow_mode_dependent
        plan = plan_batch(graph, options.parallelism, options.max_parallelism, allow_mode_dependent=allowed)
        _built_before[key] = _BuiltJob(store, spec, options, plan, scratch)
    built = _built_before[key]
    if built.plan.digest != place.digest:
        raise PipelineError(
            "a Spark worker builds a different pipeline than the driver",
            where=f"job {place.job_id}, subtask {index}",
            cause="build() does not depend on its arguments alone, or the machines have different package versions",
            remedy="Make build() depend on its arguments alone, and install the same package versions on all machines",
        )
    return built


def _store(factory: SnapshotStreams, run: str, uid: str, subtask: int, parts: Sequence[StatePart]) -> StateHandle:
    """Store the parts in a new file, or inline."""
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in uid)
    handle = factory.store(f"{safe}-{subtask}-{run}-{secrets.token_hex(4)}.state", encode_parts(parts))
    kinds = tuple(sorted({part.kind for part in parts}))
    staged = tuple(data for part in parts for data in part.staged)
    return StateHandle(handle.path, handle.inline, handle.size_bytes, handle.sha256, kinds, staged)


def _store_counters(store: Store, checkpoint: str, name: str, counters: Counters) -> None:
    store.replace(f"{checkpoint}/{COUNTERS}/{name}.json", json.dumps(counters).encode())


def counters_of_stages(store: Store, checkpoint: str) -> list[Counters]:
    """Return the counters of tasks without a sink. Args: checkpoint: location of the run's checkpoint."""
    folder = f"{checkpoint}/{COUNTERS}"
    return [parse_json(read_bounded(store, f"{folder}/{name}")) for name in store.list(folder)]


def failure_report(error: Exception) -> dict[str, Any]:
    """Return a failed task's report, as JSON."""
    if isinstance(error, OperatorFailure):
        return {
            "message": error.message,
            "operator": error.uid,
            "subtask": error.subtask,
            "traceback": error.traceback,
            "code": error.code,
        }
    text = str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}"
    return {"message": text, "operator": None, "subtask": None, "traceback": None, "code": failure_code(error)}


def failure_in(text: str) -> RunFailed | None:
    """Return a failed task's report from the text of Spark's error; None: no task of ours failed."""
    # The JSON has no line ends, so the greedy match ends with its line of Spark's error.
    found = re.search(re.escape(FAILURE) + r"(\{.*\})", text)
    if found is None:
        return None
    try:
        report = json.loads(found.group(1))
        return RunFailed(
            report["message"], report["operator"], report["subtask"], report["traceback"], report.get("code", "")
        )
    except (ValueError, KeyError):
        return None
