"""S2.3: a job that kept no checkpoint when it ended can be looked at, and says why it cannot be restored."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from scripted_contract import ScriptedDriver

from tidegate.cli.main import main
from tidegate.errors import FencedError, SnapshotError, StoreError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.status import JobView

NOW = "2026-11-21T09:25:00.000Z"


def ended(folder: Path, status: str, retention: str) -> JobClient:
    """A job that completed checkpoint 1, whose folder is not there, and ended."""
    (folder / "code.py").write_text("def build(args):\n    raise AssertionError\n")
    client = JobClient(str(folder / "jobs"), "job")
    options = JobOptions.from_mapping({"retention": retention})
    client.submit(pipeline=f"{folder / 'code.py'}:build", options=options)
    nonces = itertools.count()
    generation_log = DecisionLog(client.store, client.layout, lambda: NOW, lambda: f"n{next(nonces)}").begin_generation(
        spec=1, launch=1
    )
    data = {"checkpoint_id": 1, "kind": "checkpoint", "path": client.layout.checkpoint(1, 1)}
    generation_log.append("claim", {**data, "triggered_at": NOW})
    generation_log.append("complete", {**data, "metrics": {}, "parent": None})
    generation_log.append("status", {"status": status})
    return client


@pytest.mark.parametrize("status", ["FINISHED", "CANCELED"])
@pytest.mark.parametrize("restore", [RestoreFrom("latest"), RestoreFrom("checkpoint", checkpoint_id=1)])
def test_a_restore_from_a_deleted_checkpoint_is_refused_with_the_option(
    tmp_path: Path, status: str, restore: RestoreFrom
) -> None:
    client = ended(tmp_path, status, "delete")
    assert client.view().status == status and [c.checkpoint_id for c in client.view().completed] == [1]
    with pytest.raises(SnapshotError, match="was deleted when the job ended") as refused:
        client.submit(restore=restore)
    assert "retention is 'delete'" in str(refused.value) and status in str(refused.value)


@pytest.mark.parametrize(("status", "retention"), [("FAILED", "delete"), ("FINISHED", "keep")])
def test_a_checkpoint_that_is_missing_for_another_reason_is_no_business_of_the_option(
    tmp_path: Path, status: str, retention: str
) -> None:
    with pytest.raises(SnapshotError, match="is not a complete snapshot"):
        ended(tmp_path, status, retention).submit(restore=RestoreFrom("latest"))


@pytest.mark.parametrize(
    ("retention", "shown"), [("delete", "deleted when the job ended (retention=delete)"), ("keep", "chk-1-g1")]
)
def test_the_list_of_checkpoints_says_which_were_deleted(
    tmp_path: Path, retention: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path, "CANCELED", retention)
    assert main(["checkpoints", "job", "--root", str(tmp_path / "jobs")]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("1 "))
    assert line.endswith(shown)


def test_an_unknown_flag_is_reported_with_the_help_of_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", "job", "--mode", "drain"]) != 0
    assert "[tidegate stop]. See `tidegate stop --help`" in capsys.readouterr().err


class Dead:
    """A job whose driver completed two checkpoints and a savepoint, and died."""

    def __init__(self, folder: Path, **options: str) -> None:
        (folder / "code.py").write_text("def build(args):\n    raise AssertionError\n")
        self.client = JobClient(str(folder / "jobs"), "job", sleep=self._sleep, monotonic=lambda: self._now_s)
        self._now_s = 0.0
        chosen = JobOptions.from_mapping({"retention": "delete", **options})
        self.client.submit(pipeline=f"{folder / 'code.py'}:build", options=chosen)
        self.driver = ScriptedDriver(self.client, self.client.spec(1))
        self.driver.status("RUNNING")
        self.checkpoints = [self.driver.checkpoint(1), self.driver.checkpoint(2)]
        self.savepoint = self.driver.checkpoint(3, "savepoint", f"{self.client.layout.savepoints}/sp")
        self.client.store.create(self.client.layout.shared_file("a.sst"), b"rows")

    def _sleep(self, seconds: float) -> None:
        self._now_s += seconds

    @property
    def left(self) -> list[str]:
        store, layout = self.client.store, self.client.layout
        return [*store.list(layout.checkpoints), *store.list(layout.shared), *store.list(layout.savepoints)]


def test_cancelling_a_dead_job_deletes_what_its_driver_would_have_deleted(tmp_path: Path) -> None:
    """S2.3: never a savepoint; and after a fence, so that a driver that still lives decides nothing any more."""
    dead = Dead(tmp_path)
    assert dead.client.cancel_dead("alice").status == "CANCELED"
    assert dead.left == ["sp"]
    with pytest.raises(FencedError):
        dead.driver.checkpoint(4)
    with pytest.raises(SnapshotError, match="was deleted when the job ended"):
        dead.client.submit(restore=RestoreFrom("latest"))
    assert dead.client.submit(restore=RestoreFrom("savepoint", dead.savepoint)).number == 2


def test_cancelling_a_dead_job_that_keeps_its_checkpoints_deletes_none(tmp_path: Path) -> None:
    """S2.3."""
    dead = Dead(tmp_path, retention="keep")
    dead.client.cancel_dead()
    assert dead.left == ["chk-1-g1", "chk-2-g1", "a.sst", "sp"]


def test_a_deletion_that_the_store_interrupted_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.3: the job is cancelled by then."""
    dead = Dead(tmp_path)

    def fails(path: str) -> None:
        raise StoreError("503", where=path)

    with monkeypatch.context() as broken:
        broken.setattr(dead.client.store, "delete_folder", fails)
        with pytest.raises(StoreError, match="is cancelled, but not all.*503.*Run `tidegate cancel` again"):
            dead.client.cancel_dead()
    assert dead.client.view().status == "CANCELED" and len(dead.left) == 4
    dead.client.cancel_dead()
    assert dead.left == ["sp"]


def test_what_a_newer_submission_may_start_from_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.3: it came after CANCELED was recorded, and before the first deletion."""
    dead = Dead(tmp_path)
    others = JobClient(dead.client.root, "job")
    view = dead.client.view

    def restored_meanwhile() -> JobView:
        seen = view()
        if seen.status == "CANCELED" and len(others.specs()) == 1:
            others.submit(restore=RestoreFrom("latest"))
        return seen

    monkeypatch.setattr(dead.client, "view", restored_meanwhile)
    dead.client.cancel_dead()
    assert len(dead.left) == 4


def test_what_waits_for_a_verdict_stays(tmp_path: Path) -> None:
    """S2.3, S7.8: with the checkpoint that a rejection restores, and the files that they share."""
    dead = Dead(tmp_path, commit="on_request")
    dead.client.cancel_dead()
    assert {"chk-1-g1", "chk-2-g1", "a.sst", "sp"} == set(dead.left)
