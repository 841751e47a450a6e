"""`tidegate commit-pending` (S7.8): of a real job's snapshots, with the code that its submission pinned."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cli_caller import Caller, Driver

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.connectors.files.sink.file_writer import FileWriter
from tidegate.coordinator import events as ev
from tidegate.coordinator.driver_job import DriverJob
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import RestoreFrom, StatusHint, encode
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.in_process_job import InProcessJob

PINNED = """
import pyarrow as pa
from tidegate import DataGen, Parquet, Pipeline

def build(args):
    p = Pipeline()
    numbers = DataGen(lambda n: {"v": n}, pa.schema([("v", pa.int64())]), splits=2, batch_rows=8)
    p.read(numbers, uid="numbers").write(Parquet(args["out"]), uid="out")
    return p
"""


AT = "2026-01-01T00:00:00.000+00:00"


class Pinned:
    """A job that runs; its pipeline's file goes when it is dropped."""

    def __init__(self, tidegate: Caller, folder: Path, commit: str) -> None:
        self.out = folder / "out"
        self.file = folder / "pinned_job.py"
        self.file.write_text(PINNED)
        self.client: JobClient = tidegate.client(tidegate.root, "flights")
        options = {"commit": commit, "parallelism": 2}
        arguments = {"out": str(self.out)}
        spec = self.client.submit(pipeline=f"{self.file}:build", arguments=arguments, options=options)

        class Made:
            def build(self) -> object:
                return load_pipeline(str(folder), "pinned_job:build", arguments)

        job = InProcessJob(Made, options, "flights", spec.lineage, tidegate.root)  # type: ignore[arg-type]
        job.specs, job._spec, job._spec_number = [spec], spec, 1
        self.job, self.run = job, job.relaunch()

    def shown(self) -> list[int]:
        return sorted(n for f in self.out.glob("*.parquet") for n in pq.read_table(f).column("v").to_pylist())


class Stopped(Pinned):
    """It was stopped with three checkpoints waiting; its pipeline's file is gone."""

    def __init__(self, tidegate: Caller, folder: Path) -> None:
        super().__init__(tidegate, folder, "on_request")
        for n in (1, 2):
            self.run.pump(10)
            self.run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{n}"))
        self.run.pump(10)
        self.run.ask(ev.SnapshotRequest("stop-savepoint", request_id="s", stop="suspend"))
        self.run.to_end()
        stop = {"outcome": "commits_pending", "mode": "suspend", "uncommitted": [1, 2, 3]}
        self.job.generation_log.append("status", {"status": "STOPPED", "stop": stop})
        self.file.unlink()


@pytest.fixture
def stopped(tidegate: Caller, tmp_path: Path) -> Stopped:
    return Stopped(tidegate, tmp_path)


def test_approved_after_the_end_and_committed_by_the_pinned_code(tidegate: Caller, stopped: Stopped) -> None:
    """S7.8."""
    refused = tidegate("approve", "flights")
    assert refused.code == 7 and "tidegate commit-pending" in refused.err
    answer = tidegate("commit-pending", "flights", "--approve", "2")
    assert (answer.code, answer.out) == (
        0,
        "flights: STOPPED; committed up to checkpoint 2; waiting for approval or rejection: 3\n",
    ), answer.err
    two = stopped.shown()
    assert two and two == list(range(len(two)))
    document = tidegate("commit-pending", "flights", "--approve", "--json").document
    assert document["committed"] == 3 and document["uncommitted"] == []
    stop = stopped.client.view().stop
    assert len(stopped.shown()) > len(two) and stop is not None and stop["outcome"] == "committed"
    entries = len(stopped.client.decisions())
    assert tidegate("commit-pending", "flights").code == 0
    assert len(stopped.client.decisions()) == entries, "nothing to do takes no fence"


def test_status_tells_the_sources_of_the_last_run_behind_a_late_commit(tidegate: Caller, stopped: Stopped) -> None:
    """S7.8."""
    told = {"sources": {"numbers": {"boundedness": "unbounded", "records": 40}}}
    client, generation = stopped.client, stopped.job.generation_log.generation
    client.store.replace(client.layout.status(generation), encode(StatusHint(generation, 3, "r", AT, told)))
    before = tidegate("status", "flights", "--json").document["sources"]
    assert tidegate("commit-pending", "flights", "--approve").code == 0
    assert tidegate("status", "flights", "--json").document["sources"] == before
    assert [(s["uid"], s["boundedness"], s["records"]) for s in before] == [("numbers", "unbounded", 40)]


def test_a_sink_that_cannot_commit_is_named_and_asked_again(
    tidegate: Caller, stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.8: what a full or read-only disk raises is no bug of ours."""
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", read_only)
        answer = tidegate("commit-pending", "flights", "--approve", "2")
    assert answer.code == 1 and "a bug in tidegate" not in answer.err, answer.err
    for said in ("job flights, sink 'out'", "Operation not permitted", "run `tidegate commit-pending` again"):
        assert said in answer.err
    assert stopped.shown() == []
    assert tidegate("commit-pending", "flights").code == 0
    assert stopped.shown()


def test_rejected_after_the_end_and_read_in_quarantine(tidegate: Caller, stopped: Stopped) -> None:
    """S7.8: where it was staged it is no more; a note says whose word it was."""
    waits = stopped.client.staged(2)
    answer = tidegate("commit-pending", "flights", "--quarantine", "2", "--reason", "wrong prices")
    assert answer.code == 0 and "waiting for approval or rejection: 1; in quarantine: 2, 3\n" in answer.out, answer.err
    assert "  in quarantine: 2, 3\n" in tidegate("status", "flights").out
    assert tidegate("commit-pending", "flights", "--approve").code == 0
    kept = [data for n in (2, 3) for data in stopped.client.staged(n)]
    assert {data.checkpoint_id for data in kept} == {2, 3} and not any(Path(p).exists() for p in waits[-1].paths)
    assert stopped.shown()
    store, layout = stopped.client.store, stopped.client.layout
    notes = [store.read(path).decode() for path in store.walk(layout.quarantine) if path.endswith(".json")]
    assert notes and all('"wrong prices"' in note and '"by": "cli:' in note for note in notes)
    shown = tidegate("staged", "flights", "2")
    assert kept[0].paths[0] in shown.out


def test_a_job_whose_driver_is_alive_is_left_alone(tidegate: Caller) -> None:
    """S7.8, S9.2."""
    driver: Driver = tidegate.submitted(options={"commit": "on_request"})
    driver.status("RUNNING")
    driver.complete(1, "checkpoint")
    answer = tidegate("commit-pending", "flights", "--approve")
    assert answer.code == 7 and "the job's driver is alive" in answer.err
    assert not [d for d in driver.client.decisions() if d.kind == "approve"]


def read_only(source: object, target: object) -> None:
    """Instead of os.replace."""
    raise PermissionError(1, "Operation not permitted", str(source))


def uncommitted(tidegate: Caller, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Pinned:
    """A job without a gate, failed: its stop-savepoint is complete, and its sink could not commit that."""
    failed = Pinned(tidegate, folder, "automatic")
    failed.run.pump(10)
    failed.run.ask(ev.SnapshotRequest("checkpoint", request_id="c1"))
    failed.run.pump(10)
    with monkeypatch.context() as broken, pytest.raises(OperatorFailure):
        broken.setattr(FileWriter, "commit", read_only)
        failed.run.ask(ev.SnapshotRequest("stop-savepoint", request_id="s", stop="suspend"))
        failed.run.to_end()
    stop = {"outcome": "savepoint_ok_stop_failed", "mode": "suspend", "checkpoint_id": 2}
    failed.job.generation_log.append("status", {"status": "FAILED", "reason": "not permitted", "stop": stop})
    failed.file.unlink()
    return failed


def test_what_a_job_without_a_gate_could_not_commit_is_committed(
    tidegate: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4, S7.7: its snapshot is complete, which permits it; the job stays as it is, and a restore repeats nothing."""
    failed = uncommitted(tidegate, tmp_path, monkeypatch)
    before = failed.shown()
    assert "the output before it is not committed yet" in tidegate("status", "flights").out
    answer = tidegate("commit-pending", "flights")
    assert (answer.code, answer.out) == (0, "flights: FAILED; committed up to checkpoint 2\n"), answer.err
    shown, view = failed.shown(), failed.client.view()
    assert len(shown) > len(before) and shown == list(range(len(shown)))
    assert view.checkpoints[1].committed and view.stop is not None and view.stop["outcome"] == "committed"
    entries = len(failed.client.decisions())
    assert tidegate("commit-pending", "flights").code == 0
    assert len(failed.client.decisions()) == entries, "nothing to do takes no fence"
    failed.file.write_text(PINNED)
    again = failed.job.submit(RestoreFrom("latest"))
    again.pump(10)
    again.ask(ev.SnapshotRequest("stop-savepoint", request_id="s2", stop="suspend"))
    again.to_end()
    assert len(failed.shown()) > len(shown) and failed.shown() == list(range(len(failed.shown())))


def test_a_late_commit_that_was_interrupted_is_repeated(
    tidegate: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: in front of its data, or between that and what the log says of it."""
    failed = uncommitted(tidegate, tmp_path, monkeypatch)
    before = failed.shown()
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", read_only)
        assert tidegate("commit-pending", "flights").code == 1
    assert failed.shown() == before and not failed.client.view().checkpoints[1].committed

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, suppress(KeyboardInterrupt):
        broken.setattr(DriverJob, "finish_quarantine_moves", killed)
        tidegate("commit-pending", "flights")
    shown = failed.shown()
    assert len(shown) > len(before) and not failed.client.view().checkpoints[1].committed
    assert tidegate("commit-pending", "flights").code == 0
    assert failed.shown() == shown and failed.client.view().checkpoints[1].committed


def test_a_job_without_a_gate_takes_no_verdict(tidegate: Caller) -> None:
    """S7.8."""
    tidegate.submitted().status("STOPPED")
    answer = tidegate("commit-pending", "flights", "--approve")
    assert answer.code == 7 and "commits without approval" in answer.err and "Leave out --approve" in answer.err
    answer = tidegate("commit-pending", "flights")
    assert (answer.code, answer.out) == (0, "flights: STOPPED; nothing is committed\n"), answer.err


def test_behind_a_restore_of_the_latest_that_found_no_slots_it_is_approved_as_before(
    tidegate: Caller, stopped: Stopped
) -> None:
    """S7.8, S9.3: that restore, too, holds what waits."""
    refused = stopped.client.submit(restore=RestoreFrom("latest"))
    driver = Driver(stopped.client, refused, stopped.client.log.begin_generation(spec=refused.number, launch=9))
    driver.status("WAITING_FOR_SLOTS")
    driver.generation_log.append("failure", {"message": "no slots", "code": "slots"})
    driver.status("FAILED", reason="no slots")
    answer = tidegate("commit-pending", "flights", "--approve")
    assert answer.code == 0, answer.err
    assert stopped.shown() == list(range(len(stopped.shown())))
    view = stopped.client.view()
    assert stopped.shown() and view.uncommitted == () and view.followed == 1
    again = stopped.client.submit(restore=RestoreFrom("latest"))
    assert again.lineage == refused.lineage


def test_behind_a_submission_that_was_refused_a_restore_is_named_that_can_commit(
    tidegate: Caller, stopped: Stopped
) -> None:
    """S7.8, S9.3: it would have committed what waits, and came to nothing; the next takes the settings of before."""
    refused = stopped.client.submit(restore=RestoreFrom("latest"), options={"commit": "automatic"})
    driver = Driver(stopped.client, refused, stopped.client.log.begin_generation(spec=refused.number, launch=9))
    driver.generation_log.append("failure", {"message": "checkpoints wait for a verdict", "code": "snapshot"})
    driver.status("FAILED", reason="checkpoints wait for a verdict")
    assert stopped.client.view().uncommitted == (1, 2, 3)
    answer = tidegate("commit-pending", "flights", "--approve")
    assert answer.code == 7 and "[1, 2, 3] belong to submission 1" in answer.err and "tidegate restore" in answer.err
    assert not stopped.shown()
    again = stopped.client.submit(restore=RestoreFrom("latest"))
    assert again.options["commit"] == "on_request"
