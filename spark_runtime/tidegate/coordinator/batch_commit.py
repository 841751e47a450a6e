"""The one checkpoint of a batch job: claimed before anything is staged, complete when all is, then committed (S8.1).

It is a snapshot like any other, of operators that have all finished, with nothing in it but what the sinks still have
to commit. So a driver that dies behind its completion is followed by one that commits it, as with the last checkpoint
of a streaming job that has come to its end, and the commit gate holds it back in the same way (S7.4, S7.8).
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
    """What one subtask of a sink has staged.

    Attributes:
        uid: of the sink.
        subtask: its index.
        handle: of its state; None: there is nothing to commit.
        counters: what the operators of its stage counted: uid -> name -> number.
    """

    uid: str
    subtask: int
    handle: StateHandle | None
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StagedReport:
        """As tasks tell it."""
        handle = document["handle"]
        found = None if handle is None else StateHandle.from_json(handle)
        return cls(document["uid"], document["subtask"], found, document["counters"])


class BatchCommit:
    """The checkpoint of one run. `claim`, `complete` and `committed` append to the log, on the driver's loop; `clean`
    and `publish` block, for any thread. All raise FencedError when a newer generation reigns.

    Attributes:
        run_id: of the attempt.
        checkpoint_id, path: of the checkpoint, once it is claimed.
    """

    def __init__(self, job: DriverJob, run_id: str) -> None:
        self._job = job
        self.run_id = run_id
        self.checkpoint_id = 0
        self.path = ""

    def claim(self) -> None:
        """Take the next id (S1.4)."""
        job = self._job
        self.checkpoint_id = job.next_checkpoint_id()
        self.path = job.layout.checkpoint(self.checkpoint_id, job.generation_log.generation)
        data = {"checkpoint_id": self.checkpoint_id, "kind": "final", "path": self.path}
        self._append("claim", {**data, "triggered_at": job.now_iso()})

    def clean(self) -> None:
        """Remove what runs that failed have staged (S7.4)."""
        for uid, sink in self._job.two_phase_sinks.items():
            recover_sink(self._job, uid, sink, self.run_id, 0, ())

    def complete(self, told: Sequence[StagedReport], splits: Splits, duration_ms: int) -> None:
        """Everything is staged: from now on it is certain that it will be committed (S2.1)."""
        job = self._job
        for node in job.graph.nodes:
            if node.source is not None:
                self._append("end_of_data", {"source": node.uid})
        operators = tuple(
            OperatorState(node.uid, "finished", _subtasks([one for one in told if one.uid == node.uid]))
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
        """Commit what is complete and permitted, then remove what tasks have staged that does not count. Idempotent."""
        found = self._job.find_restore()
        assert found is not None, "a checkpoint has completed"
        behind_all_tasks = f"{self.run_id}~"
        publish_restored(self._job, found[1], behind_all_tasks)
        remove_duplicate_attempts(self._job, found[1], behind_all_tasks)

    def committed(self) -> tuple[int, ...]:
        """Say what is committed; gives checkpoints that are not, since they wait for a verdict (S7.8)."""
        verdicts = self._job.verdicts
        if verdicts.gated and self.checkpoint_id > verdicts.approved:
            return verdicts.uncommitted
        self._append("committed", {"checkpoint_id": self.checkpoint_id})
        return ()

    def abort(self, reason: str) -> None:
        """The run has failed before the checkpoint was complete."""
        data = {"checkpoint_id": self.checkpoint_id, "reason": reason, "code": "shutdown", "counts": False}
        self._append("abort", data)

    def _append(self, kind: str, data: Mapping[str, Any]) -> None:
        self._job.generation_log.append(kind, data, self.run_id)


def was_completed_before(decisions: Sequence[Decision], spec_number: int) -> tuple[int, str] | None:
    """Id and path of the checkpoint that submission `spec_number` has completed already: what is left of the job is to
    commit it. Pure."""
    own = [e for e in entries_by_submission(decisions) if e.spec == spec_number and e.kind == "complete"]
    return (own[-1].data["checkpoint_id"], own[-1].data["path"]) if own else None


def refuse_restore(job: DriverJob) -> None:
    """A batch job begins at the beginning: it has no state to begin with. Raises PipelineError."""
    if job.spec.restore is not None:
        raise PipelineError(
            "a batch job cannot start from a snapshot",
            where=f"job {job.spec.job_id}, submission {job.spec.number}",
            cause="it reads its whole input",
            remedy="Submit it afresh, or restore with execution_mode=streaming",
        )


def _subtasks(told: Sequence[StagedReport]) -> tuple[SubtaskState, ...]:
    ordered = sorted(told, key=lambda one: one.subtask)
    return tuple(SubtaskState(one.subtask, True, one.handle) for one in ordered)
