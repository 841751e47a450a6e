"""What every layer shares: what the machine must have, and an environment that is the same on every machine.

Layers, by folder: `tests/unit` (no process, no network), `tests/integration` (real Spark), `tests/airflow` (real
Airflow, which starts real Spark), `tests/ui` (a real browser), `tests/environments` (the wheel, installed as users
install it). Code that several layers share is in `tests/support`. A layer whose needs are not met is an error that
names them, never a skip. Tests of a system that not everyone needs (PostgreSQL's server, Kafka, S3, Iceberg, Chromium,
YARN) are left out where it is not installed, and named at the end. TIDEGATE_REQUIRE=kafka,postgres,s3,iceberg makes
that an error.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import hypothesis
import kafka_broker
import postgres_server
import pytest
import yarn_cluster

TESTS = Path(__file__).parent
LAYERS_WITH_SPARK = ("airflow", "environments", "integration", "ui")
OLDEST_JAVA = 17
OPTIONAL = {
    "postgres": ("a PostgreSQL server", "apt-get install postgresql", postgres_server.programs),
    "kafka": ("Java and Maven, for a Kafka broker", "apt-get install maven, then make kafka", kafka_broker.programs),
    "browser": ("Chromium", "apt-get install chromium", chromium.program),
    "yarn": ("YARN", "make yarn", yarn_cluster.jars),
}
"""Fixture -> the program that it needs, what installs it, and how to find it."""
PACKAGES = {
    "s3": ("moto, a server of S3", "pip install 'moto[server]'", "moto", ("moto",)),
    "iceberg": (
        "pyiceberg",
        "pip install 'tidegate[iceberg]'",
        "pyiceberg",
        ("pyiceberg", "iceberg_tables", "demo_kafka"),
    ),
}
"""System -> what its tests need, what installs it, the package, and the modules that import it. A test belongs to the
system if its file imports one of these modules: such a file cannot even be imported without the package."""
REQUIRED = frozenset(filter(None, os.environ.get("TIDEGATE_REQUIRE", "").replace(" ", "").split(",")))
"""Names of OPTIONAL and PACKAGES whose tests must run: without their programs or packages the run fails."""
LEFT_OUT = pytest.StashKey[dict[str, list[str]]]()
"""Name -> files of the tests that were left out, one for each test (PACKAGES: for each file); of worker processes,
too."""

# Before they are imported; else a failed assertion would not show its values.
pytest.register_assert_rewrite("state_suites", "store_suites")

# A busy machine is no reason to fail; `pytest-timeout` bounds a hung test.
hypothesis.settings.register_profile("tidegate", deadline=None)
hypothesis.settings.load_profile("tidegate")

# Before any test module is imported: Airflow and Spark read these when they are imported or started.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
_own_airflow_home = "AIRFLOW_HOME" not in os.environ
if _own_airflow_home:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="tidegate-airflow-home-")


def java_command() -> str:
    """The `java` that Spark will start: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def java_version(banner: str) -> int | None:
    """The major version in what `java -version` prints; None when there is none in it.

    The old numbering ("1.8.0_422") yields 1, which is older than anything supported, as it should be.
    """
    found = re.search(r'version "(\d+)', banner)
    return int(found[1]) if found else None


def missing_java() -> str | None:
    """What is wrong with this machine's Java, in a few words; None when Spark can start."""
    try:
        run = subprocess.run([java_command(), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return "there is no Java"
    version = java_version(run.stderr + run.stdout)
    if version is None:
        return f"{java_command()} does not run"
    return None if version >= OLDEST_JAVA else f"Java is {version}"


def layer_of(path: Path) -> str:
    """The folder below `tests` that `path` is in; "" for the files directly in it."""
    parts = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return parts[0] if len(parts) > 1 else ""


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a mistyped TIDEGATE_REQUIRE, which would require nothing."""
    config.stash[LEFT_OUT] = {}
    unknown = sorted(REQUIRED - {*OPTIONAL, *PACKAGES})
    if unknown:
        known = ", ".join((*OPTIONAL, *PACKAGES))
        raise pytest.UsageError(f"TIDEGATE_REQUIRE names {', '.join(unknown)}, but must be some of {known}")


def missing_package(file: Path) -> str | None:
    """The system in PACKAGES whose package a test file imports, and which is not installed; None: there is none."""
    for name, (_, _, package, modules) in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            imports = re.compile(rf"^(?:from|import) (?:{'|'.join(modules)})\b", re.MULTILINE)
            if imports.search(file.read_text(encoding="utf-8")):
                return name
    return None


class LeftOutFile(pytest.File):
    """A test file that cannot be imported here."""

    def collect(self) -> list[pytest.Item]:
        """Record the file. Not called for files beside those that were named on the command line."""
        name = missing_package(self.path)
        assert name is not None
        self.config.stash[LEFT_OUT].setdefault(name, []).append(str(self.path.relative_to(TESTS.parent)))
        return []


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> Any:
    """Leave out test files that import a package that is not here."""
    return None if missing_package(module_path) is None else LeftOutFile.from_parent(parent, path=module_path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stop before the first test when some of those asked for cannot run here, and say which. Leave out those that need
    an optional program where it is not."""
    needing = [item for item in items if layer_of(item.path) in LAYERS_WITH_SPARK]
    if needing and (problem := missing_java()):
        files = sorted({str(item.path.relative_to(TESTS.parent)) for item in needing})
        raise pytest.UsageError(
            f"{len(needing)} tests need Java {OLDEST_JAVA} or newer and {problem}: {', '.join(files)}. "
            f"Install it (apt-get install openjdk-17-jre-headless), or run `make test-unit`."
        )

    found = config.stash[LEFT_OUT]
    for name in PACKAGES:
        if name in found and name in REQUIRED:
            what, install, _, _ = PACKAGES[name]
            raise pytest.UsageError(
                f"tests need {what}, which is not here: {', '.join(found[name])}. To install it: {install}"
            )
    for fixture, (what, install, find) in OPTIONAL.items():
        left_out = [item for item in items if fixture in getattr(item, "fixturenames", ())]
        if left_out and find() is None:
            if fixture in REQUIRED:
                raise pytest.UsageError(
                    f"{len(left_out)} tests need {what}, which is not here. To install it: {install}"
                )
            items[:] = [item for item in items if item not in left_out]
            found[fixture] = [str(item.path.relative_to(TESTS.parent)) for item in left_out]
            config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker process tells the one that reports what it left out."""
    told: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["left_out"] = session.config.stash.get(LEFT_OUT, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """What a worker process left out: all of them collect the same tests."""
    told = getattr(node, "workeroutput", None)
    if told is not None:
        node.config.stash[LEFT_OUT] = told["left_out"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the tests that were left out for want of a program."""
    left_out = config.stash.get(LEFT_OUT, {})
    if left_out:
        terminalreporter.section("left out")
    for name, tests in left_out.items():
        what, install = (OPTIONAL.get(name) or PACKAGES[name])[:2]
        files = ", ".join(sorted(set(tests)))
        number = f"{len(tests)} tests" if name in OPTIONAL else f"{len(tests)} files of tests"
        terminalreporter.line(f"{number} need {what}, which is not here: {files}")
        terminalreporter.line(f"Install it to run them: {install}")


def pytest_unconfigure() -> None:
    """Remove the Airflow home that was made for this run."""
    if _own_airflow_home:
        shutil.rmtree(os.environ["AIRFLOW_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def kafka() -> Iterator[kafka_broker.KafkaBroker]:
    """A Kafka broker; tests that ask for it are left out without Java and Maven."""
    broker = kafka_broker.KafkaBroker()
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
