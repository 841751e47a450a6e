"""Decides who may see a job and use its buttons: Airflow's auth manager decides, by the job's owner DAG."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.configuration import conf
from airflow.models import Connection
from fastapi import HTTPException, Request

Right = Literal["read", "operate", "control"]
"""The right that a route needs. read: see the job. operate: actions of a DAG run that end nothing: checkpoint,
savepoint, commit. control: actions that end or change the job: stop, drain, cancel, restore, reject."""

_OF_DAG: dict[Right, tuple[Any, DagAccessEntity | None]] = {
    "read": ("GET", None),
    "operate": ("POST", DagAccessEntity.RUN),
    "control": ("PUT", None),
}


NO_DAG = (None, "", "~")
"""Owners that name no DAG. In a request, Airflow reads the last two as "no DAG" and "all DAGs"."""


@dataclass(frozen=True, slots=True)
class Owned:
    """Facts that decide about the rights on a job.

    Attributes:
        conn_id: the job's connection.
        owner_dag: from its newest submission; None: no DAG owns it.
    """

    conn_id: str
    owner_dag: str | None


def may(right: Right, job: Owned, request: Request, user: GetUserDep) -> bool:
    """Return whether the auth manager allows `user` this right.

    A job without owner DAG needs the right to change its connection: such users could change the job root anyway. With
    Airflow's own roles these are Op and Admin.
    """
    if job.owner_dag in NO_DAG:
        team = getattr(Connection, "get_team_name", lambda _: None)(job.conn_id)
        details = ConnectionDetails(conn_id=job.conn_id, **({"team_name": team} if team else {}))
        return bool(get_auth_manager().is_authorized_connection(method="PUT", details=details, user=user))
    method, entity = _OF_DAG[right]
    try:
        requires_access_dag(method, entity, job.owner_dag)(request, user)
    except HTTPException as refused:
        if refused.status_code != 403:
            raise
        return False
    return True


def readable(jobs: Collection[Owned], request: Request, user: GetUserDep) -> frozenset[Owned]:
    """Return the `jobs` that `user` may see: one request for all DAGs that Airflow knows, one for each other owner."""
    if not jobs:
        return frozenset()
    known = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    return frozenset(job for job in set(jobs) if job.owner_dag in known or may("read", job, request, user))


def name_of(user: GetUserDep) -> str:
    """Return the user's name for commands, submissions and the decision log."""
    return f"airflow-ui:{user.get_name()}"


def require_own_origin(request: Request) -> None:
    """Refuse a request that another site may have made the browser send with the user's cookie.

    Only a request with its own token may omit its origin.
    """
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    foreign = site not in (None, "same-origin") or (origin is not None and not _is_own(origin, request))
    brings_token = request.headers.get("authorization", "").lower().startswith("bearer ")
    if foreign or (origin is None and site is None and not brings_token):
        raise HTTPException(
            403,
            "the request does not come from a page of this Airflow: open the page in Airflow, and repeat the action",
        )


def _is_own(origin: str, request: Request) -> bool:
    """Return whether the origin is the requested host, or, if there is a proxy, the host of Airflow's configured
    address."""
    asked = urlsplit(origin)
    configured = urlsplit(conf.get("api", "base_url", fallback="") or "")
    if asked.scheme not in ("http", "https"):
        return False
    return asked.netloc == request.headers.get("host") or (
        bool(configured.netloc) and (asked.scheme, asked.netloc) == (configured.scheme, configured.netloc)
    )
