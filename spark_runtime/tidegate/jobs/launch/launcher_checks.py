"""Checks that several launchers have in common. Each launcher's own `check` chooses among them and adds its own."""

from __future__ import annotations

import shutil
import sys
from urllib.parse import urlsplit

from tidegate.errors import EnvironmentProblemError
from tidegate.extras import RUNTIME, distribution, installation
from tidegate.jobs.launch.launcher import Check, LauncherSettings, World

PROBE_LIMIT_S = 60.0
"""How long an interpreter may take to say what it has, seconds: its disk may be a network's."""
PROBE = """
import sys
try:
    from tidegate.extras import require_runtime
    require_runtime("a driver", apart_from=sys.argv[1:])
except ImportError as error:
    sys.exit(getattr(error, "cause", None) or str(error))
"""
"""What an interpreter is asked to run: it prints what is missing. Its arguments: packages that come from elsewhere."""


def check_interpreter(settings: LauncherSettings, world: World) -> Check:
    """Whether the interpreter of the drivers has the runtime. It imports no package of it, so that it takes 0.1 s."""
    python = settings.python or sys.executable
    try:
        answer = world.run((python, "-c", PROBE, *_brought(settings)), PROBE_LIMIT_S)
    except EnvironmentProblemError as error:
        return Check(False, f"python: {error}")
    if answer.code != 0:
        last = (answer.text.strip().splitlines() or ["it says nothing"])[-1]
        remedy = f'Set "python" to an interpreter with {distribution(RUNTIME)}, or run there: {installation(RUNTIME)}'
        return Check(False, f"python: {python} has no runtime for a driver: {last}. {remedy}")
    return Check(True, f"{python} has the runtime")


def require_interpreter(settings: LauncherSettings, world: World | None = None) -> None:
    """Raise EnvironmentProblemError when the interpreter of drivers on this host has no runtime. Other launchers have
    none here, and what `python` means to another package's launcher, that one knows."""
    if settings.kind not in ("local", "spark-submit"):
        return
    found = check_interpreter(settings, World() if world is None else world)
    if not found.ok:
        raise EnvironmentProblemError(found.text)


def _brought(settings: LauncherSettings) -> tuple[str, ...]:
    """Packages of the runtime that a driver has not from its interpreter: spark-submit brings its own pyspark."""
    return ("pyspark",) if settings.kind == "spark-submit" else ()


def check_spark_submit(settings: LauncherSettings) -> Check:
    """Whether spark-submit is there."""
    found = shutil.which(settings.found_spark_submit())
    if found is None:
        wanted = settings.spark_submit or "spark-submit"
        return Check(False, f"spark-submit: {wanted} is not there. Name its path, or set SPARK_HOME for the workers")
    return Check(True, f"spark-submit is {found}")


def fits_launcher(launcher: str, ok: bool, master: str) -> Check:
    """Whether the master is one that the launcher can launch on: `ok`."""
    return Check(ok, f"master {master}" + ("" if ok else f" does not go with the launcher {launcher}"))


def check_master(master: str, world: World) -> list[Check]:
    """Whether the master answers, when it is one that listens at an address. Of `spark://a:1,b:2` one that answers is
    enough."""
    if master.startswith("spark://"):
        places = [urlsplit(f"spark://{place}") for place in master.removeprefix("spark://").split(",")]
    elif master.startswith("k8s://"):
        url = master.removeprefix("k8s://")
        places = [urlsplit(url if "://" in url else f"https://{url}")]
    else:
        return []
    problems = []
    for place in places:
        try:
            host, port = place.hostname or "", place.port or (80 if place.scheme == "http" else 443)
        except ValueError as error:
            return [Check(False, f"master: {master} is no address: {error}")]
        problem = world.connect(host, port)
        if problem is None:
            return [Check(True, f"master {host}:{port} answers")]
        problems.append(f"{host}:{port}: {problem}")
    return [Check(False, f"master: {'; '.join(problems)}. Is the address right, and may this host reach it?")]
