"""The page without Airflow's database: its routes, Airflow's own way from a token to a user, and an auth manager that
allows what a test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jwt
import pytest
from airflow.api_fastapi.core_api import security
from airflow.models.dag import DagModel
from fastapi.testclient import TestClient

from airflow_tidegate.plugins import access
from airflow_tidegate.plugins.job_cache import JobCache
from airflow_tidegate.plugins.page_app import make_app

HOST = "http://airflow.example"
NONCE = "0123456789abcdef"


@dataclass(frozen=True)
class User:
    """One whose token is the name."""

    name: str

    def get_name(self) -> str:
        return self.name

    def get_id(self) -> str:
        return self.name


@dataclass
class StubAuth:
    """An auth manager with a table.

    Attributes:
        rights: name of the user -> what is allowed: ("GET", "d"), ("POST RUN", "d"), ("PUT", "connection c").
        known: DAGs that Airflow's database has.
        asked: every question.
    """

    rights: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    known: set[str] = field(default_factory=lambda: {"d"})
    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def get_user_from_token(self, token: str) -> User:
        if token not in self.rights:
            raise jwt.InvalidTokenError
        return User(token)

    def is_authorized_dag(self, *, method: str, user: User, access_entity: Any = None, details: Any = None) -> bool:
        what = method if access_entity is None else f"{method} {access_entity.value}"
        self.asked.append((user.name, what, details.id))
        return (what, details.id) in self.rights[user.name]

    def is_authorized_connection(self, *, method: str, user: User, details: Any) -> bool:
        self.asked.append((user.name, method, f"connection {details.conn_id}"))
        return (method, f"connection {details.conn_id}") in self.rights[user.name]

    def get_authorized_dag_ids(self, *, user: User, method: str) -> set[str]:
        self.asked.append((user.name, method, "all"))
        return {dag for dag in self.known if (method, dag) in self.rights[user.name]}


class Browser:
    """One who asks, as a page of Airflow's own does: with the cookie, and where the request comes from."""

    def __init__(self, client: TestClient, name: str | None) -> None:
        self._client, self._cookies = client, {} if name is None else {"_token": name}

    def get(self, path: str, **more: Any) -> Any:
        return self._send("GET", path, {}, **more)

    def post(self, path: str, body: Any = None, **headers: str | None) -> Any:
        """Headers that are None are left out."""
        given = {
            k.replace("_", "-"): v for k, v in {"Origin": HOST, "Sec_Fetch_Site": "same-origin", **headers}.items()
        }
        return self._send("POST", path, given, json={"nonce": NONCE, "spec": 1} if body is None else body)

    def _send(self, method: str, path: str, headers: dict[str, str | None], **more: Any) -> Any:
        cookie = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        kept = {name: value for name, value in {**headers, "Cookie": cookie or None}.items() if value is not None}
        return self._client.request(method, path, headers=kept, follow_redirects=False, **more)


@dataclass
class Page:
    """The page and its auth manager."""

    auth: StubAuth
    jobs: JobCache
    client: TestClient

    def user(self, name: str | None, *rights: tuple[str, str]) -> Browser:
        """One with these rights; None: nobody."""
        if name is not None:
            self.auth.rights[name] = set(rights)
        return Browser(self.client, name)

    def viewer(self) -> Browser:
        return self.user("vera", ("GET", "d"))

    def editor(self) -> Browser:
        return self.user("otto", ("GET", "d"), ("POST RUN", "d"), ("PUT", "d"))


def make_page(monkeypatch: pytest.MonkeyPatch, monotonic: Any) -> Page:
    """Jobs of `tidegate_default`, as the environment has it."""
    auth = StubAuth()
    for module in (security, access):
        monkeypatch.setattr(module, "get_auth_manager", lambda: auth)
    monkeypatch.setattr(DagModel, "get_team_name", staticmethod(lambda dag_id: None))
    monkeypatch.setattr(access.Connection, "get_team_name", staticmethod(lambda conn_id: None))
    jobs = JobCache(monotonic=monotonic)
    return Page(auth, jobs, TestClient(make_app(jobs), base_url=HOST))
