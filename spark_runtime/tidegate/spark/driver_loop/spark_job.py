"""What the driver on Spark holds about its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.channel.elements import SAVEPOINT_KINDS
from tidegate.connectors.interface import ReadBySpark, Source, Split
from tidegate.connectors.split_documents import assign_splits
from tidegate.coordinator import driver_job
from tidegate.coordinator.driver_job import Splits, fresh_splits, topology_of
from tidegate.errors import StoreError
from tidegate.jobs.status import JobStatus
from tidegate.spark.driver_loop.checkpoint_deletion import CheckpointDeletion
from tidegate.spark.driver_loop.command_desk import CommandDesk
from tidegate.spark.driver_loop.row_materialisation import RowMaterialisation, forget_materialised
from tidegate.spark.driver_loop.status_hint import HintWriter

__all__ = ["SparkJob", "Splits", "assign_splits", "fresh_splits", "topology_of"]


@dataclass(frozen=True)
class SparkJob(driver_job.DriverJob):
    """One submission under one reign, with the driver's outer parts: status hint, commands, deletion of snapshots,
    input that Spark reads."""

    hint: HintWriter
    desk: CommandDesk
    retiring: CheckpointDeletion
    materialising: RowMaterialisation | None = None

    def discover(self, uid: str, source: Source) -> Sequence[Split]:
        """All splits of a source that starts fresh; those of a DataFrame when it is in files."""
        if isinstance(source, ReadBySpark) and self.materialising is not None:
            return self.materialising.splits(uid, source, self.plan.parallelism)
        return super().discover(uid, source)

    def status(self, status: str, **data: Any) -> None:
        """Append a status change; before one that ends the job, what the slots told last is shown."""
        if JobStatus(status).is_terminal:
            self.hint.write_now()
        super().status(status, **data)
        print(f"tidegate: {status} {data.get('reason', '')}".rstrip(), flush=True)
        if JobStatus(status) is JobStatus.FINISHED:
            self._forget_materialised()

    def delete_checkpoints(self) -> None:
        """And what only they have positions in, unless one stays."""
        super().delete_checkpoints()
        if not self._checkpoint_folders():
            self._forget_materialised()

    def _forget_materialised(self) -> None:
        """Not when there are savepoints: somebody may go on from their positions."""
        completed = (d.data["kind"] for d in self.generation_log.decisions if d.kind == "complete")
        if not any(kind in SAVEPOINT_KINDS for kind in completed):
            forget_materialised(self.store, self.layout)

    def retire_garbage(self) -> None:
        """What dead drivers left goes (S2.3). That it cannot be found keeps no job from running. Not before it is known
        that the submission can start: what it leaves behind is still needed when it is refused (S7.8)."""
        try:
            for left in self.garbage():
                self.retiring.add(0, left.path, at_once=left.without_grace, inherited=True)
        except StoreError as error:
            print(f"tidegate: what earlier drivers left could not be looked for: {error}", flush=True)
