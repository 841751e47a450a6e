"""Runs jobs that crash, restart and rescale at random moments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from tidegate.api.pipeline import Pipeline
from tidegate.channel.elements import StopMode
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

MOST_ACCIDENTS = 8


def suspended(run: InProcessRun, number: int, stop: StopMode = "suspend") -> str | None:
    """Path of the savepoint of a stop; None: the job came to its end before."""
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id=f"stop-{number}", stop=stop))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded), outcome
    return outcome.path


def run_with_accidents(
    build: Callable[[], Pipeline], seed: str, *, rescales: bool = True, scratch: str = "", **options: Any
) -> InProcessJob:
    """To the job's end, with checkpoints, crashes, new drivers and rescales between 1 and 4 on the way."""
    rng = random.Random(seed)
    both: Mapping[str, Any] = {
        "parallelism": 2,
        "checkpoint_interval": "20 ms",
        "unaligned_checkpoints": rng.random() < 0.5,
        "state_size_threshold": rng.choice(["0 B", "20 KiB"]),
        **options,
    }
    a_job = InProcessJob(build, both, scratch=scratch)
    run = a_job.submit()
    for number in range(MOST_ACCIDENTS):
        for _ in range(rng.randint(5, 60)):
            run.pump()
            if rng.random() < 0.4:
                run.tick(rng.randint(1, 20))
            if run.outcome is not None:
                break
        if run.outcome is not None:
            break
        what = rng.choice(["crash", "driver", "rescale"] if rescales else ["crash", "driver"])
        if what == "rescale":
            path = suspended(run, number)
            if path is None:
                break
            a_job.options = {**both, "parallelism": rng.randint(1, 4)}
            run = a_job.submit(RestoreFrom("savepoint", path=path))
        else:
            run.crash()
            run = a_job.rerun() if what == "crash" else a_job.relaunch()
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded), outcome
    return a_job
