"""Checks that a machine can run jobs. Each check is a function from observations to a CheckResult.

`examine` makes the observations. Java and ports are also checked before a job is submitted
(`jobs.launch.driver_requirements`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from tidegate.connectors.connector_registry import find_connector, registered_connectors
from tidegate.errors import TidegateError
from tidegate.extras import RUNTIME, installation
from tidegate.jobs.client.job_directory import root_problem
from tidegate.jobs.launch.driver_requirements import (
    COMMAND_TIMEOUT_S,
    CheckResult,
    check_java,
    check_loopback,
    command_output,
    java_of,
)
from tidegate.jobs.stores.store_registry import open_store

MIN_PYTHON = (3, 11)
MAX_PYTHON = (3, 14)
KERNEL_CACHE_VARIABLE = "NUMBA_CACHE_DIR"


def check_python(version: tuple[int, int], executable: str) -> CheckResult:
    """Check that the Python version is 3.11 to 3.14."""
    detail = f"{version[0]}.{version[1]} at {executable}"
    if MIN_PYTHON <= version <= MAX_PYTHON:
        return CheckResult("python", True, detail)
    return CheckResult("python", False, f"{detail} is not supported", "Use Python 3.11, 3.12, 3.13 or 3.14")


def check_pyspark(installed: Mapping[str, str | None], has_jars: bool) -> CheckResult:
    """Check that pyspark is installed and complete.

    pyspark-client brings a module of the same name without Spark. The distribution that was installed last has
    overwritten the files of the other.

    Args:
        installed: versions of the distributions `pyspark` and `pyspark-client`; None: not installed.
        has_jars: Spark's jars are in the folder of the module.
    """
    spark, client = installed.get("pyspark"), installed.get("pyspark-client")
    again = f"pip install --force-reinstall --no-deps 'pyspark=={spark or '4.*'}'"
    if client is not None:
        both = f"pyspark-client {client} is installed" + (
            f" beside pyspark {spark} and overwrites its files" if spark else ""
        )
        return CheckResult("pyspark", False, both, f"Run `pip uninstall pyspark-client`, then `{again}`")
    if spark is None:
        return CheckResult("pyspark", False, "not installed for this interpreter", f"Run: {installation(RUNTIME)}")
    if int(spark.split(".")[0]) < 4:
        return CheckResult("pyspark", False, f"{spark} is too old", "Install pyspark 4 or newer")
    if not has_jars:
        return CheckResult("pyspark", False, f"{spark}, but Spark's jars are missing", f"Run `{again}`")
    return CheckResult("pyspark", True, spark)


def check_slot_python(named: str | None, said: str | None, version: tuple[int, int]) -> CheckResult:
    """Check the interpreter with which Spark starts slots.

    Args:
        named: value of PYSPARK_PYTHON; None: not set.
        said: its version, such as "3.11", if it imports the packages that slots need; else its error; None: it cannot
            be run.
        version: the driver's Python version.
    """
    if named is None:
        return CheckResult("PYSPARK_PYTHON", True, f"not set: slots use {sys.executable}")
    own = f"{version[0]}.{version[1]}"
    remedy = f"Unset PYSPARK_PYTHON, or set it to {sys.executable}"
    if said is None:
        return CheckResult("PYSPARK_PYTHON", False, f"{named} cannot be run", remedy)
    if said != own:
        problem = (
            f"is Python {said}, but the driver has Python {own}"
            if re.fullmatch(r"\d+\.\d+", said)
            else f"cannot import a package: {said}"
        )
        return CheckResult("PYSPARK_PYTHON", False, f"{named} {problem}", remedy)
    return CheckResult("PYSPARK_PYTHON", True, named)


def check_connector(name: str) -> CheckResult:
    """Check that a connector of another distribution can be loaded."""
    try:
        found = find_connector(name)
    except TidegateError as error:
        return CheckResult("connector", False, error.what + (f": {error.cause}" if error.cause else ""), error.remedy)
    return CheckResult("connector", True, f"{name} of {found.__module__}")


def examine(root: str | None, storage_options: Mapping[str, Any], environment: Mapping[str, str]) -> list[CheckResult]:
    """Run all checks. A failed check is a result, and raises nothing."""
    version = (sys.version_info.major, sys.version_info.minor)
    java = java_of(environment)
    named = environment.get("PYSPARK_PYTHON")
    return [
        check_python(version, sys.executable),
        check_java(command_output(java, "-version"), java),
        check_pyspark({name: _version(name) for name in ("pyspark", "pyspark-client")}, _has_jars()),
        check_slot_python(named, None if named is None else _slot_python_output(named), version),
        *[_package(name) for name in ("pyarrow", "numpy", "numba", "fsspec")],
        *[check_connector(name) for name in registered_connectors()],
        check_loopback(),
        _kernel_cache(environment),
        _root(root, storage_options),
    ]


def _slot_python_output(python: str) -> str | None:
    code = (
        "import sys\n"
        "try:\n"
        "    import fsspec, numba, numpy, pyarrow, pyspark, tidegate\n"
        "    print('%d.%d' % sys.version_info[:2])\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    try:
        command = [python, "-W", "ignore", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_jars() -> bool:
    found = importlib.util.find_spec("pyspark")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return any(os.path.isdir(os.path.join(place, "jars")) for place in places)


def _package(name: str) -> CheckResult:
    version = _version(name)
    if version is None:
        return CheckResult(name, False, "not installed for this interpreter", f"Run: {installation(RUNTIME)}")
    return CheckResult(name, True, version)


def _kernel_cache(environment: Mapping[str, str]) -> CheckResult:
    """Check the folder of compiled kernels. Without a lasting folder, each driver and slot compiles them again."""
    named = environment.get(KERNEL_CACHE_VARIABLE)
    base = named or environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    try:
        os.makedirs(base, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=base):
            return CheckResult("kernel cache", True, f"{base} is writable")
    except OSError as error:
        remedy = f"Set {KERNEL_CACHE_VARIABLE} to a folder that this process can write"
        return CheckResult("kernel cache", False, f"{base} is not writable: {error.strerror}", remedy)


def _root(root: str | None, storage_options: Mapping[str, Any]) -> CheckResult:
    """Check that the root can be read and written."""
    if root is None:
        return CheckResult("root", True, "not checked: no --root and no TIDEGATE_ROOT")
    try:
        store = open_store(root, storage_options)
        store.probe()
    except TidegateError as error:
        detail = f"{error.what}{f' [{error.where}]' if error.where else ''}{f': {error.cause}' if error.cause else ''}"
        return CheckResult("root", False, detail, error.remedy or "Use another root for the jobs")
    if root_problem(store):
        return CheckResult("root", True, f"{store.url} does not exist yet; the first job creates it")
    return CheckResult("root", True, f"{store.url}: objects can be created, read, listed and deleted")
