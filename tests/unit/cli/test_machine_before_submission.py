"""What a driver needs of this machine is checked before a job is submitted; `--version`; ids that are nearly right."""

from __future__ import annotations

import importlib.metadata
import os
import socket
from pathlib import Path

import cli_caller
import pytest
from cli_caller import Caller

from tidegate.jobs.launch import driver_requirements
from tidegate.jobs.launch.driver_requirements import check_port, local_slots


def java(folder: Path, version: str | None) -> dict[str, str]:
    """JAVA_HOME with a java that says its version; None: with none."""
    if version is not None:
        program = folder / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
        program.chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": os.environ["PATH"]}


@pytest.fixture
def here(tidegate: Caller, tmp_path: Path) -> Caller:
    tidegate.looks_at_machine = True
    tidegate.environment = java(tmp_path / "java", "17.0.15")
    return tidegate


def start(tidegate: Caller, *words: str) -> cli_caller.Answer:
    tidegate.script = lambda driver: driver.status("RUNNING")
    return tidegate("start", cli_caller.PIPELINE, "--job-id", "j", *words)


def nothing_was_submitted(tidegate: Caller) -> bool:
    return tidegate.launched == [] and tidegate.client(tidegate.root, "j").specs() == ()


@pytest.mark.parametrize(
    ("version", "said"),
    [(None, "java cannot be run; Spark needs Java 17 or newer"), ("11.0.2", "11 at"), ("1.8.0_392", "8 at")],
)
def test_a_start_without_the_right_java_is_refused_before_it_is_submitted(
    tidegate: Caller, tmp_path: Path, version: str | None, said: str
) -> None:
    tidegate.looks_at_machine = True
    tidegate.environment = java(tmp_path / "java", version)
    answer = start(tidegate)
    assert answer.code == 12 and said in answer.err and "openjdk-17" in answer.err
    assert nothing_was_submitted(tidegate)


@pytest.mark.parametrize(("master", "there"), [("local", 1), ("local[2]", 2), ("local[2,3]", 2)])
def test_more_parallelism_than_slots_of_a_local_master_is_refused(here: Caller, master: str, there: int) -> None:
    answer = start(here, "--master", master, "--option", "parallelism=3")
    assert answer.code == 9
    assert f"master {master} has only {there} of 3 slots" in answer.err
    assert f"Use master local[3], or lower parallelism to {there}" in answer.err
    assert nothing_was_submitted(here)


def test_slots_are_cores_divided_by_what_a_spark_task_takes() -> None:
    assert local_slots("local[*]", {}, 6) == 6 and local_slots("local[8]", {"spark.task.cpus": "3"}, 2) == 2
    assert local_slots("spark://host:7077", {}, 2) is None and local_slots("yarn", {}, 2) is None


def test_what_fits_is_submitted_and_batch_mode_needs_no_slots(here: Caller) -> None:
    assert start(here, "--master", "local[2]", "--option", "parallelism=2").code == 0
    assert len(here.launched) == 1


def test_a_configured_port_that_something_has_is_refused(here: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        conf = (f"spark.driver.port={port}", "spark.port.maxRetries=0")
        answer = start(here, *(word for pair in conf for word in ("--conf", pair)))
        assert answer.code == 12 and f"spark.driver.port: port {port} cannot be bound" in answer.err
        assert nothing_was_submitted(here)
        assert start(here, "--conf", f"spark.ui.port={port}", "--conf", "spark.port.maxRetries=0").code == 0, "no UI"


def test_spark_tries_the_ports_after_a_configured_one() -> None:
    taken = {4040, 4041}
    finding = check_port("spark.ui.port", 4040, 16, lambda port: "in use" if port in taken else None)
    assert finding.ok and "4042" in finding.detail
    assert not check_port("spark.ui.port", 4040, 1, lambda port: "in use" if port in taken else None).ok


def test_a_rescale_is_refused_before_the_job_is_stopped(here: Caller) -> None:
    assert start(here, "--master", "local[2]", "--option", "parallelism=1").code == 0
    answer = here("rescale", "j", "--parallelism", "4")
    assert answer.code == 9 and "only 2 of 4 slots" in answer.err
    assert here.driver is not None and here.driver.waiting_commands() == []


def test_a_restore_looks_at_what_it_would_start(here: Caller) -> None:
    driver = here.submitted("j", master="local[2]", options={"parallelism": 2})
    driver.complete(1, "checkpoint")
    driver.status("CANCELED")
    answer = here("restore", "j", "--option", "parallelism=5")
    assert answer.code == 9 and "master local[2] has only 2 of 5 slots" in answer.err
    assert len(driver.client.specs()) == 1


def test_a_submission_that_is_there_is_not_looked_at_again(here: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(here, "--submission-id", "one").code == 0
    monkeypatch.setattr(
        driver_requirements,
        "check_loopback",
        lambda: driver_requirements.CheckResult("ports", False, "its own driver has it"),
    )
    assert start(here, "--submission-id", "one").code == 0


def test_the_version_is_that_of_the_distribution(tidegate: Caller, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        tidegate("--version", root=False)
    assert left.value.code == 0
    assert capsys.readouterr().out == f"tidegate {importlib.metadata.version('tidegate')}\n"


VERBS = ("status", "stop", "savepoint", "cancel", "checkpoints", "logs", "restore", "rescale --parallelism 2")


@pytest.mark.parametrize("words", [verb.split() for verb in VERBS])
def test_a_mistyped_job_gets_the_nearest_name(tidegate: Caller, words: list[str]) -> None:
    tidegate.submitted("flight-delays")
    answer = tidegate(words[0], "flight-delay", *words[1:])
    assert answer.code == 5 and "Did you mean 'flight-delays'?" in answer.err
    assert "Did you mean" not in tidegate(words[0], "quite-another", *words[1:]).err
