"""The command line of spark-submit, in either deploy mode."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.errors import OptionError
from tidegate.jobs.launch.launcher import LauncherSettings, driver_arguments
from tidegate.jobs.records import Launch, Spec
from tidegate.jobs.secrets import is_reference


def submit_command(
    settings: LauncherSettings,
    spec: Spec,
    launch: Launch,
    root: str,
    mode: str,
    conf: Mapping[str, str],
    program: str,
) -> tuple[str, ...]:
    """spark-submit with `program` and the arguments that every driver takes.

    Args:
        mode: "client" or "cluster".
        conf: Spark settings; they are recorded with the launch, so without secrets (`command_conf`).
        program: path or URL of `driver_entry.py`.
    """
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


def command_conf(spec: Spec) -> dict[str, str]:
    """The Spark settings of a submission that go on a command line. Settings with a secret do not: the driver resolves
    them itself. So a setting that spark-submit must know before the driver starts cannot be a secret."""
    return {name: str(value) for name, value in spec.spark_conf.items() if not is_reference(value)}


def wrong_master(spec: Spec, launcher: str, wanted: str) -> OptionError:
    """The error for a master that `launcher` cannot launch on."""
    return OptionError(
        f"master {spec.master} does not go with the launcher {launcher}",
        where=f"job {spec.job_id}, launcher",
        remedy=f"Set master to {wanted}, in the connection or the operator",
    )
