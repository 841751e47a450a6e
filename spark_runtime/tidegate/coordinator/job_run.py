"""I/O around the coordinator of one run.

Carries out its actions on log, store and slots, and passes the results back to it as events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from tidegate.channel.control.protocol import (
    Abort,
    Acknowledged,
    AssignSplits,
    Commit,
    Complete,
    Declined,
    DriverMessage,
    Durable,
    Failed,
    LetFinish,
    PauseSources,
    Quarantine,
    SlotMessage,
    SourceWatermarks,
    SplitsHeld,
    Subtask,
    SubtaskCommitted,
    SubtaskEndedData,
    SubtaskFinished,
    SubtaskRunning,
    Trigger,
)
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpointing.collected_metadata import drained_operators, operator_metadata, subtask_history
from tidegate.coordinator.commits.ruling import decide_verdict, ends_lineage
from tidegate.coordinator.coordinator import Coordinator
from tidegate.coordinator.enumeration import Enumerations, SearchFailed, SplitsDiscovered
from tidegate.coordinator.events import Action, Event
from tidegate.coordinator.recovery.restore_point import rejection_text
from tidegate.coordinator.recovery.source_counts import EndedSources, SourceCounts
from tidegate.coordinator.source_alignment import SourceAlignment
from tidegate.coordinator.topology import Topology
from tidegate.errors import TidegateError
from tidegate.jobs.client.savepoint_folder import check_savepoint_folder
from tidegate.jobs.decision_log import GenerationLog
from tidegate.jobs.history.verdicts import find_verdicts
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Spec
from tidegate.jobs.stores.store import Store
from tidegate.snapshot.location import open_location, probe_location
from tidegate.snapshot.metadata import SnapshotMetadata, write_metadata


class SlotConnections(Protocol):
    """Connections to the slots of a run. Do not block."""

    def broadcast(self, message: DriverMessage) -> None:
        """Send a message to every slot."""

    def send(self, slot: int, message: DriverMessage) -> None:
        """Send a message to one slot, after what was sent to it before."""


@dataclass(frozen=True)
class RunFacts:
    """Facts that do not change during a generation."""

    store: Store
    layout: JobLayout
    spec: Spec
    generation_log: GenerationLog
    topology: Topology
    graph_document: Mapping[str, Any]
    max_parallelism: int
    savepoint_directory: str | None
    now_iso: Callable[[], str]
    specs: Sequence[Spec]
    cannot_quarantine: Sequence[str] = ()
    sinks: Mapping[str, str] = field(default_factory=dict)
    """Two-phase-commit sinks: uid -> description of the sink."""


@dataclass(frozen=True)
class RunEnded:
    """Outcome: every subtask has finished.

    Attributes:
        stop: mode of the stop; None at a natural end.
        uncommitted: checkpoints that the commit gate did not let commit (S7.8).
    """

    stop: str | None
    checkpoint_id: int | None
    path: str | None
    request_id: str | None
    uncommitted: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunFailed:
    """Outcome: the run must be abandoned. The root cause, as data of a `failure` entry."""

    message: str
    operator: str | None = None
    subtask: int | None = None
    traceback: str | None = None
    code: str = ""


@dataclass(frozen=True)
class RunRejected(RunFailed):
    """Outcome: a checkpoint that the run resumes from was rejected (S7.8). Does not count as a failure."""

    then: ev.Then = "stop"


@dataclass(frozen=True)
class StopTimedOut(RunFailed):
    """Outcome: the time of a stop was up after its data had ended (S7.7). Does not count as a failure."""


@dataclass
class JobRun:
    """One attempt to run the job. `outcome` is set when the run is over; later events are ignored.

    Attributes:
        next_checkpoint_id: next free id, from the log. Ids are claimed in order and never reused (S1.4).
        splits: source uid -> all splits as JSON; none for a source that discovers splits while the job runs (S4.3).
        restored_from: location from which the run was restored.
        carried: counts of sources that the restored snapshot stores separately from positions.
        watermark_us: returns a watermark that every subtask of this run has passed, in microseconds since the epoch, or
            None if unknown. Claims record it: a snapshot triggered now has passed this watermark, too.
        at_work: returns subtask -> uids of its operators that have not finished the requested work; for display.
        enumerations: the sources that discover splits while the job runs.
        on_permitted: called with the id of each checkpoint that has completed, and the states of the enumerators in it;
            with a commit gate, when it is approved. Not called for checkpoints of earlier runs.
    """

    facts: RunFacts
    coordinator: Coordinator
    slots: SlotConnections
    run_id: str
    next_checkpoint_id: int
    splits: Mapping[str, Sequence[Mapping[str, Any]]]
    restored_from: str | None
    answer: Callable[[ev.CommandAnswer], None]
    now_ms: Callable[[], int]
    retire: Callable[[int, str], None]
    on_completed: Callable[[], None]
    outcome: RunEnded | RunFailed | None = None
    watermark_us: Callable[[], int | None] = lambda: None
    at_work: Callable[[], Mapping[Subtask, tuple[str, ...]]] = dict
    carried: SourceCounts = field(default_factory=dict)
    enumerations: Enumerations = field(default_factory=Enumerations)
    on_permitted: Callable[[int, Mapping[str, Any]], None] = lambda _, __: None
    _queue: deque[Event] = field(default_factory=deque)
    _alignment: SourceAlignment = field(default_factory=SourceAlignment)
    _last_path: str | None = None
    _overdue: int = 0

    def __post_init__(self) -> None:
        self._ended = EndedSources(self.carried, self.facts.topology)

    @property
    def ended_counts(self) -> SourceCounts:
        """Counts of sources that no subtask of this run reports. The status adds them to the counts of the subtasks."""
        return self._ended.carried

    def on_event(self, event: Event) -> None:
        """Process an event and all events that follow from it.

        Raises:
            FencedError: a newer generation owns the job.
            UnclearAnswerError: it is unknown whether a decision was appended. Nothing of it was answered, and nothing
                more may be done: the next generation reads the log.
        """
        self._queue.append(event)
        while self._queue and self.outcome is None:
            # Results of actions are queued, not passed on at once: the
            # coordinator's other actions for this event come first.
            for action in self.coordinator.handle(self._queue.popleft(), self.now_ms()):
                self._carry_out(action)

    def note_overdue_deletions(self, folders: int) -> None:
        """Report how many retired checkpoints wait for their deletion. Call it regularly. Raises as `on_event` does."""
        if folders != self._overdue:
            self._overdue = folders
            self.on_event(ev.DeletionsOverdue(folders))

    def handle_command(self, request: ev.RunRequest) -> None:
        """Process the request of a command. Raises as `on_event` does."""
        if isinstance(request, ev.SnapshotRequest):
            self.on_event(ev.SnapshotRequested(request))
        elif isinstance(request, ev.TimeOutStop):
            self.on_event(replace(request, at_work=self.at_work()))
        elif self.outcome is None:
            self._apply_ruling(request)

    @property
    def search_ms(self) -> int | None:
        """The time of the next search for splits, or None. The shell then calls `take_searches`."""
        return None if self.outcome is not None else self.enumerations.search_ms

    def take_searches(self) -> list[str]:
        """Return the uids of sources whose enumerator must search now. `on_searched` follows for each of them."""
        return [] if self.outcome is not None else self.enumerations.take_searches(self.now_ms())

    def on_searched(self, outcome: SplitsDiscovered | SearchFailed) -> None:
        """Process the outcome of a search for splits."""
        self._assign(self.enumerations.searched(outcome, self.now_ms()))

    def _assign(self, assignments: Sequence[AssignSplits]) -> None:
        if self.outcome is None:
            for assigned in assignments:
                self.slots.send(assigned.subtask[1], assigned)  # slot i hosts subtask i of every chain

    def _apply_ruling(self, ruling: ev.Verdict) -> None:
        """Decide a verdict by the log. This run is the log's only writer.

        The decision is durable before any of its effects.
        """
        facts = self.facts
        verdicts = find_verdicts(facts.specs, facts.generation_log.decisions, facts.spec.number)
        closing = ends_lineage(verdicts, facts.generation_log.decisions, facts.topology)
        outcome = decide_verdict(ruling, verdicts, cannot_quarantine=facts.cannot_quarantine, closing=closing)
        if isinstance(outcome, ev.CommandAnswer):
            self.answer(outcome)
            return
        n = outcome.checkpoint_id
        data = {"checkpoint_id": n, "by": ruling.by, "command": ruling.request_id}
        if ruling.approves:
            number = self._append("approve", data)
            self.answer(outcome.answer)
            self.on_event(ev.CheckpointApproved(n, number))
        elif outcome.withheld is not None:
            self._append("reject", {**data, "then": ruling.then, **outcome.withheld.to_json()})
            self.answer(outcome.answer)
            self.on_event(ev.CheckpointQuarantined(outcome.withheld))
        else:
            self._append("reject", {**data, "then": ruling.then, "reason": ruling.reason})
            self.answer(outcome.answer)
            self.fail(RunRejected(rejection_text(n, ruling.by, ruling.reason), then=ruling.then))

    def on_slot_message(self, message: SlotMessage) -> None:
        """Process a protocol message of a slot. Raises as `on_event` does."""
        match message:
            case Failed() if self.outcome is None:
                self.fail(
                    RunFailed(message.message, message.operator, message.subtask, message.traceback, message.code)
                )
            case SourceWatermarks():
                # Not an event of the coordinator: alignment of sources
                # affects no snapshot, and such messages are frequent.
                answer = self._alignment.advance(message)
                if answer is not None:
                    self.slots.broadcast(answer)
            case SplitsHeld():
                self._assign(self.enumerations.held(message))
            case Acknowledged() | SubtaskFinished():
                self._ended.note(message)
                if isinstance(message, SubtaskFinished):
                    self._assign(self.enumerations.finished(message))
                self.on_event(message)
            case SubtaskRunning() | SubtaskEndedData() | Declined() | SubtaskCommitted():
                self.on_event(message)

    def fail(self, failure: RunFailed) -> None:
        """Abandon the run. The first failure is kept as the root cause."""
        if self.outcome is None:
            self.outcome = failure

    def shut_down(self, reason: str) -> list[ev.SnapshotRequest]:
        """Carry out remaining aborts and answers after the run. Return the requests that the next run repeats."""
        actions, again = self.coordinator.shut_down(reason)
        for action in actions:
            self._carry_out(action)
        return again

    def _carry_out(self, action: Action) -> None:  # noqa: C901, PLR0912 - one case per action
        match action:
            case ev.ClaimCheckpoint(request):
                self._queue.append(self._claim(request))
            case Trigger():
                self.enumerations.triggered(action)  # before it is sent: an assignment would overtake it else
                self.slots.broadcast(action)
            case PauseSources() | LetFinish():
                self.slots.broadcast(action)
            case ev.SendAbort(checkpoint_id, reason, code, counts):
                data = {"checkpoint_id": checkpoint_id, "reason": reason, "code": code, "counts": counts}
                # In the log first: if the append finds a newer generation, this driver must send nothing more (S9.2).
                self._append("abort", data)
                self.slots.broadcast(Abort(checkpoint_id))
                self._assign(self.enumerations.aborted(checkpoint_id))
            case ev.CompleteCheckpoint():
                self._queue.append(self._complete(action))
            case ev.NotifyComplete(checkpoint_id, log_number):
                self.on_completed()
                self.slots.broadcast(Complete(checkpoint_id, self.facts.generation_log.generation, log_number))
                self._permitted(checkpoint_id)
            case Durable():
                self.on_completed()
                self.slots.broadcast(action)
            case ev.SendPermit(checkpoint_id, log_number):
                self.slots.broadcast(Commit(checkpoint_id, self.facts.generation_log.generation, log_number))
                self._permitted(checkpoint_id)
            case ev.SendQuarantine(withheld):
                self.slots.broadcast(Quarantine(self.facts.layout.quarantine, withheld))
            case ev.RecordCommitted(checkpoint_id):
                self._append("committed", {"checkpoint_id": checkpoint_id})
            case ev.DeleteCheckpoint(checkpoint_id, path):
                self.retire(checkpoint_id, path)
            case ev.CommandAnswer():
                self.answer(action)
            case ev.FailRun(reason, stop_given_up):
                self.fail(StopTimedOut(reason) if stop_given_up else RunFailed(reason))
            case ev.RecordSourceEnd(chain):
                self._append("end_of_data", {"source": self.facts.topology.chains[chain].operators[0]})
            case ev.EndRun(stop, checkpoint_id, path, request_id, uncommitted):
                self.outcome = RunEnded(stop, checkpoint_id, path, request_id, uncommitted)

    def _permitted(self, checkpoint_id: int) -> None:
        states = self.enumerations.permitted(checkpoint_id)
        if states:
            self.on_permitted(checkpoint_id, states)

    def _append(self, kind: str, data: Mapping[str, Any]) -> int:
        return self.facts.generation_log.append(kind, data, run_id=self.run_id).number

    def _claim(self, request: ev.SnapshotRequest) -> Event:
        facts = self.facts
        checkpoint_id = self.next_checkpoint_id
        # Counted up before anything can fail. An id is never used twice (S1.4), and a gap in the ids has no effect.
        self.next_checkpoint_id += 1
        generation = facts.generation_log.generation
        problem = None
        if request.kind in ("savepoint", "stop-savepoint"):
            parent = request.path or facts.savepoint_directory or facts.layout.savepoints
            path = f"{parent.rstrip('/')}/savepoint-{facts.spec.job_id}-{checkpoint_id}-g{generation}"
            problem = self._savepoint_location_problem(request, path)
        else:
            path = facts.layout.checkpoint(checkpoint_id, generation)
        data = {
            "checkpoint_id": checkpoint_id,
            "kind": request.kind,
            "triggered_at": facts.now_iso(),
            "path": path,
            **({"by": request.by} if request.by else {}),
        }
        if problem is not None:
            return ev.ClaimFailed(problem)
        watermark_us = self.watermark_us()
        self._append("claim", data if watermark_us is None else {**data, "watermark_us": watermark_us})
        return ev.LocationReady(checkpoint_id, path)

    def _savepoint_location_problem(self, request: ev.SnapshotRequest, path: str) -> str | None:
        """Return why a savepoint cannot be written to a user-chosen location, or None.

        Checked before the trigger, because the trigger of a stop ends the data: after that a failure costs a restart
        (S7.7).
        """
        facts = self.facts
        chosen = request.path or facts.savepoint_directory
        if chosen is None:
            return None
        try:
            check_savepoint_folder(facts.store.url, facts.layout, chosen, where="path")
            probe_location(facts.store, facts.spec, path)
        except TidegateError as error:
            whose = "" if request.path else " (option savepoint_directory)"
            return f"no savepoint can be written to {chosen!r}{whose}: {error}"
        return None

    def _complete(self, complete: ev.CompleteCheckpoint) -> Event:
        facts = self.facts
        operators = operator_metadata(complete, facts.topology)
        metadata = SnapshotMetadata(
            checkpoint_id=complete.checkpoint_id,
            kind=complete.kind,
            job_id=facts.spec.job_id,
            lineage=facts.spec.lineage,
            generation=facts.generation_log.generation,
            run_id=self.run_id,
            parent=self._last_path or self.restored_from,
            parallelism=facts.topology.parallelism,
            max_parallelism=facts.max_parallelism,
            created_at=facts.now_iso(),
            stop_mode=complete.stop,
            drained_operators=drained_operators(complete, facts.topology),
            graph=facts.graph_document,
            operators=operators,
            splits=self.splits,
            counters=self._ended.held(operators),
            enumerators=self.enumerations.parts(complete.checkpoint_id),
        )
        data = {
            "checkpoint_id": complete.checkpoint_id,
            "kind": complete.kind,
            "path": complete.path,
            "stop": complete.stop,
            "metrics": dict(complete.metrics),
            "subtasks": subtask_history(complete),
            "finished_operators": [op.uid for op in metadata.operators if op.status == "finished"],
            "parent": metadata.parent,
            "sinks": dict(facts.sinks),
        }
        if (until_ms := metadata.readable_until_ms) is not None:
            data["readable_until"] = datetime.fromtimestamp(until_ms / 1000, UTC).isoformat()
        # The file before the log entry: "complete" must never name a snapshot without metadata (S2.1).
        try:
            store, folder = open_location(facts.store, facts.spec, complete.path)
            write_metadata(store, folder, metadata)
        except (TidegateError, OSError) as error:
            return ev.CompletionFailed(complete.checkpoint_id, str(error))
        number = self._append("complete", data)
        # A savepoint without stop is no recovery point (S2.4), so that no later snapshot names it as its parent.
        if complete.kind != "savepoint":
            self._last_path = complete.path
        return ev.CompletionDurable(complete.checkpoint_id, number)
