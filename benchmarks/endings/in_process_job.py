"""The job on tidegate without Spark: `pipeline.py` in this process, with a clock of its own.

It plays the same lives as the real job within seconds; the unit tests do that.

    python in_process_job.py FOLDER     # adds to FOLDER/lives.json
"""

from __future__ import annotations

import sys
from pathlib import Path

import pipeline
from scenarios import play
from tidegate_job import CHECKPOINT_INTERVAL, arguments, result_rows
from workload import Emitted

import tidegate
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.history.checkpoints import CheckpointView
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.status import derive
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

TICK_MS = 50


class InProcess:
    """tidegate within this process, as a system for `scenarios`; one job."""

    def __init__(self) -> None:
        self._job: InProcessJob | None = None
        self._run: InProcessRun | None = None

    def now_s(self) -> float:
        """Return the time of the job's clock."""
        return self._job.now_ms / 1000 if self._job else 0.0

    def pause(self, seconds: float) -> None:
        """Advance the clock in small steps, and let the job work in each."""
        assert self._job is not None and self._run is not None
        until_ms = self._job.now_ms + int(seconds * 1000)
        while self._job.now_ms < until_ms:
            while self._run.outcome is None and self._run.pump():
                pass
            if self._run.outcome is None:
                self._run.tick(TICK_MS)
            else:
                self._job.now_ms += TICK_MS

    def start(self, kind: str, work: Path, *, bounded: bool, restore: str | None, allow_drained: bool) -> Running:
        """Submit the job, or a restore of it."""
        if self._job is None:
            given = arguments(kind, work, bounded=bounded)
            options = {"parallelism": 1, "checkpoint_interval": CHECKPOINT_INTERVAL}
            self._job = InProcessJob(lambda: pipeline.build(given), options)
        source = RestoreFrom("savepoint", path=restore, allow_drained=allow_drained) if restore else None
        self._run = self._job.submit(source)
        return Running(self._job, self._run)

    def refusal(self, work: Path, restore: str) -> str:
        """Try to restore the snapshot of a drain without `allow_drained`; return the refusal."""
        assert self._job is not None
        try:
            self._job.submit(RestoreFrom("savepoint", path=restore)).crash()
        except SnapshotError as error:
            return str(error)
        return ""

    def output(self, work: Path) -> list[Emitted]:
        """Return all committed result rows."""
        return result_rows(work)

    def warnings(self, work: Path) -> list[str]:
        """Return nothing: there are no logs."""
        return []

    def leave(self, work: Path) -> None:
        """Forget the job."""
        self._job = self._run = None


class Running:
    """One submission of a job."""

    def __init__(self, job: InProcessJob, run: InProcessRun) -> None:
        self._job, self._run = job, run
        self._before = max((c.checkpoint_id for c in self._completed()), default=0)

    def ended(self) -> bool:
        """Return whether the job has finished."""
        if self._run.outcome is not None:
            assert isinstance(self._run.outcome, RunEnded), self._run.outcome
        return self._run.outcome is not None

    def rows_at_window(self) -> int:
        """Return how many rows the source has emitted."""
        return sum(s.source.records for s in self._run.slot.metrics().subtasks if s.source is not None)

    def checkpoint(self) -> tuple[int, str]:
        """Return (number, path) of this submission's newest completed checkpoint; 0 if there is none."""
        mine = [c for c in self._completed() if c.checkpoint_id > self._before]
        return (mine[-1].checkpoint_id, mine[-1].path or "") if mine else (0, "")

    def _completed(self) -> tuple[CheckpointView, ...]:
        return derive(self._job.specs, self._job.log.read(), None).completed

    def stop(self, *, drain: bool) -> str:
        """Stop with a savepoint; return its path."""
        request = ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="drain" if drain else "suspend")
        self._run.ask(request)
        outcome = self._run.to_end()
        assert isinstance(outcome, RunEnded) and outcome.path is not None, outcome
        return outcome.path

    def cancel(self) -> str:
        """End every subtask at once; return the newest checkpoint's path."""
        place = self.checkpoint()[1]
        self._run.crash()
        return place


if __name__ == "__main__":
    runs_on = f"{tidegate.__version__} without Spark, in one process with a clock of its own"
    play(InProcess(), runs_on, Path(sys.argv[1]))
