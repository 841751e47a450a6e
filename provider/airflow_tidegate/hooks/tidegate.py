"""TidegateHook: reads an Airflow connection of type `tidegate`, and gives access to its jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import BaseHook

from tidegate.errors import OptionError, TidegateError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch import launcher_registry
from tidegate.jobs.launch.launcher import LauncherSettings
from tidegate.jobs.launch.launcher_registry import BUILT_IN, check_launcher, check_launcher_kind
from tidegate.jobs.secrets import check_no_plain_secrets
from tidegate.jobs.stores.store_registry import open_store

DEFAULT_CONN_ID = "tidegate_default"
DEFAULT_MASTER = "local[*]"
DEFAULT_LAUNCHER = next(iter(BUILT_IN))


@dataclass(frozen=True)
class JobRoot:
    """The job root of a connection, and how its drivers are launched.

    Attributes:
        root: URL or path of the job root.
        storage_options: fsspec options; secrets as references, resolved where they are used.
        master: Spark master.
        spark_conf: Spark properties for every job of this connection.
        python: interpreter of the drivers; None: the interpreter of the launching process.
        launcher: kind of launcher: local, spark-submit, yarn, kubernetes, another package's launcher, or agent.
        spark_submit: path of spark-submit; None: found by SPARK_HOME and PATH.
        launcher_extra: values of the settings that launchers declare, such as `yarn` and `driver_script`, by name.
    """

    root: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    master: str = DEFAULT_MASTER
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    launcher: str = DEFAULT_LAUNCHER
    spark_submit: str | None = None
    launcher_extra: Mapping[str, str] = field(default_factory=dict)

    def launcher_settings(self) -> LauncherSettings:
        """Return the launcher settings of this connection."""
        return LauncherSettings(
            kind=self.launcher, python=self.python, spark_submit=self.spark_submit, extra=self.launcher_extra
        )

    def client(self, job_id: str) -> JobClient:
        """Return a client of one job. Raises OptionError for an invalid job id."""
        return JobClient(self.root, job_id, dict(self.storage_options))


class TidegateHook(BaseHook):
    """Reads a `tidegate` connection.

    The job root is the connection's host, or `root` in its extra. The extra may hold `storage_options` and
    `spark_conf` (objects, or JSON text), `master`, `launcher`, `python`, `spark_submit` and the settings of launchers,
    such as `yarn` and `driver_script` (`LauncherSetting`). Values may be references `secret:env/NAME` or
    `secret:file/PATH`.

    Args:
        tidegate_conn_id: the Airflow connection.
    """

    conn_name_attr = "tidegate_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "tidegate"
    hook_name = "tidegate"

    def __init__(self, tidegate_conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.tidegate_conn_id = tidegate_conn_id

    def get_conn(self) -> JobRoot:
        """Return the content of the connection. Raises OptionError that names an invalid field."""
        connection = self.get_connection(self.tidegate_conn_id)
        where = f"connection {self.tidegate_conn_id}"
        extra = connection.extra_dejson
        root = extra.get("root") or connection.host
        if not root:
            raise OptionError(
                "the Airflow connection has no job root",
                where=where,
                remedy='Set the URL or the folder of the job root in "host", or in "root" of the extra',
            )
        if _holds_password(str(root)):
            raise OptionError(
                "the job root in the Airflow connection contains a password",
                where=where,
                cause="the password would appear in logs, error messages and Airflow's table of triggers",
                remedy='Move the password to storage_options, as "secret:env/NAME" or "secret:file/PATH"',
            )
        storage_options = _mapping(extra.get("storage_options"), "storage_options", where)
        spark_conf = {k: str(v) for k, v in _mapping(extra.get("spark_conf"), "spark_conf", where).items()}
        # Plain secrets would appear in the job directory, on command lines and in Airflow's table of triggers.
        check_no_plain_secrets(storage_options, where=f"{where}, storage_options", storage=True)
        check_no_plain_secrets(spark_conf, where=f"{where}, spark_conf")
        launcher_extra = {
            setting.name: value
            for setting in launcher_registry.settings()
            if (value := _text(extra, setting.name)) is not None
        }
        check_no_plain_secrets(launcher_extra, where=where)
        return JobRoot(
            root=str(root),
            storage_options=storage_options,
            master=str(extra.get("master") or DEFAULT_MASTER),
            spark_conf=spark_conf,
            python=_text(extra, "python"),
            launcher=check_launcher_kind(_text(extra, "launcher") or DEFAULT_LAUNCHER, where),
            spark_submit=_text(extra, "spark_submit"),
            launcher_extra=launcher_extra,
        )

    def get_client(self, job_id: str) -> JobClient:
        """Return a client of job `job_id` under this connection's root. Raises OptionError for an invalid id or
        connection."""
        return self.get_conn().client(job_id)

    def test_connection(self) -> tuple[bool, str]:
        """Run the checks of Airflow's Test button, on the host that handles the request. Never raises.

        First it probes the operations that a job directory needs in its store (exclusive creation, reading back,
        replacing, listing, deleting) with an object that it deletes again. Then it checks what the launcher needs:
        interpreter, spark-submit, and a master that answers.
        """
        try:
            job_root = self.get_conn()
            open_store(job_root.root, dict(job_root.storage_options)).probe()
            checks = check_launcher(job_root.launcher_settings(), job_root.master, job_root.spark_conf)
        except TidegateError as error:
            return False, str(error)
        problems = [check.text for check in checks if not check.ok]
        if problems:
            return False, "; ".join([f"the job root {job_root.root} works", *problems])
        root = f"the job root {job_root.root} supports all operations of a job directory"
        return True, "; ".join([root, *(check.text for check in checks)])


def _holds_password(root: str) -> bool:
    """Return whether a URL contains a password. A user name alone does not count: `abfs://container@account` has
    one."""
    user, at, _ = urlsplit(root).netloc.rpartition("@")
    return bool(at) and ":" in user


def _text(extra: Mapping[str, Any], name: str) -> str | None:
    value = extra.get(name)
    return str(value) if value not in (None, "") else None


def _mapping(value: Any, name: str, where: str) -> dict[str, Any]:
    """Return `value` as a mapping; JSON text is parsed."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise OptionError(
                f"{name} is not JSON", where=where, cause=str(error), remedy='Write an object such as {"key": "value"}'
            ) from None
    if not isinstance(value, Mapping):
        raise OptionError(
            f"{name} must be a JSON object", where=where, remedy='Write an object such as {"key": "value"}'
        )
    return {str(k): v for k, v in value.items()}
