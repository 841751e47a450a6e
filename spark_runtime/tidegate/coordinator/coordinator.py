"""The coordinator of one run: events in, actions out; no clock, thread, socket or Spark (S1, S2, S6, S7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.coordinator import events as ev
from tidegate.coordinator.answers import answer_to
from tidegate.coordinator.checkpoint_plan import SubtaskState, plan_checkpoint
from tidegate.coordinator.commit_tracker import CommitTracker
from tidegate.coordinator.events import Action, Event, Request, Subtask
from tidegate.coordinator.pending import PendingCheckpoint
from tidegate.coordinator.requests import RequestQueue
from tidegate.coordinator.retention import Completed, retired
from tidegate.coordinator.topology import Topology

FINAL_RETRY_MS = 1_000
"""Back-off before a final snapshot that failed is asked for again (S1.2)."""


@dataclass(frozen=True)
class CoordinatorOptions:
    """The options of S1 and S2, in milliseconds and counts; `interval_ms` None: periodic checkpoints off."""

    interval_ms: int | None
    min_pause_ms: int
    timeout_ms: int
    max_concurrent: int
    max_queued: int
    tolerable_failures: int
    retained: int


class Coordinator:
    """Triggers, collects and completes the snapshots of one run.

    `handle` must be called from one thread, with a clock that does not go back. After `EndRun` or `FailRun` the run is
    over; `shut_down` gives the answers that are still owed.
    """

    def __init__(
        self,
        topology: Topology,
        options: CoordinatorOptions,
        *,
        run_id: str,
        first_delay_ms: int,
        completed: Sequence[Completed] = (),
        last_committed: int | None = None,
        finished: Iterable[Subtask] = (),
        commit_only: int | None = None,
    ) -> None:
        """Args: first_delay_ms: before the first periodic trigger, drawn by the caller (S1.1).
        completed: snapshots of this lineage, oldest first. finished: subtasks that do not exist in this run.
        commit_only: the completed stop-savepoint that this run only commits (S7.7). Its subtasks hold no state any
        more, so it takes no snapshot: that would be a newer recovery point with everything in it finished."""
        self._topology = topology
        self._options = options
        self._run_id = run_id
        self._first_delay_ms = first_delay_ms
        self._states: dict[Subtask, SubtaskState] = dict.fromkeys(topology.subtasks(), "created")
        self._natural: dict[Subtask, bool] = {}
        self._queue = RequestQueue(options.max_queued)
        self._pending: dict[int, PendingCheckpoint] = {}
        self._claiming: Request | None = None
        self._completed = list(completed)
        self._last_committed = last_committed
        self._commits = CommitTracker(topology)
        self._commit_only = commit_only
        self._next_periodic_ms: int | None = None
        self._last_completed_ms: int | None = None
        self._failures = 0
        self._final_due_ms: int | None = None
        self._final_done = False
        self._stop: PendingCheckpoint | None = None
        self._over = False
        self._sources_ended: set[int] = set()
        for subtask in finished:
            self._states[subtask] = "finished"

    # ------------------------------------------------------------ entry

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take one event; the actions are to be carried out in order."""
        if self._over:
            return self._after_the_end(event)
        match event:
            case ev.Tick():
                actions = self._on_tick(now_ms)
            case ev.SubtaskRunning(subtask):
                actions = self._on_running(subtask, now_ms)
            case ev.SubtaskEndedData(subtask, natural):
                actions = self._on_ended(subtask, natural, now_ms)
            case ev.SubtaskFinished(subtask):
                actions = self._on_finished(subtask, now_ms)
            case ev.Acknowledged():
                actions = self._on_ack(event, now_ms)
            case ev.Declined():
                actions = self._on_decline(event, now_ms)
            case ev.SnapshotRequested(request):
                actions = self._on_request(request)
            case ev.LocationReady(checkpoint_id, path):
                actions = self._on_location(checkpoint_id, path, now_ms)
            case ev.ClaimFailed(reason):
                actions = self._on_claim_failed(reason, now_ms)
            case ev.CompletionDurable(checkpoint_id, log_number):
                actions = self._on_durable(checkpoint_id, log_number, now_ms)
            case ev.CompletionFailed(checkpoint_id, reason):
                actions = self._abort(
                    self._pending.get(checkpoint_id), f"could not be completed: {reason}", counts=True
                )
            case ev.SubtaskCommitted(subtask, checkpoint_id):
                actions = self._on_committed(subtask, checkpoint_id)
        if not self._over:
            actions += self._start_next(now_ms)
        return actions

    def next_wake_ms(self) -> int | None:
        """When the next Tick can change something."""
        times = [p.deadline_ms for p in self._pending.values() if not p.completing]
        times += [t for t in (self._next_periodic_ms, self._final_due_ms) if t is not None]
        return min(times, default=None)

    def shut_down(self, reason: str) -> tuple[list[Action], list[Request]]:
        """The run is over: abort what is pending, answer stops; returns also the user requests that the next run may
        take up again (checkpoints and savepoints; S7.7 tells a stop apart)."""
        self._over = True
        actions: list[Action] = []
        again: list[Request] = []
        for pending in self._pending.values():
            actions.append(ev.SendAbort(pending.checkpoint_id, reason))
            if pending.request.kind in ("checkpoint", "final"):
                actions.append(ev.Retire(pending.checkpoint_id, pending.path))
            again.append(pending.request)
        if self._claiming is not None:
            again.append(self._claiming)
        again += self._queue.drain()
        self._pending.clear()
        keep: list[Request] = []
        for request in again:
            if request.request_id is None:
                continue
            if request.kind == "stop-savepoint":
                text = f"the stop did not happen, nothing was committed by it; the job restarts: {reason}"
                actions.append(ev.Answer(request.request_id, False, "savepoint_failed_job_continues", text))
            else:
                keep.append(request)
        return actions, keep

    @property
    def all_running(self) -> bool:
        """No subtask is still to come up."""
        return "created" not in self._states.values()

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """Ids on their way."""
        return tuple(self._pending)

    @property
    def stop_completed(self) -> bool:
        """A stop-savepoint has completed; what follows is only its commit and the end (S7.7)."""
        return self._stop is not None

    # ------------------------------------------------------------ subtask states

    def _on_running(self, subtask: Subtask, now_ms: int) -> list[Action]:
        self._states[subtask] = "running"
        periodic = self._options.interval_ms is not None and self._commit_only is None
        if periodic and "created" not in self._states.values():
            self._next_periodic_ms = now_ms + self._first_delay_ms
        return []

    def _on_ended(self, subtask: Subtask, natural: bool, now_ms: int) -> list[Action]:
        self._states[subtask] = "ended"
        self._natural[subtask] = natural
        return self._note_source_end(subtask[0]) + self._ask_for_final(now_ms)

    def _on_finished(self, subtask: Subtask, now_ms: int) -> list[Action]:
        self._states[subtask] = "finished"
        self._natural.setdefault(subtask, True)
        actions = self._note_source_end(subtask[0])
        reason = f"subtask {subtask} finished before it could take part"
        for pending in [p for p in self._pending.values() if p.waits_for(subtask)]:
            actions += self._abort(pending, reason, counts=False)
        if all(s == "finished" for s in self._states.values()):
            self._over = True
            stop = self._stop
            for pending in self._pending.values():
                actions.append(ev.SendAbort(pending.checkpoint_id, "the job ended"))
                actions += answer_to(pending.request, False, "job_ended", "the job ended before the snapshot completed")
            for request in self._queue.drain():
                actions += answer_to(request, False, "job_ended", "the job ended before the snapshot was triggered")
            self._pending.clear()
            if stop is None:
                if self._commit_only is not None and self._topology.commits:
                    actions.append(ev.RecordCommitted(self._commit_only))
                actions.append(ev.EndRun(None, None, None))
            else:
                request = stop.request
                actions.append(ev.EndRun(request.stop, stop.checkpoint_id, stop.path, request.request_id))
        else:
            actions += self._ask_for_final(now_ms)
        return actions

    def _note_source_end(self, chain_id: int) -> list[Action]:
        chain = self._topology.chains[chain_id]
        if not chain.is_source or chain_id in self._sources_ended or self._commit_only is not None:
            return []
        subtasks = [(chain_id, i) for i in range(self._topology.parallelism)]
        over = all(self._states[s] in ("ended", "finished") and self._natural.get(s, True) for s in subtasks)
        if not over:
            return []
        self._sources_ended.add(chain_id)
        return [ev.RecordSourceEnd(chain_id)]

    def _ask_for_final(self, now_ms: int) -> list[Action]:
        """One final snapshot as soon as nothing reads any more; it serves every stage (S7.3)."""
        if self._commit_only is None and self._all_ended() and not self._ending_is_served():
            self._final_due_ms = now_ms
        return []

    def _all_ended(self) -> bool:
        states = self._states.values()
        return "ended" in states and all(s in ("ended", "finished") for s in states)

    def _ending_is_served(self) -> bool:
        """A snapshot that lets every ended subtask finish is on its way or has completed."""
        kinds = {p.request.kind for p in self._pending.values()} | {r.kind for r in self._queue.savepoints()}
        if self._claiming is not None:
            kinds.add(self._claiming.kind)
        return self._final_done or self._stop is not None or "stop-savepoint" in kinds or "final" in kinds

    # ------------------------------------------------------------ triggering

    def _on_tick(self, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        for pending in list(self._pending.values()):
            if now_ms >= pending.deadline_ms and not pending.completing:
                missing = sorted(pending.plan.wait_for - pending.acks.keys())[:5]
                reason = f"expired after {now_ms - pending.triggered_ms} ms; no answer from subtasks {missing}"
                actions += self._abort(pending, reason, counts=True)
        if self._next_periodic_ms is not None and now_ms >= self._next_periodic_ms:
            assert self._options.interval_ms is not None
            self._next_periodic_ms = now_ms + self._options.interval_ms
            if not self._queue.has_periodic():
                actions += self._on_request(Request("checkpoint", periodic=True))
        return actions

    def _on_request(self, request: Request) -> list[Action]:
        if self._commit_only is not None:
            if request.kind == "stop-savepoint":
                return []  # the job is stopping: whoever runs it answers when that is done
            return answer_to(request, False, "job_ended", "the job has stopped and only commits what is left")
        if request.kind == "stop-savepoint" and self._ending_is_served():
            merged = self._merge_into_stop(request)
            if merged is not None:
                return merged
        return self._enqueue(request)

    def _enqueue(self, request: Request) -> list[Action]:
        fell_out = self._queue.add(request)
        if fell_out is None:
            return []
        limit = self._options.max_queued
        return answer_to(fell_out, False, "too_many_requests", f"more than {limit} snapshot requests are waiting")

    def _is_ending(self) -> bool:
        """The snapshot that ends every subtask is on its way or complete. Another one waits for the outcome: it would
        hold windows a drain has fired, or be aborted by whoever finishes first."""
        kinds = {p.request.kind for p in self._pending.values()}
        return self._stop is not None or self._final_done or not kinds.isdisjoint(("stop-savepoint", "final"))

    def _merge_into_stop(self, request: Request) -> list[Action] | None:
        stops = [p.request for p in self._pending.values() if p.request.kind == "stop-savepoint"]
        stops += [r for r in self._queue.savepoints() if r.kind == "stop-savepoint"]
        if self._stop is not None:
            stops.append(self._stop.request)
        if self._claiming is not None and self._claiming.kind == "stop-savepoint":
            stops.append(self._claiming)
        if not stops:
            return None
        text = f"a stop (mode {stops[0].stop}) is on its way already; wait for its end"
        return answer_to(request, False, "stop_in_progress", text)

    def _start_next(self, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        if self._final_due_ms is not None and now_ms >= self._final_due_ms:
            self._final_due_ms = None
            if self._all_ended() and not self._ending_is_served():
                actions = self._enqueue(Request("final"))
        return actions + self._start_queued(now_ms)

    def _start_queued(self, now_ms: int) -> list[Action]:
        request = self._queue.peek()
        if request is None or self._claiming is not None or self._is_ending():
            return []
        forced = request.kind in ("savepoint", "stop-savepoint")
        if not forced and len(self._pending) >= self._options.max_concurrent:
            waiting = self._queue.savepoints()
            if not waiting:
                return []
            request = waiting[0]
        if request.kind == "final" and not self._all_ended():
            self._queue.take(request)
            return []
        if request.periodic and self._last_completed_ms is not None:
            pause_ends_ms = self._last_completed_ms + self._options.min_pause_ms
            if now_ms < pause_ends_ms:
                self._queue.take(request)
                self._next_periodic_ms = pause_ends_ms
                return []
        plan = plan_checkpoint(self._topology, self._states)
        if plan.missing:
            if request.periodic:
                self._queue.take(request)
            return []
        self._queue.take(request)
        self._claiming = request
        return [ev.Claim(request)]

    def _on_location(self, checkpoint_id: int, path: str, now_ms: int) -> list[Action]:
        request = self._claiming
        assert request is not None, "LocationReady without Claim"
        self._claiming = None
        plan = plan_checkpoint(self._topology, self._states)
        deadline_ms = now_ms + self._options.timeout_ms
        pending = PendingCheckpoint(checkpoint_id, request, path, now_ms, deadline_ms, plan)
        self._pending[checkpoint_id] = pending
        pending.after_all_data = self._all_ended()
        if not plan.wait_for:
            return self._abort(pending, "every subtask has finished", counts=False)
        trigger = ev.SendTrigger(checkpoint_id, request.kind, request.stop, path, now_ms, plan.to_trigger)
        return [trigger]

    def _on_claim_failed(self, reason: str, now_ms: int) -> list[Action]:
        request, self._claiming = self._claiming, None
        assert request is not None, "ClaimFailed without Claim"
        actions = answer_to(request, False, "claim_failed", f"the checkpoint id could not be claimed: {reason}")
        if request.kind == "final":
            self._final_due_ms = now_ms + FINAL_RETRY_MS
        return actions + self._count_failure(request, reason)

    # ------------------------------------------------------------ collecting

    def _on_ack(self, ack: ev.Acknowledged, now_ms: int) -> list[Action]:
        pending = self._pending.get(ack.checkpoint_id)
        if pending is None or ack.run_id != self._run_id or not pending.acknowledge(ack, now_ms):
            return []
        pending.completing = True
        request = pending.request
        return [
            ev.Complete(
                pending.checkpoint_id,
                request.kind,
                request.stop,
                pending.path,
                pending.triggered_ms,
                dict(pending.acks),
                pending.plan.finished,
                pending.metrics(now_ms),
            )
        ]

    def _on_decline(self, decline: ev.Declined, now_ms: int) -> list[Action]:
        pending = self._pending.get(decline.checkpoint_id)
        if pending is None or decline.run_id != self._run_id or pending.completing:
            return []
        return self._abort(pending, f"declined by subtask {decline.subtask}: {decline.reason}", counts=True)

    def _on_durable(self, checkpoint_id: int, log_number: int, now_ms: int) -> list[Action]:
        pending = self._pending.pop(checkpoint_id, None)
        if pending is None:
            return []
        request = pending.request
        actions: list[Action] = []
        self._failures = 0
        self._last_completed_ms = now_ms
        self._completed.append(Completed(checkpoint_id, request.kind, pending.path))
        if request.kind != "savepoint":
            self._final_done = self._final_done or pending.after_all_data
            for older in list(self._pending.values()):
                if older.checkpoint_id < checkpoint_id and older.request.kind not in ("savepoint", "stop-savepoint"):
                    actions += self._abort(older, f"subsumed by checkpoint {checkpoint_id}", counts=False)
            actions.append(ev.NotifyComplete(checkpoint_id, log_number))
            self._commits.completed(checkpoint_id)
        if request.kind == "stop-savepoint":
            self._stop = pending
            for other in list(self._pending.values()):
                actions += self._abort(other, "the job stops", counts=False)
        else:
            data = {"checkpoint_id": checkpoint_id, "path": pending.path, "kind": request.kind}
            actions += answer_to(request, True, "completed", f"{request.kind} {checkpoint_id} is complete", data)
        return actions + self._retire()

    def _on_committed(self, subtask: Subtask, checkpoint_id: int) -> list[Action]:
        if not self._commits.committed(subtask, checkpoint_id, self._states):
            return []
        self._last_committed = checkpoint_id
        return [ev.RecordCommitted(checkpoint_id), *self._retire()]

    def _retire(self) -> list[Action]:
        last_committed = self._last_committed if self._topology.commits else None
        gone = retired(self._completed, retained=self._options.retained, last_committed=last_committed)
        ids = {c.checkpoint_id for c in gone}
        self._completed = [c for c in self._completed if c.checkpoint_id not in ids]
        return [ev.Retire(c.checkpoint_id, c.path) for c in gone]

    # ------------------------------------------------------------ aborting

    def _abort(self, pending: PendingCheckpoint | None, reason: str, *, counts: bool) -> list[Action]:
        if pending is None or self._pending.pop(pending.checkpoint_id, None) is None:
            return []
        request = pending.request
        actions: list[Action] = [ev.SendAbort(pending.checkpoint_id, reason)]
        if request.kind == "savepoint" or request.kind == "checkpoint":
            actions += answer_to(request, False, "aborted", f"{request.kind} {pending.checkpoint_id} aborted: {reason}")
        if request.kind in ("checkpoint", "final"):
            actions.append(ev.Retire(pending.checkpoint_id, pending.path))
        if request.kind == "final":
            self._final_due_ms = pending.triggered_ms + FINAL_RETRY_MS
        if request.kind == "stop-savepoint":
            return actions + self._stop_failed(request, reason)
        return actions + (self._count_failure(request, reason) if counts else [])

    def _stop_failed(self, request: Request, reason: str) -> list[Action]:
        """A stop's sources have sent EndOfData with the trigger, so the run fails over; nothing was committed
        (S7.7)."""
        text = f"the stop-savepoint failed, nothing was committed, the job restarts from its recovery point: {reason}"
        self._over = True
        answer = answer_to(request, False, "savepoint_failed_job_continues", text)
        return [*answer, ev.FailRun(f"stop failed: {reason}")]

    def _count_failure(self, request: Request, reason: str) -> list[Action]:
        if request.kind in ("savepoint", "stop-savepoint"):
            return []
        self._failures += 1
        if self._failures <= self._options.tolerable_failures:
            return []
        limit = self._options.tolerable_failures
        return [ev.FailRun(f"more than tolerable_checkpoint_failures={limit} checkpoints failed in a row: {reason}")]

    def _after_the_end(self, event: Event) -> list[Action]:
        if isinstance(event, ev.SnapshotRequested):
            return answer_to(event.request, False, "not_running", "the job is not running any more")
        return []
