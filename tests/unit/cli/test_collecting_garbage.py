"""`tidegate gc` (S2.3)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cli_caller import Caller

from tidegate.cli.upkeep import job_garbage
from tidegate.jobs.stores.store_registry import open_store


@pytest.fixture
def orphan(tidegate: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of a checkpoint that was never completed, of a job that has ended; long ago."""
    tidegate.root = str(tmp_path)
    driver = tidegate.submitted()
    path = driver.client.layout.checkpoint(1, 1)
    data = {"checkpoint_id": 1, "kind": "checkpoint", "path": path, "triggered_at": "2026-01-01T00:00:00Z"}
    driver.generation_log.append("claim", data)
    driver.status("FAILED", reason="x")
    open_store(tidegate.root).create(f"{path}/op.state", b"five!")
    monkeypatch.setattr(job_garbage, "utc_now", lambda: datetime(2040, 1, 1, tzinfo=UTC))
    return f"{tmp_path}/{path}"


def test_gc_lists_what_goes_and_deletes_it(tidegate: Caller, orphan: str) -> None:
    told = tidegate("gc", "flights", "--dry-run")
    assert told.code == 0 and "would be freed" in told.out and Path(orphan).exists()
    done = tidegate("gc", "flights", "--json")
    assert done.document == {
        "job_id": "flights",
        "dry_run": False,
        "collected": [{"path": "flights/checkpoints/chk-1-g1", "why": "unfinished", "size_bytes": 5}],
        "in_sinks": [],
        "in_sources": [],
        "freed_bytes": 5,
        "too_young": 0,
        "kept_back": None,
        "savepoints_kept": None,
        "rows_kept": None,
        "sinks_kept": [],
        "abandoned": None,
    }
    assert not Path(orphan).exists()
    assert "0 B freed" in tidegate("gc", "flights").out


def test_gc_leaves_what_is_young(tidegate: Caller, orphan: str) -> None:
    answer = tidegate("gc", "flights", "--older-than", "36500 days", "--json")
    assert (answer.code, answer.document["collected"], answer.document["too_young"]) == (0, [], 1)
    assert Path(orphan).exists()
    assert tidegate("gc", "flights", "--older-than", "30 days", "--json").document["freed_bytes"] == 5


def test_gc_without_a_job_goes_through_the_whole_root(tidegate: Caller, orphan: str, tmp_path: Path) -> None:
    """Folders of jobs that were never submitted, too; others are left alone."""
    store, code = open_store(tidegate.root), "b" * 64
    store.create(f"never/artifacts/{code}/code.zip", b"seven!!")
    store.create("notes/artifacts/readme", b"x")
    store.create("other/checkpoints/chk-1-g1/op.state", b"x")
    told = tidegate("gc", "--dry-run")
    assert told.code == 0 and "flights: 5 B would be freed" in told.out and "12 B would be freed" in told.out
    done = tidegate("gc", "--json")
    assert [(job["job_id"], job["freed_bytes"]) for job in done.document["jobs"]] == [
        ("flights", 5),
        ("never", 7),
        ("notes", 0),
    ]
    assert (done.code, done.document["freed_bytes"]) == (0, 12)
    assert not Path(orphan).exists() and not (tmp_path / "never").exists()
    assert store.exists("notes/artifacts/readme") and store.exists("other/checkpoints/chk-1-g1/op.state")


def test_gc_of_a_root_goes_on_behind_a_job_that_it_cannot_read(tidegate: Caller, orphan: str) -> None:
    open_store(tidegate.root).create("bad/specs/000001.json", b"{")
    answer = tidegate("gc", "--json")
    assert answer.code != 0 and "bad/specs/000001.json" in answer.err
    assert not Path(orphan).exists()
    assert [(job["job_id"], job["freed_bytes"]) for job in answer.document["jobs"]] == [("flights", 5)]
    assert [job["job_id"] for job in answer.document["failed"]] == ["bad"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("nothing",), 5, "no job with the id"),
        (("flights", "--keep", "0"), 2, "would delete all recovery points"),
    ],
)
def test_gc_refuses_what_makes_no_sense(
    tidegate: Caller, orphan: str, words: tuple[str, ...], code: int, says: str
) -> None:
    answer = tidegate("gc", *words)
    assert answer.code == code and says in answer.err
    assert Path(orphan).exists()
