"""What waits for a verdict, read from the job directory alone (S7.8)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from builders.jobs import submission

from tidegate.errors import SnapshotError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.staged_data import StagedData, StagedFile, merge_staged, staged_data, staged_files_of
from tidegate.jobs.records import Decision
from tidegate.jobs.stores.in_memory import MemoryStore

SPEC = submission(options={"commit": "on_request"}, lineage="lineage")


def part(n: int, subtask: int = 0, uid: str = "out") -> StagedData:
    file = StagedFile(f"/out/{n}-{subtask}.parquet.staged", rows=n, bytes=10 * n)
    return staged_files_of(uid, n, ".parquet", [file])


class Scripted:
    """A job's log and snapshots, without a job."""

    def __init__(self) -> None:
        self.store = MemoryStore("staged")
        self.store.delete_folder("job")
        self.entries: list[Decision] = []
        self.log("fence", spec=1, launch=1)

    def log(self, what: Any, /, **data: Any) -> None:
        self.entries.append(Decision(len(self.entries) + 1, what, 1, "r1", "", "", data))

    def checkpoint(self, n: int, *held: StagedData, kind: str = "checkpoint") -> None:
        path = f"job/checkpoints/chk-{n}"
        self.log("claim", checkpoint_id=n, kind=kind, path=path)
        subtasks = [{"handle": {"staged": [h.to_json()]}} for h in held] + [{"handle": None}]
        self.store.create(f"{path}/_metadata", json.dumps({"body": {"operators": [{"subtasks": subtasks}]}}).encode())
        self.log("complete", checkpoint_id=n, kind=kind, path=path)

    def staged(self, n: int | None = None) -> tuple[StagedData, ...]:
        client = SimpleNamespace(
            specs=lambda: (SPEC,), decisions=lambda: self.entries, store=self.store, storage_options={}, job_id="job"
        )
        return staged_data(cast(JobClient, client), n)


def test_all_that_an_approval_would_publish_with_the_checkpoint_that_does() -> None:
    """S7.8: what waits in front of it, too; what an aborted checkpoint pre-committed goes with the next one."""
    job = Scripted()
    job.checkpoint(1, part(1))
    job.log("claim", checkpoint_id=2, kind="checkpoint", path="job/checkpoints/chk-2")
    job.log("abort", checkpoint_id=2)
    job.checkpoint(3, part(1), part(2), part(3), part(3, 1), part(3, uid="other"))
    assert [(d.checkpoint_id, d.uid, d.rows, d.bytes, len(d.paths)) for d in job.staged()] == [
        (1, "out", 1, 10, 1),
        (3, "other", 3, 30, 1),
        (3, "out", 8, 80, 3),
    ]
    assert [d.checkpoint_id for d in job.staged(1)] == [1]


def test_what_is_approved_is_no_longer_for_an_audit() -> None:
    """S7.8: a later snapshot may still hold its handles."""
    job = Scripted()
    job.checkpoint(1, part(1))
    job.checkpoint(2, part(1), part(2))
    job.log("approve", checkpoint_id=1)
    assert job.staged(1) == ()
    assert [d.checkpoint_id for d in job.staged(2)] == [2]
    job.log("approve", checkpoint_id=2)
    assert job.staged() == job.staged(2) == ()


def test_what_can_have_no_verdict_is_refused() -> None:
    """S7.8."""
    job = Scripted()
    job.checkpoint(1, part(1))
    job.checkpoint(2, part(1), part(2), kind="savepoint")
    job.checkpoint(3, part(1), part(2), part(3))
    job.log("claim", checkpoint_id=4, kind="checkpoint", path="job/checkpoints/chk-4")
    job.log("reject", checkpoint_id=3, then="replay", by="me")
    for n, why in ((2, "savepoint"), (3, "was rejected"), (4, "pending"), (5, "no checkpoint 5")):
        with pytest.raises(SnapshotError, match=why):
            job.staged(n)


def test_a_snapshot_that_is_gone_is_no_empty_answer() -> None:
    job = Scripted()
    job.checkpoint(1, part(1))
    job.store.delete_folder("job/checkpoints/chk-1")
    with pytest.raises(SnapshotError, match="the staged output of the checkpoint cannot be read"):
        job.staged()


def test_it_goes_through_json_as_it_is() -> None:
    files = [StagedFile("s3://b/x.csv.gz.staged", 3, None, {"day": "2026-11-21", "shop": None})]
    table = StagedData("out", 2, "table", 4, relation='"t"."rows_1"', where="x IN (1)", place="db")
    for data in (staged_files_of("out", 7, ".csv.gz", files), table, StagedData("out", 1)):
        assert StagedData.from_json(json.loads(json.dumps(data.to_json()))) == data
    assert staged_files_of("out", 7, ".jsonl.zst", files).format == "json"


def test_rows_of_one_table_are_one_condition() -> None:
    parts = [StagedData("out", 2, "table", 4, relation="t", where=f"x = {n}") for n in (1, 2)]
    (both,) = merge_staged(parts)
    assert (both.rows, both.where) == (8, "x = 1 OR x = 2")
