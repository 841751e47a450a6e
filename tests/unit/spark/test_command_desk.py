"""S9.4: commands are found, taken and answered once, also when the store stumbles or another driver generation_logs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from builders.jobs import submission

from tidegate.coordinator.events import CommandAnswer
from tidegate.coordinator.supervision.supervision_events import AnswerAllOpen
from tidegate.errors import StoreError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Command, CommandResult, Withdrawn, decode, encode
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.spark.driver_loop import command_poller
from tidegate.spark.driver_loop.command_desk import CommandDesk

_roots = itertools.count()
LAYOUT = JobLayout("job")
PATIENCE_S = 60
"""For what another thread does at once; only a defect makes a test wait so long."""
NOW = "2026-01-01T00:00:00+00:00"


class Stumbling:
    """A store whose method `what` fails for paths that contain `where`, once."""

    def __init__(self, store: Store, what: str, where: str) -> None:
        self._store, self._what, self._where, self.left = store, what, where, 1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._what:
            return found

        def call(path: str, *rest: Any) -> Any:
            if self.left and self._where in path:
                self.left -= 1
                raise StoreError("away")
            return found(path, *rest)

        return call


class Stale:
    """A store that lists what it listed before, the first time."""

    def __init__(self, store: Store, listing: Sequence[str]) -> None:
        self._store, self._listings = store, [listing]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, folder: str) -> Any:
        return self._listings.pop() if self._listings else self._store.list(folder)


class DeskHarness:
    def __init__(self) -> None:
        self.store = open_store(f"memory://command-desk-{next(_roots)}")
        self.desks: list[CommandDesk] = []

    def send(
        self,
        command_id: str,
        spec: int = 1,
        expires_at: str = "2999-01-01T00:00:00+00:00",
        issued_at: str = NOW,
        verb: Any = "savepoint",
        ring: bool = True,
    ) -> None:
        command = Command(command_id, verb, {}, spec, issued_at, expires_at, "test")
        self.store.create(LAYOUT.command(command_id), encode(command))
        if ring:
            self.store.replace(LAYOUT.bell, command_id.encode())

    def desk(self, store: Any = None, now_s: Callable[[], float] = time.time) -> CommandDesk:
        spec = submission()
        desk = CommandDesk(store or self.store, LAYOUT, spec, 1, lambda: NOW, now_s)
        self.desks.append(desk)
        return desk

    def result(self, command_id: str) -> CommandResult | None:
        path = LAYOUT.result(command_id)
        return decode(self.store.read(path), CommandResult) if self.store.exists(path) else None


@pytest.fixture
def harness() -> Iterator[DeskHarness]:
    harness = DeskHarness()
    yield harness
    for desk in harness.desks:
        desk.close()


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("not in time")


@pytest.mark.parametrize(("what", "where"), [("read_range", "c1.json"), ("exists", "withdrawn")])
def test_a_command_is_found_although_the_store_stumbled(harness: DeskHarness, what: str, where: str) -> None:
    """S9.4."""
    harness.send("c1")
    desk = harness.desk(Stumbling(harness.store, what, where))
    assert [c.command_id for c in wait_for(desk.take)] == ["c1"]


@pytest.mark.parametrize("data", [b"", b"no json", b"{}", b'{"record": "command", "v": 99}', b"of another id"])
def test_a_command_that_cannot_be_read_is_answered_and_keeps_no_other_waiting(
    harness: DeskHarness, data: bytes
) -> None:
    """S9.4: its sender waits for an answer."""
    if data == b"of another id":
        data = encode(Command("c9", "savepoint", {}, 1, NOW, "2999-01-01T00:00:00+00:00", "test"))
    harness.store.create(LAYOUT.command("c1"), data)
    harness.store.create(f"{LAYOUT.commands}/no id.json", data)
    harness.send("c2")
    desk = harness.desk(Stumbling(harness.store, "create", "c1.result"))
    assert [c.command_id for c in wait_for(desk.take)] == ["c2"]
    result = wait_for(lambda: desk.take() or harness.result("c1"))
    assert (result.ok, result.code) == (False, "invalid_command")
    assert "c1.json" in result.message
    desk.answer_all(AnswerAllOpen(CommandAnswer("", False, "job_ended", "over")))
    assert [n for n in harness.store.list(LAYOUT.commands) if "result" in n] == ["c1.result.json", "c2.result.json"]


def test_a_command_for_a_newer_submission_that_this_driver_cannot_read_is_left_to_the_newer_driver(
    harness: DeskHarness,
) -> None:
    """S9.2, S9.4."""
    harness.store.create(LAYOUT.command("c1"), b'{"record": "command", "v": 99, "spec": 2}')
    harness.send("c2")
    desk = harness.desk()
    assert [c.command_id for c in wait_for(desk.take)] == ["c2"]
    desk.close()
    assert harness.result("c1") is None


def test_a_fenced_driver_answers_no_command_that_it_cannot_read(harness: DeskHarness) -> None:
    """S9.2, S9.4: the newer one may be able to."""
    desk = harness.desk()
    desk.abandon()
    harness.store.create(LAYOUT.command("c1"), b"")
    desk.close()
    assert harness.result("c1") is None


def test_an_answer_that_the_store_did_not_take_is_written_later(harness: DeskHarness) -> None:
    harness.send("c1")
    desk = harness.desk(Stumbling(harness.store, "create", "c1.result"))
    wait_for(desk.take)
    desk.answer(CommandAnswer("c1", True, "completed", "done"))
    assert harness.result("c1") is None
    desk.take()
    assert wait_for(lambda: harness.result("c1")).ok


def test_a_fenced_driver_answers_nothing_when_it_ends(harness: DeskHarness) -> None:
    """S9.2, S9.4."""
    harness.send("c1")
    desk = harness.desk()
    wait_for(desk.take)
    desk.abandon()
    desk.close()
    assert harness.result("c1") is None


def test_a_command_for_a_newer_submission_is_left_to_its_driver(harness: DeskHarness) -> None:
    """S9.4."""
    desk = harness.desk()
    harness.send("newer", spec=2)
    harness.send("older", spec=0)
    harness.send("odd", expires_at="soon")
    wait_for(lambda: desk.take() or (harness.result("older") and harness.result("odd")))
    desk.close()
    assert harness.result("newer") is None
    assert [(r.code if (r := harness.result(c)) else None) for c in ("older", "odd")] == [
        "superseded",
        "invalid_command",
    ]


def test_a_command_withdrawn_before_a_run_could_take_it_is_not_wanted_and_gets_no_result(harness: DeskHarness) -> None:
    """S9.4."""
    harness.send("c1")
    desk = harness.desk()
    wait_for(desk.take)
    assert desk.is_wanted("c1")
    harness.store.create(LAYOUT.withdrawn("c1"), encode(Withdrawn("c1", NOW, "test")))
    assert not desk.is_wanted("c1")
    desk.close()
    assert harness.result("c1") is None


def test_a_command_that_expired_before_a_run_could_take_it_is_answered_so(harness: DeskHarness) -> None:
    """S9.4."""
    harness.send("c1", expires_at="2030-01-01T00:00:00+00:00")
    clock = iter([1.8e9, 2e9])
    desk = harness.desk(now_s=lambda: next(clock))
    wait_for(desk.take)
    assert not desk.is_wanted("c1")
    result = harness.result("c1")
    assert result is not None and result.code == "expired"


def test_a_command_that_a_run_has_had_does_not_expire_before_the_next_has_it(harness: DeskHarness) -> None:
    """S7.7, S9.4: the second try of a stop that took long."""
    harness.send("c1", expires_at="2030-01-01T00:00:00+00:00")
    clock = iter([1.8e9, 2e9])
    desk = harness.desk(now_s=lambda: next(clock))
    wait_for(desk.take)
    assert desk.is_wanted("c1", begun=True) and harness.result("c1") is None


def test_a_command_answered_by_another_driver_is_not_carried_out(harness: DeskHarness) -> None:
    """S9.4: though the listing that found it was stale."""
    harness.send("c1")
    harness.send("c2")
    unanswered = harness.store.list(LAYOUT.commands)
    harness.store.create(LAYOUT.result("c1"), encode(CommandResult("c1", True, "completed", "done", {}, 7, NOW)))
    desk = harness.desk(Stale(harness.store, unanswered))
    assert [c.command_id for c in wait_for(desk.take)] == ["c2"]
    desk.close()
    result = harness.result("c1")
    assert result is not None and result.generation == 7


def test_a_command_whose_client_died_before_it_rang_is_found(
    harness: DeskHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.4."""
    monkeypatch.setattr(command_poller, "POLLS_PER_LISTING", 2)
    monkeypatch.setattr(command_poller, "POLL_S", 0.01)
    desk = harness.desk()
    harness.send("c1")
    assert [c.command_id for c in wait_for(desk.take)] == ["c1"]
    harness.send("c2", ring=False)
    assert [c.command_id for c in wait_for(desk.take)] == ["c2"]


def test_commands_that_come_together_are_taken_as_they_were_issued(harness: DeskHarness) -> None:
    harness.send("savepoint-1", issued_at="2026-01-01T00:00:01.000Z")
    harness.send("cancel-1", issued_at="2026-01-01T00:00:02.000Z")
    assert [c.command_id for c in wait_for(harness.desk().take)] == ["savepoint-1", "cancel-1"]


def test_a_command_under_anothers_name_is_not_taken(harness: DeskHarness) -> None:
    harness.store.create(LAYOUT.command("mine"), encode(Command("other", "cancel", {}, 1, NOW, NOW, "test")))
    harness.send("c1")
    assert [c.command_id for c in wait_for(harness.desk().take)] == ["c1"]


def test_commands_that_come_after_the_jobs_end_are_answered_as_those_before_it(harness: DeskHarness) -> None:
    """S9.4."""
    desk = harness.desk()
    farewell = AnswerAllOpen(
        CommandAnswer("", False, "job_ended", "over"), {"cancel": CommandAnswer("", True, "canceled", "done")}
    )
    harness.send("c1", verb="cancel")
    wait_for(desk.take)
    desk.answer_all(farewell)
    harness.send("c2", verb="cancel")
    harness.send("c3")
    wait_for(lambda: len(desk.take()) or None)
    desk.close()
    assert [r.code for c in ("c1", "c2") if (r := harness.result(c))] == ["canceled", "canceled"]
