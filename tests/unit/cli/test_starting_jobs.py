"""`tidegate start` and `restore`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_caller import Caller, Driver

from tidegate.cli.jobs.start import restore_from
from tidegate.errors import OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.job_directory import list_jobs
from tidegate.jobs.records import RestoreFrom


def running(driver: Driver) -> None:
    """Waits for slots for two pauses, then runs."""
    driver.beat(slots_registered=min(driver.beats + 6, 8), slots_needed=8)
    if driver.beats == 3:
        driver.status("RUNNING")


def test_start_pins_submits_launches_and_waits_until_the_job_runs(tidegate: Caller, pipeline: str) -> None:
    tidegate.script = running
    answer = tidegate("start", pipeline, "--job-id", "flights", "--option", "parallelism=8", "--arg", "column=k")
    assert answer.code == 0, answer.err
    assert "flights: RUNNING, submission 1, generation 1" in answer.out
    assert f"tidegate status --watch flights --root {tidegate.root}" in answer.out
    (spec,) = tidegate.launched
    assert spec.pipeline == "small_pipeline:build"
    assert spec.arguments == {"column": "k"} and spec.options["parallelism"] == 8
    assert spec.submitted_by.startswith("cli:")


def test_what_the_users_code_prints_does_not_mix_with_the_document(tidegate: Caller, pipeline: str) -> None:
    tidegate.script = running
    answer = tidegate("start", pipeline, "--job-id", "flights", "--json")
    assert answer.document["status"] == "RUNNING"
    assert answer.document["launch"]["host"] == "elsewhere"
    assert "a word from the user's code" in answer.err


def test_arguments_come_from_json_and_single_ones_go_before_it(tidegate: Caller, pipeline: str) -> None:
    more = ("--args-json", '{"rows": 10, "column": "x"}', "--arg", "column=k", "--detach")
    assert tidegate("start", pipeline, "--job-id", "flights", *more).code == 0
    assert tidegate.launched[0].arguments == {"rows": 10, "column": "k"}


def test_options_come_from_a_file_and_single_ones_go_before_it(tidegate: Caller, pipeline: str, tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"parallelism": 2, "checkpoint_interval": "10 s"}))
    more = ("--options", str(file), "--option", "parallelism=4", "--detach")
    assert tidegate("start", pipeline, "--job-id", "flights", *more).code == 0
    assert tidegate.launched[0].options["parallelism"] == 4
    assert tidegate.launched[0].options["checkpoint_interval"] == "10 s"


def test_the_log_format_is_an_option_of_the_job(tidegate: Caller, pipeline: str) -> None:
    more = ("--option", "parallelism=4", "--log-format", "json", "--detach")
    assert tidegate("start", pipeline, "--job-id", "flights", *more).code == 0
    assert (tidegate.launched[0].options["log_format"], tidegate.launched[0].options["parallelism"]) == ("json", 4)


@pytest.mark.parametrize(("words", "expected"), [((), "json"), (("--log-format", "text"), "text")])
def test_a_restore_keeps_the_log_format_unless_it_names_one(
    tidegate: Caller, words: tuple[str, ...], expected: str
) -> None:
    driver = tidegate.submitted(options={"parallelism": 2, "log_format": "json"}, master="local[2]")
    driver.complete(4, "stop-savepoint")
    driver.status("STOPPED")
    assert tidegate("restore", "flights", "--detach", *words).code == 0
    (spec,) = tidegate.launched
    assert (spec.options["log_format"], spec.options["parallelism"]) == (expected, 2)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--job-id", "../x"], 2, "'../x' is not a valid job id"),
        (["--job-id", "j", "--option", "paralelism=2"], 2, "Did you mean 'parallelism'?"),
        (["--job-id", "j", "--option", "checkpoint_interval=10"], 2, "'10' is not a duration"),
        (["--job-id", "j", "--option", "parallelism"], 2, "'parallelism' does not have the form name=value"),
        (["--job-id", "j", "--args-json", "{rows: 1}"], 2, "--args-json, line 1, column 2"),
        (["--job-id", "j", "--arg", "a=1", "--arg", "a=2"], 2, "'a' is passed twice"),
        (["--job-id", "j", "--options", "/nowhere.json"], 2, "--options /nowhere.json"),
        (["--job-id", "j", "--timeout", "soon"], 2, "--timeout"),
        (["--job-id", "j", "--arg", "column=kk"], 3, "'kk'"),
        ([], 2, "no job is named"),
        (["--job-id", "j", "--detach", "--wait"], 2, "not allowed with"),
    ],
)
def test_a_wrong_word_is_one_clear_message_and_leaves_nothing_behind(
    tidegate: Caller, pipeline: str, words: list[str], code: int, said: str
) -> None:
    answer = tidegate("start", pipeline, *words)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err and "Traceback" not in answer.err
    assert not tidegate.launched and list_jobs(tidegate.root) == []


@pytest.mark.parametrize(
    ("pipeline_word", "said"),
    [("nowhere.py:build", "the pipeline's Python file does not exist"), ("nowhere.py", "Write path/to/file.py:build")],
)
def test_a_missing_file_or_colon_is_a_pipeline_error(tidegate: Caller, pipeline_word: str, said: str) -> None:
    answer = tidegate("start", pipeline_word, "--job-id", "j")
    assert answer.code == 3 and said in answer.err
    assert list_jobs(tidegate.root) == []


def test_a_function_that_is_not_there_names_the_nearest(tidegate: Caller, pipeline: str) -> None:
    answer = tidegate("start", pipeline.replace(":build", ":biuld"), "--job-id", "j")
    assert answer.code == 3 and "did you mean 'build'?" in answer.err


def test_a_running_job_of_the_same_id_is_left_alone(tidegate: Caller, pipeline: str) -> None:
    tidegate.submitted().status("RUNNING")
    answer = tidegate("start", pipeline, "--job-id", "flights")
    assert answer.code == 4 and "job 'flights' is RUNNING" in answer.err
    assert not tidegate.launched


def test_a_root_that_cannot_be_written_is_one_clear_message(tidegate: Caller, pipeline: str, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    tidegate.root = str(blocked / "root")
    answer = tidegate("start", pipeline, "--job-id", "j")
    assert answer.code == 11 and "the path is a file" in answer.err and "Traceback" not in answer.err


def test_no_root_names_the_flag_and_the_variable(tidegate: Caller, pipeline: str) -> None:
    answer = tidegate("start", pipeline, "--job-id", "j", root=False)
    assert answer.code == 2 and "Pass --root, or set TIDEGATE_ROOT" in answer.err


def test_the_root_may_come_from_the_environment(tidegate: Caller, pipeline: str) -> None:
    tidegate.environment["TIDEGATE_ROOT"] = tidegate.root
    assert tidegate("start", pipeline, "--job-id", "j", "--detach", root=False).code == 0
    assert list_jobs(tidegate.root) == ["j"]


def test_a_wait_that_takes_too_long_says_how_many_slots_there_are(tidegate: Caller, pipeline: str) -> None:
    tidegate.script = lambda driver: driver.beat(slots_registered=6, slots_needed=8)
    answer = tidegate("start", pipeline, "--job-id", "flights", "--timeout", "30 s")
    assert answer.code == 8 and "WAITING_FOR_SLOTS, 6 of 8 slots" in answer.err
    assert 30 <= tidegate.elapsed_s < 31


def test_without_a_timeout_a_start_waits_for_slots_and_two_minutes(tidegate: Caller, pipeline: str) -> None:
    assert tidegate("start", pipeline, "--job-id", "flights", "--option", "slots_timeout=1 min").code == 8
    assert 180 <= tidegate.elapsed_s < 181


def test_a_job_that_fails_at_the_start_gives_its_root_cause(tidegate: Caller, pipeline: str) -> None:
    def failing(driver: Driver) -> None:
        failure = {"message": "ValueError: seven", "operator": "rows", "subtask": 1, "traceback": "File user.py"}
        driver.generation_log.append("failure", failure)
        driver.status("FAILED", reason="ValueError: seven")

    tidegate.script = failing
    answer = tidegate("start", pipeline, "--job-id", "flights", "--json")
    assert answer.code == 6
    assert "ValueError: seven [job flights, operator rows, subtask 1]" in answer.err and "File user.py" in answer.err
    assert answer.document["error"]["code"] == "job_failed" and answer.document["error"]["exit_code"] == 6


@pytest.mark.parametrize(("status", "code"), [("FINISHED", 0), ("STOPPED", 0), ("FAILED", 6), ("CANCELED", 7)])
def test_wait_lasts_to_the_end_and_tells_how_it_was(tidegate: Caller, pipeline: str, status: str, code: int) -> None:
    def whole_life(driver: Driver) -> None:
        driver.beat()
        if driver.beats in (2, 50):
            driver.status("RUNNING" if driver.beats == 2 else status)

    tidegate.script = whole_life
    answer = tidegate("start", pipeline, "--job-id", "flights", "--wait")
    assert answer.code == code
    if code == 0:
        assert f"flights: {status}" in answer.out
    else:
        said = {6: "tidegate: the job failed [job flights]", 7: "tidegate: the job was cancelled [job flights]"}
        assert said[code] in answer.err


def test_restore_takes_pinned_code_arguments_and_options_of_the_submission_before(tidegate: Caller) -> None:
    driver = tidegate.submitted(arguments={"column": "k", "n": 1}, options={"parallelism": 2}, master="local[2]")
    driver.complete(4, "stop-savepoint")
    driver.status("STOPPED")
    tidegate.script = running
    answer = tidegate("restore", "flights", "--option", "checkpoint_interval=5 s", "--arg", "n=2", "--json")
    assert answer.code == 0, answer.err
    (spec,) = tidegate.launched
    assert (spec.number, spec.artifact, spec.master) == (2, driver.spec.artifact, "local[2]")
    assert spec.options["parallelism"] == 2 and spec.options["checkpoint_interval"] == "5 s"
    assert spec.arguments == {"column": "k", "n": "2"}
    assert spec.restore is not None and spec.restore.kind == "latest" and spec.lineage == driver.spec.lineage


@pytest.mark.parametrize("words", [("restore", "flights"), ("fork", "flights", "--job-id", "backfill", "--arg", "n=2")])
def test_a_job_with_secrets_of_airflow_needs_them_here_too(tidegate: Caller, words: tuple[str, ...]) -> None:
    """Before anything is submitted: only Airflow reads connections."""
    driver = tidegate.submitted(secrets={"KAFKA_PASSWORD": "conn:my_kafka/password"})
    driver.complete(4, "stop-savepoint")
    driver.status("STOPPED")
    tidegate.script = running
    refused = tidegate(*words, "--detach")
    assert refused.code == 12 and "KAFKA_PASSWORD (conn:my_kafka/password)" in refused.err, refused.err
    assert tidegate.launched == [] and len(tidegate.client(tidegate.root, "flights").specs()) == 1
    tidegate.environment["KAFKA_PASSWORD"] = "own"
    assert tidegate(*words, "--detach").code == 0
    assert tidegate.launched[0].secrets == {"KAFKA_PASSWORD": "conn:my_kafka/password"}


def test_restore_with_nothing_to_restore_from_says_so(tidegate: Caller) -> None:
    tidegate.submitted().status("FAILED", reason="x")
    answer = tidegate("restore", "flights")
    assert answer.code == 10 and "there is no snapshot to restore" in answer.err
    assert not tidegate.launched


@pytest.mark.parametrize(("given", "mode"), [((), "no_claim"), (("--claim",), "claim")])
def test_restore_claims_a_snapshot_when_it_is_asked_to(tidegate: Caller, given: tuple[str, ...], mode: str) -> None:
    """S7.4."""
    driver = tidegate.submitted()
    driver.complete(4, "savepoint")
    driver.status("FAILED", reason="x")
    tidegate.script = running
    answer = tidegate("restore", "flights", "--from", "4", *given)
    assert answer.code == 0, answer.err
    (spec,) = tidegate.launched
    assert spec.restore is not None and spec.restore.claim_mode == mode


@pytest.mark.parametrize("words", [("restore", "flights"), ("fork", "flights", "--job-id", "backfill", "--arg", "n=2")])
def test_a_snapshot_that_is_too_old_is_refused_before_anything_is_submitted(
    tidegate: Caller, words: tuple[str, ...]
) -> None:
    """As by RestoreJob: of a restore and of a fork."""
    driver = tidegate.submitted()
    driver.complete(4, "stop-savepoint")
    driver.status("STOPPED")
    tidegate.script = running
    refused = tidegate(*words, "--max-snapshot-age", "1 ms")
    assert refused.code == 10 and "old, but must be at most" in refused.err and not tidegate.launched
    wrong = tidegate(*words, "--max-snapshot-age", "12")
    assert wrong.code == 2 and "--max-snapshot-age" in wrong.err
    assert tidegate(*words, "--max-snapshot-age", "36500 days").code == 0


def test_restore_of_an_unknown_checkpoint_lists_those_there(tidegate: Caller) -> None:
    driver = tidegate.submitted()
    driver.complete(4, "checkpoint")
    driver.status("FAILED", reason="x")
    answer = tidegate("restore", "flights", "--from", "7")
    assert answer.code == 10 and "there is no checkpoint 7" in answer.err
    assert "completed checkpoints are 4" in answer.err


def test_restore_under_a_new_id_needs_the_code(tidegate: Caller) -> None:
    answer = tidegate("restore", "fork", "--from", "elsewhere/savepoints/sp-1")
    assert answer.code == 5 and "--pipeline file.py:build" in answer.err


def test_a_fork_takes_what_it_is_not_given_from_its_original(tidegate: Caller) -> None:
    """S7.4."""
    driver = tidegate.submitted(arguments={"column": "k", "n": 1}, options={"parallelism": 2}, master="local[2]")
    driver.complete(4, "savepoint")
    driver.status("RUNNING")
    tidegate.script = running
    words = ("--job-id", "backfill", "--from", "4", "--arg", "n=2", "--option", "checkpoint_interval=5 s", "--json")
    answer = tidegate("fork", "flights", *words)
    assert answer.code == 0, answer.err
    (spec,) = tidegate.launched
    assert (spec.job_id, spec.number, spec.artifact) == ("backfill", 1, driver.spec.artifact)
    assert (spec.master, spec.arguments) == ("local[2]", {"column": "k", "n": "2"})
    assert (spec.options["parallelism"], spec.options["checkpoint_interval"]) == (2, "5 s")
    assert spec.restore is not None and (spec.restore.kind, spec.restore.fork_of) == ("savepoint", "flights")
    assert spec.lineage != driver.spec.lineage


def test_a_fork_of_an_older_snapshot_is_given_what_its_submission_had(tidegate: Caller) -> None:
    """S7.4: its code, arguments, options and settings belong together."""
    before: dict[str, Any] = {"options": {"parallelism": 2}, "spark_conf": {"spark.x": "old"}}
    tidegate.submitted(**before).complete(4, "checkpoint")
    assert tidegate.driver is not None
    tidegate.driver.status("STOPPED")
    newer: dict[str, Any] = {
        "options": {"parallelism": 3},
        "spark_conf": {"spark.x": "new"},
        "restore": RestoreFrom("latest"),
    }
    tidegate.submitted(**newer).status("RUNNING")
    tidegate.script = running
    words = ("--job-id", "backfill", "--from", "4", "--arg", "n=2", "--option", "max_parallelism=7", "--conf", "a=b")
    assert tidegate("fork", "flights", *words).code == 0
    (spec,) = tidegate.launched
    assert (spec.options["parallelism"], spec.options["max_parallelism"]) == (2, 7)
    assert spec.spark_conf == {"spark.x": "old", "a": "b"}


def test_a_fork_that_is_asked_for_again_is_found_though_its_snapshot_is_gone(tidegate: Caller) -> None:
    driver = tidegate.submitted()
    path = driver.complete(4, "savepoint")
    tidegate.script = running
    words = ("fork", "flights", "--job-id", "backfill", "--from", "4", "--arg", "n=2", "--submission-id", "s1")
    assert tidegate(*words).code == 0
    driver.client.store.delete_folder(path)
    assert tidegate(*words).code == 0
    assert len(JobClient(tidegate.root, "backfill").specs()) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["flights", "--job-id", "backfill"], 2, "same code and arguments"),
        (["flights", "--job-id", "flights", "--arg", "n=2"], 2, "its own job id"),
        (["nobody", "--job-id", "backfill", "--arg", "n=2"], 5, "no job with the id"),
        (["flights", "--job-id", "backfill", "--arg", "n=2", "--from", "9"], 10, "no checkpoint 9"),
        (["flights", "--arg", "n=2"], 2, "no job is named"),
    ],
)
def test_what_cannot_be_forked_is_one_clear_message(tidegate: Caller, words: list[str], code: int, said: str) -> None:
    driver = tidegate.submitted()
    driver.complete(4, "savepoint")
    answer = tidegate("fork", *words)
    assert answer.code == code and said in answer.err and "Traceback" not in answer.err
    assert not tidegate.launched and list_jobs(tidegate.root) == ["flights"]


def test_the_source_of_a_restore_is_a_word_a_number_or_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sp").mkdir()
    (tmp_path / "sp" / "_metadata").touch()
    monkeypatch.chdir(tmp_path)
    assert restore_from("latest").kind == "latest"
    assert restore_from("12").checkpoint_id == 12
    assert restore_from("s3://bucket/sp-1/").path == "s3://bucket/sp-1"
    assert restore_from("flights/savepoints/sp-1").path == "flights/savepoints/sp-1"
    assert restore_from("sp").path == str(tmp_path / "sp")
    with pytest.raises(OptionError):
        restore_from(" ")
