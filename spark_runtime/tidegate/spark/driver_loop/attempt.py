"""One run of the job on Spark: rendezvous, deployment, the event loop around the coordinator, and its end."""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.channel.control.connections import ControlServer
from tidegate.channel.control.protocol import (
    Cancel,
    Deploy,
    Deployed,
    DriverMessage,
    Failed,
    Heartbeat,
    Hello,
    Over,
    Peer,
    SlotMessage,
    SlotMetrics,
    Start,
    SubtaskRunning,
)
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import JobRun, RunEnded, RunFailed
from tidegate.coordinator.recovery.restore import RestoreState
from tidegate.coordinator.split_search import SplitSearch
from tidegate.coordinator.supervision.slot_liveness import SlotLiveness
from tidegate.jobs.options import JobOptions
from tidegate.spark.application import SparkApplication, is_local
from tidegate.spark.barrier_stage import BarrierStage, first_line
from tidegate.spark.driver_loop.split_discovery import SplitDiscovery
from tidegate.spark.slot_parameters import SlotParameters
from tidegate.spark.versions import own_versions

TICK_S = 0.5
"""Longest time, in seconds, between two rounds of the loop. Messages and `wake` start a round at once."""
DUE_TICK_S = 0.1
"""The same if something is due before, or the run ends. Also the shortest time between two checks of all slots."""
CHECKS_PER_TIMEOUT = 10
"""Checks of the slots within `heartbeat_timeout`, at least. `SlotLiveness` counts at most this part of it between two
checks."""
SECONDARY_WAIT_S = 2.0
"""Time, in seconds, that the driver waits for the root cause after a slot has lost a peer, which is a consequence."""
STAGE_END_S = 60.0
"""Time, in seconds, that a cancelled stage may take to end before the next run starts, in parallel with its zombies."""

Posted = tuple[str, Any]
"""(kind, payload): slot message, lost slot, stage end, or a wake-up."""


def round_wait_s(options: JobOptions, *due_in_s: float | None) -> float:
    """Return the longest time, in seconds, until the next round of the loop.

    Args:
        due_in_s: seconds until something is due; None: nothing is.
    """
    waits = [TICK_S, options.heartbeat_timeout.total_seconds() / CHECKS_PER_TIMEOUT]
    waits += [due_s for due_s in due_in_s if due_s is not None]
    # Not less: what is due may wait for something else, for which the loop must not spin.
    return max(DUE_TICK_S, min(waits))


@dataclass
class SlotState:
    """The driver's view of one slot."""

    address: tuple[str, int] | None = None
    pid: int = 0
    node: str = ""
    deployed: bool = False
    over: bool = False
    resident_bytes: int = 0
    metrics: SlotMetrics | None = None


class Attempt:
    """One run. `run` blocks until it is over and returns its outcome.

    `wake` may be called from any thread, all other methods on the thread of `run`.

    Attributes:
        job_run: the protocol's side of the run.
    """

    def __init__(
        self,
        application: SparkApplication,
        options: JobOptions,
        parameters: Mapping[str, Any],
        *,
        master: str,
        make_run: Callable[[Attempt], JobRun],
        searches: Mapping[str, SplitSearch],
        assignments: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]],
        restore: RestoreState | None,
        wait_for_final: bool,
        on_running: Callable[[], None],
        on_metrics: Callable[[Mapping[int, SlotState]], None],
        on_round: Callable[[], float | None],
    ) -> None:
        """Create the run.

        Args:
            parameters: fields of SlotParameters except secret, control address and bind host.
            searches: the sources that discover splits while the job runs, by uid.
            assignments: source uid -> subtask index -> splits, for a fresh start.
            on_round: called at every round of the loop, at least each TICK_S and after `wake`; may use `job_run`. It
                returns the seconds after which it must be called again, or None.
        """
        self._options = options
        self._assignments = assignments
        self._restore = restore
        self._wait_for_final = wait_for_final
        self._on_running = on_running
        self._on_metrics = on_metrics
        self._on_round = on_round
        hung_after = options.slot_progress_timeout
        self._liveness = SlotLiveness(
            silent_after_ms=int(options.heartbeat_timeout.total_seconds() * 1000),
            hung_after_ms=None if hung_after is None else int(hung_after.total_seconds() * 1000),
        )
        self._posted: queue.Queue[Posted] = queue.Queue()
        self._slots = {i: SlotState() for i in range(options.parallelism)}
        self._due_s: float | None = None
        self._running = False
        self._suspected: tuple[float, RunFailed] | None = None
        self._judged_s = 0.0
        secret = secrets.token_bytes(32)
        self._control = ControlServer(
            secret=secret,
            generation=parameters["generation"],
            run_id=parameters["run_id"],
            on_message=lambda slot, message: self._posted.put(("message", (slot, message))),
            on_lost=lambda slot, reason: self._posted.put(("lost", (slot, reason))),
        )
        host = str(application.context.getConf().get("spark.driver.host", "127.0.0.1"))
        control_host, control_port = self._control.listen("127.0.0.1" if is_local(master) else host)
        self._stage = BarrierStage(
            application,
            options.parallelism,
            SlotParameters(
                **parameters,
                control_host=control_host,
                control_port=control_port,
                versions=own_versions(),
                bind_host="127.0.0.1" if is_local(master) else None,
                secret=secret,
            ),
            on_end=lambda error: self._posted.put(("stage", error)),
        )
        self._discovery = SplitDiscovery(searches, lambda outcome: self._posted.put(("searched", outcome)))
        self.job_run = make_run(self)
        self.job_run.on_permitted = self._discovery.completed
        self._ended_s: float | None = None

    # ------------------------------------------------------------ Slots

    def broadcast(self, message: DriverMessage) -> None:
        """Send a message to every slot."""
        for slot in self._slots:
            self._control.send(slot, message)

    def send(self, slot: int, message: DriverMessage) -> None:
        """Send a message to one slot."""
        self._control.send(slot, message)

    @property
    def slots(self) -> Mapping[int, SlotState]:
        """Return the view of each slot; read-only."""
        return self._slots

    def wake(self) -> None:
        """Start a round of the loop now; from any thread."""
        self._posted.put(("wake", None))

    # ------------------------------------------------------------ the loop

    def run(self) -> RunEnded | RunFailed:
        """Run from the start of the stage to the outcome. Raises FencedError if a newer generation runs the job."""
        self._stage.start()
        try:
            while self.job_run.outcome is None or not self._is_settled():
                self._handle_posted()
                self._check_timeouts()
                for uid in self.job_run.take_searches():
                    self._discovery.search(uid)
                self._due_s = self._on_round()
            return self.job_run.outcome
        finally:
            self._end()

    def shut_down(self, reason: str) -> list[ev.SnapshotRequest]:
        """End the run's snapshots after `run`; see `JobRun.shut_down`."""
        return self.job_run.shut_down(reason)

    def _is_settled(self) -> bool:
        """Return whether the outcome is final.

        A failure is final at once. An end is final when every slot has reported its own, so that nothing is cut off.
        """
        return isinstance(self.job_run.outcome, RunFailed) or all(s.over for s in self._slots.values())

    def _handle_posted(self) -> None:
        try:
            what, payload = self._posted.get(timeout=self._wait_s())
        except queue.Empty:
            return
        if what == "message":
            self._on_message(*payload)
        elif what == "searched":
            if isinstance(payload, RunFailed):
                self.job_run.fail(payload)
            else:
                self.job_run.on_searched(payload)
        elif what == "lost":
            slot, reason = payload
            if not self._slots[slot].over:
                self._note_secondary_failure(RunFailed(f"slot {slot} was lost: {reason}", subtask=slot), 0.5)
        elif what == "stage":
            if payload is not None:
                self._note_secondary_failure(
                    RunFailed(f"Spark's barrier stage failed: {first_line(payload)}"), SECONDARY_WAIT_S
                )
            elif not all(s.over for s in self._slots.values()):
                self._note_secondary_failure(
                    RunFailed("Spark ended the barrier stage before all slots had ended"), SECONDARY_WAIT_S
                )

    def _wait_s(self) -> float:
        """Return the longest time until the next round, seconds."""
        if self.job_run.outcome is not None:
            return DUE_TICK_S
        failure_s = None if self._suspected is None else self._suspected[0] - time.monotonic()
        now_ms = self.job_run.now_ms()
        times = (self.job_run.coordinator.next_wake_ms(), self.job_run.search_ms)
        ticks_s = [(at_ms - now_ms) / 1000 for at_ms in times if at_ms is not None]
        return round_wait_s(self._options, self._due_s, failure_s, *ticks_s)

    def _on_message(self, slot: int, message: SlotMessage) -> None:
        view = self._slots[slot]
        if view.address is not None:  # before that it compiles kernels, during which no other thread runs
            self._liveness.on_message(slot)
        match message:
            case Hello():
                view.address = (message.host, message.port)
                view.pid, view.node = message.pid, message.node
                self._liveness.on_message(slot)
                self._on_metrics(self._slots)
                if all(s.address is not None for s in self._slots.values()):
                    self._deploy()
            case Deployed():
                view.deployed = True
                if all(s.deployed for s in self._slots.values()):
                    self.broadcast(Start())
            case Heartbeat():
                if view.address is not None:
                    self._liveness.on_heartbeat(slot, message.rounds)
                if message.metrics is not None:
                    view.metrics = message.metrics
                    view.resident_bytes = message.resident_bytes
                self._on_metrics(self._slots)
            case Over():
                view.over = True
                self._liveness.on_slot_ended(slot)
            case Failed(secondary=True):
                self._note_secondary_failure(RunFailed(message.message, traceback=message.traceback), SECONDARY_WAIT_S)
            case SubtaskRunning():
                self.job_run.on_slot_message(message)
                self._note_running(slot)
            case _:
                self.job_run.on_slot_message(message)

    def _note_running(self, slot: int) -> None:
        """Call `on_running` once, when the last subtask runs. The coordinator knows it: its plan has no missing
        subtask.
        """
        if not self._running and self.job_run.coordinator.all_running:
            self._running = True
            self._on_running()

    def _deploy(self) -> None:
        peers = tuple(Peer(i, *view.address) for i, view in self._slots.items() if view.address is not None)
        for index in self._slots:
            splits = {uid: list(by_index.get(index, ())) for uid, by_index in self._assignments.items()}
            restored = self._restore.for_slot(index) if self._restore is not None else None
            self._control.send(index, Deploy(peers, splits, restored, self._wait_for_final))

    def _note_secondary_failure(self, failure: RunFailed, grace_s: float) -> None:
        """Record a failure that may be the consequence of another. It counts if no other failure arrives in time."""
        if self._suspected is None:
            self._suspected = (time.monotonic() + grace_s, failure)

    def _check_timeouts(self) -> None:
        now = time.monotonic()
        if self._suspected is not None and now >= self._suspected[0] and self.job_run.outcome is None:
            self.job_run.fail(self._suspected[1])
        if self.job_run.outcome is not None:
            if self._suspected is not None and now >= self._suspected[0]:
                self._forget_slots()
            if self._ended_s is None:
                self._ended_s = now
            elif now - self._ended_s > STAGE_END_S:
                self._forget_slots()
            return
        if now - self._judged_s >= DUE_TICK_S:  # not at every message, because it checks all slots
            self._judged_s = now
            trouble = self._liveness.trouble(int(now * 1000))
        else:
            trouble = None
        if trouble is not None:
            self.job_run.fail(RunFailed(str(trouble), subtask=trouble.slot))
        wake_ms = self.job_run.coordinator.next_wake_ms()
        if wake_ms is not None and self.job_run.now_ms() >= wake_ms:
            self.job_run.on_event(ev.Tick())

    def _forget_slots(self) -> None:
        """Treat all slots as ended: every subtask has finished and committed, so a slot that does not report is not
        awaited.
        """
        for view in self._slots.values():
            view.over = True

    def _end(self) -> None:
        """Cancel the slots and wait for the stage."""
        self._discovery.close()
        self.broadcast(Cancel())
        if isinstance(self.job_run.outcome, RunEnded):
            clean = self._stage.join(STAGE_END_S)
        else:
            # Short, because after a failure a slot may hang and never process Cancel.
            clean = self._stage.join(0.5)
        if not clean:
            self._stage.cancel()
            self._stage.join(STAGE_END_S)
        self._control.close()
