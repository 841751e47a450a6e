"""The command line of spark-submit, for both deploy modes."""

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
    """Return the spark-submit command that runs `program` with a driver's arguments.

    Args:
        mode: "client" or "cluster".
        conf: Spark settings. They are recorded with the launch, so they must not contain secrets (`command_conf`).
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
    """Return the Spark settings of a submission for a command line, without secrets. The driver resolves secrets
    itself, so a setting that spark-submit needs before the driver starts cannot be a secret."""
    return {name: str(value) for name, value in spec.spark_conf.items() if not is_reference(value)}


def wrong_master(spec: Spec, launcher: str, wanted: str) -> OptionError:
    """Return the error for a master that the launcher does not support."""
    return OptionError(
        f"master {spec.master} cannot be used with the launcher {launcher}",
        where=f"job {spec.job_id}, launcher",
        remedy=f"Set master to {wanted}, in the Airflow connection or operator",
    )
