"""The single checkpoint of a batch job (S8.1).

The driver claims it before any task stages output, completes it when all output is staged, and then commits it.

The checkpoint is an ordinary snapshot in which every operator has finished. Its only content is the output that sinks
still have to commit. If a driver dies after the completion, the next driver commits that output, as it does after the
last checkpoint of a streaming job whose sources have ended. The commit gate delays the commit in the same way (S7.4,
S7.8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.coordinator.driver_job import DriverJob, Splits
from tidegate.coordinator.late_commit import publish_restored, recover_sink, remove_duplicate_attempts
from tidegate.errors import PipelineError
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.records import Decision
from tidegate.plan.graph_document import graph_document
from tidegate.snapshot.handles import StateHandle
from tidegate.snapshot.location import open_location
from tidegate.snapshot.metadata import OperatorState, SnapshotMetadata, SubtaskState, write_metadata


@dataclass(frozen=True)
class StagedReport:
    """Output that one subtask of a sink has staged.

    Attributes:
        uid: uid of the sink.
        subtask: index of the subtask.
        handle: handle of the sink's state; None: there is nothing to commit.
        counters: counters of the operators in the sink's stage: uid -> name -> number.
    """

    uid: str
    subtask: int
    handle: StateHandle | None
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StagedReport:
        """Read the document that a task reported."""
        handle = document["handle"]
        found = None if handle is None else StateHandle.from_json(handle)
        return cls(document["uid"], document["subtask"], found, document["counters"])


class BatchCommit:
    """The checkpoint of one run.

    `claim`, `complete` and `committed` append to the decision log and must be called on the driver's event loop.
    `clean` and `publish` block and may be called from any thread. All raise FencedError when a newer generation owns
    the job.

    Attributes:
        run_id: id of the run.
        checkpoint_id, path: id and folder of the checkpoint, set by `claim`.
    """

    def __init__(self, job: DriverJob, run_id: str) -> None:
        self._job = job
        self.run_id = run_id
        self.checkpoint_id = 0
        self.path = ""

    def claim(self) -> None:
        """Claim the next checkpoint id (S1.4)."""
        job = self._job
        self.checkpoint_id = job.next_checkpoint_id()
        self.path = job.layout.checkpoint(self.checkpoint_id, job.generation_log.generation)
        data = {"checkpoint_id": self.checkpoint_id, "kind": "final", "path": self.path}
        self._append("claim", {**data, "triggered_at": job.now_iso()})

    def clean(self) -> None:
        """Delete output that failed runs have staged (S7.4)."""
        for uid, sink in self._job.two_phase_sinks.items():
            # This submission has completed no checkpoint yet, so that no transaction of earlier runs may be committed.
            recover_sink(self._job, uid, sink, self.run_id, 0, ())

    def complete(self, reports: Sequence[StagedReport], splits: Splits, duration_ms: int) -> None:
        """Record that all output is staged. From here on its commit is guaranteed (S2.1)."""
        job = self._job
        for node in job.graph.nodes:
            if node.source is not None:
                self._append("end_of_data", {"source": node.uid})
        operators = tuple(
            OperatorState(node.uid, "finished", _subtasks([one for one in reports if one.uid == node.uid]))
            for node in job.graph.nodes
        )
        metadata = SnapshotMetadata(
            checkpoint_id=self.checkpoint_id,
            kind="final",
            job_id=job.spec.job_id,
            lineage=job.spec.lineage,
            generation=job.generation_log.generation,
            run_id=self.run_id,
            parent=None,
            parallelism=job.plan.parallelism,
            max_parallelism=job.plan.max_parallelism,
            created_at=job.now_iso(),
            graph=graph_document(job.graph),
            operators=operators,
            splits=splits,
        )
        # The file before the log entry: "complete" must never name a snapshot without metadata.
        store, folder = open_location(job.store, job.spec, self.path)
        write_metadata(store, folder, metadata)
        data = {
            "checkpoint_id": self.checkpoint_id,
            "kind": "final",
            "path": self.path,
            "stop": None,
            "metrics": {"duration_ms": duration_ms, "bytes": metadata.size_bytes},
            "subtasks": {},
            "finished_operators": [operator.uid for operator in operators],
            "parent": None,
            "sinks": {uid: sink.describe() for uid, sink in job.two_phase_sinks.items()},
        }
        self._append("complete", data)

    def publish(self) -> None:
        """Commit completed and approved output, then delete output of duplicate task attempts. Idempotent."""
        found = self._job.find_restore()
        assert found is not None, "a checkpoint has completed"
        # `~` sorts after `-`, with which the ids of task attempts
        # continue. So this writer counts as later than all of them.
        behind_all_tasks = f"{self.run_id}~"
        publish_restored(self._job, found[1], behind_all_tasks)
        remove_duplicate_attempts(self._job, found[1], behind_all_tasks)

    def committed(self) -> tuple[int, ...]:
        """Record the commit. Return the checkpoints that stay uncommitted because they wait for a verdict (S7.8)."""
        verdicts = self._job.verdicts
        if verdicts.gated and self.checkpoint_id > verdicts.approved:
            return verdicts.uncommitted
        self._append("committed", {"checkpoint_id": self.checkpoint_id})
        return ()

    def abort(self, reason: str) -> None:
        """Record that the run failed before the checkpoint was complete."""
        data = {"checkpoint_id": self.checkpoint_id, "reason": reason, "code": "shutdown", "counts": False}
        self._append("abort", data)

    def _append(self, kind: str, data: Mapping[str, Any]) -> None:
        self._job.generation_log.append(kind, data, self.run_id)


def was_completed_before(decisions: Sequence[Decision], spec_number: int) -> tuple[int, str] | None:
    """Return id and path of the checkpoint that submission `spec_number` has already completed, or None. Pure.

    If there is one, only its commit is left to do.
    """
    own = [e for e in entries_by_submission(decisions) if e.spec == spec_number and e.kind == "complete"]
    return (own[-1].data["checkpoint_id"], own[-1].data["path"]) if own else None


def refuse_restore(job: DriverJob) -> None:
    """Refuse a batch job that is submitted with a snapshot: it has no state to restore. Raises PipelineError."""
    if job.spec.restore is not None:
        raise PipelineError(
            "a batch job cannot start from a snapshot",
            where=f"job {job.spec.job_id}, submission {job.spec.number}",
            cause="a batch job reads its whole input",
            remedy="Submit the job without a snapshot, or restore the snapshot with execution_mode=streaming",
        )


def _subtasks(reports: Sequence[StagedReport]) -> tuple[SubtaskState, ...]:
    ordered = sorted(reports, key=lambda one: one.subtask)
    return tuple(SubtaskState(one.subtask, True, one.handle) for one in ordered)
