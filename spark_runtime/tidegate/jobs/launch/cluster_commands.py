"""Command lines of spark-submit and of YARN, and what their answers say. Pure.

What Spark's documentation demands (4.x: "Submitting Applications", "Running Spark on YARN", "Running Spark on
Kubernetes") stands beside each line. YARN's are tested on a cluster of one node,
Kubernetes' as text and against a stand-in for its API server.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from tidegate.errors import OptionError
from tidegate.jobs.launch.launcher import DriverState, LauncherSettings, driver_arguments
from tidegate.jobs.process_environment import STORAGE_OPTIONS_VARIABLE, storage_options_text
from tidegate.jobs.records import Launch, Spec
from tidegate.jobs.secrets import is_reference

MAX_POD_NAME = 63
"""Characters: a pod's name is its host name too (RFC 1123)."""
DEFAULT_NAMESPACE = "default"
NAMESPACE = "spark.kubernetes.namespace"
IMAGE = "spark.kubernetes.container.image"

_APPLICATION = re.compile(r"\bapplication_\d+_\d+\b")
_YARN_STATE = re.compile(r"^\s*State\s*:\s*(\w+)\s*$", re.MULTILINE)
_YARN_OVER = frozenset({"FINISHED", "FAILED", "KILLED"})
_POD_PHASE = re.compile(r"^\s*phase\s*:\s*(\w+)\s*$", re.MULTILINE)
_POD_OVER = frozenset({"Succeeded", "Failed"})
_REACHING = (
    "spark.kubernetes.authenticate.submission.",
    "spark.kubernetes.context",
    "spark.kubernetes.trust.certificates",
    "spark.kubernetes.appKillPodDeletionGracePeriod",
)
"""Settings that --status and --kill need too."""
_NO_POD = ("Application not found", "Unable to find application")


def client_command(settings: LauncherSettings, spec: Spec, launch: Launch, root: str, entry: str) -> tuple[str, ...]:
    """The driver here, in client mode. The Python of `spark.pyspark.driver.python` runs it, and by default that of the
    workers is the same."""
    conf = {"spark.pyspark.driver.python": settings.python or sys.executable, **_conf(spec)}
    return _submit(settings, spec, launch, root, "client", conf, entry)


def yarn_command(settings: LauncherSettings, spec: Spec, launch: Launch, root: str, entry: str) -> tuple[str, ...]:
    """The driver in YARN's ApplicationMaster.

    - `spark.yarn.submit.waitAppCompletion=false`: spark-submit ends once the application is submitted.
    - `spark.yarn.maxAppAttempts=1`: a driver that died is launched anew by whoever supervises the job, with a launch of
      its own; YARN must not begin a second one under the same launch. `spark_conf` may say otherwise.
    - `spark.yarn.tags`: finds the application again when spark-submit's answer was lost.
    - `spark.yarn.appMasterEnv.NAME`: environment variables of the driver.
    - `spark.archives` (and `spark.submit.pyFiles`) of `spark_conf` bring the code along; the interpreter is then one of
      the archive, such as `./environment/bin/python`.

    Raises OptionError when master is not `yarn`.
    """
    if spec.master != "yarn":
        raise _wrong_master(spec, "yarn", "yarn")
    python = {"spark.pyspark.python": settings.python} if settings.python else {}
    own = {
        "spark.yarn.submit.waitAppCompletion": "false",
        "spark.yarn.tags": _with_tag(spec, launch),
        f"spark.yarn.appMasterEnv.{STORAGE_OPTIONS_VARIABLE}": storage_options_text(spec.storage_options),
    }
    conf = {"spark.yarn.maxAppAttempts": "1", **python, **_conf(spec), **own}
    return _submit(settings, spec, launch, root, "cluster", conf, entry)


def yarn_tag(launch: Launch) -> str:
    """Names the application of a launch among all of YARN's."""
    return f"tidegate-{launch.nonce}"


def yarn_list_command(settings: LauncherSettings, launch: Launch) -> tuple[str, ...]:
    """Lists the application of a launch, in whatever state."""
    return (settings.yarn, "application", "-list", "-appStates", "ALL", "-appTags", yarn_tag(launch))


def yarn_status_command(settings: LauncherSettings, application: str) -> tuple[str, ...]:
    """Tells an application's state."""
    return (settings.yarn, "application", "-status", application)


def yarn_kill_command(settings: LauncherSettings, application: str) -> tuple[str, ...]:
    """Ends an application."""
    return (settings.yarn, "application", "-kill", application)


def yarn_log_command(settings: LauncherSettings, application: str) -> tuple[str, ...]:
    """Tells the ApplicationMaster's output, which is the driver's."""
    return (settings.yarn, "logs", "-applicationId", application, "-am", "ALL")


def yarn_application(output: str) -> str | None:
    """The application's id in what spark-submit or `yarn application -list` wrote; None: there is none."""
    found = _APPLICATION.search(output)
    return found[0] if found else None


def yarn_state(output: str) -> DriverState:
    """From `yarn application -status`. An application that waits in its queue is RUNNING: it is there."""
    found = _YARN_STATE.search(output)
    if found is None:
        return DriverState.GONE if "doesn't exist" in output else DriverState.UNKNOWN
    return DriverState.GONE if found[1] in _YARN_OVER else DriverState.RUNNING


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
        raise _wrong_master(spec, "kubernetes", "k8s://https://host:port")
    given = _conf(spec)
    if IMAGE not in given and "spark.kubernetes.driver.container.image" not in given:
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
    return _submit(settings, spec, launch, root, "cluster", {**python, **given, **own}, settings.driver_script)


def pod_name(job_id: str, launch: Launch) -> str:
    """The driver pod of a launch: told apart from those of other roots by the launch's nonce."""
    tail = f"-{launch.spec}-{launch.attempt}-{launch.nonce[:8]}"
    readable = re.sub(r"[^a-z0-9]+", "-", job_id.lower()).strip("-")
    return f"tidegate-{readable}"[: MAX_POD_NAME - len(tail)].rstrip("-") + tail


def kubernetes_id(spec: Spec, launch: Launch) -> str:
    """`namespace:pod`, as spark-submit's --status and --kill take it."""
    return f"{_conf(spec).get(NAMESPACE, DEFAULT_NAMESPACE)}:{pod_name(spec.job_id, launch)}"


def kubernetes_ask_command(
    settings: LauncherSettings, flag: str, master: str, submission: str, conf: Mapping[str, str]
) -> tuple[str, ...]:
    """`spark-submit --status` or `--kill`, with those of the settings that reach the API server."""
    reach = {name: value for name, value in conf.items() if name.startswith(_REACHING)}
    flags = [word for name in sorted(reach) for word in ("--conf", f"{name}={reach[name]}")]
    return (settings.found_spark_submit(), flag, submission, "--master", master, *flags)


def kubernetes_state(output: str) -> DriverState:
    """From `spark-submit --status`. A pod that waits for a node is RUNNING: it is there."""
    found = _POD_PHASE.search(output)
    if found is None:
        return DriverState.GONE if any(words in output for words in _NO_POD) else DriverState.UNKNOWN
    return DriverState.GONE if found[1] in _POD_OVER else DriverState.RUNNING


def _submit(
    settings: LauncherSettings,
    spec: Spec,
    launch: Launch,
    root: str,
    mode: str,
    conf: Mapping[str, str],
    program: str,
) -> tuple[str, ...]:
    flags = [word for name in sorted(conf) for word in ("--conf", f"{name}={conf[name]}")]
    return (
        settings.found_spark_submit(),
        "--master",
        spec.master,
        "--deploy-mode",
        mode,
        "--name",
        f"tidegate {spec.job_id}",
        *flags,
        program,
        *driver_arguments(root, launch, spec.job_id),
    )


def _conf(spec: Spec) -> dict[str, str]:
    """Settings that go on a command line. Those with a secret do not: the driver resolves them itself (a session's
    settings, that is; what spark-submit must know before cannot be one)."""
    return {name: str(value) for name, value in spec.spark_conf.items() if not is_reference(value)}


def _with_tag(spec: Spec, launch: Launch) -> str:
    given = _conf(spec).get("spark.yarn.tags")
    return f"{given},{yarn_tag(launch)}" if given else yarn_tag(launch)


def _wrong_master(spec: Spec, launcher: str, wanted: str) -> OptionError:
    return OptionError(
        f"master {spec.master} does not go with the launcher {launcher}",
        where=f"job {spec.job_id}, launcher",
        remedy=f"Set master to {wanted}, in the connection or the operator",
    )
