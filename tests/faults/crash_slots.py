"""The slots of a job in this process, and what kills: see crash_world.

Processes are objects here. A dead one is not unwound: the first of its code that reaches a point again meets `Killed`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from crash_points import broadcast_name
from simulator.run_of_slots import stop_point

from tidegate.channel.control.protocol import Cancel, Deployed, DriverMessage, Failed, Over, SlotMessage, Start
from tidegate.channel.control.protocol_codec import received
from tidegate.channel.memory import MemoryChannel
from tidegate.connectors.split_documents import assign_splits
from tidegate.coordinator.checkpoint_mode import needs_final_checkpoint
from tidegate.coordinator.driver_job import DriverJob, fresh_splits
from tidegate.coordinator.events import RunRequest
from tidegate.coordinator.job_run import JobRun, RunEnded, RunFailed
from tidegate.coordinator.supervision import supervision_events as sv
from tidegate.snapshot.location import open_location
from tidegate.subtask.deployment import Deployment, deploy
from tidegate.subtask.slot import LoopSignal, Slot
from tidegate.subtask.snapshots.restored_state import load_restored_state

if TYPE_CHECKING:
    from crash_world import Driver, World

PARALLELISM = 2
STEPS_A_ROUND = 5
"""Steps of a subtask in one round: enough to take what the sources make meanwhile."""
NOTICE_ROUNDS = 3
"""From a slot's death to the driver's knowing it."""


class Killed(BaseException):
    """This process is dead; no code of it may go on."""


class Process:
    """Something that can be killed. What unwinds after its death meets `Killed` at the next point."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True


@dataclass
class Kill:
    """Who dies at which point.

    Attributes:
        point: number of the point, from 0.
        victim: "driver", or "subtask": the slot that is there; if the driver is there, one of the slots.
    """

    point: int
    victim: str
    done: bool = False


class Killer:
    """Counts points, and kills at one of them.

    Attributes:
        points: what was met, as (process, name).
        current: whose code runs now.
        has_killed: somebody.
    """

    def __init__(self, kill: Kill | None) -> None:
        self.points: list[tuple[str, str]] = []
        self._kill = kill
        self._world: World | None = None
        self.current: Process | None = None
        self.has_killed = False

    def begin(self, world: World) -> None:
        """Of a job."""
        self._world = world

    def at(self, name: str) -> None:
        """The current process is at a point."""
        process = self.current
        if process is None or self._world is None:
            return
        if not process.alive:
            raise Killed
        if not self._world.counts:
            return
        number = len(self.points)
        self.points.append((process.name, name))
        kill = self._kill
        if kill is None or kill.done or number != kill.point:
            return
        kill.done = True
        victim = self._world.victim(kill.victim, process, number)
        if victim is None:
            return
        self._world.note(f"{victim.name} is killed at {process.name}, {name}")
        victim.alive = False
        self.has_killed = True
        if victim is process:
            raise Killed


class Writer(Executor):
    """A slot's snapshot writer: does its work at the end of the slot's turn."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], Any]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue it."""
        self._jobs.append(lambda: fn(*args, **kwargs))
        return Future()

    def work(self) -> bool:
        """What is queued."""
        worked = bool(self._jobs)
        while self._jobs:
            job = self._jobs.popleft()
            with suppress(Exception):
                job()
        return worked


@dataclass
class Channels:
    """Between the slots of one run."""

    capacity_bytes: int
    known: dict[int, MemoryChannel] = field(default_factory=dict)

    def _channel(self, channel_id: int) -> MemoryChannel:
        return self.known.setdefault(channel_id, MemoryChannel(self.capacity_bytes))

    def open_input(self, channel_id: int, schema: Any) -> MemoryChannel:
        """See Transport."""
        return self._channel(channel_id)

    def open_output(self, channel_id: int, target_slot: int) -> MemoryChannel:
        """See Transport."""
        return self._channel(channel_id)


class SlotProcess:
    """One slot of one run."""

    def __init__(self, world: World, run: Run, index: int, make: Callable[[Slot], Sequence[Any]]) -> None:
        self.process = Process(f"slot {index}")
        self.index = index
        self.rounds_left: int | None = None
        self.inbox: deque[DriverMessage] = deque()
        self._world = world
        self._run = run
        self._make = make
        self._writer = Writer()
        self._slot: Slot | None = None
        self._state = "new"
        self._subtasks: Sequence[Any] = ()

    @property
    def is_up(self) -> bool:
        """Neither dead nor done."""
        return self.process.alive and self._state != "over"

    def send(self, message: SlotMessage) -> None:
        """To the driver, while the connection holds."""
        if self.rounds_left is None:
            self._run.arrived.append((self, received(message)))

    def turn(self) -> bool:
        """Messages, one step of each subtask, what the writer has to do. False: nothing was done."""
        if not self.is_up:
            return False
        if self.rounds_left is not None:
            self.rounds_left -= 1
            if self.rounds_left < 0:
                self.process.alive = False
                return False
        self._world.killer.current = self.process
        try:
            return self._turn()
        except Killed:
            return False
        except Exception as error:
            self._state = "over"
            self.send(Failed(str(error)))
            return True
        finally:
            self._world.killer.current = None

    def _turn(self) -> bool:
        if self._slot is None:
            run, owner = self._run, self._world
            self._slot = Slot(
                run_id=run.run.run_id,
                generation=run.job.generation_log.generation,
                send=self.send,
                open_location=lambda location: open_location(owner.store, run.job.spec, location),
                threshold_bytes=run.job.options.state_size_threshold_bytes,
                writers=self._writer,
                now_ms=lambda: owner.now_ms,
                wake=LoopSignal(),
                input_steps=1,  # a kill may come between any two elements
            )
            self._subtasks = self._make(self._slot)
            self.send(Deployed())
            return True
        progressed = bool(self.inbox)
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, Cancel):
                self._state = "over"
                self._slot.close()
                return True
            if isinstance(message, Start):
                self._state = "started"
                self._slot.start(self._subtasks)
            else:
                self._slot.post(message)
        if self._state != "started":
            return progressed
        for _ in range(STEPS_A_ROUND):
            progressed = self._slot.run_round() or progressed
        progressed = self._writer.work() or progressed
        if self._slot.is_over:
            self._slot.close()
            self._world.killer.at("over sent: before")
            self.send(Over())
            self._state = "over"
        return progressed


class Run:
    """From deployment to the take-down, of one driver."""

    def __init__(self, world: World, driver: Driver, job: DriverJob) -> None:
        self.job = job
        self.arrived: deque[tuple[SlotProcess, SlotMessage]] = deque()
        self._world = world
        self._driver = driver
        self._deployed = 0
        self._up = False
        self._over: set[int] = set()
        self._lost: dict[int, int] = {}
        found = job.find_restore()
        point, restore = found if found is not None else (None, None)
        self.commit_only = stop_point(point)
        commit_only_id = None if self.commit_only is None else self.commit_only.checkpoint_id
        self._location = None if restore is None else restore.location
        interval = job.options.checkpoint_interval
        interval_ms = int(interval.total_seconds() * 1000) if interval else 0
        run_id = f"r{next(world.numbers):06d}"
        splits = job.splits(restore)
        self.run = JobRun(
            facts=job.facts(),
            coordinator=job.coordinator(run_id, interval_ms, commit_only_id),
            slots=self,
            run_id=run_id,
            next_checkpoint_id=job.next_checkpoint_id(),
            splits=splits,
            restored_from=self._location,
            answer=lambda answer: driver.post(sv.RunAnswered(answer, self.run.outcome is not None)),
            now_ms=lambda: world.now_ms,
            retire=lambda _id, path: world.store.delete_folder(path),
            on_completed=lambda: driver.post(sv.RunProgressed()),
        )
        channels = Channels(job.options.channel_capacity_bytes)
        assigned = assign_splits(fresh_splits(splits, restore), PARALLELISM)

        def make(index: int, slot: Slot) -> Sequence[Any]:
            document = {index: json.loads(json.dumps(restore.for_slot(index)))} if restore is not None else {}
            deployment = Deployment(
                job_id=job.spec.job_id,
                lineage=job.spec.lineage,
                generation=job.generation_log.generation,
                run_id=run_id,
                indices=(index,),
                mode="exactly_once",
                wait_for_final=needs_final_checkpoint(job.options, commit_only_id),
                channel_capacity_bytes=job.options.channel_capacity_bytes,
                splits={uid: {index: by_index.get(index, ())} for uid, by_index in assigned.items()},
                restored=load_restored_state(
                    document, lambda location: open_location(world.store, job.spec, location), job.plan
                ),
            )
            return deploy(job.plan, deployment, slot, channels)

        self.slots = [
            SlotProcess(world, self, index, lambda slot, index=index: make(index, slot)) for index in range(PARALLELISM)
        ]
        world.slots += self.slots

    def broadcast(self, message: DriverMessage) -> None:
        """See Slots; a crash may come between two of them."""
        at, name = self._world.killer.at, broadcast_name(message)
        at(f"{name} sent: before")
        for number, slot in enumerate(self.slots):
            if number:
                at(f"{name} sent: between two slots")
            slot.inbox.append(received(message))
        at(f"{name} sent: after")

    def turn(self) -> bool:
        """Take what has arrived. False: there was nothing."""
        progressed = False
        while self.arrived and self.run.outcome is None:
            progressed = True
            self._take(*self.arrived.popleft())
        while self.arrived:
            slot, message = self.arrived.popleft()
            if isinstance(message, Over):
                self._over.add(slot.index)
        for slot in self.slots:
            if not slot.process.alive and slot.index not in self._over:
                self._lost[slot.index] = self._lost.get(slot.index, 0) + 1
                if self._lost[slot.index] == NOTICE_ROUNDS:
                    if isinstance(self.run.outcome, RunEnded):
                        self._over.add(slot.index)
                    self.run.fail(RunFailed(f"{slot.process.name} was lost"))
        return progressed

    def _take(self, slot: SlotProcess, message: SlotMessage) -> None:
        match message:
            case Deployed():
                self._deployed += 1
                if self._deployed == len(self.slots):
                    self.broadcast(Start())
            case Over():
                self._over.add(slot.index)
            case Failed():
                self.run.fail(RunFailed(message.message))
            case _:
                self.run.on_slot_message(message)
                if not self._up and self.run.coordinator.all_running:
                    self._up = True
                    self._driver.post(sv.RunStarted(self.run.run_id, self._location, self.commit_only is not None))

    @property
    def is_settled(self) -> bool:
        """A failure is at once; an end when every slot has told its own."""
        outcome = self.run.outcome
        return isinstance(outcome, RunFailed) or (outcome is not None and len(self._over) == len(self.slots))

    def take_down(self) -> tuple[RunEnded | RunFailed, list[RunRequest]]:
        """The outcome, and the requests that the next run takes up again."""
        for slot in self.slots:
            slot.inbox.append(Cancel())
            slot.rounds_left = NOTICE_ROUNDS
        outcome = self.run.outcome
        assert outcome is not None
        if isinstance(outcome, RunFailed):
            return outcome, list(self.run.shut_down(outcome.message))
        if self.commit_only is not None:
            stop = self.commit_only
            outcome = replace(outcome, stop=stop.mode, checkpoint_id=stop.checkpoint_id, path=stop.path)
        return outcome, []
