"""S9.3: timelines that were abandoned, and going back past what may be committed."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import submission

from tidegate.connectors.discard import Discard
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.interface import Sink
from tidegate.connectors.kafka.sink.kafka_sink import KafkaSink
from tidegate.coordinator.checkpointing.retention import find_retired
from tidegate.coordinator.recovery.restore_point import (
    RestorePoint,
    check_drained,
    choose_restore_point,
    completed_snapshots,
)
from tidegate.coordinator.recovery.rewind import RewindPlan, plan_rewind
from tidegate.coordinator.recovery.sink_rewind import rewind_sinks
from tidegate.errors import OutageError, PipelineError, SnapshotError, StoreError
from tidegate.jobs.records import Decision, RestoreFrom, Spec
from tidegate.jobs.status import derive
from tidegate.testing.collect_sink import CollectSink

ACCEPT: Any = {"on_committed_after": "accept_duplicates"}
REWIND: Any = {"on_committed_after": "rewind"}
OUT: dict[str, Sink] = {"out": CollectSink("out")}


def spec(number: int, restore: RestoreFrom | None = None, lineage: str = "l") -> Spec:
    return submission(number, restore=restore, lineage=lineage)


def back_to(checkpoint_id: int, **more: Any) -> RestoreFrom:
    return RestoreFrom("checkpoint", checkpoint_id=checkpoint_id, **more)


LATEST = RestoreFrom("latest")


def log(*entries: int | str, sinks: Any = None) -> list[Decision]:
    """A number completes that checkpoint, "s<n>" that savepoint, "f<n>" is a fence of submission n, "r<n>" an entry
    that sinks are taken back to n. `sinks`: what "complete" says of them."""
    out: list[Decision] = []

    def add(entry_kind: Any, /, **data: Any) -> None:
        out.append(Decision(len(out) + 1, entry_kind, 1, "r", "2026-01-01T00:00:00Z", "n", data))

    for entry in entries:
        if isinstance(entry, str) and entry[0] == "f":
            add("fence", spec=int(entry[1:]), launch=1)
            continue
        if isinstance(entry, str) and entry[0] == "r":
            add("rewind", checkpoint_id=int(entry[1:]), sinks=["out"])
            continue
        kind = "savepoint" if isinstance(entry, str) else "checkpoint"
        number = int(entry[1:]) if isinstance(entry, str) else entry
        add("claim", checkpoint_id=number, kind=kind, path=f"chk-{number}", triggered_at="2026-01-01T00:00:00Z")
        add("complete", checkpoint_id=number, kind=kind, path=f"chk-{number}", metrics={}, sinks=sinks or {})
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


def way_back(decisions: list[Decision], *specs: Spec, to: int, sinks: Any = OUT, **more: Any) -> RewindPlan | None:
    """Of the newest submission."""
    more = {"lineage": specs[-1].lineage, **more}
    return plan_rewind(specs, decisions, specs[-1], location=f"chk-{to}", checkpoint_id=to, sinks=sinks, **more)


def test_going_back_past_what_may_be_committed_is_refused_with_sinks_and_ids() -> None:
    """S9.3: the intermediate savepoint permitted nothing (S2.4)."""
    decisions = log("f1", 1, 2, "s3", 4, "f2")
    told = r"checkpoints \[2, 4\].*after chk-1.*sinks out, copy.*rewind.*accept_duplicates"
    with pytest.raises(SnapshotError, match=told):
        way_back(decisions, spec(1), spec(2, back_to(1)), to=1, sinks={**OUT, "copy": CollectSink("copy")})


def test_duplicates_can_be_accepted_and_are_told() -> None:
    """S9.3: which checkpoints' rows come again, and where."""
    found = way_back(log("f1", 1, 2, 4, "f2"), spec(1), spec(2, back_to(1, **ACCEPT)), to=1)
    assert found == RewindPlan(1, (2, 4), False, False, ("out",))
    assert (
        "the output of checkpoints [2, 4] that was already committed appears a second time in sinks out"
        in found.log_text()
    )


def test_nothing_is_gone_back_past_by_the_newest_or_without_a_two_phase_sink() -> None:
    """S9.3."""
    decisions = log("f1", 1, 2, "f2")
    assert way_back(decisions, spec(1), spec(2, LATEST), to=2) is None
    assert way_back(decisions, spec(1), spec(2, back_to(1)), to=1, sinks={}) is None
    assert way_back(decisions, spec(1), spec(2, back_to(1, **REWIND)), to=1, sinks={}) is None


def test_what_the_submission_itself_completed_is_not_gone_back_past() -> None:
    """S9.1: its own restart is no rewind; but a submission that goes back to before it is."""
    decisions = log("f1", 1, 2, "f2", 3)
    assert way_back(decisions, spec(1), spec(2, LATEST), to=3) is None
    with pytest.raises(SnapshotError, match=r"\[3\]"):
        way_back([*decisions, *log("f3")], spec(1), spec(2, LATEST), spec(3, back_to(2)), to=2)


def test_an_abandoned_timeline_counts_when_gone_back_past_for_it_was_committed() -> None:
    """S9.3: 2 was completed on the line that submission 2 left."""
    decisions = log("f1", 1, 2, "f2", 3, "f3")
    with pytest.raises(SnapshotError, match=r"\[2, 3\]"):
        way_back(decisions, spec(1), spec(2, back_to(1, **ACCEPT)), spec(3, back_to(1)), to=1)


def test_what_a_gate_held_back_or_rejected_is_not_committed() -> None:
    """S7.8, S9.3: no rewind, whatever the submission says of them."""
    decisions = log("f1", 1, 2, 3, "f2")
    assert way_back(decisions, spec(1), spec(2, back_to(1)), to=1, never_committed={2, 3}) is None
    found = way_back(decisions, spec(1), spec(2, back_to(1, **REWIND)), to=1, never_committed={3})
    assert found is not None and found.passed == (2,)


# ------------------------------------------------------------ rewind


def test_a_rewind_is_decided_where_every_sink_can_do_it() -> None:
    """S9.3."""
    found = way_back(log("f1", 1, 2, 3, "f2"), spec(1), spec(2, back_to(1, **REWIND)), to=1)
    assert found == RewindPlan(1, (2, 3), True, False, ("out",))
    assert found.log_text() == "sinks out delete the output that checkpoints [2, 3] committed"


def test_sinks_that_cannot_take_rows_back_are_named() -> None:
    """S9.3: records that were sent to a topic stay there."""
    sinks = {"files": Parquet("/x"), "topic": KafkaSink("t", servers="broker:9092")}
    with pytest.raises(SnapshotError, match=r"sinks 'topic' \(KafkaSink\) do not support rewind.*accept_duplicates"):
        way_back(log("f1", 1, 2, "f2"), spec(1), spec(2, back_to(1, **REWIND)), to=1, sinks=sinks)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ({"out": CollectSink("out").describe(), "old": "Parquet('/old')"}, "sink 'old' cannot be rewound"),
        ({"out": "CollectSink('elsewhere')"}, "sink 'out' now writes to another place"),
    ],
)
def test_a_rewind_is_refused_when_a_sink_that_committed_is_gone_or_writes_elsewhere(then: Any, told: str) -> None:
    """S9.3: its rows would stay."""
    decisions = log("f1", 1, 2, "f2", sinks=then)
    with pytest.raises(SnapshotError, match=f"{told}.*with the unchanged pipeline"):
        way_back(decisions, spec(1), spec(2, back_to(1, **REWIND)), to=1)


def test_a_rewind_does_not_reach_what_a_fresh_start_committed() -> None:
    """S9.3, S7.4: transactions carry their lineage."""
    specs = [spec(1, lineage="a"), spec(2, lineage="b"), spec(3, back_to(1, **REWIND), lineage="a")]
    with pytest.raises(SnapshotError, match=r"checkpoints \[3\] were completed after a fresh start"):
        way_back(log("f1", 1, 2, "f2", 3, "f3"), *specs, to=1)


def test_a_rewind_that_was_begun_is_carried_out_by_whoever_goes_on_from_its_snapshot() -> None:
    """S9.3: also by one that wishes nothing of the kind, until a snapshot has completed behind it."""
    begun = log("f1", 1, 2, 3, "f2", "r1", "f3")
    for restore in (LATEST, back_to(1), back_to(1, **ACCEPT)):
        found = way_back(begun, spec(1), spec(2, back_to(1, **REWIND)), spec(3, restore), to=1)
        assert found == RewindPlan(1, (2, 3), True, True, ("out",))
    done = log("f1", 1, 2, 3, "f2", "r1", "s4", "f3")
    assert way_back(done, spec(1), spec(2, back_to(1, **REWIND)), spec(3, LATEST), to=1) is None


def test_after_a_rewind_only_what_came_since_is_gone_back_past() -> None:
    """S9.3: 2 and 3 are not there any more."""
    specs = [spec(1), spec(2, back_to(1, **REWIND)), spec(3, back_to(1))]
    with pytest.raises(SnapshotError, match=r"checkpoints \[4\] were completed after chk-1"):
        way_back(log("f1", 1, 2, 3, "f2", "r1", 4, "f3"), *specs, to=1)


@pytest.mark.parametrize("to", [2, 3])
def test_what_was_taken_back_is_never_restored(to: int) -> None:
    """S9.3: by id, or from a copy of its folder; the rows that its state counts are gone."""
    decisions = log("f1", 1, 2, "s3", 4, "f2", "r1", 5, "f3")
    specs = [spec(1), spec(2, back_to(1, **REWIND)), spec(3, back_to(to, **REWIND))]
    with pytest.raises(
        SnapshotError, match=f"snapshot chk-{to} cannot be restored: sinks have deleted.*from the earlier snapshot 1"
    ):
        way_back(decisions, *specs, to=to)
    view = derive(specs[:2], decisions[:-1], None)
    assert [c.checkpoint_id for c in view.checkpoints if c.taken_back] == [2, 3, 4]
    fork = spec(3, back_to(to), lineage="fork")
    assert way_back(decisions, *specs[:2], fork, to=to, lineage="l", sinks={}) is None


def test_a_rewind_that_was_begun_must_end_before_another_way_is_taken() -> None:
    """S9.3: rows behind 2 may be there or not; further back, all of them go."""
    begun = log("f1", 1, 2, 3, "f2", "r2", "f3")
    specs = [spec(1), spec(2, back_to(2, **REWIND))]
    for mode in ({}, ACCEPT):
        with pytest.raises(SnapshotError, match="a rewind to snapshot 2 has begun.*Restore snapshot 2"):
            way_back(begun, *specs, spec(3, back_to(1, **mode)), to=1)
    found = way_back(begun, *specs, spec(3, back_to(1, **REWIND)), to=1)
    assert found == RewindPlan(1, (2, 3), True, False, ("out",))


def test_snapshots_that_were_taken_back_do_not_count_for_retention() -> None:
    """S2.3, S9.3: the newest of the line stay, those that nobody may restore go."""
    decisions = log("f1", 1, 2, 3, "f2", "r1", 4)
    completed = completed_snapshots(decisions, {f"chk-{n}" for n in (1, 2, 3, 4)}, {2, 3})
    assert [c.checkpoint_id for c in find_retired(completed, retained=2, last_committed=None)] == [2, 3]


def test_a_drained_snapshot_needs_leave_but_not_for_its_own_commit() -> None:
    """S7.5, S7.7."""
    drained = RestorePoint("chk-1", 1, 2)
    with pytest.raises(SnapshotError, match="chk-1 was taken by a drain.*operators windows.*allow_drained"):
        check_drained(drained, spec(2, LATEST), ["windows"])
    check_drained(drained, spec(2, RestoreFrom("latest", allow_drained=True)), ["windows"])
    check_drained(drained, spec(2, LATEST), [])
    check_drained(RestorePoint("chk-1", 1, 2, commit_only=True, stop_mode="drain"), spec(1), ["windows"])


@pytest.mark.parametrize(
    ("raised", "seen"),
    [(OutageError("away"), StoreError), (PipelineError("no"), SnapshotError), (KeyError("x"), StoreError)],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_sink_that_is_away_is_asked_again_and_one_that_refuses_is_not(raised: Exception, seen: type) -> None:
    """S9.1: an outage is over some day; a refusal is repeated by every run."""

    class Failing(Discard):
        def rewind_to(self, *_: Any, **__: Any) -> Any:
            raise raised

    recorded: list[bool] = []
    with pytest.raises(seen):
        rewind_sinks({"out": (Failing(), Any)}, {}, 1, 5, lambda: recorded.append(True))  # type: ignore[dict-item]
    assert recorded == []
