"""S9.3, S2.3: what a run starts from, and what may be deleted."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.coordinator.checkpointing.retention import CompletedCheckpoint, find_retired
from tidegate.coordinator.recovery.restore_point import choose_restore_point
from tidegate.coordinator.recovery.rewind import completed_after
from tidegate.errors import SnapshotError
from tidegate.jobs.records import Decision, RestoreFrom, Spec


def spec(number: int, restore: RestoreFrom | None = None) -> Spec:
    return Spec("job", number, f"s{number}", "m:f", "", {}, {}, "local[1]", {}, {}, restore, "l", None, "t", "test")


class Log:
    def __init__(self) -> None:
        self.entries: list[Decision] = []

    def add(self, entry_kind: Any, /, **data: Any) -> Log:
        self.entries.append(Decision(len(self.entries) + 1, entry_kind, 1, "r", "2026-01-01T00:00:00Z", "n", data))
        return self

    def fence(self, number: int) -> Log:
        return self.add("fence", spec=number, launch=1)

    def complete(self, n: int, kind: str = "checkpoint", **more: Any) -> Log:
        path = f"job/chk-{n}"
        self.add("claim", checkpoint_id=n, kind=kind, triggered_at="2026-01-01T00:00:00Z", path=path)
        return self.add("complete", checkpoint_id=n, kind=kind, path=path, metrics={}, **more)


def test_a_fresh_submission_starts_fresh() -> None:
    assert choose_restore_point(Log().fence(1).entries, [spec(1)], 1) is None


def test_a_failed_run_restarts_from_the_newest_recovery_point_of_its_submission() -> None:
    """S9.1, S9.3."""
    log = Log().fence(1).complete(1).complete(2).complete(3, "savepoint")
    point = choose_restore_point(log.entries, [spec(1)], 1)
    assert point is not None and (point.checkpoint_id, point.commit_only) == (2, False)


def test_after_a_completed_stop_savepoint_only_the_commit_is_left() -> None:
    """S7.7."""
    log = Log().fence(1).complete(1).complete(2, "stop-savepoint", stop="drain")
    point = choose_restore_point(log.entries, [spec(1)], 1)
    assert point is not None and point.commit_only and point.stop_mode == "drain"


def test_a_stop_savepoint_of_an_earlier_submission_is_an_ordinary_restore_point() -> None:
    """S2.4, S9.3."""
    log = Log().fence(1).complete(1, "stop-savepoint", stop="suspend").fence(2)
    point = choose_restore_point(log.entries, [spec(1), spec(2, RestoreFrom("latest"))], 2)
    assert point is not None and (point.checkpoint_id, point.commit_only) == (1, False)


def test_latest_does_not_reach_into_an_abandoned_timeline() -> None:
    """S9.3."""
    log = Log().fence(1).complete(1).complete(2).fence(2).fence(3)
    back = RestoreFrom("checkpoint", checkpoint_id=1, on_committed_after="accept_duplicates")
    point = choose_restore_point(log.entries, [spec(1), spec(2, back), spec(3, RestoreFrom("latest"))], 3)
    assert point is not None and point.checkpoint_id == 1


def test_a_checkpoint_that_was_never_completed_is_refused_by_its_id() -> None:
    """S2.1, S9.3."""
    log = Log().fence(1).complete(1).fence(2)
    with pytest.raises(SnapshotError, match="checkpoint 7"):
        choose_restore_point(log.entries, [spec(1), spec(2, RestoreFrom("checkpoint", checkpoint_id=7))], 2)


def test_a_path_from_outside_is_taken_as_it_is() -> None:
    log = Log().fence(1)
    point = choose_restore_point(log.entries, [spec(1, RestoreFrom("savepoint", path="s3://b/sp"))], 1)
    assert point is not None and (point.location, point.log_number) == ("s3://b/sp", 0)


def test_what_was_completed_after_the_restore_point_is_listed() -> None:
    """S9.3."""
    log = Log().fence(1).complete(1).complete(2).complete(3, "savepoint").complete(4).fence(2)
    assert completed_after(log.entries, 1, 2) == [2, 4]


def test_savepoints_count_for_retention_but_are_never_retired() -> None:
    """S2.3."""
    done = [
        CompletedCheckpoint(1, "checkpoint", "a"),
        CompletedCheckpoint(2, "savepoint", "b"),
        CompletedCheckpoint(3, "checkpoint", "c"),
    ]
    assert [c.checkpoint_id for c in find_retired(done, retained=1, last_committed=None)] == [1]
    done.append(CompletedCheckpoint(4, "stop-savepoint", "d", "suspend"))
    done.append(CompletedCheckpoint(5, "checkpoint", "e"))
    assert [c.checkpoint_id for c in find_retired(done, retained=2, last_committed=None)] == [1, 3]


def test_the_last_real_checkpoint_stays_when_savepoints_fill_the_list() -> None:
    """S2.3."""
    done = [
        CompletedCheckpoint(1, "checkpoint", "a"),
        CompletedCheckpoint(2, "savepoint", "b"),
        CompletedCheckpoint(3, "savepoint", "c"),
    ]
    assert find_retired(done, retained=1, last_committed=None) == []


def test_after_a_stop_savepoint_nothing_older_is_needed() -> None:
    """S2.3."""
    done = [
        CompletedCheckpoint(1, "checkpoint", "a"),
        CompletedCheckpoint(2, "checkpoint", "b"),
        CompletedCheckpoint(3, "stop-savepoint", "c"),
    ]
    assert [c.checkpoint_id for c in find_retired(done, retained=3, last_committed=2)] == [1, 2]


def test_the_last_real_checkpoint_in_front_of_a_drain_stays() -> None:
    """S2.3, S7.5: going on from a drained savepoint needs consent, from that checkpoint it does not."""
    done = [CompletedCheckpoint(1, "checkpoint", "a"), CompletedCheckpoint(2, "checkpoint", "b")]
    done.append(CompletedCheckpoint(3, "stop-savepoint", "c", "drain"))
    assert [c.checkpoint_id for c in find_retired(done, retained=1, last_committed=None)] == [1]


def test_what_a_submission_was_restored_from_stays_until_it_has_a_recovery_point_of_its_own() -> None:
    """S2.3: whatever is newer, on a timeline that was abandoned."""
    done = [
        CompletedCheckpoint(1, "checkpoint", "a"),
        CompletedCheckpoint(2, "checkpoint", "b"),
        CompletedCheckpoint(3, "savepoint", "c"),
    ]
    assert find_retired(done, retained=1, last_committed=None, restored=1) == []
    assert [c.checkpoint_id for c in find_retired(done, retained=1, last_committed=None)] == [1]
