"""S2.1, S2.2, S9.2: what the shell around the coordinator writes, and what it does when the store does not answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders.jobs import submission
from coordinator_driver import ALL, TOPOLOGY

from tidegate.channel.control.protocol import (
    Acknowledged,
    DeclineCode,
    Declined,
    DriverMessage,
    SubtaskCommitted,
    SubtaskEndedData,
    SubtaskRunning,
    Trigger,
)
from tidegate.coordinator import events as ev
from tidegate.coordinator.coordinator import Coordinator, CoordinatorOptions
from tidegate.coordinator.job_run import JobRun, RunFacts, RunFailed
from tidegate.errors import FencedError, StoreError, UnclearAnswerError
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.history.checkpoints import checkpoint_views
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision
from tidegate.jobs.status import derive
from tidegate.jobs.stop_outcomes import CLAIM_FAILED, SAVEPOINT_FAILED, next_action
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.jobs.stores.local_disk import LocalStore
from tidegate.snapshot.location import probe_location

LAYOUT = JobLayout("job")
REFUSED = {"savepoint": CLAIM_FAILED, "stop-savepoint": SAVEPOINT_FAILED}
"""Kind -> code of the answer where nothing can be written to its place."""
NOW = "2026-11-21T09:25:00.000Z"
_names = itertools.count()


class DeafStore(MemoryStore):
    """Creates of paths with one of `deaf` in them are carried out, or not, and never answered."""

    deaf: tuple[str, ...] = ()
    takes = False

    def create(self, path: str, data: bytes) -> None:
        if not any(text in path for text in self.deaf):
            super().create(path, data)
            return
        if self.takes:
            super().create(path, data)
            self.takes = False
        raise StoreError("connection reset", where=path)

    def read(self, path: str) -> bytes:
        if any(text in path for text in self.deaf):
            raise StoreError("connection reset", where=path)
        return super().read(path)


class Run:
    """A JobRun on a store that may go deaf, with everything it says."""

    def __init__(self, savepoint_directory: str | None = None, **options: Any) -> None:
        self.store = DeafStore(f"job-run-log-{next(_names)}")
        self.nonces = itertools.count()
        self.on_pause: Callable[[], None] = lambda: None
        self.answers: list[ev.CommandAnswer] = []
        self.sent: list[Any] = []
        self.retired: list[int] = []
        given = {"interval_ms": None, "min_pause_ms": 0, "timeout_ms": 10_000, "max_concurrent": 1, "max_queued": 10}
        self.now_ms = 0
        self.log = self.open()
        coordinator = CoordinatorOptions(**{**given, "tolerable_failures": 9, "retained": 1, **options})
        self.run = JobRun(
            facts=RunFacts(
                store=self.store,
                layout=LAYOUT,
                spec=submission(),
                generation_log=self.log.begin_generation(spec=1, launch=1),
                topology=TOPOLOGY,
                graph_document={},
                max_parallelism=128,
                savepoint_directory=savepoint_directory,
                now_iso=lambda: NOW,
                specs=(),
            ),
            coordinator=Coordinator(TOPOLOGY, coordinator, run_id="r", first_delay_ms=0),
            slots=self,
            run_id="r",
            next_checkpoint_id=1,
            splits={},
            restored_from=None,
            answer=self.answers.append,
            now_ms=lambda: self.now_ms,
            retire=lambda checkpoint_id, path: self.retired.append(checkpoint_id),
            on_completed=lambda: None,
        )
        for subtask in ALL:
            self.run.on_slot_message(SubtaskRunning(subtask))

    def open(self) -> DecisionLog:
        return DecisionLog(
            self.store,
            LAYOUT,
            lambda: NOW,
            lambda: f"n{next(self.nonces)}",
            pause=lambda seconds: self.on_pause(),
            clock=partial(next, itertools.count()),  # one second at each look
        )

    def broadcast(self, message: DriverMessage) -> None:
        self.sent.append(message)

    def decline(self, n: int, reason: str = "disk full", code: DeclineCode = "failed") -> None:
        self.run.on_slot_message(Declined(ALL[0], n, "r", reason, code))

    def ask(self, kind: Any = "checkpoint", **more: Any) -> None:
        self.run.on_event(ev.SnapshotRequested(ev.SnapshotRequest(kind, request_id="asked", **more)))

    def ack_all(self, n: int) -> None:
        for subtask in ALL:
            self.run.on_slot_message(Acknowledged(subtask, n, "r"))

    def entries(self, kind: str) -> list[Decision]:
        return [entry for entry in self.open().read() if entry.kind == kind]


@pytest.mark.parametrize(("asked", "named"), [({"by": "airflow-ui:anna"}, "airflow-ui:anna"), ({}, "")])
def test_a_claim_names_who_asked_for_the_snapshot(asked: dict[str, str], named: str) -> None:
    """S9.4: a snapshot that a command asked for; one that the job takes by itself names nobody."""
    run = Run()
    run.ask(**asked)
    (claim,) = run.entries("claim")
    assert ("by" in claim.data) == bool(named)
    (view,) = checkpoint_views(entries_by_submission(run.open().read()), ended=False)
    assert view.by == named


def test_an_abort_says_in_the_log_why_and_whether_it_counts() -> None:
    """S2.2."""
    run = Run()
    run.ask()
    run.decline(1)
    run.ask("savepoint")
    run.now_ms = 10_000
    run.run.on_event(ev.Tick())
    run.ask()
    run.decline(3, "a newer barrier came", "alignment_aborted")
    told = [(d.data["checkpoint_id"], d.data["code"], d.data["counts"]) for d in run.entries("abort")]
    assert told == [(1, "declined", True), (2, "expired", False), (3, "alignment_aborted", False)]


def test_a_claim_holds_the_watermark_that_the_job_had_passed_when_it_was_triggered() -> None:
    """S4.4, S3.1: what is before it is in the snapshot; none is told while none is known."""
    run = Run()
    marks = iter([None, 7])
    run.run.watermark_us = lambda: next(marks)
    for n in (1, 2):
        run.ask()
        run.ack_all(n)
    assert [claim.data.get("watermark_us", "none") for claim in run.entries("claim")] == ["none", 7]
    spec = run.run.facts.spec
    assert [c.watermark_us for c in derive([spec], run.open().read(), None).completed] == [None, 7]


def test_metadata_that_cannot_be_written_costs_the_checkpoint_alone() -> None:
    """S2.1, S2.2: without "complete" it never existed."""
    run = Run()
    run.ask()
    run.store.deaf = ("_metadata",)
    run.ack_all(1)
    assert run.run.outcome is None
    assert [d.data["code"] for d in run.entries("abort")] == ["io"] and run.entries("complete") == []
    assert [(a.ok, a.code) for a in run.answers] == [(False, "aborted")]
    run.store.deaf = ()
    run.ask()
    run.ack_all(2)
    assert [d.data["checkpoint_id"] for d in run.entries("complete")] == [2]


@pytest.mark.parametrize("takes", [True, False])
def test_when_it_is_open_whether_a_completion_is_in_the_log_nothing_is_said_and_nothing_more_done(takes: bool) -> None:
    """S9.2: the next generation reads what is there, and answers."""
    run = Run()
    run.ask("savepoint")
    run.sent.clear()
    run.store.deaf, run.store.takes = ("decisions/",), takes
    with pytest.raises(UnclearAnswerError, match=r"entry 3 \('complete'\).*decisions/00000003.json.*connection reset"):
        run.ack_all(1)
    run.store.deaf = ()
    for again in (
        lambda: run.ask("savepoint"),
        lambda: run.run.facts.generation_log.check(),
        lambda: run.run.facts.generation_log.append("x", {}),
    ):
        with pytest.raises(UnclearAnswerError):
            again()
    assert run.answers == [] and run.sent == [] and run.retired == []
    actions, _ = run.run.coordinator.shut_down("over")
    assert actions == []
    assert len(run.entries("complete")) == takes and run.entries("abort") == []
    successor = run.open()
    successor.begin_generation(spec=1, launch=2).append("status", {"status": "RUNNING"})
    assert len(successor.read()) == 4 + takes
    with pytest.raises(UnclearAnswerError):
        run.run.facts.generation_log.append("status", {"status": "RUNNING"})


@pytest.mark.parametrize("takes", [True, False])
def test_a_store_that_answers_in_time_delays_a_completion_and_nothing_is_said_meanwhile(takes: bool) -> None:
    """S9.2, S2.1: slots commit nothing before the entry is known to be there."""
    run = Run()
    run.ask()
    run.sent.clear()
    run.store.deaf, run.store.takes = ("decisions/",), takes
    pauses = itertools.count(1)

    def answer_after_five_pauses() -> None:
        assert run.answers == [] and run.sent == []
        if next(pauses) == 5:
            run.store.deaf = ()

    run.on_pause = answer_after_five_pauses
    run.ack_all(1)
    assert next(pauses) == 6
    assert [answer.code for answer in run.answers] == ["completed"]
    assert len(run.entries("complete")) == 1
    assert run.sent != []


@pytest.mark.parametrize("what", ["claim", "abort", "committed", "end_of_data"])
def test_no_append_of_a_run_survives_an_unclear_answer(what: str) -> None:
    """S9.2."""
    run = Run()
    if what != "claim":
        run.ask()
    if what == "committed":
        run.ack_all(1)
        run.run.on_slot_message(SubtaskCommitted((1, 0), 1))
    if what == "end_of_data":
        run.run.on_slot_message(SubtaskEndedData((0, 0), True))
    run.store.deaf = ("decisions/",)
    last = {
        "claim": lambda: run.ask(),
        "abort": lambda: run.decline(1),
        "committed": lambda: run.run.on_slot_message(SubtaskCommitted((1, 1), 1)),
        "end_of_data": lambda: run.run.on_slot_message(SubtaskEndedData((0, 1), True)),
    }
    with pytest.raises(UnclearAnswerError, match=f"'{what}'"):
        last[what]()


def test_a_fence_that_comes_during_a_completion_ends_the_run_unanswered() -> None:
    """S9.2."""
    run = Run()
    run.ask()
    run.open().begin_generation(spec=1, launch=2)
    with pytest.raises(FencedError):
        run.ack_all(1)
    assert run.answers == [] and run.entries("complete") == []


def test_a_savepoint_location_that_cannot_be_used_fails_the_request_alone() -> None:
    """S1.4, S2.2: nothing was claimed."""
    run = Run(tolerable_failures=0)
    run.ask("savepoint", path="gopher://nowhere")
    assert [(a.ok, a.code) for a in run.answers] == [(False, "claim_failed")]
    assert run.run.outcome is None and run.entries("claim") == []


@pytest.mark.parametrize("kind", ["savepoint", "stop-savepoint"])
@pytest.mark.parametrize("place", ["gopher://nowhere", "../elsewhere", "{tmp}/file"])
@pytest.mark.parametrize("by_option", [False, True])
def test_a_place_where_no_savepoint_can_be_is_refused_before_anything_ends(
    by_option: bool, place: str, kind: str, tmp_path: Path
) -> None:
    """S1.4, S7.7: also one that the job's options name; the job goes on, without a restart."""
    (tmp_path / "file").write_text("no folder")
    place = place.format(tmp=tmp_path)
    run = Run(savepoint_directory=place if by_option else None, tolerable_failures=0)
    run.ask(kind, path=None if by_option else place, stop="suspend" if kind == "stop-savepoint" else None)
    (answer,) = run.answers
    assert (answer.ok, answer.code) == (False, REFUSED[kind])
    assert next_action(answer.code), "which says what to do"
    assert answer.message.startswith(f"the {kind} could not be started: no savepoint can be written to '{place}'")
    assert ("option savepoint_directory" in answer.message) == by_option
    assert "the root" not in answer.message.replace("below the root", "")
    assert run.sent == [] and run.entries("claim") == [] and run.run.outcome is None
    run.ask()
    assert [type(message) for message in run.sent] == [Trigger]


@pytest.mark.parametrize("kind", ["savepoint", "stop-savepoint"])
@pytest.mark.parametrize("place", ["job/checkpoints", "job/checkpoints/mine", "job/x/../checkpoints"])
@pytest.mark.parametrize("by_option", [False, True])
def test_no_savepoint_goes_where_the_job_deletes(by_option: bool, place: str, kind: str) -> None:
    """S2.3: a cancellation with retention=delete would take it along."""
    run = Run(savepoint_directory=place if by_option else None)
    run.ask(kind, path=None if by_option else place, stop="suspend" if kind == "stop-savepoint" else None)
    (answer,) = run.answers
    assert (answer.ok, answer.code) == (False, REFUSED[kind])
    assert "is in the folder of the job's checkpoints" in answer.message
    assert run.entries("claim") == []
    assert answer.data.get("outcome") == ("savepoint_failed_job_continues" if kind == "stop-savepoint" else None)


def test_a_folder_below_the_root_is_tried_itself(tmp_path: Path) -> None:
    """S7.7: that the root works says nothing of it."""
    (tmp_path / "taken").write_text("no folder")
    root, spec = LocalStore(str(tmp_path)), Run().run.facts.spec
    with pytest.raises(StoreError):
        probe_location(root, spec, "taken/savepoint-job-1-g1")
    probe_location(root, spec, "free/savepoint-job-1-g1")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["taken"]


def test_a_folder_for_savepoints_that_works_leaves_no_trace_of_the_test(tmp_path: Path) -> None:
    run = Run(savepoint_directory=f"{tmp_path}/savepoints")
    run.ask("savepoint")
    assert [message.path for message in run.sent] == [f"{tmp_path}/savepoints/savepoint-job-1-g1"]
    assert not list(tmp_path.rglob(".*"))


def test_too_many_failures_fail_the_run_with_the_reason() -> None:
    """S2.2."""
    run = Run(tolerable_failures=0)
    run.ask()
    run.decline(1)
    assert isinstance(run.run.outcome, RunFailed) and "disk full" in run.run.outcome.message
