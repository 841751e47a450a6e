"""S2.3: a savepoint is deleted by name, once, and never under a submission that may start from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_contract import NOW, ScriptedDriver

from tidegate.errors import CommandRefusedError, JobNotFoundError, OptionError, RecordError, SnapshotError, StoreError
from tidegate.jobs.client import savepoint_deletion
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.savepoint_deletion import SavepointDeletion
from tidegate.jobs.client.snapshot_presence import with_deletions, with_latest_checked
from tidegate.jobs.deleted_savepoints import deleted_savepoints
from tidegate.jobs.records import RestoreFrom

RUN = "r7"


def delete_savepoint(client: JobClient, named: int | str, **more: bool) -> SavepointDeletion:
    return savepoint_deletion.delete_savepoint(client, named, by="alice", **more)


def savepoint(
    driver: ScriptedDriver, number: int, kind: str = "savepoint", path: str | None = None, **more: Any
) -> str:
    """A completed savepoint with its metadata, two files of its run, as a driver and its slots write it."""
    client, layout = driver.client, driver.client.layout
    path = path or f"{layout.savepoints}/sp-{number}"
    generation = driver.generation_log.generation
    data = {"checkpoint_id": number, "kind": kind, "path": path}
    driver.generation_log.append("claim", {**data, "triggered_at": NOW}, RUN)
    for name in (f"a-0-g{generation}-{RUN}-1.state", f"a-0-g{generation}-{RUN}-1.blobs"):
        client.store.create(f"{path}/{name}", b"12345")
    facts = {"job_id": client.job_id, "generation": generation, "run_id": RUN, "checkpoint_id": number}
    body = {**facts, "lineage": driver.spec.lineage, "kind": kind}
    client.store.create(layout.metadata(path), json.dumps({"record": "snapshot", "body": body}).encode())
    driver.generation_log.append("complete", {**data, "metrics": {}, "parent": None, **more}, RUN)
    return path


def stopped(driver: ScriptedDriver, **more: Any) -> str:
    path = savepoint(driver, 9, "stop-savepoint", **more)
    driver.status("STOPPED", stop={"outcome": "committed", "mode": "suspend", "checkpoint_id": 9, "path": path})
    return path


def test_a_savepoint_goes_by_number_or_path_and_a_second_call_finds_it_gone(
    client: JobClient, driver: ScriptedDriver
) -> None:
    """S2.3: also of a running job."""
    first, second = savepoint(driver, 1), savepoint(driver, 2)
    checkpoint = driver.checkpoint(3)
    found = delete_savepoint(client, 1, dry_run=True)
    assert (found.deleted, found.existed, client.store.exists(f"{first}/_metadata")) == (False, True, True)
    done = delete_savepoint(client, 1)
    assert (done.path, done.deleted, done.left, done.size_bytes) == (first, True, (), found.size_bytes)
    assert client.store.walk(first) == [] and client.store.exists(f"{checkpoint}/_metadata")
    again = delete_savepoint(client, 1)
    assert (again.deleted, again.existed, again.size_bytes) == (False, False, 0)
    assert delete_savepoint(client, second).deleted and delete_savepoint(client, second).existed is False
    view = with_deletions(client, client.view())
    assert [c.deleted for c in view.checkpoints] == [True, True, False]


def test_only_what_its_run_wrote_is_deleted(client: JobClient, driver: ScriptedDriver) -> None:
    """S2.3: its folder may be among a user's own."""
    path = savepoint(driver, 1)
    others = [f"{path}/notes.txt", f"{path}/other-g2-r9-1.state", f"{path}/sub/a-0-g1-{RUN}-1.state"]
    for place in others:
        client.store.create(place, b"x")
    assert delete_savepoint(client, 1).left == tuple(sorted(others)) == tuple(client.store.walk(path))
    assert delete_savepoint(client, 1).existed is False


def test_a_folder_with_another_snapshot_is_left_alone(client: JobClient, driver: ScriptedDriver) -> None:
    path = savepoint(driver, 1)
    body = {"job_id": "other", "generation": 4, "run_id": "x", "checkpoint_id": 1}
    client.store.replace(client.layout.metadata(path), json.dumps({"body": body}).encode())
    with pytest.raises(SnapshotError, match="its folder holds another snapshot.*of job other"):
        delete_savepoint(client, 1)
    client.store.replace(client.layout.metadata(path), b"{")
    with pytest.raises(SnapshotError, match="its metadata is damaged"):
        delete_savepoint(client, 1)
    assert len(client.store.walk(path)) == 3


def test_what_is_no_completed_savepoint_is_refused(client: JobClient, driver: ScriptedDriver) -> None:
    savepoint(driver, 1)
    driver.checkpoint(2)
    driver.generation_log.append("claim", {"checkpoint_id": 3, "kind": "savepoint", "path": "p", "triggered_at": NOW})
    with pytest.raises(OptionError, match="checkpoint 2 is not a savepoint.*`tidegate gc`"):
        delete_savepoint(client, 2)
    with pytest.raises(SnapshotError, match="savepoint 3 is pending"):
        delete_savepoint(client, 3)
    with pytest.raises(SnapshotError, match="has no savepoint /away/sp.*its savepoints are 1"):
        delete_savepoint(client, "/away/sp")
    with pytest.raises(JobNotFoundError):
        delete_savepoint(JobClient(client.store, "nobody"), 1)


def test_the_savepoint_that_an_ended_job_would_be_restored_from_needs_consent(
    client: JobClient, driver: ScriptedDriver
) -> None:
    """S9.3."""
    path = stopped(driver, sinks={"out": "files"})
    with pytest.raises(CommandRefusedError, match="latest recovery point.*its output is not committed.*--also-latest"):
        delete_savepoint(client, 9)
    assert client.store.exists(client.layout.metadata(path))
    assert with_latest_checked(client, client.view()).latest_recovery_point == client.view().latest_recovery_point
    assert delete_savepoint(client, 9, also_latest=True).deleted
    checked = with_latest_checked(client, client.view()).latest_recovery_point
    assert checked is not None and checked.deleted
    with pytest.raises(SnapshotError, match="is not a complete snapshot"):
        client.submit(restore=RestoreFrom("latest"))


@pytest.mark.parametrize("restored", ["latest", "savepoint"])
def test_a_submission_that_starts_from_it_protects_it_until_its_first_checkpoint(
    client: JobClient, driver: ScriptedDriver, restored: str
) -> None:
    """S9.3: before its driver begins, while it runs, and after its driver has died."""
    path = stopped(driver)
    restore = RestoreFrom("latest") if restored == "latest" else RestoreFrom("savepoint", path=path)
    spec = client.submit(restore=restore)
    for also_latest in (False, True):
        with pytest.raises(CommandRefusedError, match="the job starts from it"):
            delete_savepoint(client, 9, also_latest=also_latest)
    second = ScriptedDriver(client, spec)
    second.status("RUNNING", run_id="r", restored_from=path)
    with pytest.raises(CommandRefusedError, match="the job starts from it"):
        delete_savepoint(client, 9, also_latest=True)
    second.checkpoint(10)
    assert delete_savepoint(client, 9).deleted


def test_a_fork_protects_the_savepoint_of_its_original_until_its_first_checkpoint(
    client: JobClient, driver: ScriptedDriver, pipeline: str
) -> None:
    """S7.4: also while it is only submitted, and when it has failed; not when it is over."""
    path = savepoint(driver, 1)
    driver.checkpoint(2)
    for job_id, end in (("fork-a", "checkpoint"), ("fork-b", "FINISHED"), ("fork-c", "CANCELED")):
        fork = JobClient(client.store, job_id)
        restore = RestoreFrom("savepoint", path=path, fork_of="flights")
        spec = fork.submit(pipeline=pipeline, restore=restore, options={"parallelism": 1})
        with pytest.raises(CommandRefusedError, match=f"job '{job_id}' starts from it"):
            delete_savepoint(client, 1)
        begun = ScriptedDriver(fork, spec)
        begun.status("RUNNING")
        begun.status("FAILED", reason="x")
        with pytest.raises(CommandRefusedError, match=f"job '{job_id}' starts from it"):
            delete_savepoint(client, 1)
        begun.status("RUNNING")
        if end == "checkpoint":
            begun.checkpoint(1)
        else:
            begun.status(end)
        assert not delete_savepoint(client, 1, dry_run=True).deleted
    assert delete_savepoint(client, 1).deleted


def test_a_job_of_the_root_that_cannot_be_read_may_need_it(client: JobClient, driver: ScriptedDriver) -> None:
    savepoint(driver, 1)
    driver.checkpoint(2)
    client.store.create("bad/specs/000001.json", b"{")
    with pytest.raises(RecordError, match=r"bad/specs/000001\.json"):
        delete_savepoint(client, 1)


def test_output_that_waits_for_a_verdict_protects_it(client: JobClient, pipeline: str) -> None:
    """S7.8."""
    spec = client.submit(pipeline=pipeline, options={"commit": "on_request"})
    driver = ScriptedDriver(client, spec)
    driver.status("RUNNING")
    stopped(driver, sinks={"out": "files"})
    with pytest.raises(CommandRefusedError, match="waits for a verdict.*`tidegate commit-pending`"):
        delete_savepoint(client, 9, also_latest=True)


def test_a_restore_that_comes_during_the_deletion_wins(
    client: JobClient, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.3: the metadata is put back, and no other file was touched."""
    path = savepoint(driver, 1)
    driver.checkpoint(2)
    driver.status("STOPPED")
    before = {place: client.store.read(place) for place in client.store.walk(path)}
    others = JobClient(client.store, "flights")
    delete = client.store.delete

    def meanwhile(place: str) -> None:
        if place.endswith("_metadata"):
            others.submit(restore=RestoreFrom("savepoint", path=path))
        delete(place)

    monkeypatch.setattr(client.store, "delete", meanwhile)
    with pytest.raises(CommandRefusedError, match="the job starts from it"):
        delete_savepoint(client, 1)
    assert {place: client.store.read(place) for place in client.store.walk(path)} == before


def test_a_restore_that_comes_later_finds_no_snapshot(
    client: JobClient, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.3: not a part of one."""
    path = savepoint(driver, 1)
    driver.checkpoint(2)
    driver.status("STOPPED")
    others, delete = JobClient(client.store, "flights"), client.store.delete
    refused: list[str] = []

    def meanwhile(place: str) -> None:
        if place.endswith(".state"):
            with pytest.raises(SnapshotError, match="is not a complete snapshot") as error:
                others.submit(restore=RestoreFrom("savepoint", path=path))
            refused.append(str(error.value))
        delete(place)

    monkeypatch.setattr(client.store, "delete", meanwhile)
    assert delete_savepoint(client, 1).deleted and refused


def test_an_interrupted_deletion_is_continued(
    client: JobClient, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = savepoint(driver, 1)
    driver.checkpoint(2)
    delete = client.store.delete

    def fails(place: str) -> None:
        if place.endswith(".state"):
            raise StoreError("503", where=place)
        delete(place)

    with monkeypatch.context() as broken:
        broken.setattr(client.store, "delete", fails)
        with pytest.raises(StoreError, match="503"):
            delete_savepoint(client, 1)
    assert with_deletions(client, client.view()).checkpoints[0].deleted, "it cannot be restored any more"
    found = delete_savepoint(client, 1)
    assert (found.deleted, found.existed, client.store.walk(path)) == (True, True, [])


def test_a_savepoint_elsewhere_is_found_by_its_path(client: JobClient, driver: ScriptedDriver, tmp_path: Path) -> None:
    place = str(tmp_path / "mine" / "sp-1")
    store, folder = savepoint_deletion.open_snapshot_folder(client.store, {}, place)
    savepoint(driver, 1, path="x")  # an entry like any other, then one elsewhere
    data = {"checkpoint_id": 2, "kind": "savepoint", "path": place}
    driver.generation_log.append("claim", {**data, "triggered_at": NOW}, RUN)
    body = {"job_id": "flights", "generation": 1, "run_id": RUN, "checkpoint_id": 2}
    store.create(f"{folder}/_metadata", json.dumps({"body": body}).encode())
    driver.generation_log.append("complete", {**data, "metrics": {}, "parent": None}, RUN)
    driver.checkpoint(3)
    assert not with_deletions(client, client.view()).checkpoints[1].deleted
    assert delete_savepoint(client, place).deleted
    assert with_deletions(client, client.view()).checkpoints[1].deleted
    assert not (tmp_path / "mine" / "sp-1").exists()


def test_the_deletion_is_recorded_once_also_of_a_folder_that_is_gone(client: JobClient, driver: ScriptedDriver) -> None:
    """S2.3: so `tidegate gc` does not take it for a moved one."""
    first, second = savepoint(driver, 1), savepoint(driver, 2)
    third = stopped(driver)
    delete_savepoint(client, 1, dry_run=True)
    assert deleted_savepoints(client.store, client.layout) == frozenset()
    delete_savepoint(client, 1)
    record = client.store.read(client.layout.deletion(1))
    delete_savepoint(client, 1)
    assert client.store.read(client.layout.deletion(1)) == record
    for path in (second, third):
        client.store.delete_folder(path)
    delete_savepoint(client, 2, dry_run=True)
    assert deleted_savepoints(client.store, client.layout) == {first}
    delete_savepoint(client, 2)
    assert delete_savepoint(client, 9).existed is False
    assert deleted_savepoints(client.store, client.layout) == {first, second}, "it may be moved, and the job needs it"
    delete_savepoint(client, 9, also_latest=True)
    assert deleted_savepoints(client.store, client.layout) == {first, second, third}
