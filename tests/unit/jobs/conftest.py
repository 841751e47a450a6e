"""A client, a submission and a scripted driver for the tests of the contract."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from scripted_contract import FakeTime, ScriptedDriver

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import Spec


@pytest.fixture
def clock() -> FakeTime:
    return FakeTime()


@pytest.fixture
def root() -> str:
    return f"memory://{secrets.token_hex(8)}"


@pytest.fixture
def client(root: str, clock: FakeTime) -> JobClient:
    return JobClient(root, "flights", now=clock.now, sleep=clock.sleep, monotonic=clock.monotonic)


@pytest.fixture
def pipeline(tmp_path: Path) -> str:
    (tmp_path / "flights.py").write_text("def build(args): ...\n")
    return f"{tmp_path}/flights.py:build"


@pytest.fixture
def spec(client: JobClient, pipeline: str) -> Spec:
    """The first submission."""
    return client.submit(pipeline=pipeline, options={"parallelism": 2}, arguments={"speed": 1})


@pytest.fixture
def driver(client: JobClient, spec: Spec) -> ScriptedDriver:
    """A running driver of the first submission, which does not beat by itself."""
    scripted = ScriptedDriver(client, spec)
    scripted.status("RUNNING")
    scripted.beat()
    return scripted
