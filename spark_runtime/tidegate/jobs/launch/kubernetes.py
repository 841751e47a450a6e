"""Drivers as pods on Kubernetes. The `external_id` of a launch is `namespace:pod`.

`kubernetes_command` lists the settings that Spark's documentation requires (4.x: "Running Spark on Kubernetes"). The
commands are tested as text and against a stand-in for the API server. If the launching process dies before it has
recorded the pod, the pod can be found by its name, which follows from the launch's record.
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
"""The program that spark-submit runs: a copy of `driver_entry.py` in the image."""

MAX_POD_NAME = 63
"""Most characters of a pod's name, which is also its host name (RFC 1123)."""
DEFAULT_NAMESPACE = "default"
NAMESPACE = "spark.kubernetes.namespace"
IMAGE = "spark.kubernetes.container.image"
DRIVER_IMAGE = "spark.kubernetes.driver.container.image"

_PHASE = re.compile(r"^\s*phase\s*:\s*(\w+)\s*$", re.MULTILINE)
_OVER = frozenset({"Succeeded", "Failed"})
_NO_POD = ("Application not found", "Unable to find application")
_CONNECTION_SETTINGS = (
    "spark.kubernetes.authenticate.submission.",
    "spark.kubernetes.context",
    "spark.kubernetes.trust.certificates",
    "spark.kubernetes.appKillPodDeletionGracePeriod",
)
"""Prefixes of settings that --status and --kill also need."""
_DELETE_NOW = {"spark.kubernetes.appKillPodDeletionGracePeriod": "0"}


class KubernetesLauncher(ClusterLauncher):
    """Launches each driver in its own pod. `external_id` is `namespace:pod`."""

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
        """See `Launcher.log`. spark-submit cannot read logs, so this returns the command that can."""
        namespace, _, pod = _submission(launch).partition(":")
        return f"kubectl logs --namespace {namespace} {pod}"

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        """See `Launcher.kill`. With `graceful`, the pod has its grace period.

        The SIGTERM ends Spark's JVM, so the job takes no savepoint. For a savepoint, send a stop command first.
        """
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
            Check(
                bool(image),
                f"image {image}" if image else f"image: not set in the connection; each operator must set {IMAGE}",
            ),
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
    """Return the command that starts the driver in its own pod.

    - `spark.kubernetes.submission.waitAppCompletion=false`: spark-submit ends once the pod is created.
    - `spark.kubernetes.driver.pod.name`: a fixed name for each launch, so that the pod can be found again, and a launch
      cannot make a second pod.
    - `spark.kubernetes.container.image` in `spark_conf`: an image with tidegate, pyspark and the pipeline's libraries.
    - the program has a `local://` URL: it is in the image, and nothing is uploaded.
    - `spark.kubernetes.driverEnv.NAME`: environment variables of the driver. Secrets use
      `spark.kubernetes.driver.secretKeyRef.NAME=secret:key` in `spark_conf`.

    Raises OptionError when master is not `k8s://...`, or no image is set.
    """
    if not spec.master.startswith("k8s://"):
        raise wrong_master(spec, "kubernetes", "k8s://https://host:port")
    given = command_conf(spec)
    if IMAGE not in given and DRIVER_IMAGE not in given:
        raise OptionError(
            "no container image is set",
            where=f"job {spec.job_id}, spark_conf",
            cause="on Kubernetes the driver and the executors run in containers",
            remedy=f"Set {IMAGE} to an image with tidegate, pyspark and the pipeline's libraries",
        )
    python = {"spark.pyspark.python": settings.python} if settings.python else {}
    own = {
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.kubernetes.driver.pod.name": pod_name(spec.job_id, launch),
        f"spark.kubernetes.driverEnv.{STORAGE_OPTIONS_VARIABLE}": storage_options_text(spec.storage_options),
    }
    # The user's settings replace the interpreter, but not the own settings, without which the pod could not be found.
    return submit_command(
        settings, spec, launch, root, "cluster", {**python, **given, **own}, settings.value(DRIVER_SCRIPT)
    )


def pod_name(job_id: str, launch: Launch) -> str:
    """Return the name of a launch's driver pod. The launch's nonce makes it different from the pods of other roots."""
    tail = f"-{launch.spec}-{launch.attempt}-{launch.nonce[:8]}"
    readable = re.sub(r"[^a-z0-9]+", "-", job_id.lower()).strip("-")
    # Only the readable part is cut: the tail with the nonce makes the name unique.
    return f"tidegate-{readable}"[: MAX_POD_NAME - len(tail)].rstrip("-") + tail


def kubernetes_id(spec: Spec, launch: Launch) -> str:
    """Return `namespace:pod`, in the form of spark-submit's --status and --kill."""
    return f"{command_conf(spec).get(NAMESPACE, DEFAULT_NAMESPACE)}:{pod_name(spec.job_id, launch)}"


def kubernetes_status_command(
    settings: LauncherSettings, flag: str, master: str, submission: str, conf: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the command `spark-submit --status` or `--kill`, with the settings that are needed for the API server."""
    reach = {name: value for name, value in conf.items() if name.startswith(_CONNECTION_SETTINGS)}
    flags = [word for name in sorted(reach) for word in ("--conf", f"{name}={reach[name]}")]
    return (settings.found_spark_submit(), flag, submission, "--master", master, *flags)


def kubernetes_state(output: str) -> DriverState:
    """Parse the output of `spark-submit --status`. A pod that waits for a node is RUNNING, because it exists."""
    found = _PHASE.search(output)
    if found is None:
        return DriverState.GONE if any(words in output for words in _NO_POD) else DriverState.UNKNOWN
    return DriverState.GONE if found[1] in _OVER else DriverState.RUNNING


def _given_conf(launch: Launch) -> dict[str, str]:
    """Return the settings in a launch's command. The connection may have other settings by now."""
    words = launch.command
    pairs = [words[i + 1].partition("=") for i in range(len(words) - 1) if words[i] == "--conf"]
    return {name: value for name, _, value in pairs}


def _submission(launch: Launch) -> str:
    """Return `namespace:pod`, even if nothing was recorded after the launch's start."""
    if launch.external_id is not None:
        return launch.external_id
    conf = _given_conf(launch)
    return f"{conf.get(NAMESPACE, DEFAULT_NAMESPACE)}:{conf['spark.kubernetes.driver.pod.name']}"
