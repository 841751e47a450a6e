"""Whether a launcher could launch from here: what the Test button of a connection asks, besides for the job root."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.launch.cluster import Run, run_program
from tidegate.jobs.launch.cluster_commands import IMAGE
from tidegate.jobs.launch.launcher import LauncherSettings

IMPORT_LIMIT_S = 60.0
"""How long an interpreter may take to import tidegate and pyspark, seconds."""
CONNECT_LIMIT_S = 5.0
"""How long a master may take to accept a connection, seconds."""
IMPORTS = "import tidegate, pyspark; print('pyspark', pyspark.__version__)"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: what was found, or what is wrong and what to do."""

    ok: bool
    text: str


def connects(host: str, port: int) -> str | None:
    """None when a TCP connection comes about; else why not."""
    try:
        with socket.create_connection((host, port), CONNECT_LIMIT_S):
            return None
    except OSError as error:
        return str(error)


def check_launcher(
    settings: LauncherSettings,
    master: str,
    spark_conf: Mapping[str, str],
    *,
    run: Run = run_program,
    connect: Callable[[str, int], str | None] = connects,
    environment: Mapping[str, str] = os.environ,
) -> list[Check]:
    """Look at what the launcher needs here. Starts no driver; an interpreter and a connection at most.

    Args:
        run, connect, environment: the world; replaced in tests.
    """
    match settings.kind:
        case "local":
            return [_interpreter(settings, run), *_master(master, connect)]
        case "spark-submit":
            return [_spark_submit(settings), _interpreter(settings, run), *_master(master, connect)]
        case "yarn":
            return [_is_for("yarn", master == "yarn", master), _spark_submit(settings), *_yarn(settings, environment)]
        case "kubernetes":
            is_for = _is_for("kubernetes", master.startswith("k8s://"), master)
            return [is_for, _spark_submit(settings), _image(spark_conf), *_master(master, connect)]
        case _:
            return [Check(True, "launcher agent: an agent beside the cluster launches, nothing is needed here")]


def _interpreter(settings: LauncherSettings, run: Run) -> Check:
    python = settings.python or sys.executable
    try:
        answer = run((python, "-c", IMPORTS), IMPORT_LIMIT_S)
    except EnvironmentProblemError as error:
        return Check(False, f"python: {error}")
    if answer.code != 0:
        last = (answer.text.strip().splitlines() or ["nothing"])[-1]
        return Check(False, f"python: {python} lacks something: {last}. Name an interpreter with tidegate and pyspark")
    return Check(True, f"{python} has tidegate and {answer.text.strip()}")


def _spark_submit(settings: LauncherSettings) -> Check:
    found = shutil.which(settings.found_spark_submit())
    if found is None:
        wanted = settings.spark_submit or "spark-submit"
        return Check(False, f"spark-submit: {wanted} is not there. Name its path, or set SPARK_HOME for the workers")
    return Check(True, f"spark-submit is {found}")


def _yarn(settings: LauncherSettings, environment: Mapping[str, str]) -> list[Check]:
    checks = []
    if shutil.which(settings.yarn) is None:
        checks.append(
            Check(False, f"yarn: {settings.yarn} is not there: no driver would be found again. Name its path")
        )
    if not environment.get("HADOOP_CONF_DIR") and not environment.get("YARN_CONF_DIR"):
        checks.append(Check(False, "yarn: neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set: Spark finds no cluster"))
    return checks or [Check(True, f"yarn is {settings.yarn}")]


def _image(spark_conf: Mapping[str, str]) -> Check:
    image = spark_conf.get("spark.kubernetes.driver.container.image") or spark_conf.get(IMAGE)
    if not image:
        return Check(False, f"image: none is named; every operator has to: {IMAGE}")
    return Check(True, f"image {image}")


def _is_for(launcher: str, ok: bool, master: str) -> Check:
    return Check(ok, f"master {master}" + ("" if ok else f" does not go with the launcher {launcher}"))


def _master(master: str, connect: Callable[[str, int], str | None]) -> list[Check]:
    """Of `spark://a:1,b:2` one that answers is enough."""
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
        problem = connect(host, port)
        if problem is None:
            return [Check(True, f"master {host}:{port} answers")]
        problems.append(f"{host}:{port}: {problem}")
    return [Check(False, f"master: {'; '.join(problems)}. Is the address right, and may this host reach it?")]
