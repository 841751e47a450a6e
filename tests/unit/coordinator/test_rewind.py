"""S9.3: timelines that were abandoned, and going back past what may be committed."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.contract.errors import SnapshotError
from tidegate.contract.records import Decision, RestoreFrom, Spec
from tidegate.coordinator.recovery import RestorePoint, check_drained, check_rewind, choose_restore_point

ACCEPT: Any = {"on_committed_after": "accept_duplicates"}


def spec(number: int, restore: RestoreFrom | None = None) -> Spec:
    return Spec("job", number, f"s{number}", "m:f", "", {}, {}, "local[1]", {}, {}, restore, "l", None, "t", "test")


def back_to(checkpoint_id: int, **more: Any) -> RestoreFrom:
    return RestoreFrom("checkpoint", checkpoint_id=checkpoint_id, **more)


LATEST = RestoreFrom("latest")


def log(*entries: int | str) -> list[Decision]:
    """A number completes that checkpoint, "s<n>" that savepoint, "f<n>" is a fence of submission n."""
    out: list[Decision] = []

    def add(entry_kind: Any, /, **data: Any) -> None:
        out.append(Decision(len(out) + 1, entry_kind, 1, "r", "2026-01-01T00:00:00Z", "n", data))

    for entry in entries:
        if isinstance(entry, str) and entry[0] == "f":
            add("fence", spec=int(entry[1:]), launch=1)
            continue
        kind = "savepoint" if isinstance(entry, str) else "checkpoint"
        number = int(entry[1:]) if isinstance(entry, str) else entry
        add("claim", checkpoint_id=number, kind=kind, path=f"chk-{number}", triggered_at="2026-01-01T00:00:00Z")
        add("complete", checkpoint_id=number, kind=kind, path=f"chk-{number}", metrics={})
    return out


def chosen(decisions: list[Decision], *specs: Spec) -> int | None:
    """What the newest submission starts from."""
    point = choose_restore_point(decisions, specs, specs[-1].number)
    return None if point is None else point.checkpoint_id


def test_latest_follows_the_descendants_of_the_submissions_own_restore_point() -> None:
    """S9.3: 1 -> 2, 3 abandoned by going back to 1 -> 4; the latest is 4, and with nothing completed 1, never 3."""
    specs = [spec(1), spec(2, back_to(1, **ACCEPT)), spec(3, LATEST)]
    assert chosen(log("f1", 1, 2, 3, "f2", 4, "f3"), *specs) == 4
    assert chosen(log("f1", 1, 2, 3, "f2", "f3"), *specs) == 1


def test_latest_reaches_through_several_submissions_to_where_the_line_began() -> None:
    """S9.3: 1 -> 2 | back to 1 -> nothing | latest -> nothing | latest."""
    specs = [spec(1), spec(2, back_to(1, **ACCEPT)), spec(3, LATEST), spec(4, LATEST)]
    assert chosen(log("f1", 1, 2, "f2", "f3", "f4"), *specs) == 1
    assert chosen(log("f1", 1, 2, "f2", "f3", 5, "f4"), *specs) == 5


def test_a_fresh_submission_cuts_the_line() -> None:
    """S9.3: what was before it is another timeline."""
    specs = [spec(1), spec(2), spec(3, LATEST)]
    assert chosen(log("f1", 1, "f2", 2, "f3"), *specs) == 2
    with pytest.raises(SnapshotError, match="any completed checkpoint"):
        chosen(log("f1", 1, "f2", "f3"), *specs)


def test_a_snapshot_of_an_abandoned_timeline_can_still_be_named() -> None:
    """S9.3: only "latest" leaves it out."""
    specs = [spec(1), spec(2, back_to(1, **ACCEPT)), spec(3, back_to(2, **ACCEPT))]
    assert chosen(log("f1", 1, 2, "f2", 3, "f3"), *specs) == 2


def test_a_restarted_run_of_a_submission_starts_from_its_own_newest_not_from_what_it_named() -> None:
    """S9.1, S9.3."""
    specs = [spec(1), spec(2, back_to(1, **ACCEPT))]
    assert chosen(log("f1", 1, 2, "f2", "f2"), *specs) == 1
    assert chosen(log("f1", 1, 2, "f2", 3, "f2"), *specs) == 3


def rewind(decisions: list[Decision], submission: Spec, checkpoint_id: int, sinks: Any = ("out",)) -> tuple[int, ...]:
    return check_rewind(
        decisions, submission, location=f"chk-{checkpoint_id}", checkpoint_id=checkpoint_id, sinks=sinks
    )


def test_going_back_past_what_may_be_committed_is_refused_with_sinks_and_ids() -> None:
    """S9.3: the intermediate savepoint permitted nothing (S2.4)."""
    decisions = log("f1", 1, 2, "s3", 4, "f2")
    with pytest.raises(SnapshotError, match=r"checkpoints \[2, 4\].*after chk-1.*sinks out, copy.*accept_duplicates"):
        rewind(decisions, spec(2, back_to(1)), 1, sinks=("out", "copy"))


def test_duplicates_can_be_accepted_and_are_told() -> None:
    """S9.3."""
    decisions = log("f1", 1, 2, 4, "f2")
    assert rewind(decisions, spec(2, back_to(1, **ACCEPT)), 1) == (2, 4)


def test_taking_committed_rows_back_is_refused_as_something_these_sinks_cannot_do() -> None:
    """S9.3."""
    with pytest.raises(SnapshotError, match="rewind takes committed rows back"):
        rewind(log("f1", 1, 2, "f2"), spec(2, back_to(1, on_committed_after="rewind")), 1)


def test_nothing_is_gone_back_past_by_the_newest_or_without_a_two_phase_sink() -> None:
    """S9.3."""
    decisions = log("f1", 1, 2, "f2")
    assert rewind(decisions, spec(2, LATEST), 2) == ()
    assert rewind(decisions, spec(2, back_to(1)), 1, sinks=()) == ()


def test_what_the_submission_itself_completed_is_not_gone_back_past() -> None:
    """S9.1: its own restart is no rewind; but a submission that goes back to before it is."""
    decisions = log("f1", 1, 2, "f2", 3)
    assert rewind(decisions, spec(2, LATEST), 3) == ()
    with pytest.raises(SnapshotError, match=r"\[3\]"):
        rewind([*decisions, *log("f3")], spec(3, back_to(2)), 2)


def test_an_abandoned_timeline_counts_when_gone_back_past_for_it_was_committed() -> None:
    """S9.3: 2 was completed on the line that submission 2 left."""
    decisions = log("f1", 1, 2, "f2", 3, "f3")
    with pytest.raises(SnapshotError, match=r"\[2, 3\]"):
        rewind(decisions, spec(3, back_to(1)), 1)


def test_a_drained_snapshot_needs_leave_but_not_for_its_own_commit() -> None:
    """S7.5, S7.7."""
    drained = RestorePoint("chk-1", 1, 2)
    with pytest.raises(SnapshotError, match="chk-1 was taken by a drain.*operators windows.*allow_drained"):
        check_drained(drained, spec(2, LATEST), ["windows"])
    check_drained(drained, spec(2, RestoreFrom("latest", allow_drained=True)), ["windows"])
    check_drained(drained, spec(2, LATEST), [])
    check_drained(RestorePoint("chk-1", 1, 2, commit_only=True, stop_mode="drain"), spec(1), ["windows"])
