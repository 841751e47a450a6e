"""The job of a driver on Spark."""

from __future__ import annotations

import logging
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

logger = logging.getLogger("tidegate.spark")

__all__ = ["SparkJob", "Splits", "assign_splits", "fresh_splits", "topology_of"]


@dataclass(frozen=True)
class SparkJob(driver_job.DriverJob):
    """One submission in one generation, with the driver's own parts: status hint, commands, deletion of snapshots,
    input that Spark reads.
    """

    hint: HintWriter
    desk: CommandDesk
    retiring: CheckpointDeletion
    materialising: RowMaterialisation | None = None

    def discover(self, uid: str, source: Source) -> Sequence[Split]:
        """Return all splits of a source that starts fresh; for a DataFrame, after it has been written to files."""
        if isinstance(source, ReadBySpark) and self.materialising is not None:
            return self.materialising.splits(uid, source, self.plan.parallelism)
        return super().discover(uid, source)

    def status(self, status: str, **data: Any) -> None:
        """Append a status change. Before a status that ends the job, write the last reports of the slots to the status
        hint.
        """
        if JobStatus(status).is_terminal:
            self.hint.write_now()
        super().status(status, **data)
        reason = data.get("reason", "")
        logger.info("status %s%s", status, f": {reason}" if reason else "")
        if JobStatus(status) is JobStatus.FINISHED:
            self._forget_materialised()

    def delete_checkpoints(self) -> None:
        """Delete checkpoints, and materialised rows if no checkpoint stays."""
        super().delete_checkpoints()
        if not self._checkpoint_folders():
            self._forget_materialised()

    def _forget_materialised(self) -> None:
        """Delete materialised rows, unless there are savepoints, whose restores need them."""
        completed = (d.data["kind"] for d in self.generation_log.decisions if d.kind == "complete")
        if not any(kind in SAVEPOINT_KINDS for kind in completed):
            forget_materialised(self.store, self.layout)

    def retire_garbage(self) -> None:
        """Delete files that earlier drivers left (S2.3).

        If they cannot be listed, the job runs anyway. Called only when the submission is known to start: if it is
        refused, the files are still needed (S7.8).
        """
        try:
            for left in self.garbage():
                self.retiring.add(0, left.path, at_once=left.without_grace, inherited=True)
        except StoreError as error:
            logger.warning(
                "files of earlier drivers could not be listed and stay; `tidegate gc` deletes them: %s", error
            )
