"""What the driver on Spark holds about its job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.connectors.splits import assign
from tidegate.contract.errors import StoreError
from tidegate.contract.status import JobStatus
from tidegate.coordinator import job as driver_job
from tidegate.coordinator.job import Splits, fresh_splits, topology_of
from tidegate.spark.commands import CommandDesk
from tidegate.spark.hint import HintWriter
from tidegate.spark.retiring import Retiring

__all__ = ["Job", "Splits", "assign", "fresh_splits", "topology_of"]


@dataclass(frozen=True)
class Job(driver_job.Job):
    """One submission under one reign, with the driver's outer parts: status hint, commands, deletion of snapshots."""

    hint: HintWriter
    desk: CommandDesk
    retiring: Retiring

    def status(self, status: str, **data: Any) -> None:
        """Append a status change; before one that ends the job, what the slots told last is shown."""
        if JobStatus(status).is_terminal:
            self.hint.write_now()
        super().status(status, **data)
        print(f"tidegate: {status} {data.get('reason', '')}".rstrip(), flush=True)

    def retire_garbage(self) -> None:
        """What dead drivers left goes (S2.3). That it cannot be found keeps no job from running. Not before it is known
        that the submission can start: what it leaves behind is still needed when it is refused (S7.8)."""
        try:
            for left in self.garbage():
                self.retiring.add(0, left.path, at_once=left.at_once)
        except StoreError as error:
            print(f"tidegate: what earlier drivers left could not be looked for: {error}", flush=True)
