"""A simulated driver: the runtime's own log, supervisor, command book, restore choice and coordinator in a process that
can die."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from simulator import deletions
from simulator.run_of_slots import RunOfSlots, stop_point
from simulator.scheduler import Mutex, Process, Task, current_task
from simulator.slot_process import STALL_MS, ZOMBIE_MS
from simulator.store import SimulatedStore
from tidegate.coordinator import events as ev
from tidegate.coordinator.driver_job import DriverJob
from tidegate.coordinator.job_run import JobRun, RunFailed
from tidegate.coordinator.recovery.restore_point import RestorePoint, choose_restore_point, end_status
from tidegate.coordinator.supervision import supervision_events as sv
from tidegate.coordinator.supervision.command_book import AcceptCommand, CommandBook, RefuseCommand
from tidegate.coordinator.supervision.supervisor import Supervisor
from tidegate.errors import AlreadyExistsError, FencedError, NotFoundError, SnapshotError, StoreError
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Command, CommandResult, Spec, decode, encode
from tidegate.spark.driver_loop.checkpoint_deletion import CheckpointDeletion

if TYPE_CHECKING:
    from simulator.world import World

GRACE_MS = ZOMBIE_MS + STALL_MS + 100
"""How long a retired folder stays besides a checkpoint's timeout, milliseconds: longer than any zombie lives."""
STORE_TIMEOUT_S = 1.5
"""How long an append is repeated: five attempts. Longer than most faults of the store, so that both ends occur."""
POLL_MS = 80
"""About how often commands are looked for, milliseconds."""


def grace_ms(options: JobOptions) -> int:
    """From the retirement of a folder to its deletion."""
    return int(options.checkpoint_timeout.total_seconds() * 1000) + GRACE_MS


class DriverProcess:
    """One driver: one launch of one submission.

    Attributes:
        ended: why it has ended by itself; None: it lives, or was killed.
    """

    def __init__(self, world: World, spec: Spec, launch: int) -> None:
        self.process = Process(world.scheduler, f"driver-{spec.number}.{launch}")
        self.spec = spec
        self.ended: str | None = None
        self._launch = launch
        self._world = world
        self._layout = JobLayout(spec.job_id)
        self._store = SimulatedStore(world.disk, self.process, world.faults)
        self._inbox: deque[tuple[str, Any]] = deque()
        self._waiting: Task | None = None
        self._ticked: tuple[RunOfSlots | None, int] = (None, 0)
        self._book = CommandBook(spec.number)
        self._supervisor = Supervisor(world.options_of(spec))
        self._start: sv.StartRun | None = None
        self._current: RunOfSlots | None = None
        self._late: list[ev.RunRequest] = []
        self._splits: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
        self._exit_code: int | None = None
        self._unjudged: list[Command] = []
        self._retiring: CheckpointDeletion | None = None
        self._job: DriverJob

    def start(self) -> None:
        """Begin, as a task."""
        self.process.spawn(self._drive, self._world.scheduler.upto(20))

    def terminate(self) -> None:
        """SIGTERM."""
        self._post("event", sv.Terminated())

    def release_slots(self) -> None:
        """The driver is gone: its slots lose their control connection."""
        if self._current is not None:
            self._current.abandon()

    def _post(self, what: str, payload: Any) -> None:
        self._inbox.append((what, payload))
        if self._waiting is not None:
            task, self._waiting = self._waiting, None
            self._world.scheduler.after(0, task.resume, self.process)

    # ------------------------------------------------------------ the driver's task

    def _drive(self) -> None:
        try:
            self._reign()
            self.ended = "over"
        except FencedError:
            self._book.discard()
            self.ended = "fenced"
        except StoreError as error:
            self.ended = f"store: {error}"
        except Exception as error:
            self._world.failed(self.process.name, error)
            self.ended = f"raised {error!r}"
        self.process.alive = False
        self.release_slots()

    def _reign(self) -> None:
        world = self._world
        log = DecisionLog(
            self._store,
            self._layout,
            world.now_iso,
            world.nonce,
            pause=lambda seconds: self._task().pause(int(seconds * 1000)),
            lock=Mutex(),
            timeout_s=STORE_TIMEOUT_S,
            clock=lambda: world.scheduler.now_ms / 1000,
        )
        generation_log = log.begin_generation(spec=self.spec.number, launch=self._launch)
        self._job = DriverJob(
            root=self._store.url,
            storage_options={},
            store=self._store,
            layout=self._layout,
            spec=self.spec,
            options=world.options_of(self.spec),
            graph=world.workload.graph,
            plan=world.plan_of(self.spec),
            log=log,
            generation_log=generation_log,
            now_iso=world.now_iso,
            specs=lambda: world.specs,
        )
        if world.deletion_ms is not None:
            self._retiring = self._slow_retiring()
        for left in self._job.garbage():
            self._retire(left.path, at_once=left.without_grace, inherited=True)
        self._feed(sv.BeginSupervision(end_status(generation_log.decisions, self.spec.number)))
        if self._exit_code is not None:
            return
        self.process.spawn(self._poll_commands, world.scheduler.upto(POLL_MS))
        while self._exit_code is None:
            if self._start is not None and self._current is None:
                self._begin_run()
            else:
                self._take(*self._next_item())
            current = self._current
            self._note_overdue(current)
            if current is not None and current.is_settled:
                self._end_run(current)

    def _feed(self, event: sv.SupervisionEvent) -> None:
        for action in self._supervisor.handle(event, self._world.scheduler.now_ms):
            self._carry_out(action)

    def _carry_out(self, action: sv.SupervisionAction) -> None:  # noqa: C901, PLR0912 - one case per action
        job = self._job
        match action:
            case sv.WaitForSlots():
                delay_ms = self._world.scheduler.upto(60)
                self._world.scheduler.after(delay_ms, lambda: self._post("event", sv.SlotsAvailable()), self.process)
            case sv.StartRun():
                self._start = action
            case sv.CheckGeneration():
                job.generation_log.check_quietly()
            case sv.DeliverToRun(request):
                assert self._current is not None, "a request for no run"
                self._hand(self._current.run, request)
            case sv.JudgeStop(command_id):
                with suppress(StoreError):
                    wanted = self._is_wanted(command_id)
                    self._post("event", sv.StopJudged(command_id, wanted, self._stop_point(), self._latest()))
            case sv.FailCurrentRun(failure):
                assert self._current is not None, "no run to fail"
                self._current.run.fail(failure)
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
                self._exit_code = exit_code

    # ------------------------------------------------------------ runs

    def _begin_run(self) -> None:
        start, self._start = self._start, None
        assert start is not None
        try:
            requests = [r for r in start.requests if r.request_id is None or self._is_wanted(r.request_id)]
            found = self._job.find_restore()
            if self._splits is None:
                self._splits = self._job.splits(found[1] if found is not None else None)
            self._current = RunOfSlots(
                self._world, self.process, self._job, found, self._splits, self._post, self._retire
            )
        except FencedError:
            raise
        except StoreError as error:
            failure = RunFailed(f"what the run starts from could not be read: {error}")
            self._feed(sv.RunTornDown(failure, start.requests, self._stop_point(), latest=self._latest()))
            return
        except SnapshotError as error:
            newest = self._world.checkers.decisions[-1].generation
            if (
                newest > self._job.generation_log.generation
            ):  # it has read what its successor decided, and can say nothing
                raise FencedError(f"generation {newest} took over", where=self.process.name) from error
            self._world.failed(self.process.name, error)
            self._feed(sv.RunImpossible(RunFailed(str(error), code=error.code), error.exit_code, self._stop_point()))
            return
        for request in requests:
            self._hand(self._current.run, request)

    def _hand(self, run: JobRun, request: ev.RunRequest) -> None:
        """One that has its outcome takes nothing more."""
        if isinstance(request, ev.SnapshotRequest) and request.stop is not None and request.request_id is not None:
            self._world.checkers.stop_taken(request.request_id, self._job.generation_log.generation)
        if run.outcome is None:
            run.handle_command(request)
        else:
            self._late.append(request)

    def _end_run(self, current: RunOfSlots) -> None:
        outcome, requests = current.take_down()
        for what, payload in [item for item in self._inbox if item[0] == "event"]:
            self._inbox.remove((what, payload))
            self._take(what, payload)
        again: list[ev.RunRequest] = [*requests, *self._late]
        self._late, self._current = [], None
        draw = self._world.scheduler.random.random()
        self._feed(sv.RunTornDown(outcome, tuple(again), self._stop_point(), draw, self._latest()))

    def _stop_point(self) -> sv.StopPoint | None:
        return stop_point(self._next_point())

    def _latest(self) -> sv.Latest | None:
        point = self._next_point()
        return None if point is None else (point.checkpoint_id, point.location)

    def _next_point(self) -> RestorePoint | None:
        return choose_restore_point(self._job.generation_log.decisions, self._world.specs, self.spec.number)

    def _retire(self, path: str, *, at_once: bool = False, inherited: bool = False) -> None:
        if self._retiring is not None:
            self._retiring.add(0, path, at_once=at_once, inherited=inherited)
            return

        def work() -> None:
            try:
                self._job.generation_log.check()
                self._job.delete_snapshot(path)
            except (FencedError, StoreError, SnapshotError):
                return

        self.process.spawn(work, 0 if at_once else grace_ms(self._job.options))

    # ------------------------------------------------------------ a store that deletes slowly

    def _slow_retiring(self) -> CheckpointDeletion:
        """The runtime's own, which deletes one folder after the other."""
        job, scheduler = self._job, self._world.scheduler
        grace_s = grace_ms(job.options) / 1000
        retiring = CheckpointDeletion(self._store, job.generation_log.check, grace_s, lambda: scheduler.now_ms / 1000)
        retiring.spared, retiring.delete = job.folders_in_use, self._delete_slowly

        def work() -> None:
            while True:
                self._task().pause(deletions.POLL_MS)
                retiring.delete_due()
                self._post("deleted", None)

        self.process.spawn(work)
        return retiring

    def _delete_slowly(self, path: str) -> None:
        if self._world.faults.active and self._world.deletion_ms is not None:
            self._task().pause(self._world.deletion_ms)
        self._job.delete_snapshot(path)

    def _note_overdue(self, current: RunOfSlots | None) -> None:
        if self._retiring is None or current is None or current.run.outcome is not None:
            return
        waited = current.run.coordinator.waits_for_deletions
        current.run.note_overdue_deletions(deletions.WEIGHT * self._retiring.overdue)
        if not waited and current.run.coordinator.waits_for_deletions:
            self._world.events["waits for deletions"] += 1

    # ------------------------------------------------------------ the inbox

    def _take(self, what: str, payload: Any) -> None:
        current = self._current
        match what:
            case "event":
                self._feed(payload)
            case "message" if current is not None:
                searches_ms = current.run.search_ms
                current.on_message(*payload)
                if searches_ms is None and current.run.search_ms is not None:
                    # A reader has read the last split, so that a search is due at once (`after_finished`).
                    self._ticked = (None, 0)
            case "lost" if current is not None:
                current.on_lost(payload)
            case "searched" if payload[0] is current:
                self._ticked = (None, 0)  # it may bring the next search, in the same millisecond
                current.run.on_searched(payload[1])
            case "tick":
                self._feed(sv.Tick())
                if current is not None and current.run.outcome is None:
                    current.run.on_event(ev.Tick())
                    for uid in current.run.take_searches():
                        self.process.spawn(partial(self._search, current, uid), 1 + self._world.scheduler.upto(50))

    def _search(self, current: RunOfSlots, uid: str) -> None:
        """A task of its own, as it is a thread of its own on Spark."""
        self._post("searched", (current, current.searches[uid].search()))

    def _wake_ms(self) -> int | None:
        times = [self._supervisor.next_wake_ms()]
        if self._current is not None and self._current.run.outcome is None:
            times += [self._current.run.coordinator.next_wake_ms(), self._current.run.search_ms]
        return min((t for t in times if t is not None), default=None)

    def _next_item(self) -> tuple[str, Any]:
        scheduler, faults = self._world.scheduler, self._world.faults
        while not self._inbox:
            wake_ms = self._wake_ms()
            if wake_ms is not None and wake_ms <= scheduler.now_ms:
                if self._ticked == (self._current, scheduler.now_ms):
                    raise AssertionError(f"a tick is wanted at {wake_ms}, there was one, and it is {scheduler.now_ms}")
                self._ticked = (self._current, scheduler.now_ms)
                return "tick", None
            task = self._task()
            self._waiting = task
            if wake_ms is not None:
                scheduler.after(wake_ms - scheduler.now_ms, partial(self._ring, task), self.process)
            task.wait()
            self._waiting = None
        if faults.strikes("driver_crash"):
            self.process.crash()
        if faults.strikes("driver_stall"):
            self.process.stalled_until_ms = scheduler.now_ms + 100 + scheduler.upto(3_000)
            self._task().pause(0)
        return self._inbox.popleft()

    @staticmethod
    def _task() -> Task:
        task = current_task()
        assert task is not None, "a driver works in tasks"
        return task

    def _ring(self, task: Task) -> None:
        if self._waiting is task:
            self._waiting = None
            task.resume()

    # ------------------------------------------------------------ commands, a task of their own

    def _poll_commands(self) -> None:
        while True:
            self._task().pause(POLL_MS // 2 + self._world.scheduler.upto(POLL_MS))
            try:
                self._look_for_commands()
            except StoreError:
                continue

    def _look_for_commands(self) -> None:
        for command_id in self._layout.unanswered(self._store.list(self._layout.commands)):
            try:
                command = decode(self._store.read(self._layout.command(command_id)), Command)
            except NotFoundError:
                continue
            if self._book.register(command):
                self._unjudged.append(command)
        while self._unjudged:
            verdict = self._judge(self._unjudged[0].command_id)
            command = self._unjudged.pop(0)
            if isinstance(verdict, AcceptCommand):
                self._world.checkers.accepted(command)
                self._post("event", sv.CommandArrived(command))
            elif isinstance(verdict, RefuseCommand):
                self._write_result(verdict.answer)

    def _judge(self, command_id: str) -> Any:
        withdrawn = self._exists(self._layout.withdrawn(command_id))
        answered = self._exists(self._layout.result(command_id))
        now_ms = self._world.scheduler.now_ms
        return self._book.decide(command_id, now_ms, withdrawn=withdrawn, answered=answered)

    def _exists(self, path: str) -> bool:
        for _ in range(5):
            try:
                return self._store.exists(path)
            except StoreError:
                continue
        raise StoreError("the store does not answer", where=path)

    def _is_wanted(self, command_id: str) -> bool:
        verdict = self._judge(command_id)
        if isinstance(verdict, RefuseCommand):
            self._write_result(verdict.answer)
        return isinstance(verdict, AcceptCommand)

    def _write_result(self, answer: ev.CommandAnswer) -> None:
        """Until the store has taken it."""
        data = dict(answer.data)
        generation = self._job.generation_log.generation
        result = CommandResult(
            answer.request_id, answer.ok, answer.code, answer.message, data, generation, self._world.now_iso()
        )
        while True:
            try:
                self._store.create(self._layout.result(answer.request_id), encode(result))
                return
            except AlreadyExistsError:
                return
            except StoreError:
                continue
