"""Checks that several launchers share. Each launcher's own `check` calls some of them and adds its own."""

from __future__ import annotations

import shutil
import sys
from urllib.parse import urlsplit

from tidegate.errors import EnvironmentProblemError
from tidegate.extras import RUNTIME, distribution, installation
from tidegate.jobs.launch.launcher import Check, LauncherSettings, World

PROBE_LIMIT_S = 60.0
"""Timeout of the probe of an interpreter, in seconds. It may be on a slow network disk."""
PROBE = """
import sys
try:
    from tidegate.extras import require_runtime
    require_runtime("a driver", apart_from=sys.argv[1:])
except ImportError as error:
    sys.exit(getattr(error, "cause", None) or str(error))
"""
"""Program for the interpreter: it prints what is missing. Its arguments are packages that come from elsewhere."""


def check_interpreter(settings: LauncherSettings, world: World, setting: str = '"python"') -> Check:
    """Check that the drivers' interpreter has the runtime. Takes about 0.1 s, because it imports no package of it.

    Args:
        setting: name of the setting with the interpreter, for the remedy: a field of a connection, or a flag.
    """
    python = settings.python or sys.executable
    try:
        answer = world.run((python, "-c", PROBE, *_brought(settings)), PROBE_LIMIT_S)
    except EnvironmentProblemError as error:
        return Check(False, f"python: {error}")
    if answer.code != 0:
        last = (answer.text.strip().splitlines() or ["the interpreter failed without output"])[-1]
        remedy = (
            f"Set {setting} to an interpreter with {distribution(RUNTIME)}, or run with it: {installation(RUNTIME)}"
        )
        return Check(False, f"python: {python} cannot run a driver: {last}. {remedy}")
    return Check(True, f"python: {python} has the packages for a driver")


def require_interpreter(settings: LauncherSettings, world: World | None = None, *, setting: str = '"python"') -> None:
    """Raise EnvironmentProblemError when the interpreter of drivers on this host does not have the runtime.

    Other launchers do not run drivers on this host, and another package's launcher may use `python` differently.
    `setting`: as in `check_interpreter`.
    """
    if settings.kind not in ("local", "spark-submit"):
        return
    found = check_interpreter(settings, World() if world is None else world, setting)
    if not found.ok:
        raise EnvironmentProblemError(found.text)


def _brought(settings: LauncherSettings) -> tuple[str, ...]:
    """Return the packages of the runtime that do not come from the interpreter: spark-submit brings its own pyspark."""
    return ("pyspark",) if settings.kind == "spark-submit" else ()


def check_spark_submit(settings: LauncherSettings) -> Check:
    """Check that spark-submit exists."""
    found = shutil.which(settings.found_spark_submit())
    if found is None:
        wanted = settings.spark_submit or "spark-submit"
        return Check(
            False,
            f"spark-submit: {wanted} does not exist. Name the path of spark-submit, or set SPARK_HOME for the workers",
        )
    return Check(True, f"spark-submit is {found}")


def fits_launcher(launcher: str, ok: bool, master: str) -> Check:
    """Return the check of the master URL. `ok`: the launcher supports it."""
    return Check(ok, f"master {master}" + ("" if ok else f" cannot be used with the launcher {launcher}"))


def check_master(master: str, world: World) -> list[Check]:
    """Check that the master answers, if its URL has an address. If it has several (`spark://a:1,b:2`), one must
    answer."""
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
            return [Check(False, f"master: {master} is not an address such as spark://host:7077: {error}")]
        problem = world.connect(host, port)
        if problem is None:
            return [Check(True, f"master {host}:{port} answers")]
        problems.append(f"{host}:{port}: {problem}")
    return [
        Check(False, f"master: {'; '.join(problems)}. Check the address, and that this host may connect to the master")
    ]
