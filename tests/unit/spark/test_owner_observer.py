"""The driver's look at its job's owner: what it reads, and the command that comes of it."""

from __future__ import annotations

import secrets
from datetime import timedelta
from pathlib import Path

import pytest

from tidegate.errors import StoreError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Command, CommandResult, Spec, encode
from tidegate.spark.driver_loop.owner_observer import OwnerObserver

TIMEOUT_MS = 60_000


class Observed:
    """An observer with a clock that the test moves."""

    def __init__(self, client: JobClient, spec: Spec, on_owner_lost: str) -> None:
        options = JobOptions.from_mapping({"on_owner_lost": on_owner_lost, "owner_timeout": "1 min"})
        self.now_ms, self.client = 0, client
        self.observer = OwnerObserver(client, spec.number, options, lambda: self.now_ms)

    def look(self, after_ms: int = 0) -> list[Command]:
        """Commands that wait after a look."""
        self.now_ms += after_ms
        self.observer.poll()
        layout, store = self.client.layout, self.client.store
        found = [self.client.command(i) for i in layout.unanswered(store.list(layout.commands))]
        return [command for command in found if command is not None]


@pytest.fixture
def client() -> JobClient:
    return JobClient(f"memory://{secrets.token_hex(8)}", "flights")


@pytest.fixture
def spec(client: JobClient, tmp_path: Path) -> Spec:
    (tmp_path / "flights.py").write_text("def build(args): ...\n")
    return client.submit(pipeline=f"{tmp_path}/flights.py:build")


@pytest.mark.parametrize(("policy", "verb"), [("savepoint_then_stop", "stop"), ("cancel", "cancel")])
def test_a_silent_owner_gives_one_command_that_says_why(client: JobClient, spec: Spec, policy: str, verb: str) -> None:
    """S9.4."""
    observed = Observed(client, spec, policy)
    client.renew_owner(1, "airflow:dag.task")
    assert observed.look() == []
    client.renew_owner(1, "airflow:dag.task")
    assert observed.look(TIMEOUT_MS) == []
    assert observed.look(TIMEOUT_MS - 1) == []
    (command,) = observed.look(1)
    assert (command.verb, command.spec) == (verb, 1)
    assert (
        command.issued_by
        == f"on_owner_lost={policy}: the Airflow run that owns the job has shown no sign of life for 1 min"
    )
    assert observed.look(1) == [command]


def test_the_next_driver_asks_anew_where_the_one_before_had_its_answers(client: JobClient, spec: Spec) -> None:
    """S9.4: an answered command is never executed again, so the same one would end nothing."""
    before = Observed(client, spec, "savepoint_then_stop")
    client.renew_owner(1, "airflow:dag.task")
    before.look()
    for _ in range(3):
        (command,) = before.look(TIMEOUT_MS)
        answer = CommandResult(command.command_id, False, "savepoint_failed_job_continues", "full", {}, 1, "now")
        client.store.create(client.layout.result(command.command_id), encode(answer))
    after = Observed(client, spec, "savepoint_then_stop")
    assert after.look() == []
    (command,) = after.look(TIMEOUT_MS)
    assert client.result(command.command_id) is None


def test_an_owner_of_an_earlier_submission_or_none_is_not_waited_for(client: JobClient, spec: Spec) -> None:
    observed = Observed(client, spec, "cancel")
    assert observed.look() == [] == observed.look(TIMEOUT_MS)
    client.renew_owner(7, "airflow:dag.task")
    assert observed.look() == [] == observed.look(TIMEOUT_MS)


def test_a_store_that_is_away_and_a_record_that_is_none_count_for_nothing(
    client: JobClient, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = Observed(client, spec, "cancel")
    client.renew_owner(1, "airflow:dag.task")
    observed.look()
    with monkeypatch.context() as away:

        def read(path: str) -> bytes:
            raise StoreError("away", where=path)

        away.setattr(client.store, "read", read)
        observed.look(TIMEOUT_MS)
    assert observed.look() == [] == observed.look(TIMEOUT_MS - 1)
    client.store.replace(client.layout.owner, b"?")
    assert observed.look(TIMEOUT_MS) == []


def test_a_command_that_cannot_be_sent_ends_nothing(
    client: JobClient, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = Observed(client, spec, "cancel")
    client.renew_owner(1, "airflow:dag.task")
    observed.look()
    with monkeypatch.context() as away:

        def create(path: str, data: bytes) -> None:
            raise StoreError("away", where=path)

        away.setattr(client.store, "create", create)
        assert observed.look(TIMEOUT_MS) == []
    assert len(observed.look(TIMEOUT_MS)) == 1


@pytest.mark.parametrize(("timeout", "pause_s"), [("1 s", 0.25), ("10 s", 1.0), ("1 h", 30.0)])
def test_the_owner_is_looked_at_some_ten_times_within_its_time(
    client: JobClient, spec: Spec, timeout: str, pause_s: float
) -> None:
    options = JobOptions.from_mapping({"on_owner_lost": "cancel", "owner_timeout": timeout})
    assert OwnerObserver(client, 1, options).pause_s == pause_s


def test_it_looks_from_a_thread_of_its_own_and_not_at_all_where_nothing_would_come_of_it(
    client: JobClient, spec: Spec
) -> None:
    for policy, alive in (("cancel", True), ("keep_running", False)):
        observer = OwnerObserver(client, 1, JobOptions.from_mapping({"on_owner_lost": policy}))
        with observer:
            assert observer._thread.is_alive() is alive
        assert not observer._thread.is_alive()


def test_the_option_needs_a_savepoint_to_take() -> None:
    with pytest.raises(Exception, match="savepoint_then_stop' needs a savepoint, but checkpoint_mode is 'off'"):
        JobOptions.from_mapping({"on_owner_lost": "savepoint_then_stop", "checkpoint_mode": "off"})
    assert JobOptions().owner_timeout == timedelta(minutes=10)
