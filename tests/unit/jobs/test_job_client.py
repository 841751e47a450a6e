"""JobClient: submissions and commands, each once however often it is asked for (S9.3, S9.4)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from scripted_contract import FakeTime, ScriptedDriver

from tidegate.errors import (
    CommandRefusedError,
    FencedError,
    JobExistsError,
    JobNotFoundError,
    OptionError,
    PipelineError,
    RecordError,
    SnapshotError,
    StoreError,
)
from tidegate.jobs.artifacts.artifact import unpack_artifact
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.job_directory import list_jobs
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom, Spec, decode


def beating(clock: FakeTime, driver: ScriptedDriver) -> None:
    """Let the driver beat every half second from now on."""

    def beat() -> None:
        driver.beat()
        clock.at(clock.seconds + 0.5, beat)

    clock.at(clock.seconds + 0.5, beat)


def test_a_submission_records_what_was_asked_for(client: JobClient, spec: Spec) -> None:
    assert (spec.job_id, spec.number, spec.pipeline, spec.restore) == ("flights", 1, "flights:build", None)
    assert JobOptions.from_mapping(spec.options) == JobOptions(parallelism=2)
    assert (spec.arguments, spec.master, spec.submitted_at) == ({"speed": 1}, "local[*]", "2026-11-21T09:25:00.000Z")
    assert client.store.exists(client.layout.artifact_manifest(spec.artifact))
    assert client.specs() == (spec,) and client.spec(1) == spec
    assert decode(client.store.read(client.layout.spec(1)), Spec) == spec


def test_submitting_again_under_one_id_gives_the_existing_spec(client: JobClient, pipeline: str) -> None:
    first = client.submit(pipeline=pipeline, submission_id="run-1")
    driver = ScriptedDriver(client, first)
    driver.status("RUNNING")
    assert client.submit(pipeline=pipeline, submission_id="run-1", options={"parallelism": 9}) == first
    assert len(client.specs()) == 1


def test_submitters_at_once_under_one_id_make_one_submission(root: str, pipeline: str) -> None:
    def submit(_: int) -> Spec:
        return JobClient(root, "flights").submit(pipeline=pipeline, submission_id="run-1")

    with ThreadPoolExecutor(8) as pool:
        specs = list(pool.map(submit, range(8)))
    assert len({spec.number for spec in specs}) == 1
    assert specs.count(specs[0]) == 8


@pytest.mark.parametrize("wrong", ["../x", "a/b"])
def test_a_bad_job_id_is_refused_before_anything_is_written(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(OptionError, match="is not a valid job id"):
        JobClient(str(tmp_path / "root"), wrong)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"options": {"paralelism": 1}}, OptionError),
        ({"options": {"parallelism": 0}}, OptionError),
        ({"pipeline": "nowhere.py:build"}, PipelineError),
        ({"pipeline": "flights.py"}, PipelineError),
        ({"pipeline": None}, OptionError),
        ({"arguments": {"x": object()}}, OptionError),
        ({"arguments": {"db_password": "plain"}}, OptionError),
        ({"spark_conf": {"spark.hadoop.fs.s3a.secret.key": "plain"}}, OptionError),
        ({"restore": RestoreFrom("latest")}, SnapshotError),
        ({"restore": RestoreFrom("savepoint", "flights/savepoints/none")}, SnapshotError),
        ({"restore": RestoreFrom("checkpoint", checkpoint_id=3)}, SnapshotError),
    ],
)
def test_a_wrong_submission_leaves_nothing_half_started(
    client: JobClient, pipeline: str, asked: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        client.submit(**{"pipeline": pipeline, **asked})
    assert client.specs() == ()
    assert list_jobs(client.store) == []
    assert client.store.list("flights/specs") == []


@pytest.mark.parametrize("below", ["checkpoints", "checkpoints/mine", "x/../checkpoints"])
def test_a_savepoint_directory_where_the_job_deletes_is_refused(tmp_path: Path, pipeline: str, below: str) -> None:
    """S2.3."""
    client = JobClient(str(tmp_path / "root"), "flights")
    for place in (f"{tmp_path}/root/flights/{below}", f"file://{tmp_path}/root/flights/{below}"):
        with pytest.raises(OptionError, match="folder of the job's checkpoints"):
            client.submit(pipeline=pipeline, options={"savepoint_directory": place})
    beside = f"{tmp_path}/root/flights/checkpoints-of-mine"
    assert client.submit(pipeline=pipeline, options={"savepoint_directory": beside}).number == 1


def test_a_plain_secret_in_storage_options_is_never_written(tmp_path: Path, pipeline: str) -> None:
    client = JobClient(str(tmp_path / "root"), "flights", {"secret": "plain"})
    with pytest.raises(OptionError, match="secret in plain text"):
        client.submit(pipeline=pipeline)


def test_a_root_that_does_not_work_is_refused_at_submission(tmp_path: Path, pipeline: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="the path is a file"):
        JobClient(str(tmp_path / "file"), "flights").submit(pipeline=pipeline)


def test_a_living_job_cannot_be_submitted_again(
    client: JobClient, clock: FakeTime, driver: ScriptedDriver, pipeline: str
) -> None:
    driver.checkpoint(1)
    beating(clock, driver)
    for restore in (None, RestoreFrom("latest")):
        with pytest.raises(JobExistsError, match="job 'flights' is RUNNING.*Stop the job first"):
            client.submit(pipeline=pipeline, restore=restore)
    assert len(client.specs()) == 1


def test_a_dead_job_can_be_restored_but_not_forgotten(client: JobClient, driver: ScriptedDriver, pipeline: str) -> None:
    driver.checkpoint(1)
    with pytest.raises(JobExistsError, match="was RUNNING when its driver died.*Restore the job"):
        client.submit(pipeline=pipeline)
    assert client.submit(restore=RestoreFrom("latest")).number == 2


@pytest.mark.parametrize("status", ["FINISHED", "STOPPED", "FAILED", "CANCELED"])
def test_an_ended_job_can_be_started_afresh_in_a_new_lineage(
    client: JobClient, driver: ScriptedDriver, pipeline: str, status: str
) -> None:
    driver.status(status)
    second = client.submit(pipeline=pipeline, fresh=True)
    assert (second.number, second.restore) == (2, None)
    assert second.lineage != driver.spec.lineage


@pytest.mark.parametrize("verdict", [None, "approve", "reject"])
def test_a_fresh_start_does_not_forget_what_waits_for_its_commit(
    client: JobClient, pipeline: str, verdict: str | None
) -> None:
    """S7.8, S2.3: approved and not committed waits, too; what was rejected does not."""
    driver = ScriptedDriver(client, client.submit(pipeline=pipeline, options={"commit": "on_request"}))
    driver.status("RUNNING")
    driver.checkpoint(1)
    if verdict is not None:
        driver.generation_log.append(verdict, {"checkpoint_id": 1, "then": "stop", "by": "x", "command": "c"})
    driver.status("FINISHED_COMMIT_PENDING" if verdict != "reject" else "STOPPED")
    if verdict == "reject":
        assert client.submit(pipeline=pipeline, fresh=True).number == 2
        return
    with pytest.raises(JobExistsError, match=r"checkpoints \[1\] .* is not committed yet.*commit-pending"):
        client.submit(pipeline=pipeline)
    assert client.submit(restore=RestoreFrom("latest")).number == 2


def test_a_start_from_another_jobs_snapshot_does_not_forget_it_either(
    client: JobClient, driver: ScriptedDriver, pipeline: str
) -> None:
    """S7.8: it begins a lineage of its own, in which nobody commits or removes what the one before has staged."""
    path = driver.checkpoint(1, "savepoint", "flights/savepoints/sp")
    other = JobClient(client.root, "delays")
    own = ScriptedDriver(other, other.submit(pipeline=pipeline, options={"commit": "on_request"}))
    own.checkpoint(1)
    own.status("FINISHED_COMMIT_PENDING")
    with pytest.raises(JobExistsError, match=r"checkpoints \[1\] .* is not committed yet.*or restore the job"):
        other.submit(restore=RestoreFrom("savepoint", path))
    own.generation_log.append("reject", {"checkpoint_id": 1, "then": "stop", "by": "x", "command": "c"})
    assert other.submit(restore=RestoreFrom("savepoint", path)).number == 2


@pytest.mark.parametrize("commit", ["on_request", "automatic"])
@pytest.mark.parametrize("ended", [None, "FAILED"])
@pytest.mark.parametrize("approved", [False, True])
def test_a_restore_in_between_that_came_to_nothing_makes_no_fresh_start_forget_it(
    client: JobClient, pipeline: str, commit: str, ended: str | None, approved: bool
) -> None:
    """S7.8: it never had a driver, or was refused because it has no gate itself."""
    driver = ScriptedDriver(client, client.submit(pipeline=pipeline, options={"commit": "on_request"}))
    driver.checkpoint(1)
    if approved:
        driver.generation_log.append("approve", {"checkpoint_id": 1, "by": "x", "command": "c"})
    driver.status("FINISHED_COMMIT_PENDING")
    second = client.submit(restore=RestoreFrom("latest"), options={"commit": commit})
    if ended is not None:
        ScriptedDriver(client, second).status(ended)
    with pytest.raises(JobExistsError, match=r"checkpoints \[1\] .* is not committed yet.*or restore the job"):
        client.submit(pipeline=pipeline)
    third = ScriptedDriver(client, client.submit(restore=RestoreFrom("latest"), options={"commit": commit}))
    third.checkpoint(2)
    third.status("STOPPED")
    assert client.view().uncommitted == ((1, 2) if commit == "on_request" else ())


def test_a_submission_that_never_started_does_not_block_the_next(client: JobClient, spec: Spec, pipeline: str) -> None:
    assert client.submit(pipeline=pipeline).number == 2


def test_a_restore_takes_code_and_settings_from_the_submission_before_and_keeps_the_lineage(
    client: JobClient, driver: ScriptedDriver
) -> None:
    driver.checkpoint(1)
    driver.status("STOPPED")
    second = client.submit(restore=RestoreFrom("latest"), arguments={"speed": 2})
    first = driver.spec
    assert (second.artifact, second.pipeline, second.options) == (first.artifact, first.pipeline, first.options)
    assert (second.arguments, second.lineage) == ({"speed": 2}, first.lineage)
    assert second.restore == RestoreFrom("latest")


def test_a_submission_that_nobody_could_read_is_not_written(client: JobClient, driver: ScriptedDriver) -> None:
    """S9.3: it would block the job for ever."""
    driver.checkpoint(1)
    driver.status("STOPPED")
    wrong: Any = "rewnd"
    with pytest.raises(OptionError, match="on_committed_after='rewnd' is not one of"):
        client.submit(restore=RestoreFrom("latest", on_committed_after=wrong))
    wrong = 5
    with pytest.raises(RecordError, match="master"):
        client.submit(restore=RestoreFrom("latest"), master=wrong)
    assert [spec.number for spec in client.specs()] == [1]


def test_a_restore_names_a_checkpoint_by_id_and_records_its_path(client: JobClient, driver: ScriptedDriver) -> None:
    path = driver.checkpoint(1)
    driver.checkpoint(2)
    driver.status("STOPPED")
    second = client.submit(restore=RestoreFrom("checkpoint", checkpoint_id=1))
    assert second.restore == RestoreFrom("checkpoint", path, 1)
    assert second.lineage == driver.spec.lineage


def test_a_restore_of_an_own_savepoint_by_its_absolute_url_is_recorded_as_the_log_has_it(
    client: JobClient, driver: ScriptedDriver
) -> None:
    path = driver.checkpoint(1, "savepoint", "flights/savepoints/sp-1")
    driver.status("STOPPED")
    second = client.submit(restore=RestoreFrom("savepoint", f"{client.root}/{path}/"))
    assert second.restore == RestoreFrom("savepoint", path, 1)


def test_a_deleted_checkpoint_cannot_be_restored(client: JobClient, driver: ScriptedDriver) -> None:
    """S9.3."""
    client.store.delete_folder(driver.checkpoint(1))
    driver.status("STOPPED")
    for restore in (RestoreFrom("checkpoint", checkpoint_id=1), RestoreFrom("latest")):
        with pytest.raises(SnapshotError, match="not a complete snapshot"):
            client.submit(restore=restore)


def test_an_aborted_checkpoint_cannot_be_restored(client: JobClient, driver: ScriptedDriver) -> None:
    """S2.1, S9.3."""
    driver.checkpoint(1)
    driver.generation_log.append("claim", {"checkpoint_id": 2, "kind": "checkpoint", "path": "p"})
    driver.status("STOPPED")
    with pytest.raises(SnapshotError, match="checkpoint 2 never completed.*completed checkpoints are 1"):
        client.submit(restore=RestoreFrom("checkpoint", checkpoint_id=2))


def test_another_jobs_savepoint_starts_a_fork_with_a_lineage_of_its_own(
    root: str, driver: ScriptedDriver, pipeline: str
) -> None:
    """S7.4."""
    path = driver.checkpoint(1, "savepoint")
    fork = JobClient(root, "fork").submit(pipeline=pipeline, restore=RestoreFrom("savepoint", path))
    assert fork.restore == RestoreFrom("savepoint", path)
    assert fork.lineage != driver.spec.lineage


def test_an_own_savepoint_that_was_moved_continues_the_lineage(client: JobClient, driver: ScriptedDriver) -> None:
    path = driver.checkpoint(1, "savepoint")
    client.store.create("moved/_metadata", client.store.read(f"{path}/_metadata"))
    driver.status("STOPPED")
    assert client.submit(restore=RestoreFrom("savepoint", "moved")).lineage == driver.spec.lineage


def test_damaged_metadata_is_refused_before_anything_starts(client: JobClient, driver: ScriptedDriver) -> None:
    """S9.3."""
    client.store.create("broken/_metadata", b"{")
    driver.status("STOPPED")
    with pytest.raises(SnapshotError, match="broken is damaged"):
        client.submit(restore=RestoreFrom("savepoint", "broken"))


def test_a_spec_in_anothers_place_is_not_believed(root: str, client: JobClient, spec: Spec) -> None:
    client.store.create(client.layout.spec(2), client.store.read(client.layout.spec(1)))
    with pytest.raises(RecordError, match="the file of submission 2 of job flights contains submission 1"):
        JobClient(root, "flights").specs()


def test_jobs_are_listed_by_their_submissions(client: JobClient, spec: Spec) -> None:
    client.store.create("other/file", b"")
    client.store.create(".hidden/specs/000001.json", b"")
    assert list_jobs(client.store) == ["flights"]
    assert list_jobs(client.root) == ["flights"]


def test_an_unknown_job_is_named_with_its_root(client: JobClient) -> None:
    with pytest.raises(JobNotFoundError, match=rf"no job with the id .flights. \[job flights, root {client.root}\]"):
        client.view()
    with pytest.raises(JobNotFoundError, match="no submission 3"):
        client.spec(3)


# ------------------------------------------------------------ liveness


def test_a_driver_is_alive_when_its_heartbeat_is_seen_to_advance(
    client: JobClient, clock: FakeTime, driver: ScriptedDriver
) -> None:
    beating(clock, driver)
    assert client.is_alive()
    assert clock.seconds <= 1.0


def test_a_driver_whose_heartbeat_stands_still_is_dead_whatever_its_clock_says(
    client: JobClient, clock: FakeTime, driver: ScriptedDriver
) -> None:
    assert not client.is_alive(observe_s=3.0)
    assert 3.0 <= clock.seconds < 4.0


def test_a_driver_that_only_writes_decisions_is_alive(
    client: JobClient, clock: FakeTime, driver: ScriptedDriver
) -> None:
    clock.at(1.0, lambda: driver.checkpoint(1))
    assert client.is_alive()


def test_an_ended_or_never_started_job_is_not_alive(client: JobClient, clock: FakeTime, spec: Spec) -> None:
    assert not client.is_alive()
    ScriptedDriver(client, spec).status("FINISHED")
    assert not client.is_alive()
    assert clock.seconds == 0.0


def test_a_dead_driver_can_be_fenced_off_for_good(client: JobClient, driver: ScriptedDriver, pipeline: str) -> None:
    assert client.cancel_dead("alice").status == "CANCELED"
    assert client.cancel_dead("alice").reason == "cancelled by alice after its driver had died"
    with pytest.raises(FencedError):
        driver.checkpoint(1)
    with pytest.raises(FencedError):
        ScriptedDriver(client, driver.spec)
    assert client.submit(pipeline=pipeline, fresh=True).number == 2


def test_a_living_driver_is_not_fenced_off(client: JobClient, clock: FakeTime, driver: ScriptedDriver) -> None:
    beating(clock, driver)
    with pytest.raises(CommandRefusedError, match="driver is alive"):
        client.cancel_dead()
    driver.checkpoint(1)


# ------------------------------------------------------------ commands


def test_a_command_names_submission_and_expiry_and_rings_the_bell(client: JobClient, driver: ScriptedDriver) -> None:
    """S9.4."""
    command = client.send("stop", {"mode": "drain"}, expires_in=timedelta(minutes=1), issued_by="alice")
    assert (command.verb, command.arguments, command.spec, command.issued_by) == ("stop", {"mode": "drain"}, 1, "alice")
    assert (command.issued_at, command.expires_at) == ("2026-11-21T09:25:00.000Z", "2026-11-21T09:26:00.000Z")
    assert client.command(command.command_id) == command
    assert client.store.read(client.layout.bell).decode().startswith(command.command_id)


def test_sending_again_under_one_id_gives_the_first_command_and_rings_again(
    client: JobClient, clock: FakeTime, driver: ScriptedDriver
) -> None:
    """S9.4."""
    first = client.send("savepoint", command_id="task-1", issued_by="alice")
    rung = client.store.read(client.layout.bell)
    clock.seconds = 50
    assert client.send("savepoint", {"path": "elsewhere"}, command_id="task-1", issued_by="bob") == first
    assert client.store.read(client.layout.bell) != rung


def test_a_retry_after_the_jobs_end_finds_its_command_and_answer(client: JobClient, driver: ScriptedDriver) -> None:
    sent = client.send("stop", command_id="task-1", issued_by="alice")
    driver.answer("task-1", checkpoint_id=3)
    driver.status("STOPPED")
    assert client.send("stop", command_id="task-1", issued_by="alice") == sent
    assert client.wait_result("task-1").data == {"checkpoint_id": 3}


def test_another_verb_under_a_used_id_is_a_conflict(client: JobClient, driver: ScriptedDriver) -> None:
    client.send("savepoint", command_id="task-1", issued_by="alice")
    with pytest.raises(RecordError, match="by the command 'savepoint', not 'stop'"):
        client.send("stop", command_id="task-1", issued_by="alice")


def test_an_ended_job_takes_no_new_commands(client: JobClient, driver: ScriptedDriver) -> None:
    driver.status("FINISHED")
    with pytest.raises(CommandRefusedError, match="the job is FINISHED.*nothing to stop"):
        client.send("stop", issued_by="alice")
    assert client.store.list(client.layout.commands) == []


@pytest.mark.parametrize(("verb", "arguments"), [("explode", {}), ("stop", {"mode": "gently"})])
def test_a_wrong_command_is_refused(client: JobClient, driver: ScriptedDriver, verb: str, arguments: Any) -> None:
    with pytest.raises(OptionError):
        client.send(verb, arguments, issued_by="alice")


def test_a_command_can_be_withdrawn_more_than_once(client: JobClient, driver: ScriptedDriver) -> None:
    command = client.send("savepoint", issued_by="alice")
    client.withdraw(command.command_id)
    client.withdraw(command.command_id)
    assert client.layout.unanswered(client.store.list(client.layout.commands)) == []
    assert client.result(command.command_id) is None


def test_logs_of_the_newest_generation_are_read_by_name(client: JobClient, driver: ScriptedDriver) -> None:
    client.store.create(f"{client.layout.logs(1)}/driver.log", b"line\n")
    client.store.create(f"{client.layout.logs(1)}/slots/0.log", b"\xff")
    assert client.logs() == {"driver.log": "line\n", "slots/0.log": "�"}
    with pytest.raises(OptionError, match="no driver with the number .generation. 2 .*Pass a number from 1 to 1"):
        client.logs(2)


def test_code_that_was_collected_while_the_submission_was_made_is_pinned_again(
    client: JobClient, pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tidegate gc` may have found it old, and named by nobody, just before it was found there."""
    create = client.store.create

    def collected_before(path: str, data: bytes) -> None:
        if path == client.layout.spec(1):
            for name in client.store.list(client.layout.artifacts):
                client.store.delete_folder(client.layout.artifact(name))
        create(path, data)

    monkeypatch.setattr(client.store, "create", collected_before)
    spec = client.submit(pipeline=pipeline)
    unpack_artifact(client.store, client.layout, spec.artifact, str(tmp_path / "code"))
    assert (tmp_path / "code" / "flights.py").exists()
