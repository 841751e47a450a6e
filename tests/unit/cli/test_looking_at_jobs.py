"""`tidegate status`, `checkpoints`, `list`, `logs`, and what every verb has in common."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import cli_caller
import pytest
from cli_caller import Caller, Driver

from tidegate.cli import main as entry
from tidegate.cli.job_output import event_time_text, size_text
from tidegate.cli.output import Output, table
from tidegate.errors import StoreError
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.launches import record_launch, record_process
from tidegate.jobs.records import RestoreFrom

MEASURES = ("duration", "size", "alignment")
VERBS = ("start", "restore", "status", "checkpoints", "list", "logs")
COMMANDS = ("checkpoint", "savepoint", "stop", "cancel", "approve", "reject", "doctor")
SOURCES = {
    "flights": {"boundedness": "unbounded", "records": 336_776, "played_all": True},
    "airlines": {"boundedness": "bounded", "records": 16, "end_of_data": True},
}


@pytest.fixture
def driver(tidegate: Caller) -> Driver:
    driver = tidegate.submitted()
    driver.status("RUNNING")
    tidegate.script = lambda driver: driver.beat(sources=SOURCES, watermark_us=1_357_016_400_000_000)
    tidegate.script(driver)
    return driver


def test_status_shows_sources_watermark_and_the_latest_snapshot(tidegate: Caller, driver: Driver) -> None:
    driver.complete(3, "checkpoint")
    answer = tidegate("status", "flights")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines() == [
        "flights: RUNNING",
        "  submission 1, generation 1, restarts 0",
        "  watermark 2013-01-01T05:00:00.000Z",
        "  source airlines: bounded, 16 records in this run, ended",
        "  source flights: unbounded, 336,776 records in this run, played all",
        "  latest snapshot: checkpoint 3, flights/checkpoints/chk-3-g1",
    ]


def test_status_names_the_outage_that_a_source_waits_for(tidegate: Caller, driver: Driver) -> None:
    """S9.1."""
    times = {"since": "2026-01-02T03:04:05.000Z", "until": "2026-01-02T03:14:05.000Z"}
    outage = {**times, "cause": "_ALL_BROKERS_DOWN: 1/1 brokers are down"}
    flights = {**SOURCES["flights"], "details": {"outage": outage}}
    tidegate.script = lambda driver: driver.beat(sources={**SOURCES, "flights": flights})
    tidegate.script(driver)
    answer = tidegate("status", "flights")
    words = (
        "waits since 2026-01-02T03:04:05.000Z until 2026-01-02T03:14:05.000Z: _ALL_BROKERS_DOWN: 1/1 brokers are down"
    )
    assert [line for line in answer.out.splitlines() if line.endswith(words) and "source flights" in line]
    document = tidegate("status", "flights", "--json").document
    assert [source["details"] for source in document["sources"] if source["uid"] == "flights"] == [{"outage": outage}]


def test_status_is_one_document_for_programs(tidegate: Caller, driver: Driver) -> None:
    driver.complete(3, "checkpoint")
    document = tidegate("status", "flights", "--json").document
    assert document["status"] == "RUNNING" and document["driver_alive"] is True
    assert document["watermark"] == "2013-01-01T05:00:00.000Z"
    assert [source["uid"] for source in document["sources"]] == ["airlines", "flights"]
    assert document["latest_recovery_point"]["checkpoint_id"] == 3 and document["latest_savepoint"] is None


def test_status_tells_that_a_stop_commits_what_its_savepoint_covers(tidegate: Caller, driver: Driver) -> None:
    """S7.7: also while runs fail over it; no other word would say that the job is about to end."""
    driver.complete(3, "checkpoint")
    assert "  stop: " not in tidegate("status", "flights").out
    driver.complete(4, "stop-savepoint")
    driver.status("RESTARTING", reason="PermissionError")
    assert "  stop: its savepoint is complete; the job ends when" in tidegate("status", "flights").out


def test_status_of_what_has_finished_behind_a_gate_tells_what_to_do(tidegate: Caller) -> None:
    """S7.8."""
    driver = tidegate.submitted("gated", options={"commit": "on_request"})
    driver.complete(1, "final")
    driver.status("FINISHED_COMMIT_PENDING", reason="checkpoints 1")
    assert "  next: Approve or reject the output with `tidegate commit-pending`" in tidegate("status", "gated").out


def test_status_tells_what_waits_for_a_verdict_and_that_sources_pause(tidegate: Caller) -> None:
    """S7.8: visibly."""
    driver = tidegate.submitted("gated", options={"commit": "on_request", "max_uncommitted_checkpoints": 2})
    driver.status("RUNNING")
    tidegate.script = lambda driver: driver.beat()
    for n in (3, 4):
        driver.complete(n, "checkpoint")
    assert "  waiting for approval or rejection: 3, 4; sources pause until then" in tidegate("status", "gated").out
    driver.generation_log.append("approve", {"checkpoint_id": 3, "by": "anna"})
    assert (
        "  waiting for approval or rejection: 4\n  approved, not committed yet: 3\n" in tidegate("status", "gated").out
    )
    document = tidegate("status", "gated", "--json").document
    assert (document["waiting"], document["uncommitted"], document["sources_paused"]) == ([4], [3, 4], False)
    assert [row.split()[-2] for row in tidegate("checkpoints", "gated").out.splitlines()[1:3]] == [
        "approved",
        "waiting",
    ]
    driver.generation_log.append("reject", {"checkpoint_id": 4, "by": "anna", "then": "stop"})
    driver.status("STOPPED")
    assert "  latest snapshot: checkpoint 3, " in tidegate("status", "gated").out
    refused = tidegate("restore", "gated", "--from", "4")
    assert refused.code != 0 and "checkpoint 4 was rejected" in refused.err


def test_status_says_that_checkpoints_wait_for_deletions(tidegate: Caller, driver: Driver) -> None:
    """S2.3: visibly."""
    driver.status("RUNNING")
    tidegate.script = lambda driver: driver.beat(waits_for_deletions=40)
    driver.beat(waits_for_deletions=40)
    words = "  no new checkpoint starts: the store has not deleted 40 retired checkpoints yet. See the driver's log"
    assert words in tidegate("status", "flights").out
    tidegate.script = lambda driver: driver.beat(waits_for_deletions=0)
    driver.beat(waits_for_deletions=0)
    assert "no new checkpoint starts" not in tidegate("status", "flights").out


def test_status_does_not_claim_counts_that_nobody_made(tidegate: Caller) -> None:
    """A job in batch mode counts no records of sources; an operator that counted nothing has no line."""
    driver = tidegate.submitted("bounded", options={"execution_mode": "batch"})
    driver.status("RUNNING")
    told = {"sources": {"in": {"boundedness": "bounded"}}, "counters": {"c": {}}}
    tidegate.script = lambda driver: driver.beat(**told)
    tidegate.script(driver)
    driver.generation_log.append("end_of_data", {"source": "in"})
    answer = tidegate("status", "bounded")
    assert answer.out.splitlines()[1:] == [
        "  submission 1, generation 1, restarts 0",
        "  source in: bounded, ended",
    ]
    assert tidegate("status", "bounded", "--json").document["sources"][0]["records"] is None


def test_status_shows_what_operators_dropped(tidegate: Caller, driver: Driver) -> None:
    """S4.4, S7.6: no record disappears in silence."""
    counters = {"windows": {"processing_time_dropped": 1200, "late_dropped": 3}, "flights": {"bad_records": 40}}
    sources = {"flights": {"boundedness": "bounded", "records": 7}}
    tidegate.script = lambda driver: driver.beat(counters=counters, sources=sources)
    tidegate.script(driver)
    lines = tidegate("status", "flights").out.splitlines()
    assert "  counters of windows in this run: 3 late_dropped, 1,200 processing_time_dropped" in lines
    assert "  counters of flights since the job's first start: 40 bad_records" in lines, "a source keeps its counts"
    assert tidegate("status", "flights", "--json").document["counters"] == counters


def test_status_tells_that_a_driver_gives_no_sign_of_life(tidegate: Caller, driver: Driver) -> None:
    tidegate.script = lambda driver: None
    answer = tidegate("status", "flights")
    assert answer.code == 0
    assert answer.out.splitlines()[:2] == [
        "flights: the driver is dead: no sign of life; `tidegate restore` resumes the job, `tidegate cancel` ends it",
        "  last recorded status: RUNNING",
    ]


def test_status_of_a_driver_that_never_started_leads_with_that(tidegate: Caller) -> None:
    tidegate.client(tidegate.root, "flights").submit(pipeline=cli_caller.PIPELINE)
    lines = tidegate("status", "flights").out.splitlines()
    assert lines[:2] == ["flights: the driver has never started; start the job again", "  status: CREATED"]


def test_status_shows_what_a_source_reports_about_itself(tidegate: Caller, driver: Driver) -> None:
    """As text, too: above all its lag."""
    details = {"rows": 9, "lag_bytes": 5_242, "lag": 12_345, "copying": True, "idle": False, "paused": "alignment"}
    sources = {"flights": {"boundedness": "unbounded", "records": 7, "details": details}}
    tidegate.script = lambda driver: driver.beat(sources=sources)
    tidegate.script(driver)
    line = "  source flights: unbounded, 7 records in this run, copying, lag 12,345, lag 5.1 KiB, paused alignment"
    assert line in tidegate("status", "flights").out.splitlines()


def test_a_refused_start_is_told_beside_the_state_of_the_job(tidegate: Caller, driver: Driver) -> None:
    """S9.3: it changed nothing."""
    path = driver.complete(1, "stop-savepoint")
    stop = {"outcome": "committed", "mode": "suspend", "checkpoint_id": 1, "path": path}
    driver.status("STOPPED", stop=stop)
    refused = tidegate.begin(driver.client, driver.client.submit(restore=RestoreFrom("latest")))
    refused.generation_log.append("failure", {"message": "output was committed after it", "code": "snapshot"})
    refused.status("FAILED", reason="output was committed after it")
    lines = tidegate("status", "flights").out.splitlines()
    assert lines[:3] == [
        f"flights: STOPPED (suspend, committed) with savepoint {path}",
        "  last start: submission 2 was refused, and changed nothing: output was committed after it",
        "  submission 1, generation 2, restarts 0",
    ]
    document = tidegate("status", "flights", "--json").document
    assert (document["status"], document["spec"], document["failure"]) == ("STOPPED", 1, None)
    assert document["refused_start"] == {
        "spec": 2,
        "status": "FAILED",
        "message": "output was committed after it",
        "code": "snapshot",
        "at": document["refused_start"]["at"],
    }
    assert "(start of submission 2 refused)" in tidegate("list").out
    answer = tidegate("cancel", "flights")
    assert answer.code == 7 and "cannot be cancelled: it is STOPPED" in answer.err


def test_list_shows_one_short_line_for_a_long_reason(tidegate: Caller, driver: Driver) -> None:
    reason = "KeyError: 'x'" + " and so on" * 50 + "\nTraceback:\n  line 3"
    driver.status("FAILED", reason=reason)
    lines = tidegate("list").out.splitlines()
    assert len(lines) == 2 and "FAILED: KeyError: 'x' and so on" in lines[1] and lines[1].endswith("...")
    assert len(lines[1]) < 140
    assert "line 3" in tidegate("status", "flights").out, "status shows all of it"
    assert tidegate("list", "--json").document["jobs"][0]["reason"] == reason


def test_deleted_snapshots_are_listed_as_deleted(tidegate: Caller, driver: Driver) -> None:
    """S2.3: the folders show it; the log does not record it."""
    for number in (1, 2, 3):
        data = {"checkpoint_id": number, "kind": "checkpoint", "path": driver.client.layout.checkpoint(number, 1)}
        driver.generation_log.append("claim", {**data, "triggered_at": "2026-11-21T09:25:00.000Z"})
        until = {"readable_until": f"2026-11-2{number}T00:00:00Z"}
        driver.generation_log.append("complete", {**data, "metrics": {}, "parent": None, **until})
        driver.client.store.create(driver.client.layout.metadata(data["path"]), b"{}")
        driver.client.store.create(f"{data['path']}/a.state", b"x")
    driver.client.store.delete_folder(driver.client.layout.checkpoint(1, 1))
    driver.client.store.delete(driver.client.layout.metadata(driver.client.layout.checkpoint(2, 1)))
    rows = [line.split() for line in tidegate("checkpoints", "flights").out.splitlines()[1:4]]
    assert [(row[0], row[2]) for row in rows] == [("1", "deleted"), ("2", "deleted"), ("3", "completed")]
    assert [row[-2] for row in rows] == ["-", "-", "2026-11-23T00:00:00Z"]
    documents = tidegate("checkpoints", "flights", "--json").document["checkpoints"]
    assert [(one["deleted"], one["readable_until"]) for one in documents] == [
        (True, None),
        (True, None),
        (False, "2026-11-23T00:00:00Z"),
    ]
    driver.status("STOPPED")
    refused = tidegate("restore", "flights", "--from", "7")
    assert refused.code == 10 and "completed checkpoints are 3." in refused.err
    driver.client.store.delete_folder(driver.client.layout.checkpoints)
    assert "latest snapshot" not in tidegate("status", "flights").out
    assert "the completed checkpoints were deleted" in tidegate("restore", "flights", "--from", "7").err


def test_status_of_a_failed_job_shows_the_users_traceback(tidegate: Caller, driver: Driver) -> None:
    failure = {"message": "KeyError: 'x'", "operator": "daily", "subtask": 1, "traceback": "File a.py\n  line 3"}
    driver.generation_log.append("failure", failure)
    driver.status("FAILED", reason="KeyError: 'x'")
    lines = tidegate("status", "flights").out.splitlines()
    assert lines[0] == "flights: FAILED: KeyError: 'x'"
    assert lines[-3:] == ["  failure [daily, subtask 1]: KeyError: 'x'", "    File a.py", "      line 3"]


def test_a_failure_is_recovered_from_when_the_job_has_run_since(tidegate: Caller, driver: Driver) -> None:
    """S9.1."""
    driver.generation_log.append("failure", {"message": "the slot ended", "operator": None, "subtask": 1})
    driver.status("RESTARTING", reason="the slot ended")
    line = "  last failure, not recovered from yet [subtask 1]: the slot ended"
    assert line in tidegate("status", "flights").out.splitlines()
    driver.status("WAITING_FOR_SLOTS")
    assert line in tidegate("status", "flights").out.splitlines()
    driver.status("RUNNING")
    assert "  last failure, since recovered [subtask 1]: the slot ended" in tidegate("status", "flights").out
    assert tidegate("status", "flights", "--json").document["failure"]["recovered"] is True


def test_a_job_that_waits_has_at_most_the_slots_it_needs(tidegate: Caller, driver: Driver) -> None:
    """S9.1: Spark offers two, the job needs one, and starts it in this moment."""
    driver.status("WAITING_FOR_SLOTS")
    tidegate.script = lambda driver: driver.beat(slots_registered=2, slots_needed=1)
    tidegate.script(driver)
    assert tidegate("status", "flights").out.splitlines()[0] == "flights: WAITING_FOR_SLOTS (1 of 1 slots)"
    assert tidegate("status", "flights", "--json").document["slots"] == {"registered": 1, "needed": 1}


def test_a_run_is_restored_when_its_driver_says_so(tidegate: Caller) -> None:
    """S9.3: what a submission asks for is not what a run began from."""
    first = tidegate.submitted()
    path = first.complete(17, "checkpoint")
    first.status("CANCELED")
    client = first.client
    spec = client.submit(restore=RestoreFrom("checkpoint", checkpoint_id=17), submission_id="second")
    driver = tidegate.begin(client, spec)
    driver.status("WAITING_FOR_SLOTS")
    assert "restored from" not in tidegate("status", "flights").out
    driver.status("RUNNING", restored_from=path)
    assert f"  restored from: {path}" in tidegate("status", "flights").out.splitlines()
    driver.complete(18, "checkpoint")
    assert f"  restored from: {path}" in tidegate("status", "flights").out.splitlines()


def test_counts_are_those_of_the_run(tidegate: Caller, driver: Driver) -> None:
    """After a restart they are lower than before."""
    out = tidegate("status", "flights").out
    assert "336,776 records in this run" in out


def test_watching_prints_a_line_for_each_change_and_ends_with_the_job(tidegate: Caller, driver: Driver) -> None:
    def life(driver: Driver) -> None:
        driver.beat()
        if driver.beats == 5:
            driver.complete(1, "checkpoint")
        if driver.beats == 9:
            driver.status("FINISHED")

    tidegate.script = life
    answer = tidegate("status", "flights", "--watch")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[:3] == [
        "flights RUNNING, 336,792 records in this run, 0 snapshots, watermark 2013-01-01T05:00:00.000Z",
        "flights RUNNING, 0 records in this run, 1 snapshots",
        "flights FINISHED",
    ]


@pytest.mark.parametrize("words", [("status", "flights", "--watch"), ("logs", "flights", "--follow")])
def test_what_goes_on_is_no_single_document(tidegate: Caller, driver: Driver, words: tuple[str, ...]) -> None:
    answer = tidegate(*words, "--json")
    assert answer.code == 2 and "cannot be used with --json" in answer.document["error"]["message"]


def test_checkpoints_are_a_table_oldest_first(tidegate: Caller, driver: Driver) -> None:
    driver.complete(1, "checkpoint")
    claim = {"checkpoint_id": 2, "kind": "savepoint", "path": "flights/savepoints/sp-2"}
    driver.generation_log.append("claim", {**claim, "triggered_at": "2026-11-21T09:25:00.000Z"})
    driver.generation_log.append(
        "abort", {"checkpoint_id": 2, "reason": "no answer", "code": "expired", "counts": False}
    )
    driver.beat(refused_requests={"periodic_queued": 2, "too_many_requests": 1})
    lines = tidegate("checkpoints", "flights").out.splitlines()
    assert lines[0].split() == ["id", "kind", "status", "triggered", *MEASURES, "committed", "path"]
    assert lines[1].split()[:5] == ["1", "checkpoint", "completed", "2026-11-21T09:25:00.000Z", "31"]
    assert lines[1].endswith("flights/checkpoints/chk-1-g1")
    assert lines[2].split()[1:3] == ["savepoint", "aborted"] and lines[2].endswith("no answer")
    assert lines[3:6] == [
        "",
        "2 triggered: 1 completed (0 savepoints), 1 aborted (1 expired), 0 in progress, 0 restored",
        "3 requests refused (2 periodic_queued, 1 too_many_requests)",
    ]
    assert [line.split() for line in lines[6:]] == [
        ["min", "avg", "max", "p50", "p90", "p99"],
        ["duration", *["31", "ms"] * 6],
        ["size", *["2.0", "KiB"] * 6],
        ["alignment", *["2", "ms"] * 6],
    ]
    document = tidegate("checkpoints", "flights", "--json").document
    assert [(c["checkpoint_id"], c["status"]) for c in document["checkpoints"]] == [(1, "completed"), (2, "aborted")]
    assert document["checkpoints"][1]["code"] == "expired"
    assert document["statistics"]["aborted"] == {"expired": 1}
    assert document["statistics"]["duration_ms"] == dict.fromkeys(("min", "avg", "max", "p50", "p90", "p99"), 31.0) | {
        "count": 1
    }
    assert document["statistics"]["refused"] == {"periodic_queued": 2, "too_many_requests": 1}


def test_list_shows_every_job_of_the_root_and_survives_a_damaged_one(tidegate: Caller, driver: Driver) -> None:
    broken = tidegate.submitted("broken").client
    broken.store.replace(broken.layout.decision(1), b"{}")
    answer = tidegate("list", "--json")
    assert answer.code == 0, answer.err
    jobs = {job["job_id"]: job for job in answer.document["jobs"]}
    assert jobs["flights"]["status"] == "RUNNING" and jobs["broken"]["status"] is None
    assert broken.layout.decision(1) in jobs["broken"]["error"]
    assert tidegate("list").out.splitlines()[2].split()[0] == "flights"


def test_list_of_an_empty_root_says_so(tidegate: Caller) -> None:
    assert tidegate("list").out == f"no jobs below {tidegate.root}\n"


def test_a_root_that_does_not_exist_is_named(tidegate: Caller, tmp_path: Path) -> None:
    tidegate.root = str(tmp_path / "jbos")
    listed = tidegate("list")
    assert (listed.code, listed.out) == (0, f"no jobs below {tidegate.root}: the root does not exist\n")
    assert tidegate("list", "--json").document["problem"] == "the root does not exist"
    for words in (("status", "flights"), ("stop", "flights"), ("restore", "flights"), ("gc", "flights")):
        answer = tidegate(*words)
        assert answer.code == 5
        assert f"root {tidegate.root}]: the root does not exist. Correct the path of the root\n" in answer.err
    assert tidegate("gc").out == "0 jobs: 0 B freed; the root does not exist\n"
    assert not (tmp_path / "jbos").exists()


def test_a_root_that_is_a_file_is_refused(tidegate: Caller, tmp_path: Path) -> None:
    (tmp_path / "jobs.txt").touch()
    tidegate.root = str(tmp_path / "jobs.txt")
    for words, code in ((("list",), 11), (("gc",), 11), (("status", "flights"), 5), (("savepoint", "flights"), 5)):
        answer = tidegate(*words)
        assert answer.code == code
        assert "is a file, not a folder" in answer.err and tidegate.root in answer.err


def test_logs_come_with_their_names_when_there_are_several(tidegate: Caller, driver: Driver) -> None:
    folder = driver.client.layout.logs(1)
    driver.client.store.replace(f"{folder}/driver.log", b"one\n")
    assert tidegate("logs", "flights").out == "one\n"
    driver.client.store.replace(f"{folder}/slot-0.log", b"two")
    assert tidegate("logs", "flights").out == "==> driver.log <==\none\n==> slot-0.log <==\ntwo\n"
    assert tidegate("logs", "flights", "--json").document["files"] == {"driver.log": "one\n", "slot-0.log": "two"}
    assert tidegate("logs", "flights", "--generation", "0").code == 2


def test_logs_of_each_generation_are_those_of_its_launch(tidegate: Caller, driver: Driver, tmp_path: Path) -> None:
    """The generation is in the log, the launch in its fence."""
    client = driver.client
    for attempt in (1, 2):
        log = tmp_path / f"launch-{attempt}.log"
        log.write_text(f"output {attempt}\n")
        launch = record_launch(client.store, client.layout, 1, launcher="scripted", host="elsewhere")
        record_process(client.store, client.layout, replace(launch, pid=1, log=str(log)))
    DecisionLog(client.store, client.layout, lambda: "", lambda: "n").begin_generation(spec=1, launch=2)
    assert tidegate("logs", "flights", "--generation", "1").out == "output 1\n"
    assert tidegate("logs", "flights", "--generation", "2").out == tidegate("logs", "flights").out == "output 2\n"
    answer = tidegate("logs", "flights", "--generation", "3")
    assert answer.code == 2 and "no driver with the number (generation) 3" in answer.err


def test_followed_logs_show_each_word_once_until_the_job_has_ended(tidegate: Caller, driver: Driver) -> None:
    path = f"{driver.client.layout.logs(1)}/driver.log"
    driver.client.store.replace(path, b"0\n")

    def writing(driver: Driver) -> None:
        driver.beat()
        text = driver.client.store.read(path).decode()
        driver.client.store.replace(path, f"{text}{driver.beats}\n".encode())
        if driver.beats == 4:
            driver.status("STOPPED")

    tidegate.script = writing
    assert tidegate("logs", "flights", "--follow").out == "0\n2\n3\n4\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stauts", "flights"), "Did you mean 'status'?"),
        (("status", "flights", "--jason"), "--jason"),
        (("status", "flights", "--job-id", "other"), "two jobs are named: flights and other"),
        (("status",), "no job is named"),
        ((), "VERB"),
    ],
)
def test_wrong_words_are_one_message_with_a_remedy(tidegate: Caller, words: tuple[str, ...], said: str) -> None:
    answer = tidegate(*words, root=bool(words))
    assert answer.code == 2 and said in answer.err and answer.err.count("\n") == 1


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        entry.main(["--help"])
    printed = capsys.readouterr().out
    assert left.value.code == 0
    for verb in [
        "start",
        "restore",
        "status",
        "checkpoints",
        "list",
        "logs",
        "checkpoint",
        "savepoint",
        "stop",
        "cancel",
        "approve",
        "reject",
        "doctor",
    ]:
        assert re.search(rf"^    {verb}\s", printed, re.MULTILINE), verb


def test_the_exit_codes_of_all_errors_are_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    from tidegate import errors

    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.TidegateError)]
    for code in {c.exit_code for c in classes} | {0, entry.EXIT_BUG, entry.EXIT_INTERRUPTED, entry.EXIT_PIPE_CLOSED}:
        assert f"\n| {code} |" in text, code


def test_ctrl_c_says_that_jobs_go_on(tidegate: Caller, driver: Driver) -> None:
    def interrupt(driver: Driver) -> None:
        raise KeyboardInterrupt

    tidegate.script = interrupt
    answer = tidegate("checkpoint", "flights")
    assert answer.code == 130 and "running jobs continue" in answer.err


def test_an_unforeseen_error_is_called_a_bug_and_keeps_its_traceback(tidegate: Caller, driver: Driver) -> None:
    def broken(driver: Driver) -> None:
        raise ZeroDivisionError("seven")

    tidegate.script = broken
    answer = tidegate("checkpoint", "flights")
    assert answer.code == 70 and "ZeroDivisionError: seven" in answer.err and "bug in tidegate" in answer.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_line_is_cut_to_the_terminal_and_wiped_before_a_result() -> None:
    out, err = io.StringIO(), Terminal()
    output = Output(out, err, columns=8)
    output.progress("0123456789")
    output.print("done")
    assert err.getvalue() == "\r\x1b[K0123456\r\x1b[K" and out.getvalue() == "done\n"


def test_there_is_no_progress_line_without_a_terminal_or_for_programs() -> None:
    for stream, as_json in ((io.StringIO(), False), (Terminal(), True)):
        output = Output(io.StringIO(), stream, as_json=as_json)
        output.progress("0123456789")
        assert stream.getvalue() == ""


def test_an_error_is_the_document_when_programs_ask() -> None:
    out, err = io.StringIO(), io.StringIO()
    Output(out, err, as_json=True).error(StoreError("no", where="here", cause="why", remedy="Do"))
    assert err.getvalue() == "tidegate: no [here]: why. Do\n"
    document = json.loads(out.getvalue())["error"]
    assert (document["code"], document["exit_code"], document["remedy"]) == ("store", 11, "Do")


def test_tables_align_and_keep_no_blanks_at_the_end() -> None:
    assert table(("a", "bb"), [("1", "x"), ("22", "")], right=frozenset({"a"})) == [" a  bb", " 1  x", "22"]


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB"), (None, "-")]
)
def test_sizes_are_written_in_the_largest_unit_that_fits(size_bytes: object, text: str) -> None:
    assert size_text(size_bytes) == text


def test_event_times_beyond_the_calendar_stay_numbers() -> None:
    assert event_time_text(None) is None
    assert event_time_text(-1) == "1969-12-31T23:59:59.999Z"
    assert event_time_text(2**62) == f"{2**62} us"
