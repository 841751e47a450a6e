"""Passes secrets of Airflow connections to the drivers that this host starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseHook

from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.version_compat import AirflowNotFoundException, mask_secret
from tidegate.errors import OptionError
from tidegate.jobs.driver_secrets import OTHER_FORMS, check_driver_secrets, connection_field
from tidegate.jobs.launch.launcher_registry import passes_environment
from tidegate.jobs.secrets import is_reference

Secrets = Mapping[str, str]
"""Environment variable of the driver -> place of its value, such as `conn:my_kafka/password`."""
EXECUTOR_VARIABLE = "spark.executorEnv."
"""Prefix of the Spark settings that set environment variables of executors, and so of slots on other machines."""


def read_secrets(secrets: Secrets | None) -> dict[str, str]:
    """Read the values from Airflow's connections, and mask them in logs. Do not log or store the result.

    Raises:
        OptionError: a name or place is wrong, or the connection or its field does not exist.
    """
    check_driver_secrets(secrets)
    return {name: _value(name, place) for name, place in (secrets or {}).items()}


def require_secrets(
    root: JobRoot, needed: Secrets, passed: Secrets | None, *, master: str, spark_conf: Mapping[str, Any]
) -> None:
    """Check that a driver which this connection starts would get its secrets, and that the slots would have them.

    Args:
        needed: `Spec.secrets` of the driver's submission.
        passed: argument `secrets` of the Airflow task.

    Raises:
        OptionError: another process starts the driver, slots run on other machines, or the task lacks a secret.
    """
    if not needed and not passed:
        return
    where = f"secrets {', '.join(sorted({*needed, *(passed or {})}))}"
    if not passes_environment(root.launcher):
        raise OptionError(
            f"secrets of Airflow connections cannot be passed to drivers of the launcher {root.launcher}",
            where=where,
            cause="the driver is started by another process, and job directory and command lines must not hold secrets",
            remedy=f"{OTHER_FORMS}. Then remove secrets=, or pass secrets={{}} for a job that was started with it",
        )
    missing = sorted(needed.keys() - (passed or {}).keys() - os.environ.keys())
    if missing:
        places = ", ".join(f'"{name}": "{needed[name]}"' for name in missing)
        raise OptionError(
            f"the Airflow task does not have the secrets {', '.join(missing)} that the job was submitted with",
            where=where,
            cause="a driver that this task starts would lack them",
            remedy=f"Pass secrets={{{places}}} to the task, or set it in default_args of the DAG",
        )
    _require_slots(master, spark_conf, sorted({*needed, *(passed or {})}), where)


def _require_slots(master: str, spark_conf: Mapping[str, Any], names: list[str], where: str) -> None:
    """Slots of a local master are child processes of the driver. Others inherit nothing from it."""
    if master == "local" or master.startswith("local["):
        return
    lacking = [name for name in names if not is_reference(spark_conf.get(EXECUTOR_VARIABLE + name))]
    if lacking:
        settings = ", ".join(f'"{EXECUTOR_VARIABLE}{name}": "secret:env/{name}"' for name in lacking)
        raise OptionError(
            f"slots of master {master} would lack the secrets {', '.join(lacking)}",
            where=where,
            cause="the slots run on other machines, and do not inherit the driver's environment",
            remedy=f"{OTHER_FORMS}. Or let Spark pass them to its executors, over the cluster's network: set "
            f"spark_conf={{{settings}}}",
        )


def _value(name: str, place: str) -> str:
    field = connection_field(name, place)
    where = f"secrets[{name!r}], connection {field.conn_id}"
    try:
        connection = BaseHook.get_connection(field.conn_id)
    except AirflowNotFoundException as error:
        raise OptionError(
            f"there is no Airflow connection {field.conn_id!r}",
            where=where,
            remedy="Create the connection, or correct its id",
        ) from error
    found = connection.extra_dejson.get(field.key) if field.field == "extra" else getattr(connection, field.field)
    if found is None or found == "":
        what = f"key {field.key!r} in its extra" if field.field == "extra" else field.field
        raise OptionError(f"the Airflow connection has no {what}", where=where, remedy="Set it in the connection")
    # A JSON value, such as the key file of a service account.
    value = found if isinstance(found, str) else json.dumps(found)
    if "\0" in value:
        raise OptionError(
            "the secret contains a null byte, which an environment variable cannot hold",
            where=where,
            remedy="Store it in a file, and use secret:file/PATH",
        )
    mask_secret(value)
    return value
