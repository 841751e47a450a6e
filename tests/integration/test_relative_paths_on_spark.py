"""A job whose arguments are relative paths, restored from another folder, on real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import RealJob
from pipelines.counting import expected

from tidegate.jobs.records import RestoreFrom

pytestmark = pytest.mark.slow


def test_a_restore_from_another_folder_writes_where_the_job_wrote_before(
    local_job: RealJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output would be torn in two, and the second half would lie where nobody looks for it."""
    for name in ("morning", "evening"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "morning")
    local_job.out = "out"
    local_job.start(rows=20_000, rate=4_000)
    local_job.completed(2)
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    assert local_job.client.wait_result(command.command_id, "60 s").ok
    local_job.until_status("STOPPED")
    monkeypatch.chdir(tmp_path / "evening")
    local_job.start(rows=20_000, rate=1_000_000, restore=RestoreFrom("latest"))
    local_job.until_status("FINISHED")
    assert not (tmp_path / "evening" / "out").exists(), "the restore wrote into the folder that it was started in"
    local_job.out = str(tmp_path / "morning" / "out")
    assert local_job.output() == expected(20_000)
