"""Tests of systems that are not here: left out by name, or an error with TIDEGATE_REQUIRE."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
FILES = {"s3": "tests/unit/jobs/test_store_s3.py", "iceberg": "tests/unit/connectors/test_iceberg_rest.py"}
PACKAGE = {"s3": "moto", "iceberg": "pyiceberg"}
WITHOUT = "import sys, pytest; sys.modules[sys.argv[1]] = None; sys.exit(pytest.main(sys.argv[2:]))"
"""Runs pytest in a Python that lacks a package."""


def collected(package: str, file: str, required: str) -> tuple[int, str]:
    """Collect a file of tests without a package. Returns exit code and output."""
    words = ("--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", file)
    environment = {**os.environ, "TIDEGATE_REQUIRE": required}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *words],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("system", FILES)
def test_tests_of_a_missing_system_are_left_out_by_name(system: str) -> None:
    code, said = collected(PACKAGE[system], FILES[system], "")
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED, said
    assert f"1 files of tests need {PACKAGE[system]}" in said and FILES[system] in said


@pytest.mark.parametrize("system", FILES)
def test_a_required_system_that_is_missing_is_an_error(system: str) -> None:
    code, said = collected(PACKAGE[system], FILES[system], "kafka, s3,iceberg")
    assert code == pytest.ExitCode.USAGE_ERROR, said
    assert f"tests need {PACKAGE[system]}" in said and FILES[system] in said and "pip install" in said


def test_a_required_system_that_is_there_changes_nothing() -> None:
    code, said = collected("no_such_package", FILES["s3"], "s3,iceberg")
    assert code == pytest.ExitCode.OK and "files of tests need" not in said, said


def test_a_mistyped_system_is_an_error() -> None:
    code, said = collected("no_such_package", FILES["s3"], "icebreg")
    assert code == pytest.ExitCode.USAGE_ERROR and "icebreg" in said, said
