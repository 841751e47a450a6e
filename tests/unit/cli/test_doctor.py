"""`tidegate doctor` finds what is wrong with a machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_caller import Caller

from tidegate.cli.upkeep import doctor as doctor_verb
from tidegate.cli.upkeep import installation_checks
from tidegate.cli.upkeep.installation_checks import check_pyspark, check_python, check_slot_python
from tidegate.jobs.launch.driver_requirements import CheckResult, check_java


@pytest.mark.parametrize(
    ("said", "ok"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "11.0.2" 2019-01-15', False),
        ('java version "1.8.0_392"', False),
        ("java: not a version", False),
        (None, False),
    ],
)
def test_java_must_be_seventeen_or_newer(said: str | None, ok: bool) -> None:
    finding = check_java(said, "/usr/bin/java")
    assert finding.ok is ok
    assert ok or "openjdk-17-jre-headless" in finding.remedy


@pytest.mark.parametrize(("version", "ok"), [((3, 10), False), ((3, 11), True), ((3, 14), True), ((3, 15), False)])
def test_python_must_be_one_that_is_supported(version: tuple[int, int], ok: bool) -> None:
    assert check_python(version, "python").ok is ok


@pytest.mark.parametrize(
    ("spark", "client", "jars", "ok", "said"),
    [
        ("4.3.0", None, True, True, "4.3.0"),
        ("4.3.0", "4.3.0", True, False, "overwrites its files"),
        (None, "4.3.0", False, False, "pyspark-client 4.3.0 is installed"),
        ("4.3.0", None, False, False, "jars are missing"),
        ("3.5.1", None, True, False, "too old"),
        (None, None, False, False, "not installed"),
    ],
)
def test_pyspark_must_be_whole_and_alone(
    spark: str | None, client: str | None, jars: bool, ok: bool, said: str
) -> None:
    finding = check_pyspark({"pyspark": spark, "pyspark-client": client}, jars)
    assert finding.ok is ok and said in finding.detail and (ok or finding.remedy)


@pytest.mark.parametrize(
    ("named", "said", "ok"),
    [
        (None, None, True),
        ("/usr/bin/python3", "3.11", True),
        ("/usr/bin/python3", "3.9", False),
        ("/usr/bin/python3", "No module named 'pyarrow'", False),
        ("/nowhere", None, False),
    ],
)
def test_slots_must_run_on_an_interpreter_like_the_drivers(named: str | None, said: str | None, ok: bool) -> None:
    finding = check_slot_python(named, said, (3, 11))
    assert finding.ok is ok and (ok or "PYSPARK_PYTHON" in finding.remedy)


def test_a_root_that_works_and_one_that_does_not(tmp_path: Path) -> None:
    assert installation_checks._root(str(tmp_path), {}).ok
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    blocked = installation_checks._root(str(tmp_path / "file" / "root"), {})
    assert not blocked.ok and blocked.remedy
    assert not installation_checks._root("ftp://host/root", {}).ok


def test_a_root_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    found = installation_checks._root(str(tmp_path / "root" / "jobs"), {})
    assert found.ok and found.detail == f"{tmp_path}/root/jobs does not exist yet; the first job creates it"
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_cache_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    assert installation_checks._kernel_cache({"NUMBA_CACHE_DIR": str(tmp_path)}).ok
    (tmp_path / "file").touch()
    finding = installation_checks._kernel_cache({"NUMBA_CACHE_DIR": str(tmp_path / "file" / "cache")})
    assert not finding.ok and "NUMBA_CACHE_DIR" in finding.remedy


@pytest.mark.parametrize(("second_ok", "code"), [(True, 0), (False, 12)])
def test_doctor_prints_each_finding_and_exits_with_twelve_on_a_problem(
    tidegate: Caller, monkeypatch: pytest.MonkeyPatch, second_ok: bool, code: int
) -> None:
    findings = [CheckResult("java", True, "17"), CheckResult("ports", second_ok, "loopback", "Allow TCP")]
    monkeypatch.setattr(doctor_verb, "examine", lambda *given: findings)
    answer = tidegate("doctor")
    assert answer.code == code
    assert "ok       java   17" in answer.out and ("Allow TCP" in answer.out) is not second_ok
    document = tidegate("doctor", "--json").document
    assert document["ok"] is second_ok and [f["name"] for f in document["findings"]] == ["java", "ports"]
