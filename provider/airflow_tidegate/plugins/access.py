"""Who may see a job and who may press what: Airflow's auth manager decides, by the job's owner DAG."""

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
"""What a route asks for. read: see the job. operate: what a DAG run may do, and takes nothing away: checkpoint,
savepoint, commit. control: what ends or changes the job: stop, drain, cancel, restore, reject."""

_OF_DAG: dict[Right, tuple[Any, DagAccessEntity | None]] = {
    "read": ("GET", None),
    "operate": ("POST", DagAccessEntity.RUN),
    "control": ("PUT", None),
}


NO_DAG = (None, "", "~")
"""Owners that name no DAG. Where Airflow looks for a DAG's id in a request, the last two mean "none" and "all"."""


@dataclass(frozen=True, slots=True)
class Owned:
    """What decides about the rights on a job.

    Attributes:
        conn_id: the connection that the job lives under.
        owner_dag: as its newest submission says; None: no DAG owns it.
    """

    conn_id: str
    owner_dag: str | None


def may(right: Right, job: Owned, request: Request, user: GetUserDep) -> bool:
    """Whether the auth manager lets `user`. A job without owner DAG is for those who may change its connection: they
    could point that elsewhere anyhow. With Airflow's own roles these are Op and Admin."""
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
    """Those of `jobs` that `user` may see: one question for all DAGs that Airflow knows, one for each other owner."""
    if not jobs:
        return frozenset()
    known = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    return frozenset(job for job in set(jobs) if job.owner_dag in known or may("read", job, request, user))


def name_of(user: GetUserDep) -> str:
    """For commands, submissions and through them the decision log."""
    return f"airflow-ui:{user.get_name()}"


def require_own_origin(request: Request) -> None:
    """Refuse a request that another site may have made the browser send: its cookie would be the user's. Only a caller
    that brings its token itself may leave out where it comes from."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    foreign = site not in (None, "same-origin") or (origin is not None and not _is_own(origin, request))
    brings_token = request.headers.get("authorization", "").lower().startswith("bearer ")
    if foreign or (origin is None and site is None and not brings_token):
        raise HTTPException(403, "this request does not come from Airflow's own pages")


def _is_own(origin: str, request: Request) -> bool:
    """The host that was asked, or that of Airflow's configured address where a proxy stands in between."""
    asked = urlsplit(origin)
    configured = urlsplit(conf.get("api", "base_url", fallback="") or "")
    if asked.scheme not in ("http", "https"):
        return False
    return asked.netloc == request.headers.get("host") or (
        bool(configured.netloc) and (asked.scheme, asked.netloc) == (configured.scheme, configured.netloc)
    )
