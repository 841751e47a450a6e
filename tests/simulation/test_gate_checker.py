"""The checker of the commit gate sees what it looks for (S7.8)."""

from __future__ import annotations

import pytest
from builders.jobs import submission
from simulator.gate_checker import GateChecker

from tidegate.connectors.transactions import TransactionId
from tidegate.jobs.records import Decision, RestoreFrom, Spec


def spec(number: int, restore: RestoreFrom | None = None) -> Spec:
    return submission(number, restore=restore)


class Story:
    """A log that grows, and what the checker has against it."""

    def __init__(self, *specs: Spec) -> None:
        self.violations: list[str] = []
        self.gate = GateChecker(self._demand, specs or (spec(1),))
        self._number = 0
        self.add("fence", spec=1)

    def _demand(self, checker: str, holds: bool, what: str) -> None:
        if not holds:
            self.violations.append(f"{checker}: {what}")

    def add(self, decided: str, **data: object) -> Story:
        self._number += 1
        self.gate.decided(Decision(self._number, decided, 1, "run", "t", "n", data))  # type: ignore[arg-type]
        return self

    def complete(self, n: int, parent: int | None = None, kind: str = "checkpoint") -> Story:
        origin = f"chk-{parent}" if parent is not None else None
        return self.add("complete", checkpoint_id=n, kind=kind, path=f"chk-{n}", parent=origin)

    def publish(self, n: int, run: str = "run") -> list[str]:
        self.gate.published("t", TransactionId("job", "l", "sink", 0, n, 1, run, 1))
        return self.violations


def test_what_is_published_without_an_approval_is_seen() -> None:
    story = Story().complete(1).complete(2, 1).add("approve", checkpoint_id=1)
    assert story.publish(1) == []
    assert story.publish(2)[0].startswith("nothing unapproved: ")
    assert Story().complete(1).add("approve", checkpoint_id=1).publish(1, "another run") != []


@pytest.mark.parametrize("n", [3, 4])
def test_an_approval_of_what_is_rejected_is_seen_and_of_what_came_from_it(n: int) -> None:
    story = Story().complete(2).complete(3, 2).complete(4, 3).add("reject", checkpoint_id=3)
    assert story.add("approve", checkpoint_id=2).violations == []
    assert story.add("approve", checkpoint_id=n).violations[0].startswith("rejected: ")


def test_a_job_that_goes_on_from_what_is_rejected_is_seen() -> None:
    story = Story().complete(1).complete(2, 1).add("reject", checkpoint_id=2)
    assert story.complete(3, 1).violations == []
    assert story.complete(4, 2).violations[0].startswith("rejected: ")


@pytest.mark.parametrize("decided", ["approve", "reject"])
def test_a_verdict_on_what_is_no_completed_checkpoint_is_seen(decided: str) -> None:
    assert Story().add(decided, checkpoint_id=7).violations[0].startswith("verdicts: ")


def test_a_rejection_of_what_is_approved_is_seen() -> None:
    story = Story().complete(1).complete(2, 1).add("approve", checkpoint_id=2)
    assert story.add("reject", checkpoint_id=1).violations[0].startswith("verdicts: ")


def test_a_commit_of_what_is_not_approved_is_seen() -> None:
    assert Story().complete(1).add("committed", checkpoint_id=1).violations[0].startswith("verdicts: ")


def test_what_waits_is_pinned_and_what_a_rejection_goes_back_to() -> None:
    """S2.3."""
    story = Story().complete(1).complete(2, 1).complete(3, 2).complete(4, 3)
    story.add("approve", checkpoint_id=2)
    assert story.gate.waiting == [3, 4] and story.gate.pinned() == {"chk-2", "chk-3", "chk-4"}
    story.add("reject", checkpoint_id=4)
    assert story.gate.pinned() == {"chk-2", "chk-3"}


def test_what_a_fresh_start_left_behind_waits_for_nothing() -> None:
    story = Story(spec(1), spec(2)).complete(1).add("fence", spec=2)
    assert story.gate.waiting == []


def to_quarantine(story: Story, *rejected: int) -> Story:
    return story.add("reject", checkpoint_id=rejected[0], then="quarantine", rejected=list(rejected))


def test_what_is_published_from_quarantine_is_seen_and_what_goes_there_unasked() -> None:
    """What is in front of it is none of it, and what comes after is not."""
    story = to_quarantine(Story().complete(1).complete(2, 1).complete(3, 2), 2, 3)
    assert story.gate.waiting == [1] and story.violations == []
    story.complete(4, 3).add("approve", checkpoint_id=4)
    assert story.publish(1) == story.publish(4) == []
    made = {n: TransactionId("job", "l", "sink", 0, n, 1, "run", 1) for n in (1, 2, 3, 4)}
    story.gate.put_away("t", made[2])
    assert story.violations == []
    assert not story.gate.is_missing(made[2])
    story.add("committed", checkpoint_id=4)
    assert [n for n in made if story.gate.is_missing(made[n])] == [2, 3]
    story.gate.put_away("t", made[4])
    assert story.violations[0].startswith("quarantine: ")
    assert story.publish(3)[1].startswith("quarantine: ")


def test_a_quarantine_that_leaves_something_behind_is_seen() -> None:
    story = Story().complete(1).complete(2, 1).complete(3, 2)
    assert to_quarantine(story, 2).violations[0].startswith("verdicts: ")
