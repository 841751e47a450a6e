"""S9.4: commands are found, taken and answered once, also when the store stumbles or another driver reigns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidegate.contract.errors import StoreError
from tidegate.contract.layout import JobLayout
from tidegate.contract.records import Command, CommandResult, Spec, decode, encode
from tidegate.contract.store import Store, open_store
from tidegate.coordinator.events import Answer, Request
from tidegate.spark.commands import CommandDesk
from tidegate.spark.supervision import Supervision

_roots = itertools.count()
LAYOUT = JobLayout("job")
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


class Rig:
    def __init__(self) -> None:
        self.store = open_store(f"memory://command-desk-{next(_roots)}")
        self.desks: list[CommandDesk] = []

    def send(self, command_id: str, spec: int = 1, expires_at: str = "2999-01-01T00:00:00+00:00") -> None:
        command = Command(command_id, "savepoint", {}, spec, NOW, expires_at, "test")
        self.store.create(LAYOUT.command(command_id), encode(command))
        self.store.replace(LAYOUT.bell, command_id.encode())

    def desk(self, store: Any = None) -> CommandDesk:
        spec = Spec("job", 1, "s", "m:f", "", {}, {}, "local", {}, {}, None, "l", None, NOW, "test")
        desk = CommandDesk(store or self.store, LAYOUT, spec, 1, lambda: NOW, time.time)
        self.desks.append(desk)
        return desk

    def result(self, command_id: str) -> CommandResult | None:
        path = LAYOUT.result(command_id)
        return decode(self.store.read(path), CommandResult) if self.store.exists(path) else None


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    for desk in rig.desks:
        desk.close()


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("not in time")


@pytest.mark.parametrize(("what", "where"), [("read", "c1.json"), ("exists", "withdrawn")])
def test_a_command_is_found_although_the_store_stumbled(rig: Rig, what: str, where: str) -> None:
    rig.send("c1")
    desk = rig.desk(Stumbling(rig.store, what, where))
    assert [c.command_id for c in wait_for(desk.take)] == ["c1"]


def test_an_answer_that_the_store_did_not_take_is_written_later(rig: Rig) -> None:
    rig.send("c1")
    desk = rig.desk(Stumbling(rig.store, "create", "c1.result"))
    wait_for(desk.take)
    desk.answer(Answer("c1", True, "completed", "done"))
    assert rig.result("c1") is None
    desk.take()
    assert wait_for(lambda: rig.result("c1")).ok


def test_a_fenced_driver_answers_nothing_when_it_ends(rig: Rig) -> None:
    rig.send("c1")
    desk = rig.desk()
    wait_for(desk.take)
    desk.abandon()
    desk.close()
    assert rig.result("c1") is None


def test_a_command_for_a_newer_submission_is_left_to_its_driver(rig: Rig) -> None:
    desk = rig.desk()
    rig.send("newer", spec=2)
    rig.send("older", spec=0)
    rig.send("odd", expires_at="soon")
    wait_for(lambda: desk.take() or (rig.result("older") and rig.result("odd")))
    desk.close()
    assert rig.result("newer") is None
    assert [(r.code if (r := rig.result(c)) else None) for c in ("older", "odd")] == ["superseded", "invalid_command"]


class FakeAttempt:
    """Keeps what was posted, and hands it to a run when told."""

    def __init__(self) -> None:
        self.calls: list[Callable[[Any], None]] = []

    def post(self, call: Callable[[Any], None]) -> None:
        self.calls.append(call)


class FakeRun:
    def __init__(self, outcome: object = None) -> None:
        self.outcome = outcome
        self.events: list[Any] = []
        self.failures: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    def fail(self, failure: Any) -> None:
        self.failures.append(failure)


def supervision() -> Any:
    """Only the part that hands requests to runs."""
    import threading

    found: Any = object.__new__(Supervision)
    found._lock, found._carried, found._attempt, found._cancel = threading.Lock(), [], None, None
    return found


def test_a_request_that_a_dying_run_did_not_take_goes_to_the_next() -> None:
    watched = supervision()
    watched._attempt = FakeAttempt()
    request = Request("savepoint", request_id="sp")
    watched._post(request)
    for call in watched._attempt.calls:
        call(FakeRun(outcome="failed"))
    assert watched._carried == [request]
    run = FakeRun()
    for call in watched._attempt.calls:
        call(run)
    assert watched._carried == [] and [event.request for event in run.events] == [request]


def test_a_cancel_that_came_between_two_runs_reaches_the_next() -> None:
    watched = supervision()
    watched._stop_commands = {}
    watched._on_command(Command("c", "cancel", {}, 1, NOW, NOW, "test"))
    watched._attempt = FakeAttempt()
    watched._look_for_cancel()
    run = FakeRun()
    watched._attempt.calls[0](run)
    assert "cancelled by test" in run.failures[0].message
