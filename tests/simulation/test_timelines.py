"""The checker of ways back sees what it looks for (S9.3)."""

from __future__ import annotations

from typing import Any

from builders.jobs import submission
from simulator.timelines import Timelines

from tidegate.jobs.records import Decision, RestoreFrom, Spec


def spec(number: int, restore: RestoreFrom | None = None) -> Spec:
    return submission(number, restore=restore)


class Story:
    """A log that grows, and what the checker has against it."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        back = RestoreFrom("checkpoint", "chk-1", 1, on_committed_after="rewind")
        self.timelines = Timelines(self._demand, (spec(1), spec(2, back)))
        self._number = 0
        self.add("fence", spec=1).complete(1).complete(2, 1).add("fence", spec=2)

    def _demand(self, checker: str, holds: bool, what: str) -> None:
        if not holds:
            self.violations.append(f"{checker}: {what}")

    def add(self, decided: Any, **data: object) -> Story:
        self._number += 1
        self.timelines.decided(Decision(self._number, decided, 1, "run", "t", "n", data))
        return self

    def complete(self, n: int, parent: int | None = None) -> Story:
        origin = f"chk-{parent}" if parent is not None else None
        self.add("claim", checkpoint_id=n)
        return self.add("complete", checkpoint_id=n, kind="checkpoint", path=f"chk-{n}", parent=origin)


def transaction(n: int) -> str:
    return f"job,l,out,0,{n},1,run,1"


def test_a_job_that_goes_on_from_what_was_taken_back_is_seen() -> None:
    story = Story().add("rewind", checkpoint_id=1)
    assert story.complete(3, 1).violations == []
    assert story.complete(4, 2).violations[0].startswith("timelines: 4 completed, which came from {2}")


def test_rows_that_are_taken_back_before_it_is_decided_or_from_in_front_of_the_snapshot_are_seen() -> None:
    story = Story()
    story.timelines.taken_back(transaction(2))
    assert story.violations[0].startswith("taken back once: ")
    story = Story().add("rewind", checkpoint_id=1)
    story.timelines.taken_back(transaction(2))
    assert story.violations == []
    story.timelines.taken_back(transaction(1))
    assert story.violations[0].startswith("taken back once: ")


def test_rows_that_come_back_after_they_were_taken_back_are_seen() -> None:
    story = Story().add("rewind", checkpoint_id=1)
    story.timelines.taken_back(transaction(2))
    story.timelines.published(transaction(2))
    assert story.violations[0].startswith("taken back once: ")


def test_what_a_submission_went_back_past_is_no_place_to_go_to() -> None:
    story = Story()
    assert [entry.data["checkpoint_id"] for entry in story.timelines.reachable] == [1]
