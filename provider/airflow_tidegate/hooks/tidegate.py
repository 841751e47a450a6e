"""The hook: an Airflow connection of type `tidegate` as a way to jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk import BaseHook

from tidegate.contract.client import JobClient
from tidegate.contract.errors import OptionError, TidegateError
from tidegate.contract.store import open_store

DEFAULT_CONN_ID = "tidegate_default"
DEFAULT_MASTER = "local[*]"


@dataclass(frozen=True)
class JobRoot:
    """Where jobs live and how their drivers are launched, as a connection says.

    Attributes:
        root: URL or path of the job root.
        storage_options: fsspec options; secrets as references, resolved where they are used.
        master: Spark master.
        spark_conf: Spark properties for every job of this connection.
        python: interpreter of the drivers; None: the launching process's own.
    """

    root: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    master: str = DEFAULT_MASTER
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None

    def client(self, job_id: str) -> JobClient:
        """A client of one job. Raises OptionError on a bad job id."""
        return JobClient(self.root, job_id, dict(self.storage_options))


class TidegateHook(BaseHook):
    """Reads a `tidegate` connection.

    The job root is the connection's host, or `root` in its extra. The extra may hold `storage_options` and
    `spark_conf` (objects, or JSON text), `master` and `python`. Values may be references `secret:env/NAME` or
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
        """The connection's content. Raises OptionError naming the field that is wrong."""
        connection = self.get_connection(self.tidegate_conn_id)
        where = f"connection {self.tidegate_conn_id}"
        extra = connection.extra_dejson
        root = extra.get("root") or connection.host
        if not root:
            raise OptionError(
                "the connection names no job root",
                where=where,
                remedy='put the URL or folder into "host", or into "root" of the extra',
            )
        return JobRoot(
            root=str(root),
            storage_options=_mapping(extra.get("storage_options"), "storage_options", where),
            master=str(extra.get("master") or DEFAULT_MASTER),
            spark_conf={k: str(v) for k, v in _mapping(extra.get("spark_conf"), "spark_conf", where).items()},
            python=str(extra["python"]) if extra.get("python") else None,
        )

    def get_client(self, job_id: str) -> JobClient:
        """A client of job `job_id` under this connection's root. Raises OptionError on a bad id or connection."""
        return self.get_conn().client(job_id)

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's Test button: probe what the job directory needs of its store - exclusive creation, reading back,
        replacing, listing, deleting - with an object that is removed again."""
        try:
            job_root = self.get_conn()
            open_store(job_root.root, dict(job_root.storage_options)).probe()
        except TidegateError as error:
            return False, str(error)
        return True, f"the job root {job_root.root} holds what a job directory needs"


def _mapping(value: Any, name: str, where: str) -> dict[str, Any]:
    """`value` as a mapping; JSON text is read."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise OptionError(
                f"{name} is not JSON", where=where, cause=str(error), remedy='write an object such as {"key": "value"}'
            ) from None
    if not isinstance(value, Mapping):
        raise OptionError(
            f"{name} must be a JSON object", where=where, remedy='write an object such as {"key": "value"}'
        )
    return {str(k): v for k, v in value.items()}
