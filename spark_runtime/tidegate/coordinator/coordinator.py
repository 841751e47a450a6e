"""The coordinator of one run: events in, actions out; no clock, thread, socket or Spark (S1, S2, S6, S7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidegate.channel.control.protocol import (
    Acknowledged,
    Declined,
    LetFinish,
    Subtask,
    SubtaskCommitted,
    SubtaskEndedData,
    SubtaskFinished,
    SubtaskRunning,
    Trigger,
)
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpointing.checkpoint_plan import plan_checkpoint
from tidegate.coordinator.checkpointing.completed_snapshots import CompletedSnapshots
from tidegate.coordinator.checkpointing.finished_operators import union_state_problem
from tidegate.coordinator.checkpointing.pending_snapshots import (
    COUNTED_ABORTS,
    PendingCheckpoint,
    PendingSnapshots,
    deadline_of,
)
from tidegate.coordinator.checkpointing.retention import MAX_OVERDUE_DELETIONS, CompletedCheckpoint
from tidegate.coordinator.checkpointing.snapshot_requests import RequestQueue
from tidegate.coordinator.checkpointing.subtask_states import SubtaskStates
from tidegate.coordinator.checkpointing.trigger import (
    FORCED_KINDS,
    DropRequest,
    RefuseRequest,
    StartSnapshot,
    TriggerConditions,
    admit_request,
    decide_start,
)
from tidegate.coordinator.commits.commit_gate import CommitGate
from tidegate.coordinator.events import AbortCode, Action, Event, SnapshotRequest
from tidegate.coordinator.stop.answers import answer_to, job_ended, split_carried_over
from tidegate.coordinator.stop.final_snapshot import FinalSnapshot
from tidegate.coordinator.stop.timeout_answers import (
    StopTimeoutState,
    answer_failed_stop,
    answer_kept_savepoint,
    answer_timed_out_stop,
    answer_unstarted_stop,
)
from tidegate.coordinator.topology import Topology


class CheckpointFailureCounter:
    """Count failed checkpoints in a row.

    The row ends with the completion of a checkpoint that was triggered after the last failure. Checkpoints triggered
    before it do not end the row, because they do not prove that the cause is gone. Savepoints do not either, because
    they go to another location.
    """

    def __init__(self, tolerable: int) -> None:
        """Args: tolerable: the option `tolerable_checkpoint_failures`."""
        self._tolerable = tolerable
        self._in_a_row = 0
        self._newest_id = 0
        self._failed_id = 0

    def claimed(self, checkpoint_id: int) -> None:
        """Record that `checkpoint_id` has been claimed. Ids grow."""
        self._newest_id = checkpoint_id

    def failed(self, checkpoint_id: int | None, reason: str) -> list[Action]:
        """Count a failure; return FailRun when there are too many.

        `checkpoint_id`: None if it failed before it had an id.
        """
        self._in_a_row += 1
        self._failed_id = max(self._failed_id, self._newest_id if checkpoint_id is None else checkpoint_id)
        if self._in_a_row <= self._tolerable:
            return []
        limit = f"tolerable_checkpoint_failures={self._tolerable}"
        return [ev.FailRun(f"more checkpoints than {limit} failed in a row; the last failure: {reason}")]

    def completed(self, checkpoint_id: int, request: SnapshotRequest) -> None:
        """Record a completed snapshot."""
        if request.kind == "checkpoint" and checkpoint_id > self._failed_id:
            self._in_a_row = 0


@dataclass(frozen=True)
class CoordinatorOptions:
    """The options of S1 and S2, in milliseconds and counts.

    Attributes:
        interval_ms: time between periodic checkpoints; None: no periodic checkpoints.
        enabled: False: no snapshots at all (`checkpoint_mode="off"`).
    """

    interval_ms: int | None
    min_pause_ms: int
    timeout_ms: int
    max_concurrent: int
    max_queued: int
    tolerable_failures: int
    retained: int
    enabled: bool = True


class Coordinator:
    """Trigger, collect and complete the snapshots of one run.

    `handle` must be called from one thread, with a monotonic clock. After `EndRun` or `FailRun` the run is over, and
    `shut_down` returns the answers to commands that still wait.
    """

    def __init__(
        self,
        topology: Topology,
        options: CoordinatorOptions,
        *,
        run_id: str,
        first_delay_ms: int,
        completed: Sequence[CompletedCheckpoint] = (),
        last_committed: int | None = None,
        restored: int | None = None,
        finished: Iterable[Subtask] = (),
        commit_only: int | None = None,
        gate: CommitGate | None = None,
    ) -> None:
        """Create the coordinator of a run.

        Args:
            first_delay_ms: time before the first periodic trigger, chosen at random by the caller (S1.1).
            completed: completed snapshots of the job, oldest first.
            last_committed: newest checkpoint whose commit is known.
            restored: the snapshot that this run starts from, if it belongs to the job.
            finished: subtasks that had finished before this run, and are not started.
            commit_only: the completed stop-savepoint that this run only commits (S7.7). The subtasks of such a run hold
                no state, so it takes no snapshots: they would be newer recovery points in which everything has
                finished.
            gate: the commit gate, with commit="on_request"; None: completion permits the commit.
        """
        self._gate = gate
        self._topology = topology
        self._options = options
        self._run_id = run_id
        self._first_delay_ms = first_delay_ms
        finished = tuple(finished)
        self._subtasks = SubtaskStates(topology, finished)
        self._queue = RequestQueue(options.max_queued)
        self._pending = PendingSnapshots()
        self._claiming: SnapshotRequest | None = None
        self._shelf = CompletedSnapshots(
            topology, completed, retained=options.retained, last_committed=last_committed, restored=restored, gate=gate
        )
        for subtask in finished:
            self._shelf.finished(subtask)
        self._commit_only = commit_only
        self._next_periodic_ms: int | None = None
        self._last_completed_ms: int | None = None
        self._failures = CheckpointFailureCounter(options.tolerable_failures)
        needed = options.interval_ms is not None or topology.commits
        self._final = FinalSnapshot(needed=needed and not (gate is not None and gate.at_end))
        self._stop: PendingCheckpoint | None = None
        self._overdue = 0
        self._over = False
        self._refused: Counter[str] = Counter()

    # ------------------------------------------------------------ entry

    def handle(self, event: Event, now_ms: int) -> list[Action]:  # noqa: C901, PLR0912 - one case per event
        """Process one event. The returned actions must be carried out in order."""
        if self._over:
            return self._request(event.request) if isinstance(event, ev.SnapshotRequested) else []
        match event:
            case ev.Tick():
                actions = self._on_tick(now_ms)
            case SubtaskRunning(subtask):
                actions = self._on_running(subtask, now_ms)
            case SubtaskEndedData(subtask, natural):
                actions = self._on_ended(subtask, natural, now_ms)
            case SubtaskFinished(subtask):
                actions = self._on_finished(subtask, now_ms)
            case Acknowledged():
                actions = self._on_ack(event, now_ms)
            case Declined():
                actions = self._on_decline(event, now_ms)
            case ev.SnapshotRequested(request):
                actions = self._request(request)
            case ev.LocationReady(checkpoint_id, path):
                actions = self._on_location(checkpoint_id, path, now_ms)
            case ev.ClaimFailed(reason):
                actions = self._on_claim_failed(reason, now_ms)
            case ev.CompletionDurable(checkpoint_id, log_number):
                actions = self._on_durable(checkpoint_id, log_number, now_ms)
            case ev.CompletionFailed(checkpoint_id, reason):
                pending = self._pending.get(checkpoint_id)
                actions = self._abort(pending, "io", f"the snapshot could not be completed: {reason}", now_ms)
            case SubtaskCommitted(subtask, checkpoint_id):
                actions = self._shelf.committed(subtask, checkpoint_id)
            case ev.CheckpointApproved() | ev.CheckpointQuarantined():
                actions = self._shelf.apply_verdict(event)
            case ev.TimeOutStop():
                actions = self._give_up_stop(event)
            case ev.DeletionsOverdue(folders):
                self._overdue, actions = folders, []
        self._over = self._over or any(isinstance(action, ev.FailRun) for action in actions)
        # After every event, because any event can free a place for a queued request or end the pause that delays it.
        return actions if self._over else actions + self._start_next(now_ms)

    def next_wake_ms(self) -> int | None:
        """Return the time at which the next Tick can change something, or None."""
        if self._over:
            return None
        times = self._pending.deadlines_ms
        times += [t for t in (self._next_periodic_ms, self._final.due_ms) if t is not None]
        return min(times, default=None)

    def shut_down(self, reason: str) -> tuple[list[Action], list[SnapshotRequest]]:
        """End the run: abort pending snapshots and answer stops.

        Returns the actions, and the user requests that the next run may repeat: checkpoints and savepoints. Stops are
        answered here if they cannot be repeated (S7.7).

        Snapshots whose completion was being written are neither aborted nor answered. They may be in the log, so that
        only a reader of the log can decide about them (S2.1).
        """
        self._over = True
        actions: list[Action] = []
        again: list[SnapshotRequest] = []
        for pending in self._pending.values():
            if pending.completing:
                continue
            actions += pending.abort_actions(reason, "shutdown")
            again.append(pending.request)
        if self._claiming is not None:
            again.append(self._claiming)
        again += self._queue.drain()
        self._pending.clear()
        answers, keep = split_carried_over(again, reason)
        return actions + answers, keep

    @property
    def all_running(self) -> bool:
        """True when all subtasks have started."""
        return self._subtasks.all_up

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """Ids of pending snapshots."""
        return tuple(self._pending)

    @property
    def stop_completed(self) -> bool:
        """True when a stop-savepoint has completed. Only its commit and the end of the run follow (S7.7)."""
        return self._stop is not None

    @property
    def sources_paused(self) -> bool:
        """True when sources are paused because too many checkpoints wait for a verdict (S7.8). Safe from any thread."""
        return self._gate is not None and self._gate.paused

    @property
    def waits_for_deletions(self) -> int:
        """Number of retired checkpoints that wait for deletion, if they delay new ones; else 0 (S2.3).

        Safe from any thread.
        """
        return self._overdue if self._overdue >= MAX_OVERDUE_DELETIONS else 0

    @property
    def refused(self) -> dict[str, int]:
        """Return how many requests were refused, by code (S1.2), as a copy. Safe from any thread."""
        return dict(self._refused)

    # ------------------------------------------------------------ subtask states

    def _on_running(self, subtask: Subtask, now_ms: int) -> list[Action]:
        self._subtasks.set(subtask, "running")
        periodic = self._options.interval_ms is not None and self._options.enabled and self._commit_only is None
        # A gated run that starts at the end stages nothing: a checkpoint would only wait for a verdict.
        stages = self._gate is None or not self._gate.at_end
        if periodic and stages and self._subtasks.all_up:
            self._next_periodic_ms = now_ms + self._first_delay_ms
        return self._shelf.up() if self._subtasks.all_up else []

    def _on_ended(self, subtask: Subtask, natural: bool, now_ms: int) -> list[Action]:
        self._subtasks.set(subtask, "ended", natural=natural)
        self._request_final(now_ms)
        return self._note_source_end(subtask[0])

    def _on_finished(self, subtask: Subtask, now_ms: int) -> list[Action]:
        self._subtasks.set(subtask, "finished")
        actions = self._note_source_end(subtask[0]) + self._shelf.finished(subtask)
        reason = f"subtask {subtask} finished before it could take part in the snapshot"
        for pending in [p for p in self._pending.values() if p.waits_for(subtask)]:
            final = "; the job takes another final snapshot" if pending.request.kind == "final" else ""
            actions += self._abort(pending, "subtask_finished", reason + final, now_ms)
        if self._subtasks.all_finished:
            return actions + self._end()
        self._request_final(now_ms)
        return actions

    def _end(self) -> list[Action]:
        """End the run, after every subtask has finished."""
        self._over = True
        actions: list[Action] = []
        for pending in self._pending.values():
            actions += pending.abort_actions("the job ended", "job_ended")
        waiting = [self._claiming] if self._claiming is not None else []
        actions += job_ended([p.request for p in self._pending.values()], waiting + self._queue.drain())
        self._pending.clear()
        self._claiming = None
        left = self._gate.uncommitted if self._gate is not None else ()
        if self._stop is not None:
            return [*actions, self._stop.end_action(left)]
        if self._commit_only is not None and self._topology.commits and self._gate is None:
            actions.append(ev.RecordCommitted(self._commit_only))
        return [*actions, ev.EndRun(None, None, None, None, left)]

    def _note_source_end(self, chain_id: int) -> list[Action]:
        reached = self._commit_only is None and self._subtasks.reached_end_of_data(chain_id)
        return [ev.RecordSourceEnd(chain_id)] if reached else []

    def _request_final(self, now_ms: int) -> None:
        """Request one final snapshot as soon as no subtask reads any more. It serves all chains (S7.3)."""
        wanted = self._final.needed and self._commit_only is None and self._options.enabled
        if wanted and self._subtasks.all_ended and not self._ending_is_served():
            self._final.request(now_ms)

    def _may_end_without(self) -> bool:
        """Return whether the run may end without a snapshot: no subtask reads and no request waits. Later stops come
        too late.
        """
        if self._commit_only is not None or not self._options.enabled or not self._subtasks.all_ended:
            return False
        return not (self._pending or self._claiming or len(self._queue) or self._ending_is_served())

    def _ending_is_served(self) -> bool:
        """Return whether a snapshot with which every ended subtask can finish is pending or complete."""
        on_its_way = {"stop-savepoint", "final"}
        kinds = self._pending.kinds | {r.kind for r in self._queue.savepoints()}
        # A request that is being claimed is in neither the queue nor
        # the pending snapshots. Without it, a second one would start.
        if self._claiming is not None:
            kinds.add(self._claiming.kind)
        return self._final.done or self._stop is not None or not kinds.isdisjoint(on_its_way)

    # ------------------------------------------------------------ triggering

    def _on_tick(self, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        for pending in self._pending.expired(now_ms):
            actions += self._abort(pending, "expired", pending.expiry_message(now_ms), now_ms)
        if self._next_periodic_ms is not None and now_ms >= self._next_periodic_ms:
            assert self._options.interval_ms is not None
            # Counted from now: if ticks came late, missed checkpoints are not made up for by several in a row.
            self._next_periodic_ms = now_ms + self._options.interval_ms
            actions += self._request(SnapshotRequest("checkpoint", periodic=True))
        return actions

    def _situation(self) -> TriggerConditions:
        kinds = self._pending.kinds
        stopping = self._stop is not None or "stop-savepoint" in kinds
        last_ms = self._last_completed_ms
        return TriggerConditions(
            shut_down=self._over,
            commits_only=self._commit_only is not None,
            checkpointing_off=not self._options.enabled,
            periodic_on=self._next_periodic_ms is not None and not stopping,
            periodic_queued=self._queue.has_periodic(),
            claiming=self._claiming is not None,
            ending=stopping or self._final.done or "final" in kinds,
            only_final=not stopping and not self._final.done and bool(self._pending.finals()),
            all_up=self._subtasks.all_up,
            all_ended=self._subtasks.all_ended,
            deletes_too_slowly=bool(self.waits_for_deletions),
            pending=len(self._pending),
            max_concurrent=self._options.max_concurrent,
            pause_ends_ms=None if last_ms is None else last_ms + self._options.min_pause_ms,
            uncommitted=len(self._gate.waiting) if self._gate is not None else 0,
            max_uncommitted=self._gate.limit if self._gate is not None else None,
        )

    def _request(self, request: SnapshotRequest) -> list[Action]:
        if request.kind == "stop-savepoint" and self._commit_only is not None and not self._over:
            return []  # the job is already stopping: its driver answers the command when the stop is done
        refusal = admit_request(request, self._situation())
        if refusal is not None:
            return self._refuse(request, refusal)
        if request.kind == "stop-savepoint" and (first := self._stop_on_its_way()) is not None:
            text = f"another stop (mode {first.stop}) is in progress. Wait until it ends"
            return self._refuse(request, RefuseRequest("stop_in_progress", text))
        return self._enqueue(request)

    def _enqueue(self, request: SnapshotRequest) -> list[Action]:
        # A full queue may drop another request than the new one, because requests have priorities (S1.2).
        fell_out = self._queue.add(request)
        text = f"the request was dropped, because the queue is full: max_queued_requests={self._options.max_queued}"
        return [] if fell_out is None else self._refuse(fell_out, RefuseRequest("too_many_requests", text))

    def _refuse(self, request: SnapshotRequest, refusal: RefuseRequest) -> list[Action]:
        self._refused[refusal.code] += 1
        return answer_to(request, False, refusal.code, refusal.message)

    def _stop_on_its_way(self) -> SnapshotRequest | None:
        waiting = [p.request for p in self._pending.values()] + self._queue.savepoints()
        if self._stop is not None:
            waiting.append(self._stop.request)
        if self._claiming is not None:
            waiting.append(self._claiming)
        return next((r for r in waiting if r.kind == "stop-savepoint"), None)

    def _start_next(self, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        # `take_due` comes first because it clears the due time. A due time
        # in the past would make `next_wake_ms` wake the driver without end.
        if self._final.take_due(now_ms) and self._subtasks.all_ended and not self._ending_is_served():
            actions = self._request(SnapshotRequest("final"))
        while (request := self._queue.next(full=len(self._pending) >= self._options.max_concurrent)) is not None:
            verdict = decide_start(request, self._situation(), now_ms)
            if isinstance(verdict, StartSnapshot):
                self._queue.take(request)
                self._claiming = request
                return [*actions, ev.ClaimCheckpoint(request)]
            if isinstance(verdict, RefuseRequest | DropRequest):
                self._queue.take(request)
                if isinstance(verdict, RefuseRequest):
                    actions += self._refuse(request, verdict)
                continue
            if verdict.until_ms is not None:  # only periodic requests observe the pause: the next tick repeats them
                self._queue.take(request)
                self._next_periodic_ms = verdict.until_ms
                continue
            break
        # After the queue, because requests that were just refused or dropped no longer prevent the end.
        if not self._final.needed and self._may_end_without():
            self._final.done = True
            actions.append(LetFinish())
        return actions

    def _on_location(self, checkpoint_id: int, path: str, now_ms: int) -> list[Action]:
        request = self._claiming
        assert request is not None, "LocationReady without Claim"
        self._claiming = None
        # Planned from the newest states: a subtask that has finished since the request would never acknowledge (S1.5).
        plan = plan_checkpoint(self._topology, self._subtasks.by_subtask)
        deadline_ms = deadline_of(request, self._options.timeout_ms, now_ms)
        pending = PendingCheckpoint(checkpoint_id, request, path, now_ms, deadline_ms, plan)
        # Registered also if the next lines abort it: `_abort` acts only
        # on registered snapshots and records the abort of the claimed id.
        self._pending[checkpoint_id] = pending
        self._failures.claimed(checkpoint_id)
        pending.after_all_data = self._subtasks.all_ended
        if request.kind == "final" and self._final.done:
            return self._abort(pending, "subsumed", "the job ends with an earlier snapshot", now_ms)
        if not plan.wait_for:
            return self._abort(pending, "subtask_finished", "every subtask has finished", now_ms)
        actions: list[Action] = []
        for final in self._pending.finals() if request.kind == "stop-savepoint" else ():
            actions += self._abort(final, "job_stops", f"the job stops with savepoint {checkpoint_id} instead", now_ms)
        return [*actions, Trigger(checkpoint_id, request.kind, request.stop, path, now_ms, plan.to_trigger)]

    def _on_claim_failed(self, reason: str, now_ms: int) -> list[Action]:
        request, self._claiming = self._claiming, None
        assert request is not None, "ClaimFailed without Claim"
        # The first trigger of this stop has already ended the data, so
        # the job cannot continue as if nothing had happened (S7.7).
        if request.data_ended:
            return answer_failed_stop(request, reason)
        text = f"the {request.kind} could not be started: {reason}"
        actions = self._refuse(request, RefuseRequest("claim_failed", text))
        if request.kind == "final":
            self._final.failed(now_ms)
        elif request.kind == "stop-savepoint":
            self._request_final(now_ms)  # subtasks that have ended need a snapshot to finish with
        return actions + (self._failures.failed(None, reason) if request.kind not in FORCED_KINDS else [])

    # ------------------------------------------------------------ collecting

    def _on_ack(self, ack: Acknowledged, now_ms: int) -> list[Action]:
        pending = self._pending.get(ack.checkpoint_id)
        if pending is None or ack.run_id != self._run_id or not pending.acknowledge(ack, now_ms):
            return []
        # Data can end between trigger and barrier. Then subtasks finish with this snapshot, without another one (S7.3).
        pending.after_all_data = pending.after_all_data or pending.all_had_ended
        complete = pending.completion(now_ms)
        # Known only now, because the acknowledgements report which
        # subtasks had called finish() before their part (S6.3).
        refusal = union_state_problem(complete, self._topology)
        if refusal is not None:
            return self._abort(pending, "partially_finished", refusal, now_ms)
        pending.completing = True
        return [complete]

    def _on_decline(self, decline: Declined, now_ms: int) -> list[Action]:
        pending = self._pending.get(decline.checkpoint_id)
        # While the completion is being written, only its result
        # decides: the entry "complete n" may already be in the log.
        if pending is None or decline.run_id != self._run_id or pending.completing:
            return []
        code: AbortCode = "declined" if decline.code == "failed" else decline.code
        return self._abort(pending, code, f"declined by subtask {decline.subtask}: {decline.reason}", now_ms)

    def _on_durable(self, checkpoint_id: int, log_number: int, now_ms: int) -> list[Action]:
        pending = self._pending.pop(checkpoint_id, None)
        if pending is None:
            return []
        request = pending.request
        actions: list[Action] = []
        self._failures.completed(checkpoint_id, request)
        self._last_completed_ms = now_ms
        if request.kind != "savepoint":
            self._final.done = self._final.done or pending.after_all_data
            if pending.after_all_data:
                # Every subtask finishes with this one, which would abort a final snapshot beside it.
                for final in self._pending.finals():
                    actions += self._abort(
                        final, "subsumed", f"the job ends with {request.kind} {checkpoint_id}", now_ms
                    )
            # A list, because `_abort` removes entries from the dictionary.
            for older in list(self._pending.values()):
                if older.checkpoint_id < checkpoint_id and older.request.kind not in ("savepoint", "stop-savepoint"):
                    actions += self._abort(older, "subsumed", f"subsumed by checkpoint {checkpoint_id}", now_ms)
            last = pending.after_all_data or request.kind == "stop-savepoint"
            actions += self._shelf.notify(checkpoint_id, log_number, last=last)
        # A stop gets no answer yet. `EndRun` causes it, after the output of the savepoint has been committed (S7.5).
        if request.kind == "stop-savepoint":
            self._stop = pending
            for other in list(self._pending.values()):
                actions += self._abort(other, "job_stops", "the job stops", now_ms)
        else:
            data = {"checkpoint_id": checkpoint_id, "path": pending.path, "kind": request.kind}
            actions += answer_to(request, True, "completed", f"{request.kind} {checkpoint_id} is complete", data)
        return actions + self._shelf.add(CompletedCheckpoint(checkpoint_id, request.kind, pending.path, request.stop))

    # ------------------------------------------------------------ aborting

    def _abort(self, pending: PendingCheckpoint | None, code: AbortCode, reason: str, now_ms: int) -> list[Action]:
        """Abort a snapshot. Each id is aborted once: later calls for it return nothing (S2.2)."""
        if pending is None or self._pending.pop(pending.checkpoint_id, None) is None:
            return []
        request = pending.request
        counts = code in COUNTED_ABORTS and request.kind not in FORCED_KINDS
        actions = pending.abort_actions(reason, code, counts)
        if request.kind in ("checkpoint", "savepoint"):
            actions += answer_to(request, False, "aborted", f"{request.kind} {pending.checkpoint_id} aborted: {reason}")
        if request.kind == "final" and code == "subtask_finished":
            self._request_final(now_ms)
        elif request.kind == "final" and code not in ("subsumed", "job_stops"):
            self._final.failed(now_ms)
        if request.kind == "stop-savepoint":
            afresh = code == "subtask_finished"  # the plan was out of date: a new one includes what has ended (S1.5)
            again = replace(request, data_ended=True)
            return actions + (self._enqueue(again) if afresh else answer_failed_stop(request, reason))
        return actions + (self._failures.failed(pending.checkpoint_id, reason) if counts else [])

    def _give_up_stop(self, event: ev.TimeOutStop) -> list[Action]:
        """End a stop whose time is up. Once its savepoint is complete, the stop cannot be taken back (S7.7)."""
        scene = StopTimeoutState(self._topology, self._subtasks.by_subtask, event.limit, event.at_work)
        if self._stop is not None:
            return answer_kept_savepoint(event, scene, self._stop.checkpoint_id, self._stop)
        if self._commit_only is not None:
            return answer_kept_savepoint(event, scene, self._commit_only, None)
        request = self._stop_on_its_way()
        if request is None or event.request_id not in (None, request.request_id):
            return []
        self._queue.take(request)
        pending = next((p for p in self._pending.values() if p.request is request), None)
        if pending is None:
            return answer_unstarted_stop(request, scene)
        if pending.completing:
            return []  # only the result of the write decides, as in `_on_decline`; the end of the run is the answer
        # Not `_abort`, which would answer the stop as a failed one and make the run fail with a counted failure.
        del self._pending[pending.checkpoint_id]
        return answer_timed_out_stop(pending, scene)
