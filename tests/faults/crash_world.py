"""A job with two slots in one thread of this process, whose driver and slots can be killed at any named point.

What runs is the runtime itself: DecisionLog, Supervisor, CommandBook, Job, JobRun and Coordinator in the driver, Slot,
deploy and Subtask in the slots (crash_slots), with real sinks. Time is virtual; everything is in one order, so that the
n-th point of one run is the n-th point of the next.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from crash_slots import PARALLELISM, Killed, Killer, Process, Run, SlotProcess
from simulator.run_of_slots import stop_point

from tidegate.api.pipeline import Pipeline
from tidegate.coordinator.driver_job import DriverJob
from tidegate.coordinator.events import CommandAnswer, RunRequest
from tidegate.coordinator.events import Tick as RunTick
from tidegate.coordinator.job_run import RunFailed
from tidegate.coordinator.recovery.restore_point import choose_restore_point, end_status
from tidegate.coordinator.supervision import supervision_events as sv
from tidegate.coordinator.supervision.command_book import AcceptCommand, CommandBook, RefuseCommand
from tidegate.coordinator.supervision.supervisor import Supervisor
from tidegate.errors import FencedError, NotFoundError, SnapshotError
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Command, CommandResult, Decision, RestoreFrom, Spec, decode, encode
from tidegate.jobs.stores.store_registry import open_store
from tidegate.plan.execution_plan import make_execution_plan

ROUND_MS = 10
"""Virtual time of one round, in which driver and slots take a turn each, milliseconds."""
ZOMBIE_ROUNDS = 40
"""How long slots live on after their driver has died. Their watchdog allows them some time."""
MAX_ROUNDS = 3_000
"""Rounds after which a job is stuck. It needs some 150."""


class Driver:
    """One driver: one launch of one submission.

    Attributes:
        exit_code: when it has ended by itself.
    """

    def __init__(self, world: World, spec: Spec, launch: int) -> None:
        self.process = Process("driver")
        self.exit_code: int | None = None
        self.run: Run | None = None
        self.terminated = False
        self._world = world
        self._spec = spec
        self._launch = launch
        self._inbox: deque[sv.SupervisionEvent] = deque()
        self._options = JobOptions.from_mapping(spec.options)
        self._supervisor = Supervisor(self._options)
        self._book = CommandBook(spec.number)
        self._start: sv.StartRun | None = None
        self._late: list[RunRequest] = []
        self._job: DriverJob | None = None
        self._told = False

    def post(self, event: sv.SupervisionEvent) -> None:
        """Into the inbox."""
        self._inbox.append(event)

    def turn(self) -> bool:
        """One round of its loop. False: nothing was done."""
        self._world.killer.current = self.process
        try:
            return self._turn()
        except Killed:
            return True
        except FencedError:
            self.exit_code = 13
            self.process.alive = False
            return True
        finally:
            self._world.killer.current = None

    def _turn(self) -> bool:
        if self._job is None:
            self._begin()
            return True
        self._look_for_commands()
        if self.terminated and not self._told:
            self._told = True
            self.post(sv.Terminated())
        progressed = bool(self._inbox)
        while self._inbox:
            self._feed(self._inbox.popleft())
        if self.exit_code is not None:
            self.process.alive = False
            return True
        if self._start is not None and self.run is None:
            self._begin_run()
            return True
        if self.run is not None:
            progressed = self.run.turn() or progressed
            if self.run.run.outcome is None:
                wake_ms = self.run.run.coordinator.next_wake_ms()
                if wake_ms is not None and wake_ms <= self._world.now_ms:
                    self.run.run.on_event(RunTick())
            elif self.run.is_settled:
                self._end_run(self.run)
        wake_ms = self._supervisor.next_wake_ms()
        if wake_ms is not None and wake_ms <= self._world.now_ms:
            self._feed(sv.Tick())
        return progressed

    def _begin(self) -> None:
        world = self._world
        log = DecisionLog(world.store, world.layout, now_iso=world.now_iso, nonce=lambda: f"n{next(world.numbers)}")
        generation_log = log.begin_generation(spec=self._spec.number, launch=self._launch)
        graph = world.build().build()
        self._job = DriverJob(
            root=world.root,
            storage_options={},
            store=world.store,
            layout=world.layout,
            spec=self._spec,
            options=self._options,
            graph=graph,
            plan=make_execution_plan(graph, self._options.parallelism, self._options.max_parallelism),
            log=log,
            generation_log=generation_log,
            now_iso=world.now_iso,
            specs=lambda: world.specs,
        )
        for left in self._job.garbage():
            if left.without_grace:
                world.store.delete_folder(left.path)
        self._feed(sv.BeginSupervision(end_status(generation_log.decisions, self._spec.number)))

    def _feed(self, event: sv.SupervisionEvent) -> None:
        for action in self._supervisor.handle(event, self._world.now_ms):
            self._carry_out(action)

    def _carry_out(self, action: sv.SupervisionAction) -> None:  # noqa: C901, PLR0912 - one case per action
        job = self._job
        assert job is not None
        match action:
            case sv.WaitForSlots():
                self.post(sv.SlotsAvailable())
            case sv.StartRun():
                self._start = action
            case sv.CheckGeneration():
                job.generation_log.check_quietly()
            case sv.DeliverToRun(request):
                self._hand(request)
            case sv.FailCurrentRun(failure):
                if self.run is not None:
                    self.run.run.fail(failure)
            case sv.RecordStatus(status, data):
                job.status(status, **data)
            case sv.RecordFailure(failure):
                job.generation_log.append("failure", {"message": failure.message, "code": failure.code})
            case sv.AnswerCommand(answer):
                if self._book.answer(answer):
                    self._write_result(answer)
            case sv.AnswerAllOpen():
                for answer in self._book.answer_all(action):
                    self._write_result(answer)
            case sv.DeleteCheckpoints():
                job.delete_checkpoints()
            case sv.EndDriver(exit_code):
                self.exit_code = exit_code

    def _hand(self, request: RunRequest) -> None:
        if self.run is not None and self.run.run.outcome is None:
            self.run.run.handle_command(request)
        else:
            self._late.append(request)

    def _begin_run(self) -> None:
        start, self._start = self._start, None
        assert start is not None and self._job is not None
        try:
            self.run = Run(self._world, self, self._job)
        except SnapshotError as error:
            self._feed(sv.RunImpossible(RunFailed(str(error), code=error.code), error.exit_code, self._stop_point()))
            return
        for request in start.requests:
            self._hand(request)

    def _end_run(self, run: Run) -> None:
        outcome, again = run.take_down()
        while self._inbox:
            self._feed(self._inbox.popleft())
        again += self._late
        self._late, self.run = [], None
        self._feed(sv.RunTornDown(outcome, tuple(again), self._stop_point()))

    def _stop_point(self) -> sv.StopPoint | None:
        assert self._job is not None
        return stop_point(
            choose_restore_point(self._job.generation_log.decisions, self._job.specs(), self._spec.number)
        )

    def _look_for_commands(self) -> None:
        store, layout = self._world.store, self._world.layout
        for command_id in layout.unanswered(store.list(layout.commands)):
            try:
                command = decode(store.read(layout.command(command_id)), Command)
            except NotFoundError:
                continue
            if not self._book.register(command):
                continue
            verdict = self._book.decide(command_id, int(time.time() * 1000), withdrawn=False, answered=False)
            if isinstance(verdict, AcceptCommand):
                self.post(sv.CommandArrived(command))
            elif isinstance(verdict, RefuseCommand):
                self._write_result(verdict.answer)

    def _write_result(self, answer: CommandAnswer) -> None:
        world = self._world
        assert self._job is not None
        result = CommandResult(
            answer.request_id,
            answer.ok,
            answer.code,
            answer.message,
            dict(answer.data),
            self._job.generation_log.generation,
            world.now_iso(),
        )
        world.store.create(world.layout.result(answer.request_id), encode(result))


_worlds = itertools.count(1)


class World:
    """A job directory, the drivers that are launched on it one after the other, and their slots.

    Attributes:
        counts: whether points count now.
        slots: of all runs, zombies too.
        story: what happened, for people.
    """

    def __init__(self, build: Callable[[], Pipeline], options: Mapping[str, Any], killer: Killer, eager: bool) -> None:
        """Args: build: makes the pipeline. options: of the job. eager: a successor is launched while slots of a dead
        driver live on; otherwise when they are gone."""
        self.build = build
        self.killer = killer
        self.root = f"memory://crash-world-{next(_worlds)}"
        self.store = open_store(self.root)
        self.specs: list[Spec] = []
        self.layout = JobLayout("job")
        self.numbers = itertools.count(1)
        self.now_ms = 1_800_000_000_000
        self.rounds = 0
        self.counts = True
        self.slots: list[SlotProcess] = []
        self.story: list[str] = []
        self.driver: Driver | None = None
        self._options = dict(options)
        self._eager = eager
        self._launch = 0
        killer.begin(self)

    def close(self) -> None:
        """Forget the job directory."""
        self.store.delete_folder(self.layout.job)

    def note(self, what: str) -> None:
        """For people."""
        self.story.append(f"round {self.rounds}: {what}")

    def now_iso(self) -> str:
        """Virtual time as text."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC).isoformat()

    def victim(self, kind: str, process: Process, number: int) -> Process | None:
        """Who is killed; None: there is no such process now."""
        if kind == "driver":
            return None if self.driver is None or not self.driver.process.alive else self.driver.process
        if process.name != "driver":
            return process
        run = None if self.driver is None else self.driver.run
        living = [slot.process for slot in run.slots if slot.process.alive] if run is not None else []
        return living[number % len(living)] if living else None

    def submit(self, *, allow_drained: bool = False) -> None:
        """A new submission, which goes on from the latest snapshot if there was one before; and its first driver."""
        number = len(self.specs) + 1
        spec = Spec(
            job_id="job",
            number=number,
            submission_id=f"s{number}",
            pipeline="crash:build",
            artifact="",
            arguments={},
            options=JobOptions.from_mapping({"parallelism": PARALLELISM, **self._options}).to_mapping(),
            master="in-process",
            spark_conf={},
            storage_options={},
            restore=RestoreFrom("latest", allow_drained=allow_drained) if self.specs else None,
            lineage="lineage-1",
            owner_dag=None,
            submitted_at=self.now_iso(),
            submitted_by="crash matrix",
        )
        self.specs.append(spec)
        self._launch = 0
        self._relaunch()

    def send(self, verb: str, **arguments: Any) -> None:
        """A command for the newest submission."""
        now = datetime.now(UTC)
        command = Command(
            command_id=f"{verb}-{next(self.numbers)}",
            verb=verb,  # type: ignore[arg-type]
            arguments=arguments,
            spec=self.specs[-1].number,
            issued_at=now.isoformat(),
            expires_at=(now + timedelta(hours=1)).isoformat(),
            issued_by="crash matrix",
        )
        self.store.create(self.layout.command(command.command_id), encode(command))

    def _relaunch(self) -> None:
        self._launch += 1
        self.driver = Driver(self, self.specs[-1], self._launch)

    def status(self) -> str:
        """The last one of the newest submission's driver; empty: none yet."""
        decisions = self.decisions()
        ended = end_status(decisions, self.specs[-1].number)
        if ended is not None:
            return ended[0]
        told = [d for d in decisions if d.kind == "status"]
        return str(told[-1].data["status"]) if told else ""

    def decisions(self) -> Sequence[Decision]:
        """The log."""
        return DecisionLog(self.store, self.layout, now_iso=self.now_iso, nonce=lambda: "reader").read()

    def last_failure(self) -> str:
        """The message of the last one in the log."""
        return next((str(d.data["message"]) for d in reversed(self.decisions()) if d.kind == "failure"), "no failure")

    def turn(self) -> None:
        """Everybody takes a turn."""
        self.rounds += 1
        self.now_ms += ROUND_MS
        driver = self.driver
        assert driver is not None
        if driver.process.alive:
            driver.turn()
        if not driver.process.alive:
            self._orphan(driver)
        for slot in self.slots:
            slot.turn()
        self.slots = [slot for slot in self.slots if slot.is_up]
        if not driver.process.alive and driver.exit_code is None and (self._eager or not self.slots):
            self.note("a successor is launched")
            self._relaunch()

    def _orphan(self, driver: Driver) -> None:
        if driver.run is None:
            return
        for slot in driver.run.slots:
            if slot.rounds_left is None:
                slot.rounds_left = ZOMBIE_ROUNDS

    def to_end(self, on_round: Callable[[int], None] = lambda _: None, limit: int = MAX_ROUNDS) -> str:
        """Rounds until the newest driver has ended the submission: its status. "stuck": it has not within `limit`."""
        for number in range(limit):
            self.turn()
            on_round(number)
            assert self.driver is not None
            if self.driver.exit_code is not None:
                for _ in range(ZOMBIE_ROUNDS):  # what is left of its slots
                    for slot in self.slots:
                        slot.turn()
                return self.status()
        return "stuck"
