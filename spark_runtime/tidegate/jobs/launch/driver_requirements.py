"""Requirements of a driver on the machine that starts it: Java, slots, ports. They are checked before a submission, and
by `tidegate doctor`.

A check is a function from observations to a CheckResult. `require_driver_machine` makes the observations, and raises an
error for the first problem.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidegate.errors import EnvironmentProblemError, SlotsUnavailableError
from tidegate.jobs.options import JobOptions

MIN_JAVA = 17
JAVA_REMEDY = f"Install it, for example `apt-get install openjdk-{MIN_JAVA}-jre-headless`, or set JAVA_HOME"
COMMAND_TIMEOUT_S = 60.0
"""Timeout of `java -version` or of another interpreter, in seconds."""
PORTS = ("spark.driver.port", "spark.driver.blockManager.port", "spark.blockManager.port", "spark.ui.port")
"""Settings of ports that Spark binds on the driver's machine. The third is the default of the second."""
PORT_RETRIES = 16
"""Number of ports that Spark tries after a configured one, the default of `spark.port.maxRetries`."""
_LOCAL = re.compile(r"local\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\]")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: name of the check.
        ok: the check found no problem.
        detail: the observation.
        remedy: what to do about the problem.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def check_java(said: str | None, executable: str) -> CheckResult:
    """Check for Java 17 or newer. `said`: output of `java -version`; None when it cannot be run."""
    if said is None:
        return CheckResult(
            "java", False, f"{executable} cannot be run; Spark needs Java {MIN_JAVA} or newer", JAVA_REMEDY
        )
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if match is None:
        first = said.strip().splitlines()[0] if said.strip() else "nothing"
        return CheckResult("java", False, f"`{executable} -version` prints no Java version, but: {first}", JAVA_REMEDY)
    # Java 8 and older report their versions as 1.8 and so on.
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    detail = f"{major} at {executable}"
    if major >= MIN_JAVA:
        return CheckResult("java", True, detail)
    return CheckResult("java", False, f"Java {detail} is too old; Spark needs Java {MIN_JAVA} or newer", JAVA_REMEDY)


def java_of(environment: Mapping[str, str]) -> str:
    """Return the path of the java program that Spark would run."""
    home = environment.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else (shutil.which("java", path=environment.get("PATH")) or "java")


def command_output(*command: str) -> str | None:
    """Return the output of a command, both streams; None when it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Both, because `java -version` prints to standard error.
    return done.stderr + done.stdout if done.returncode == 0 else None


def cores() -> int:
    """Return the number of cores that this process may use. A JVM that it starts has at most as many."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_slots(master: str, spark_conf: Mapping[str, str], cores_here: int) -> int | None:
    """Return the slots of a local master; None for other masters, whose slots only the cluster knows."""
    if master != "local" and not master.startswith("local["):
        return None
    match = _LOCAL.fullmatch(master)
    threads = 1 if match is None else cores_here if match[1] == "*" else int(match[1])
    of_task = str(spark_conf.get("spark.task.cpus", "1"))
    return threads // max(int(of_task), 1) if of_task.isdecimal() else threads


def check_slots(master: str, there: int | None, needed: int) -> CheckResult:
    """Check that a local master has enough slots. `there` is the result of `local_slots`."""
    if there is None:
        return CheckResult("slots", True, f"master {master}: the number of slots is known only when the job runs")
    if there >= needed:
        return CheckResult("slots", True, f"master {master} has {there} slots, and parallelism needs {needed}")
    detail = f"master {master} has only {there} of {needed} slots that parallelism={needed} needs"
    return CheckResult("slots", False, detail, f"Use master local[{needed}], or lower parallelism to {max(there, 1)}")


def check_port(setting: str, port: int, retries: int, binds: Callable[[int], str | None]) -> CheckResult:
    """Check that Spark can bind a configured port, or one that it tries after it. `binds` returns None or a reason."""
    why = None
    for number in range(port, min(port + retries, 65535) + 1):
        why = binds(number)
        if why is None:
            return CheckResult("ports", True, f"{setting}: port {number} is free")
    tried = f"{port}" if retries == 0 else f"{port} to {min(port + retries, 65535)}"
    remedy = f"End the process that uses the port, or set {setting} to a free port or 0"
    return CheckResult("ports", False, f"{setting}: port {tried} cannot be bound: {why}", remedy)


def check_loopback() -> CheckResult:
    """Check that loopback ports can be bound and reached."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5),
        ):
            return CheckResult("ports", True, "loopback ports can be bound and reached")
    except OSError as error:
        detail = f"no loopback port can be bound and reached: {error}"
        return CheckResult("ports", False, detail, "Allow the user of this process to open TCP ports on 127.0.0.1")


def drop_port_settings(spark_conf: Mapping[str, object]) -> dict[str, object]:
    """Remove port settings. For a job whose driver still uses its ports, so that they are not checked."""
    return {name: value for name, value in spark_conf.items() if name not in PORTS}


def require_driver_machine(
    master: str | None,
    spark_conf: Mapping[str, object],
    options: JobOptions,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Check this machine for a driver, before its job is submitted or another job is stopped for it.

    For a master on another machine, only Java and ports are checked.

    Args:
        master: Spark master URL; None: local[*].
        environment: environment variables of the driver.

    Raises:
        EnvironmentProblemError: Java is missing or older than 17, or a port cannot be bound.
        SlotsUnavailableError: a local master has fewer slots than the job needs.
    """
    where = f"master {master or 'local[*]'}"
    given = {name: str(value) for name, value in spark_conf.items()}
    # Tasks of a batch job wait for a free slot. Subtasks of a streaming job must all run at the same time.
    if options.execution_mode != "batch":
        there = local_slots(master or "local[*]", given, cores())
        slots = check_slots(master or "local[*]", there, options.parallelism)
        if not slots.ok:
            raise SlotsUnavailableError(slots.detail, where="parallelism", remedy=slots.remedy)
    java = java_of(environment)
    for finding in (*_ports(given), check_loopback(), check_java(command_output(java, "-version"), java)):
        if not finding.ok:
            raise EnvironmentProblemError(f"{finding.name}: {finding.detail}", where=where, remedy=finding.remedy)


def _ports(given: Mapping[str, str]) -> list[CheckResult]:
    """Check the ports in settings. Values that are not numbers, such as references to secrets, are left to Spark."""
    retries = given.get("spark.port.maxRetries", "")
    tries = int(retries) if retries.isdecimal() else PORT_RETRIES
    ui = given.get("spark.ui.enabled", "false").lower() == "true"
    host = given.get("spark.driver.bindAddress", "127.0.0.1")
    found = []
    for setting in PORTS:
        port = given.get(setting, "")
        if port.isdecimal() and 0 < int(port) < 65536 and (ui or setting != "spark.ui.port"):
            found.append(check_port(setting, int(port), tries, lambda number: _bind_error(host, number)))
    return found


def _bind_error(host: str, port: int) -> str | None:
    """Return why a port cannot be bound; None when it can. An unknown host name is left to Spark."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Without it, closed connections of an earlier driver (TIME_WAIT) would make the port count as used.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return None
    except socket.gaierror:
        return None
    except OSError as error:
        return error.strerror or str(error)
