"""A simulated slot: the runtime's own Slot and subtasks in a process that can die."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from simulator.faults import Faults
from simulator.network import ControlLink, DataChannel
from simulator.scheduler import Crashed, Process, Scheduler
from tidegate.channel.control.protocol import (
    Abort,
    Acknowledged,
    Cancel,
    Declined,
    Deployed,
    DriverMessage,
    Failed,
    Over,
    SlotMessage,
    Start,
)
from tidegate.channel.ports import InputChannel, OutputChannel
from tidegate.errors import StoreError
from tidegate.operators.stream_operator import MERGED_BYTES
from tidegate.plan.execution_plan import ExecutionPlan
from tidegate.snapshot.handles import OpenLocation
from tidegate.snapshot.parts import AsyncSnapshot
from tidegate.subtask.chain import OperatorFailure
from tidegate.subtask.deployment import Deployment, deploy
from tidegate.subtask.slot import INPUT_STEPS_PER_ROUND, LoopSignal, Slot

ROUND_MS = 8
"""A slot's loop takes a round at most so often, milliseconds: elements that arrive in between are taken together."""
ZOMBIE_MS = 400
"""Longest life of a slot that has lost its driver, milliseconds, stalls apart."""
STALL_MS = 300
"""Longest stall of a slot, milliseconds, but for 50 more."""


class Writer(Executor):
    """The slot's snapshot writer: one task that takes jobs in any order."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._jobs: list[Callable[[], Any]] = []
        self._working = False

    @property
    def is_idle(self) -> bool:
        """Nothing is left to write."""
        return not self._working and not self._jobs

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a job; the future is not used by the runtime."""
        self._jobs.append(lambda: fn(*args, **kwargs))
        if not self._working:
            self._working = True
            self._process.spawn(self._work, self._process.scheduler.upto(6))
        return Future()

    def _work(self) -> None:
        while self._jobs:
            job = self._jobs.pop(self._process.scheduler.upto(len(self._jobs) - 1))
            with suppress(Exception):  # an executor keeps it in the future, which nobody asks
                job()
        self._working = False


class _Wake(LoopSignal):
    def __init__(self, call: Callable[[float], None]) -> None:
        super().__init__()
        self._call = call

    def set(self) -> None:
        self._call(0)


INPUT_STEPS = (1, 4, INPUT_STEPS_PER_ROUND)
"""How many elements a subtask takes from its inputs in one round; each slot has one of these. One leaves room for a
fault between any two elements, the last is what a slot on Spark does."""

GATHERED_PART_BYTES = (0, 200, MERGED_BYTES)
"""How many bytes of parts a subtask gathers for each channel before it sends them; each slot has one of these."""

OnSnapshot = Callable[[str, int, tuple[int, int], Sequence[str], bool], None]
"""(run id, checkpoint id, subtask, operator uids, unaligned): a subtask has taken its part of a snapshot."""
OnFinished = Callable[[str, tuple[int, int], Collection[int]], None]
"""(run id, subtask, ids of snapshots of which it still has a part to write): a subtask has closed."""


class ObservedSlot(Slot):
    """A slot that reports the parts that its subtasks take of snapshots, and those that are open when a subtask closes:
    neither acknowledged, declined nor aborted. Now and then it cannot write a part."""

    def __init__(
        self,
        on_snapshot: OnSnapshot,
        on_finished: OnFinished,
        faults: Faults,
        send: Callable[[SlotMessage], None],
        **arguments: Any,
    ) -> None:
        def observed(message: SlotMessage) -> None:
            if isinstance(message, Acknowledged | Declined):
                self._open_parts.get(message.subtask, set()).discard(message.checkpoint_id)
            send(message)

        super().__init__(send=observed, **arguments)
        self._on_snapshot, self._on_finished = on_snapshot, on_finished
        self._open_parts: dict[tuple[int, int], set[int]] = {}
        self._aborted: set[int] = set()
        self._faults = faults

    def write_snapshot(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        parts: Sequence[tuple[str, AsyncSnapshot]],
        metrics: dict[str, float],
        finished: bool,
        over: Callable[[int], None],
    ) -> None:
        """See Slot."""
        if checkpoint_id not in self._aborted:  # its barrier may come after the abort: the part is dropped
            self._open_parts.setdefault(subtask, set()).add(checkpoint_id)
        unaligned = bool(metrics.get("unaligned"))
        self._on_snapshot(self._run_id, checkpoint_id, subtask, [uid for uid, _ in parts], unaligned)
        if self._faults.strikes("snapshot_error"):
            self.decline(subtask, checkpoint_id, "its state could not be written")
            over(checkpoint_id)
            return
        super().write_snapshot(subtask, checkpoint_id, parts, metrics, finished, over)

    def finished(self, subtask: tuple[int, int]) -> None:
        """See Slot."""
        self._on_finished(self._run_id, subtask, self._open_parts.get(subtask, set()))
        super().finished(subtask)

    def _on_message(self, message: DriverMessage) -> None:
        if isinstance(message, Abort):
            self._aborted.add(message.checkpoint_id)
            for open_parts in self._open_parts.values():
                open_parts.discard(message.checkpoint_id)
        super()._on_message(message)


class SlotProcess:
    """One slot of one run."""

    def __init__(
        self,
        scheduler: Scheduler,
        faults: Faults,
        name: str,
        index: int,
        on_failure: Callable[[str, Exception], None],
        on_lost: Callable[[SlotProcess], None],
        on_snapshot: OnSnapshot,
        on_finished: OnFinished,
    ) -> None:
        self.process = Process(scheduler, name)
        self.process.on_death = self._lost
        self.index = index
        self.to_driver: ControlLink[SlotMessage] | None = None
        self.to_slot: ControlLink[DriverMessage] = ControlLink(scheduler, self.process, self._on_message)
        self.open_location: OpenLocation = lambda location: (_ for _ in ()).throw(AssertionError(location))
        self._scheduler = scheduler
        self._faults = faults
        self._on_failure = on_failure
        self._writer = Writer(self.process)
        self._wakes_ms: list[int] = []
        self._scheduled_ms: int | None = None
        self._phase_ms = scheduler.upto(ROUND_MS - 1)
        self._slot: Slot | None = None
        self._deployed: list[Any] = []
        self._started = False
        self._on_lost = on_lost
        self._on_snapshot, self._on_finished = on_snapshot, on_finished

    def launch(
        self,
        plan: ExecutionPlan,
        make: Callable[[], Deployment],
        channels: SlotTransport,
        threshold_bytes: int,
    ) -> None:
        """Deploy as a task; sends Deployed, or Failed."""

        def work() -> None:
            try:
                gathered = GATHERED_PART_BYTES[self._phase_ms % len(GATHERED_PART_BYTES)]
                deployment = replace(make(), gathered_part_bytes=gathered)
                self._slot = ObservedSlot(
                    self._on_snapshot,
                    self._on_finished,
                    self._faults,
                    run_id=deployment.run_id,
                    generation=deployment.generation,
                    send=self.send,
                    open_location=self.open_location,
                    threshold_bytes=threshold_bytes,
                    writers=self._writer,
                    now_ms=lambda: self._scheduler.now_ms,
                    wake=_Wake(self.wake),
                    input_steps=INPUT_STEPS[self._phase_ms % len(INPUT_STEPS)],
                )
                self._deployed = deploy(plan, deployment, self._slot, channels)
            except Exception as error:
                self._fail(error)
                return
            self.send(Deployed())

        self.process.spawn(work, self._scheduler.upto(30))

    def send(self, message: SlotMessage) -> None:
        """To the driver."""
        self.process.check_alive()
        if self.to_driver is not None:
            self.to_driver.send(message)

    def _lost(self) -> None:
        """Its connections break: after a while the driver knows."""
        if self.to_driver is not None and not self.to_driver.cut:
            self._scheduler.after(self._scheduler.upto(300), lambda: self._on_lost(self))

    def lose_driver(self) -> None:
        """The control connection is cut: a watchdog ends this slot before long; until then it is a zombie."""
        self.to_slot.cut = True
        if self.to_driver is not None:
            self.to_driver.cut = True
        self._scheduler.after(self._scheduler.upto(ZOMBIE_MS), self.end, self.process)

    def end(self) -> None:
        """Stop taking steps."""
        if self.process.alive:
            self.process.crash()

    def wake(self, delay_ms: float) -> None:
        """Take a step in `delay_ms` at the latest."""
        now_ms = self._scheduler.now_ms
        at_ms = now_ms + int(delay_ms)
        at_ms += (self._phase_ms - at_ms) % ROUND_MS
        if at_ms not in self._wakes_ms:
            heapq.heappush(self._wakes_ms, at_ms)
            self._schedule()

    def _schedule(self) -> None:
        """One call is on its way for the earliest wake-up."""
        wakes_ms = self._wakes_ms
        if wakes_ms and (self._scheduled_ms is None or wakes_ms[0] < self._scheduled_ms):
            at_ms = self._scheduled_ms = wakes_ms[0]
            self._scheduler.after(at_ms - self._scheduler.now_ms, lambda: self._step(at_ms), self.process)

    # ------------------------------------------------------------ inside

    def _on_message(self, message: DriverMessage) -> None:
        if isinstance(message, Cancel):
            self.end()
        elif isinstance(message, Start):
            assert self._slot is not None
            self._slot.start(self._deployed)
            self._started = True
            self.wake(0)
        elif self._slot is not None:
            self._slot.post(message)

    def _step(self, at_ms: int) -> None:
        if self._scheduled_ms != at_ms:
            return
        self._scheduled_ms = None
        while self._wakes_ms and self._wakes_ms[0] <= self._scheduler.now_ms:
            heapq.heappop(self._wakes_ms)
        self._work()
        self._schedule()

    def _work(self) -> None:
        slot = self._slot
        if slot is None or not self._started:
            return
        try:
            if self._faults.strikes("slot_crash"):
                self.process.crash()
                return
            if self._faults.strikes("slot_stall"):
                self.process.stalled_until_ms = self._scheduler.now_ms + 50 + self._scheduler.upto(STALL_MS)
            if self._faults.strikes("link_lost"):
                self._lost()
                self.lose_driver()
            if self._faults.strikes("peer_lost"):
                self.send(Failed("lost a peer", secondary=True))
                self._started = False
                return
            progressed = slot.run_round()
        except Crashed:
            return
        except Exception as error:
            self._fail(error)
            return
        if slot.is_over:
            self._finish()
        elif progressed:
            self.wake(1)
        else:
            stepped_ms = self._scheduler.now_ms
            times = [at for s in self._deployed if (at := s.retry_at_ms(stepped_ms)) is not None]
            if times:
                self.wake(max(1, min(times) - self._scheduler.now_ms))

    def _finish(self) -> None:
        """As a slot on Spark does: writers first, then it says that it is over."""
        if not self._writer.is_idle:
            self.wake(5)
            return
        self._started = False
        assert self._slot is not None
        self._slot.close()
        self.send(Over())

    def _fail(self, error: Exception) -> None:
        injected = isinstance(error, StoreError) or (
            isinstance(error, OperatorFailure) and error.message.startswith("StoreError: ")
        )
        if not injected:
            self._on_failure(self.process.name, error)
        self._started = False
        self.send(Failed(str(error)))


class Transport:
    """The data channels of one run, between all its slots."""

    def __init__(self, make: Callable[[int], DataChannel]) -> None:
        self._make = make
        self._channels: dict[int, DataChannel] = {}

    def of(self, slot: SlotProcess) -> SlotTransport:
        """As `slot` sees it."""
        return SlotTransport(self, slot)

    def channel(self, channel_id: int) -> DataChannel:
        """Made at first use."""
        if channel_id not in self._channels:
            self._channels[channel_id] = self._make(channel_id)
        return self._channels[channel_id]


class SlotTransport:
    def __init__(self, transport: Transport, slot: SlotProcess) -> None:
        self._transport = transport
        self._slot = slot

    def open_input(self, channel_id: int, schema: Any) -> InputChannel:
        channel = self._transport.channel(channel_id)
        channel.wake = self._slot.wake
        channel.receiver = self._slot.process
        return channel

    def open_output(self, channel_id: int, target_slot: int) -> OutputChannel:
        channel = self._transport.channel(channel_id)
        channel.wake_sender = self._slot.wake
        return channel
