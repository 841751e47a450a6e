"""When a job's owner is lost, and what the job does by itself."""

from __future__ import annotations

import pytest

from tidegate.coordinator.supervision.owner_watch import OwnerRead, OwnerUnreadable, OwnerWatch, SendEndCommand
from tidegate.jobs.options import OnOwnerLost

TIMEOUT_MS = 600


class Watched:
    """An owner watch and its clock."""

    def __init__(self, policy: OnOwnerLost, spec: int = 1) -> None:
        self.watch, self.now_ms = OwnerWatch(spec, policy, TIMEOUT_MS), 1_000

    def look(self, mark: str | None, after_ms: int = 100) -> SendEndCommand | None:
        self.now_ms += after_ms
        return self.watch.handle(OwnerRead(mark), self.now_ms)

    def fail_to_look(self, after_ms: int = 100) -> SendEndCommand | None:
        self.now_ms += after_ms
        return self.watch.handle(OwnerUnreadable(), self.now_ms)


def silent(watched: Watched, mark: str, looks: int) -> list[SendEndCommand]:
    """What so many looks at one mark, 100 ms apart, lead to."""
    return [asked for _ in range(looks) if (asked := watched.look(mark)) is not None]


def test_an_owner_that_is_silent_for_its_time_is_lost_and_the_job_stops_by_command() -> None:
    """S9.4: as if somebody had sent it."""
    watched = Watched("savepoint_then_stop")
    assert silent(watched, "a", 6) == []
    asked = watched.look("a")
    assert asked is not None
    assert (asked.verb, asked.arguments, asked.attempt) == ("stop", {"mode": "suspend"}, 1)


def test_an_owner_that_is_lost_cancels_where_that_is_wanted() -> None:
    watched = Watched("cancel")
    (asked,) = silent(watched, "a", 7)
    assert (asked.verb, asked.arguments) == ("cancel", {})


def test_a_job_that_is_to_keep_running_does() -> None:
    assert silent(Watched("keep_running"), "a", 50) == []


def test_an_owner_that_renews_is_never_lost() -> None:
    watched = Watched("cancel")
    assert [watched.look(f"{n // 5}") for n in range(100)] == [None] * 100


def test_a_job_that_nobody_has_owned_yet_is_not_lost() -> None:
    watched = Watched("cancel")
    assert [watched.look(None) for _ in range(50)] == [None] * 50
    assert silent(watched, "a", 7) != []


def test_a_task_of_an_earlier_submission_that_still_writes_does_not_speak_for_the_owner() -> None:
    """It overwrites the last mark of the owner, who is silent all the same."""
    watched = Watched("cancel")
    watched.look("a")
    asked = [watched.look(None) for _ in range(7)]
    assert [a.verb for a in asked if a is not None] == ["cancel"]
    watched = Watched("cancel")
    assert [watched.look(f"{n // 5}" if n % 2 else None) for n in range(100)] == [None] * 100


def test_a_store_that_does_not_answer_is_no_silence_of_the_owner() -> None:
    watched = Watched("cancel")
    for _ in range(10):
        assert silent(watched, "a", 4) == []
        assert watched.fail_to_look() is None
    assert silent(watched, "a", 6) == []
    assert watched.look("a") is not None


def test_a_stop_is_asked_for_anew_after_as_long_again_until_the_owner_is_back() -> None:
    """Each under another id: the one before has its answer."""
    watched = Watched("savepoint_then_stop")
    asked = silent(watched, "a", 19)
    assert [a.attempt for a in asked] == [1, 2, 3]
    assert len({a.command_id for a in asked}) == 3
    assert silent(watched, "b", 6) == []
    (again,) = silent(watched, "b", 1)
    assert again.attempt == 1 and again.command_id not in {a.command_id for a in asked}


def test_two_drivers_that_see_the_same_silence_send_the_same_command() -> None:
    """S9.4: an id is executed once."""
    first, second = Watched("savepoint_then_stop"), Watched("savepoint_then_stop")
    assert silent(first, "a", 7) == silent(second, "a", 7)
    other = Watched("savepoint_then_stop", spec=2)
    assert silent(other, "a", 7) != silent(Watched("savepoint_then_stop"), "a", 7)


@pytest.mark.parametrize("policy", ["savepoint_then_stop", "cancel"])
def test_a_pause_of_the_driver_alone_is_no_silence_of_an_owner_that_renewed_meanwhile(policy: OnOwnerLost) -> None:
    watched = Watched(policy)
    watched.look("a")
    assert watched.look("b", after_ms=100_000) is None
