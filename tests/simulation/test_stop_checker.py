"""The checker of stops sees what it looks for (S7.7)."""

from __future__ import annotations

from typing import Any

import pytest
from simulator.stop_checker import StopChecker

from tidegate.jobs.records import Command, CommandResult, Decision
from tidegate.jobs.stop_outcomes import CANCELED_IN_STOP, SAVEPOINT_FAILED, SAVEPOINT_OK

STOP = Command("stop", "stop", {"mode": "drain"}, 1, "t", "t", "test")


class Story:
    """A log that grows, and what the checker has against it."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.decisions: list[Decision] = []
        self.completed: dict[int, Decision] = {}
        self.objects: set[str] = set()
        self.checker = StopChecker(self._demand, self.decisions, self.completed, self.objects)
        self.add("fence", spec=1, launch=1).add("status", status="RUNNING")

    def _demand(self, checker: str, holds: bool, what: str) -> None:
        if not holds:
            self.violations.append(f"{checker}: {what}")

    def add(self, decided: Any, **data: Any) -> Story:
        self.decisions.append(Decision(len(self.decisions) + 1, decided, 1, "run", "t", "n", data))
        return self

    def complete(self, n: int, kind: str = "checkpoint") -> Story:
        self.add("complete", checkpoint_id=n, kind=kind, path=f"chk-{n}")
        self.completed[n] = self.decisions[-1]
        self.objects.add(f"chk-{n}/_metadata")
        return self

    def answer(self, code: str, generation: int = 1, **data: Any) -> list[str]:
        self.checker.answered(STOP, CommandResult("stop", code == "committed", code, "", data, generation, "t"))
        return self.violations


def test_a_job_that_is_said_to_go_on_and_does_not_is_seen() -> None:
    assert Story().answer(SAVEPOINT_FAILED) == []
    assert Story().add("status", status="FAILED").answer(SAVEPOINT_FAILED)


def test_a_savepoint_that_is_said_to_have_failed_and_has_not_is_seen() -> None:
    assert Story().complete(3).answer(SAVEPOINT_FAILED) == []
    assert Story().complete(3, "stop-savepoint").answer(SAVEPOINT_FAILED)


def test_a_savepoint_that_is_said_to_be_complete_and_is_not_is_seen() -> None:
    assert Story().complete(3, "stop-savepoint").answer(SAVEPOINT_OK, checkpoint_id=3) == []
    assert Story().complete(3).answer(SAVEPOINT_OK, checkpoint_id=3)


def test_a_job_that_is_said_to_be_cancelled_and_is_not_is_seen() -> None:
    cancelled = Story().complete(3).add("status", status="CANCELED")
    assert cancelled.answer(CANCELED_IN_STOP, checkpoint_id=3, path="chk-3") == []
    assert Story().complete(3).answer(CANCELED_IN_STOP, checkpoint_id=3, path="chk-3")


@pytest.mark.parametrize(("n", "path"), [(4, "chk-4"), (3, "chk-4"), (None, None)])
def test_a_cancelled_job_whose_latest_checkpoint_is_another_is_seen(n: int | None, path: str | None) -> None:
    story = Story().complete(3).add("status", status="CANCELED")
    assert story.answer(CANCELED_IN_STOP, checkpoint_id=n, path=path)


def test_a_second_try_that_drained_is_seen() -> None:
    assert Story().answer("committed", asked_mode="drain", mode="suspend") == []
    assert Story().answer("committed", asked_mode="drain", mode="drain")


def test_what_a_fenced_driver_says_is_not_judged() -> None:
    assert Story().add("status", status="FAILED").answer(SAVEPOINT_FAILED, generation=0) == []
