"""S7.4 in whole jobs: who owns a snapshot that a submission names, and what checkpoints may use of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from builders.sinks import new_sink_name

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.errors import StoreError
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.stores.local_disk import LocalStore
from tidegate.testing.collect_sink import CollectSink
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
_Mode = Literal["no_claim", "claim"]


def endless(name: str) -> Pipeline:
    p = Pipeline()
    rows = DataGen(lambda n: {"k": n % 3, "at": n * 1_000_000}, SCHEMA, rows=None, splits=1, batch_rows=4)
    p.read(rows, uid="rows").write(CollectSink(name), uid="out")
    return p


@pytest.fixture
def job() -> InProcessJob:
    return InProcessJob(partial(endless, new_sink_name()), {"parallelism": 1})


def savepoint(run: InProcessRun, kind: Any = "savepoint") -> str:
    run.pump(5)
    stop: Any = "suspend" if kind == "stop-savepoint" else None
    request = ev.SnapshotRequest(kind, request_id=f"{kind}-1", stop=stop)
    answer = run.ask(request)
    if kind == "savepoint":
        assert answer is not None and answer.ok, answer
        return str(answer.data["path"])
    run.to_end()
    return next(d.data["path"] for d in run.owner.log.read() if d.kind == "complete" and d.data["kind"] == kind)


def checkpoint(run: InProcessRun, name: str) -> str:
    run.pump(5)
    answer = run.ask(ev.SnapshotRequest("checkpoint", request_id=name))
    assert answer is not None and answer.ok, answer
    run.pump(10)  # it is committed
    return str(answer.data["path"])


@pytest.mark.parametrize("kind", ["savepoint", "stop-savepoint"])
@pytest.mark.parametrize("mode", ["no_claim", "claim"])
def test_a_savepoint_goes_when_it_was_claimed_and_is_not_needed_any_more(
    job: InProcessJob, kind: str, mode: _Mode
) -> None:
    """Without a claim savepoints are never deleted (S2.3)."""
    path = savepoint(job.submit(), kind)
    run = job.submit(RestoreFrom("savepoint", path, claim_mode=mode))
    assert job.store.walk(path), "needed until there is something newer"
    checkpoint(run, "c1")
    assert bool(job.store.walk(path)) == (mode == "no_claim")


@pytest.mark.parametrize("mode", ["no_claim", "claim"])
def test_a_claimed_savepoint_that_a_dead_driver_left_goes_with_the_next_one(job: InProcessJob, mode: _Mode) -> None:
    path = savepoint(job.submit())
    run = job.submit(RestoreFrom("savepoint", path, claim_mode=mode))
    run.run.retire = lambda _id, _path: None
    checkpoint(run, "c1")
    assert job.store.walk(path)
    garbage = [left.path for left in job.relaunch()._job.garbage()]
    assert (path in garbage) == (mode == "claim")


def test_a_claimed_savepoint_stays_while_a_rejection_may_go_back_to_it() -> None:
    """S7.8: before the first verdict there is nothing else to go back to."""
    gated = {"parallelism": 1, "commit": "on_request", "max_uncommitted_checkpoints": 5}
    job = InProcessJob(partial(endless, new_sink_name()), gated)
    path = savepoint(job.submit())
    checkpoint(job.submit(RestoreFrom("savepoint", path, claim_mode="claim")), "c1")
    assert job.store.walk(path), "the driver that runs"
    assert path not in [left.path for left in job.relaunch()._job.garbage()], "the next one"
    waits = next(d.data for d in job.log.read() if d.kind == "complete" and d.data["kind"] == "checkpoint")
    rejection = {"by": "x", "then": "replay", "reason": "", "command": "1"}
    job.generation_log.append("reject", {"checkpoint_id": waits["checkpoint_id"], **rejection})
    found = job.rerun()._job.find_restore()
    assert found is not None and found[0].location == path


def test_checkpoints_use_files_of_the_jobs_own_checkpoint_but_of_one_that_was_named_only_with_a_claim(
    job: InProcessJob,
) -> None:
    run = job.submit()
    first = checkpoint(run, "c1")

    def shares(of: InProcessRun) -> bool:
        found = of._job.find_restore()
        assert found is not None
        return found[1].may_share

    assert shares(job.rerun()), "a failed run"
    assert shares(job.submit(RestoreFrom("latest")))
    assert shares(job.submit(RestoreFrom("checkpoint", first, claim_mode="claim")))
    named = job.submit(RestoreFrom("checkpoint", first))
    assert not shares(named)
    checkpoint(named, "c2")
    assert shares(job.rerun()), "what the submission has completed itself"
    path = savepoint(job.rerun())
    assert not shares(job.submit(RestoreFrom("savepoint", path, claim_mode="claim"))), "its files are its own"


def test_snapshots_are_deleted_though_another_cannot_be_read_which_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S2.3: only what they share stays, until somebody puts that one back."""
    options = {"parallelism": 1, "retained_checkpoints": 3}
    job = InProcessJob(partial(endless, new_sink_name()), options)
    run = job.submit()
    unreadable, second, third = (checkpoint(run, name) for name in ("c1", "c2", "c3"))
    unused = job.layout.shared_file("unused")
    job.store.create(unused, b"blobs")
    whole = job.store.read(f"{unreadable}/_metadata")
    job.store.delete(f"{unreadable}/_metadata")
    job.store.create(f"{unreadable}/op.state", b"")
    owner = job.relaunch()._job
    for path in (second, third):
        owner.delete_snapshot(path)
        assert not job.store.walk(path)
    assert job.store.exists(unused)
    assert caplog.text.count(f"{unreadable}/_metadata") == 1
    job.store.create(f"{unreadable}/_metadata", whole)
    owner.delete_snapshot(second)
    assert not job.store.exists(unused)


def test_a_claimed_savepoint_whose_store_cannot_be_reached_is_left_alone_and_stops_no_run(
    job: InProcessJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = job.submit()
    first.pump(5)
    answer = first.ask(ev.SnapshotRequest("savepoint", request_id="elsewhere", path=str(tmp_path)))
    assert answer is not None and answer.ok, answer
    path = str(answer.data["path"])
    run = job.submit(RestoreFrom("savepoint", path, claim_mode="claim"))
    run.run.retire = lambda _id, _path: None
    checkpoint(run, "c1")

    def unreachable(_self: LocalStore, _path: str) -> bool:
        raise StoreError("no such bucket")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "exists", unreachable)
        run = job.relaunch()
        assert path not in [left.path for left in run._job.garbage()]
        checkpoint(run, "c2")
    assert (
        f"{path} is not deleted: its store does not answer; the next driver tries again: no such bucket" in caplog.text
    )
    assert path in [left.path for left in job.relaunch()._job.garbage()], "it can be looked for again"
