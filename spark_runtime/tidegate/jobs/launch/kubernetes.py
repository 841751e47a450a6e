"""Drivers in a pod of their own on Kubernetes: `external_id` of a launch is `namespace:pod`.

What Spark's documentation demands (4.x: "Running Spark on Kubernetes") stands beside each line. Tested as text and
against a stand-in for the API server. When whoever launched dies before it has recorded the pod, the launch's record
alone finds it: by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from tidegate.errors import OptionError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launch.cluster import STATUS_TIMEOUT_S, ClusterLauncher, no_answer
from tidegate.jobs.launch.launcher import (
    Check,
    DriverState,
    LauncherSetting,
    LauncherSettings,
    World,
    recorded_place,
)
from tidegate.jobs.launch.launcher_checks import check_master, check_spark_submit, fits_launcher
from tidegate.jobs.launch.spark_submit_command import command_conf, submit_command, wrong_master
from tidegate.jobs.launches import record_process
from tidegate.jobs.process_environment import STORAGE_OPTIONS_VARIABLE, storage_options_text
from tidegate.jobs.records import Launch, Spec

DRIVER_SCRIPT = LauncherSetting(
    name="driver_script",
    label="Driver program",
    description="With kubernetes: local:// URL of the driver's program in the image.",
    default="local:///opt/tidegate/driver_entry.py",
    metavar="URL",
)
"""The script that spark-submit runs: a copy of `driver_entry.py` in the image."""

MAX_POD_NAME = 63
"""Characters: a pod's name is its host name too (RFC 1123)."""
DEFAULT_NAMESPACE = "default"
NAMESPACE = "spark.kubernetes.namespace"
IMAGE = "spark.kubernetes.container.image"
DRIVER_IMAGE = "spark.kubernetes.driver.container.image"

_PHASE = re.compile(r"^\s*phase\s*:\s*(\w+)\s*$", re.MULTILINE)
_OVER = frozenset({"Succeeded", "Failed"})
_NO_POD = ("Application not found", "Unable to find application")
_CONNECTION_ERRORS = (
    "spark.kubernetes.authenticate.submission.",
    "spark.kubernetes.context",
    "spark.kubernetes.trust.certificates",
    "spark.kubernetes.appKillPodDeletionGracePeriod",
)
"""Settings that --status and --kill need too."""
_DELETE_NOW = {"spark.kubernetes.appKillPodDeletionGracePeriod": "0"}


class KubernetesLauncher(ClusterLauncher):
    """The driver in a pod of its own; `external_id`: `namespace:pod`."""

    kind: ClassVar[str] = "kubernetes"
    settings: ClassVar[tuple[LauncherSetting, ...]] = (DRIVER_SCRIPT,)

    def launch(self, job: JobDirectory, spec: Spec, attempt: int | None = None) -> Launch:
        """See `Launcher.launch`."""
        launch = self._record(job, spec, attempt, lambda made: kubernetes_command(self._settings, spec, made, job.root))
        self._submit(spec, launch)
        return record_process(job.store, job.layout, replace(launch, external_id=kubernetes_id(spec, launch)))

    def state(self, launch: Launch) -> DriverState:
        """See `Launcher.state`."""
        answer = self._run(self._ask_arguments("--status", launch), STATUS_TIMEOUT_S)
        state = kubernetes_state(answer.text)
        if state is DriverState.UNKNOWN and answer.code != 0:
            raise no_answer("Kubernetes", answer)
        return state

    def log(self, launch: Launch) -> str:
        """See `Launcher.log`: spark-submit reads no logs, so this says how to."""
        namespace, _, pod = _submission(launch).partition(":")
        return f"kubectl logs --namespace {namespace} {pod}"

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        """See `Launcher.kill`. Graceful: the pod has its grace period. It is Spark's JVM that gets the SIGTERM, so no
        savepoint comes of it; send the job a stop first."""
        if self.state(launch) is DriverState.GONE:
            return False
        return (
            self._run(self._ask_arguments("--kill", launch, {} if graceful else _DELETE_NOW), STATUS_TIMEOUT_S).code
            == 0
        )

    def check(self, master: str, spark_conf: Mapping[str, str], world: World) -> list[Check]:
        """See `Launcher.check`."""
        image = spark_conf.get(DRIVER_IMAGE) or spark_conf.get(IMAGE)
        return [
            fits_launcher(self.kind, master.startswith("k8s://"), master),
            check_spark_submit(self._settings),
            Check(bool(image), f"image {image}" if image else f"image: none is named; every operator has to: {IMAGE}"),
            *check_master(master, world),
        ]

    @staticmethod
    def log_place(launch: Launch) -> str:
        """See `Launcher.log_place`."""
        if launch.external_id is None:
            return recorded_place(launch)
        namespace, _, pod = launch.external_id.partition(":")
        return f"pod {pod}: `kubectl logs --namespace {namespace} {pod}` shows its log"

    def _ask_arguments(self, flag: str, launch: Launch, more: dict[str, str] | None = None) -> Sequence[str]:
        conf = {**_given_conf(launch), **(more or {})}
        return kubernetes_status_command(self._settings, flag, launch.host, _submission(launch), conf)


def kubernetes_command(settings: LauncherSettings, spec: Spec, launch: Launch, root: str) -> tuple[str, ...]:
    """The driver in a pod of its own.

    - `spark.kubernetes.submission.waitAppCompletion=false`: spark-submit ends once the pod is created.
    - `spark.kubernetes.driver.pod.name`: fixed by the launch: the pod is found again, and there is never a second
      one of the same launch.
    - `spark.kubernetes.container.image` of `spark_conf`: it has tidegate, pyspark and the pipeline's libraries.
    - the program is `local://`: in the image; nothing is uploaded.
    - `spark.kubernetes.driverEnv.NAME`: environment variables of the driver; secrets are
      `spark.kubernetes.driver.secretKeyRef.NAME=secret:key` of `spark_conf`.

    Raises OptionError when master is not `k8s://...`, or there is no image.
    """
    if not spec.master.startswith("k8s://"):
        raise wrong_master(spec, "kubernetes", "k8s://https://host:port")
    given = command_conf(spec)
    if IMAGE not in given and DRIVER_IMAGE not in given:
        raise OptionError(
            "no container image is named",
            where=f"job {spec.job_id}, spark_conf",
            cause="on Kubernetes the driver and the executors run in one",
            remedy=f"Set {IMAGE} to an image with tidegate, pyspark and the pipeline's libraries",
        )
    python = {"spark.pyspark.python": settings.python} if settings.python else {}
    own = {
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.kubernetes.driver.pod.name": pod_name(spec.job_id, launch),
        f"spark.kubernetes.driverEnv.{STORAGE_OPTIONS_VARIABLE}": storage_options_text(spec.storage_options),
    }
    return submit_command(
        settings, spec, launch, root, "cluster", {**python, **given, **own}, settings.value(DRIVER_SCRIPT)
    )


def pod_name(job_id: str, launch: Launch) -> str:
    """The driver pod of a launch: told apart from those of other roots by the launch's nonce."""
    tail = f"-{launch.spec}-{launch.attempt}-{launch.nonce[:8]}"
    readable = re.sub(r"[^a-z0-9]+", "-", job_id.lower()).strip("-")
    return f"tidegate-{readable}"[: MAX_POD_NAME - len(tail)].rstrip("-") + tail


def kubernetes_id(spec: Spec, launch: Launch) -> str:
    """`namespace:pod`, as spark-submit's --status and --kill take it."""
    return f"{command_conf(spec).get(NAMESPACE, DEFAULT_NAMESPACE)}:{pod_name(spec.job_id, launch)}"


def kubernetes_status_command(
    settings: LauncherSettings, flag: str, master: str, submission: str, conf: Mapping[str, str]
) -> tuple[str, ...]:
    """`spark-submit --status` or `--kill`, with those of the settings that reach the API server."""
    reach = {name: value for name, value in conf.items() if name.startswith(_CONNECTION_ERRORS)}
    flags = [word for name in sorted(reach) for word in ("--conf", f"{name}={reach[name]}")]
    return (settings.found_spark_submit(), flag, submission, "--master", master, *flags)


def kubernetes_state(output: str) -> DriverState:
    """From `spark-submit --status`. A pod that waits for a node is RUNNING: it is there."""
    found = _PHASE.search(output)
    if found is None:
        return DriverState.GONE if any(words in output for words in _NO_POD) else DriverState.UNKNOWN
    return DriverState.GONE if found[1] in _OVER else DriverState.RUNNING


def _given_conf(launch: Launch) -> dict[str, str]:
    """The settings in a launch's command line: what it was launched with, whatever the connection says by now."""
    words = launch.command
    pairs = [words[i + 1].partition("=") for i in range(len(words) - 1) if words[i] == "--conf"]
    return {name: value for name, _, value in pairs}


def _submission(launch: Launch) -> str:
    """`namespace:pod`, also of a launch that nothing was recorded of after its start."""
    if launch.external_id is not None:
        return launch.external_id
    conf = _given_conf(launch)
    return f"{conf.get(NAMESPACE, DEFAULT_NAMESPACE)}:{conf['spark.kubernetes.driver.pod.name']}"
