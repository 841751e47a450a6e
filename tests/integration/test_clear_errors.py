"""What a user gets wrong ends with one clear message that names the place and the remedy, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PIPELINE, RealJob

from tidegate.jobs.launches import find_local_driver


class Told:
    """What the command line answered."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tidegate.cli.main", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        self.code, self.error, self.output = done.returncode, done.stderr.strip(), done.stdout

    def says(self, *parts: str) -> bool:
        """Every part is in the error, and no Python traceback is."""
        return all(part in self.error for part in parts) and "Traceback" not in self.error


@pytest.fixture
def flags(local_job: RealJob) -> list[str]:
    """Flags of a job on local[2] that would run."""
    return [
        *("--root", local_job.root, "--job-id", "counting", "--master", "local[2]"),
        *("--arg", "rows=2000", "--arg", "rate=20000", "--arg", f"out={local_job.out}"),
        *("--option", "parallelism=2"),
    ]


def nothing_runs(job: RealJob) -> bool:
    """No driver of the job is alive on this machine."""
    return not Path(job.root, "counting").exists() or all(
        find_local_driver(job.client.store, job.client.layout, spec.number) is None for spec in job.client.specs()
    )


def test_a_typo_in_a_column_names_the_column_the_nearest_one_and_the_line(local_job: RealJob, flags: list[str]) -> None:
    told = Told("start", f"{PIPELINE}:typo", *flags)
    assert told.code == 3 and told.says("'vv'", "'v'", "counting.py:"), told.error
    assert nothing_runs(local_job)


def test_a_missing_pipeline_file_names_the_path(local_job: RealJob, flags: list[str]) -> None:
    told = Told("start", f"{PIPELINE.parent}/nowhere.py:build", *flags)
    assert told.code == 3 and told.says("nowhere.py"), told.error
    assert nothing_runs(local_job)


def test_a_missing_input_file_names_the_path(local_job: RealJob, flags: list[str]) -> None:
    told = Told("start", f"{PIPELINE}:missing_input", *flags)
    assert told.code == 3 and told.says("no-such-folder", "counting.py:"), told.error
    assert nothing_runs(local_job)


def test_a_wrong_option_names_the_nearest_right_one(local_job: RealJob, flags: list[str]) -> None:
    told = Told("start", f"{PIPELINE}:build", *flags, "--option", "checkpoint_intervall=1 s")
    assert told.code == 2 and told.says("checkpoint_intervall", "checkpoint_interval"), told.error
    assert nothing_runs(local_job)


def test_a_bad_job_id_is_refused(local_job: RealJob, flags: list[str]) -> None:
    told = Told("start", f"{PIPELINE}:build", *flags, "--job-id", "../x")
    assert told.code == 2 and told.says("../x"), told.error
    assert not Path(local_job.root, "..", "x").exists()


def test_too_few_slots_tell_the_numbers_and_what_to_change(local_job: RealJob, flags: list[str]) -> None:
    told = Told("start", f"{PIPELINE}:build", *flags[:-1], "parallelism=3")
    assert told.code == 9 and told.says("2 of 3 slots", "local[3]"), told.error
    assert nothing_runs(local_job), "said before anything is submitted"


def test_a_second_start_of_a_running_job_is_refused_and_leaves_it_alone(local_job: RealJob, flags: list[str]) -> None:
    local_job.start(rows=0, rate=1000.0)
    view = local_job.until_status("RUNNING")
    told = Told("start", f"{PIPELINE}:build", *flags)
    assert told.code == 4 and told.says("counting"), told.error
    assert local_job.client.view().generation == view.generation
    assert Told("cancel", "counting", "--root", local_job.root).code == 0
    assert local_job.client.view().status.value == "CANCELED"
