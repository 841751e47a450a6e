"""S2.3: a job that kept no checkpoint when it ended can be looked at, and says why it cannot be restored."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tidegate.cli.main import main
from tidegate.contract.client import JobClient
from tidegate.contract.errors import SnapshotError
from tidegate.contract.log import DecisionLog
from tidegate.contract.options import JobOptions
from tidegate.contract.records import RestoreFrom

NOW = "2026-11-21T09:25:00.000Z"


def ended(folder: Path, status: str, retention: str) -> JobClient:
    """A job that completed checkpoint 1, whose folder is not there, and ended."""
    (folder / "code.py").write_text("def build(args):\n    raise AssertionError\n")
    client = JobClient(str(folder / "jobs"), "job")
    options = JobOptions.from_mapping({"retention": retention})
    client.submit(pipeline=f"{folder / 'code.py'}:build", options=options)
    nonces = itertools.count()
    reign = DecisionLog(client.store, client.layout, lambda: NOW, lambda: f"n{next(nonces)}").reign(spec=1, launch=1)
    data = {"checkpoint_id": 1, "kind": "checkpoint", "path": client.layout.checkpoint(1, 1)}
    reign.append("claim", {**data, "triggered_at": NOW})
    reign.append("complete", {**data, "metrics": {}, "parent": None})
    reign.append("status", {"status": status})
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
