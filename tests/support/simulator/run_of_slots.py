"""One simulated run: a JobRun, the slots it was deployed to and the connections between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from simulator.scheduler import Process
from simulator.slot_process import SlotProcess, Transport
from simulator.store import SimulatedStore
from tidegate.channel.control.protocol import Cancel, Deployed, DriverMessage, Failed, Over, SlotMessage, Start
from tidegate.connectors.split_documents import assign_splits
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpoint_mode import needs_final_checkpoint
from tidegate.coordinator.driver_job import DriverJob, fresh_splits
from tidegate.coordinator.job_run import JobRun, RunEnded, RunFailed
from tidegate.coordinator.recovery.restore import RestoreState
from tidegate.coordinator.recovery.restore_point import RestorePoint
from tidegate.coordinator.split_search import searches_of
from tidegate.coordinator.supervision import supervision_events as sv
from tidegate.snapshot.location import open_location
from tidegate.subtask.deployment import Deployment
from tidegate.subtask.snapshots.restored_state import load_restored_state

if TYPE_CHECKING:
    from simulator.world import World

Post = Callable[[str, Any], None]
"""(what, payload): into the driver's inbox."""


class RunOfSlots:
    """From deployment to the take-down. Everything here is called by the driver's task.

    Attributes:
        run: the coordinator's shell.
        commit_only: the completed stop-savepoint that this run only commits.
        searches: of the sources that discover splits while the job runs, by uid.
    """

    def __init__(
        self,
        world: World,
        process: Process,
        job: DriverJob,
        found: tuple[RestorePoint, RestoreState] | None,
        splits: Mapping[str, Sequence[Mapping[str, Any]]],
        post: Post,
        retire: Callable[[str], None],
    ) -> None:
        self._world = world
        self._process = process
        self._job = job
        self._post = post
        self._deployed: set[int] = set()
        self._up = False
        self._over: set[int] = set()
        self._slots: list[SlotProcess] = []
        point, restore = found if found is not None else (None, None)
        self.commit_only = stop_point(point)
        commit_only_id = self.commit_only.checkpoint_id if self.commit_only is not None else None
        self._location = restore.location if restore is not None else None
        interval = job.options.checkpoint_interval
        interval_ms = int(interval.total_seconds() * 1000) if interval else 0
        run_id = world.nonce()
        job.rewind_sinks(restore, run_id)
        facts = job.facts()
        enumerations, states = job.enumerations(restore)
        self.searches = searches_of(job.sources, states)
        self.run = JobRun(
            facts=facts,
            coordinator=job.coordinator(run_id, world.scheduler.upto(interval_ms), commit_only_id),
            slots=self,
            run_id=run_id,
            next_checkpoint_id=job.next_checkpoint_id(),
            splits=splits,
            restored_from=self._location,
            answer=lambda answer: post("event", sv.RunAnswered(answer, self.run.outcome is not None)),
            now_ms=lambda: world.scheduler.now_ms,
            retire=lambda _id, path: retire(path),
            on_completed=lambda: post("event", sv.RunProgressed()),
            enumerations=enumerations,
        )
        world.on_run(run_id, job.plan.parallelism, job.generation_log.generation)
        to_assign = assign_splits(fresh_splits(splits, restore), job.plan.parallelism)
        self._launch_slots(restore, to_assign, needs_final_checkpoint(job.options, commit_only_id))

    def _launch_slots(
        self,
        restore: RestoreState | None,
        splits: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]],
        wait_for_final: bool,
    ) -> None:
        world, job, run_id = self._world, self._job, self.run.run_id
        options = job.options
        unaligned_after_ms = None
        if options.unaligned_checkpoints:
            unaligned_after_ms = int(options.aligned_checkpoint_timeout.total_seconds() * 1000)
        transport = Transport(lambda channel_id: world.make_channel(run_id, channel_id))

        def deployment(index: int, slot: SlotProcess, document: Mapping[int, Any]) -> Deployment:
            return Deployment(
                job_id=job.spec.job_id,
                lineage=job.spec.lineage,
                generation=job.generation_log.generation,
                run_id=run_id,
                indices=(index,),
                mode="exactly_once" if options.checkpoint_mode == "exactly_once" else "at_least_once",
                wait_for_final=wait_for_final,
                channel_capacity_bytes=world.capacity_bytes,
                unaligned_after_ms=unaligned_after_ms,
                processing_time_on_end=options.processing_time_on_end,
                splits={uid: {index: by_index.get(index, ())} for uid, by_index in splits.items()},
                restored=load_restored_state(document, slot.open_location, job.plan),
                gated=options.commit == "on_request",
            )

        for index in range(job.plan.parallelism):
            slot = SlotProcess(
                world.scheduler,
                world.faults,
                f"slot-{job.generation_log.generation}-{run_id}-{index}",
                index,
                world.failed,
                lambda lost: self._post("lost", lost),
                world.subtask_snapshot,
                world.checkers.closed,
            )
            slot.to_driver = world.link(self._process, partial(self._on_arrival, slot))
            self._slots.append(slot)
            slot.open_location = partial(
                open_location, SimulatedStore(world.disk, slot.process, world.faults), job.spec
            )
            document = {index: restore.for_slot(index)} if restore is not None else {}
            make = partial(deployment, index, slot, document)
            slot.launch(job.plan, make, transport.of(slot), options.state_size_threshold_bytes)

    def _on_arrival(self, slot: SlotProcess, message: SlotMessage) -> None:
        self._post("message", (slot, message))

    # ------------------------------------------------------------ Slots

    def broadcast(self, message: DriverMessage) -> None:
        """To every slot, one after the other: a crash comes between two of them."""
        for slot in self._slots:
            slot.to_slot.send(message)
            if self._world.faults.strikes("driver_crash"):
                self._process.crash()

    def send(self, slot: int, message: DriverMessage) -> None:
        """To one slot; a crash may come behind it."""
        self._slots[slot].to_slot.send(message)
        if self._world.faults.strikes("driver_crash"):
            self._process.crash()

    # ------------------------------------------------------------ what comes in

    def on_message(self, slot: SlotProcess, message: SlotMessage) -> None:
        """From a slot; one of an earlier run says nothing any more."""
        if slot not in self._slots:
            return
        match message:
            case Deployed():
                self._deployed.add(slot.index)
                if len(self._deployed) == len(self._slots):
                    for each in self._slots:
                        each.to_slot.send(Start())
            case Over():
                self._over.add(slot.index)
            case Failed():
                self.run.fail(RunFailed(message.message))
            case _:
                self.run.on_slot_message(message)
                if not self._up and self.run.coordinator.all_running:
                    self._up = True
                    started = sv.RunStarted(self.run.run_id, self._location, self.commit_only is not None)
                    self._post("event", started)

    def on_lost(self, slot: SlotProcess) -> None:
        """A slot's connection broke."""
        if slot in self._slots and slot.index not in self._over:
            if isinstance(self.run.outcome, RunEnded):
                self._over.add(slot.index)
            self.run.fail(RunFailed(f"{slot.process.name} was lost"))

    @property
    def is_settled(self) -> bool:
        """A failure is at once; an end when every slot has told its own."""
        outcome = self.run.outcome
        return isinstance(outcome, RunFailed) or (outcome is not None and len(self._over) == len(self._slots))

    def take_down(self) -> tuple[RunEnded | RunFailed, list[ev.SnapshotRequest]]:
        """The outcome, and the requests that the next run takes up again."""
        self.abandon(politely=True)
        outcome = self.run.outcome
        assert outcome is not None, "taken down before its end"
        if isinstance(outcome, RunFailed):
            return outcome, self.run.shut_down(outcome.message)
        if self.commit_only is not None:
            stop = self.commit_only
            outcome = replace(outcome, stop=stop.mode, checkpoint_id=stop.checkpoint_id, path=stop.path)
        return outcome, []

    def abandon(self, *, politely: bool = False) -> None:
        """The slots are told to end, or only lose their driver: then they live on as zombies for a while."""
        for slot in self._slots:
            if politely and self._world.scheduler.chance(0.5):
                slot.to_slot.send(Cancel())
            else:
                slot.lose_driver()


def stop_point(point: RestorePoint | None) -> sv.StopPoint | None:
    """The completed stop-savepoint of this submission, when `point` is one."""
    if point is None or not point.commit_only:
        return None
    assert point.checkpoint_id is not None, "a stop-savepoint of this submission is in the log"
    return sv.StopPoint(point.checkpoint_id, point.location, "drain" if point.stop_mode == "drain" else "suspend")
