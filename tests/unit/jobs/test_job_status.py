"""The view of a job, derived from submissions, log and hint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import pytest

from tidegate.jobs.records import Decision, DecisionKind, RestoreFrom, Spec, StatusHint
from tidegate.jobs.status import JobStatus, JobView, derive, next_checkpoint_id

AT = "2026-11-21T09:25:0{}.000Z"


def spec(number: int, restore: RestoreFrom | None = None) -> Spec:
    return Spec(
        "job",
        number,
        f"s{number}",
        "p:build",
        "0" * 64,
        {},
        {},
        "local",
        {},
        {},
        restore,
        "l",
        None,
        AT.format(0),
        "me",
    )


class Story:
    """A job's log, told entry by entry."""

    def __init__(self) -> None:
        self.specs: list[Spec] = []
        self.decisions: list[Decision] = []
        self.hint: StatusHint | None = None

    def submit(self, restore: RestoreFrom | None = None) -> Self:
        self.specs.append(spec(len(self.specs) + 1, restore))
        return self

    def fence(self, launch: int = 1) -> Self:
        return self.add("fence", spec=len(self.specs), launch=launch)

    def status(self, status: str, **data: Any) -> Self:
        return self.add("status", status=status, **data)

    def claim(self, checkpoint_id: int, kind: str = "checkpoint") -> Self:
        path = (
            f"job/checkpoints/chk-{checkpoint_id}-g1" if "savepoint" not in kind else f"job/savepoints/{checkpoint_id}"
        )
        return self.add("claim", checkpoint_id=checkpoint_id, kind=kind, path=path, triggered_at=AT.format(0))

    def complete(self, checkpoint_id: int, kind: str = "checkpoint", **metrics: Any) -> Self:
        self.claim(checkpoint_id, kind)
        path = self.decisions[-1].data["path"]
        return self.add("complete", checkpoint_id=checkpoint_id, kind=kind, path=path, metrics=metrics, parent=None)

    def add(self, kind: DecisionKind, /, **data: Any) -> Self:
        generation = self.decisions[-1].generation if self.decisions else 0
        generation += kind == "fence"
        number = len(self.decisions) + 1
        self.decisions.append(Decision(number, kind, generation, "r", AT.format(2), f"n{number}", data))
        return self

    def hinted(self, data: Mapping[str, Any], generation: int | None = None) -> Self:
        self.hint = StatusHint(generation or self.decisions[-1].generation, 7, "r", AT.format(3), data)
        return self

    @property
    def view(self) -> JobView:
        return derive(self.specs, self.decisions, self.hint)


def running() -> Story:
    return Story().submit().fence().status("RUNNING")


def test_a_submission_without_a_driver_is_created() -> None:
    view = Story().submit().view
    assert (view.status, view.generation, view.last_decision, view.is_active, view.is_terminal) == (
        JobStatus.CREATED,
        0,
        0,
        False,
        False,
    )


def test_a_driver_that_has_said_nothing_waits_for_slots() -> None:
    assert Story().submit().fence().view.status is JobStatus.WAITING_FOR_SLOTS


def test_a_relaunched_driver_that_has_said_nothing_is_restarting() -> None:
    assert running().fence(2).view.status is JobStatus.RESTARTING


@pytest.mark.parametrize("status", list(JobStatus))
def test_the_status_is_the_last_one_the_driver_recorded(status: JobStatus) -> None:
    view = running().status(status.value, reason="because").view
    assert (view.status, view.reason) == (status, "because")
    assert view.is_terminal == (status in {"STOPPED", "FINISHED", "FINISHED_COMMIT_PENDING", "CANCELED", "FAILED"})


def test_a_newer_submission_is_created_whatever_became_of_the_older() -> None:
    view = running().status("FAILED").submit().hinted({"sources": {"a": {"records": 1}}}).view
    assert (view.status, view.spec_number, view.failure, view.sources, view.heartbeat) == ("CREATED", 2, None, (), None)


def test_how_a_job_was_stopped_is_told() -> None:
    stop = {"outcome": "committed", "mode": "drain", "checkpoint_id": 3, "path": "job/savepoints/3"}
    assert running().status("STOPPED", stop=stop).view.stop == stop


def test_snapshots_are_listed_oldest_first_with_what_became_of_them() -> None:
    """S2.5."""
    view = running().complete(1, bytes=5).claim(2).add("abort", checkpoint_id=2, reason="declined").claim(3).view
    first, second, third = view.checkpoints
    assert (first.status, first.duration_ms, first.metrics, first.generation) == ("completed", 2000, {"bytes": 5}, 1)
    assert (second.status, second.reason) == ("aborted", "declined")
    assert (third.status, third.completed_at) == ("pending", None)
    assert view.completed == (first,)


def test_a_duration_that_the_driver_measured_counts_for_more_than_the_clock() -> None:
    assert running().complete(1, duration_ms=31.4).view.checkpoints[0].duration_ms == 31


def test_what_was_pending_when_a_newer_driver_began_is_aborted() -> None:
    """S2.1, S9.2."""
    assert running().claim(1).fence(2).view.checkpoints[0].reason == "generation 2 took over"


def test_what_was_pending_when_the_job_ended_is_aborted() -> None:
    assert running().claim(1).status("CANCELED").view.checkpoints[0].status == "aborted"


def test_a_commit_covers_what_the_submission_completed_before_it() -> None:
    story = running().complete(1).complete(2, "savepoint").complete(3).claim(4).add("committed", checkpoint_id=3)
    assert [checkpoint.committed for checkpoint in story.view.checkpoints] == [True, False, True, False]


def test_a_commit_does_not_cover_an_abandoned_timeline() -> None:
    """S7.4, S9.3."""
    story = running().complete(1).complete(2).submit(RestoreFrom("checkpoint", checkpoint_id=1)).fence()
    story.complete(3).add("committed", checkpoint_id=3)
    assert [checkpoint.committed for checkpoint in story.view.checkpoints] == [False, False, True]


def test_the_latest_recovery_point_is_no_intermediate_savepoint() -> None:
    """S2.4."""
    view = running().complete(1).complete(2, "savepoint").view
    assert view.latest_recovery_point is not None and view.latest_recovery_point.checkpoint_id == 1
    assert view.latest_savepoint is not None and view.latest_savepoint.checkpoint_id == 2


@pytest.mark.parametrize("kind", ["checkpoint", "final", "stop-savepoint"])
def test_checkpoints_final_ones_and_stop_savepoints_are_recovery_points(kind: str) -> None:
    """S2.4."""
    point = running().complete(1).complete(2, kind).view.latest_recovery_point
    assert point is not None and point.checkpoint_id == 2


def latest(story: Story) -> int | None:
    point = story.view.latest_recovery_point
    return None if point is None else point.checkpoint_id


def test_a_fresh_submission_has_nothing_to_do_with_older_ones() -> None:
    assert latest(running().complete(1).status("FINISHED").submit().fence()) is None


def test_a_restored_submission_that_completed_nothing_goes_back_to_its_restore_point() -> None:
    story = running().complete(1).complete(2).complete(3).submit(RestoreFrom("checkpoint", checkpoint_id=2)).fence()
    assert latest(story) == 2


def test_latest_after_latest_goes_back_to_the_newest_of_the_line() -> None:
    """S9.3."""
    story = running().complete(1).complete(2)
    for _ in range(3):
        story.submit(RestoreFrom("latest")).fence()
    assert latest(story) == 2


def test_an_abandoned_timeline_is_no_candidate() -> None:
    """S9.3."""
    story = running().complete(1).complete(2).submit(RestoreFrom("checkpoint", checkpoint_id=1)).fence()
    story.submit(RestoreFrom("latest")).fence()
    assert latest(story) == 1


def test_a_snapshot_from_outside_is_the_restore_point_by_its_path() -> None:
    point = Story().submit(RestoreFrom("savepoint", "s3://other/sp")).fence().view.latest_recovery_point
    assert point is not None and (point.path, point.checkpoint_id) == ("s3://other/sp", 0)


def test_ids_are_never_claimed_twice_over_restores() -> None:
    """S1.4."""
    story = running().complete(1).claim(2).submit(RestoreFrom("checkpoint", checkpoint_id=1)).fence()
    assert next_checkpoint_id(story.decisions) == 3
    assert next_checkpoint_id([]) == 1


def test_the_last_failure_of_the_submission_is_told_with_its_place() -> None:
    story = (
        running()
        .add("failure", message="first")
        .add("failure", message="boom", operator="daily", subtask=1, traceback="Traceback")
    )
    failure = story.status("RUNNING").view.failure
    assert failure is not None
    assert (failure.message, failure.operator, failure.subtask, failure.traceback) == ("boom", "daily", 1, "Traceback")


def test_restarts_are_counted_from_the_log_unless_the_driver_tells() -> None:
    story = running().status("RESTARTING").status("RUNNING").status("RESTARTING")
    assert story.view.restarts == 2
    assert story.hinted({"restarts": 5}).view.restarts == 5


def test_sources_come_from_the_hint_and_their_end_from_the_log() -> None:
    hints = {
        "flights": {
            "boundedness": "unbounded",
            "records": 10,
            "played_all": True,
            "watermark_us": 5,
            "details": {"a": 1},
        },
        "airlines": {"boundedness": "bounded", "records": 3},
    }
    view = running().add("end_of_data", source="airlines").hinted({"sources": hints, "watermark_us": 4}).view
    airlines, flights = view.sources
    assert (airlines.uid, airlines.end_of_data, airlines.records, airlines.played_all) == ("airlines", True, 3, False)
    assert (flights.played_all, flights.end_of_data, flights.watermark_us, flights.details) == (
        True,
        False,
        5,
        {"a": 1},
    )
    assert (view.watermark_us, view.heartbeat, view.hint_generation) == (4, 7, 1)
    assert view.source("flights") == flights
    assert view.source("other") is None


def test_a_hint_of_another_generation_is_not_believed() -> None:
    view = running().fence(2).hinted({"sources": {"a": {"records": 1}}, "slots_registered": 2}, generation=1).view
    assert (view.sources, view.heartbeat, view.slots_registered) == ((), None, None)


def test_who_only_commits_knows_nothing_of_sources_and_what_the_last_driver_told_stays() -> None:
    """S7.8: it runs nothing; but that driver's counter is no sign of life any more."""
    story = running().add("end_of_data", source="airlines").status("FINISHED_COMMIT_PENDING", reason="1 waits")
    told = {"boundedness": "bounded", "records": 3, "end_of_data": True}
    sources = {"airlines": told, "flights": {**told, "boundedness": "unbounded", "end_of_data": False}}
    hint = {"sources": sources, "watermark_us": 4, "restarts": 2, "counters": {"daily": {"late_dropped": 1}}}
    before = story.hinted(hint).view
    generation = before.generation
    story.add("fence", spec=1, launch=1, only_commits=True).status("FINISHED")
    view = story.view
    assert (view.generation, view.driver_generation) == (generation + 1, generation)
    assert view.sources == before.sources and [s.end_of_data for s in view.sources] == [True, False]
    assert (view.watermark_us, view.counters, view.restarts) == (4, before.counters, 2)
    assert (before.heartbeat, view.heartbeat, view.hint_generation) == (7, None, None)
    story.submit(RestoreFrom("latest"))
    assert story.view.sources == () and story.view.driver_generation == 0


def test_a_driver_after_one_that_only_committed_tells_for_itself() -> None:
    story = running().hinted({"sources": {"a": {"records": 1}}})
    story.add("fence", spec=1, launch=1, only_commits=True).fence(2)
    assert story.view.sources == () and story.view.driver_generation == story.view.generation


def test_slots_are_told_while_waiting() -> None:
    view = Story().submit().fence().hinted({"slots_registered": 6, "slots_needed": 8}).view
    assert (view.slots_registered, view.slots_needed) == (6, 8)


def test_a_source_that_had_ended_before_the_restored_snapshot_was_taken_has_ended() -> None:
    story = running().add("end_of_data", source="early").complete(1).add("end_of_data", source="late").complete(2)
    story.submit(RestoreFrom("checkpoint", checkpoint_id=1)).fence()
    assert [(source.uid, source.end_of_data) for source in story.view.sources] == [("early", True)]
    story.submit(RestoreFrom("latest")).fence()
    assert [source.uid for source in story.view.sources] == ["early"]


def test_a_fresh_submission_inherits_no_ends() -> None:
    assert running().add("end_of_data", source="a").status("FINISHED").submit().fence().view.sources == ()


def test_damaged_numbers_in_a_hint_do_not_break_the_view() -> None:
    view = running().hinted({"sources": {"a": {"records": "many", "watermark_us": True}}, "watermark_us": "x"}).view
    assert (view.sources[0].records, view.sources[0].watermark_us, view.watermark_us) == (0, None, None)
