"""Checks that several launchers have in common. Each launcher's own `check` chooses among them and adds its own."""

from __future__ import annotations

import shutil
import sys
from urllib.parse import urlsplit

from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.launch.launcher import Check, LauncherSettings, World

IMPORT_LIMIT_S = 60.0
"""How long an interpreter may take to import tidegate and pyspark, seconds."""
IMPORTS = "import tidegate, pyspark; print('pyspark', pyspark.__version__)"


def check_interpreter(settings: LauncherSettings, world: World) -> Check:
    """Whether the interpreter of the drivers has what a driver imports."""
    python = settings.python or sys.executable
    try:
        answer = world.run((python, "-c", IMPORTS), IMPORT_LIMIT_S)
    except EnvironmentProblemError as error:
        return Check(False, f"python: {error}")
    if answer.code != 0:
        last = (answer.text.strip().splitlines() or ["nothing"])[-1]
        return Check(False, f"python: {python} lacks something: {last}. Name an interpreter with tidegate and pyspark")
    return Check(True, f"{python} has tidegate and {answer.text.strip()}")


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
