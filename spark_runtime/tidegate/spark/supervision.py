"""The restart loop of a driver: attempts, commands, signals, and how the job ends (S9.1, S7.5, S7.7)."""

from __future__ import annotations

import random
import secrets
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from tidegate.channel.elements import StopMode
from tidegate.contract.errors import SlotsUnavailableError, StoreError
from tidegate.contract.records import Command
from tidegate.coordinator import events as ev
from tidegate.coordinator.answers import stop_answer
from tidegate.coordinator.job_run import JobRun, RunEnded, RunFailed
from tidegate.coordinator.restart import FixedDelayRestart
from tidegate.coordinator.restore import Restore
from tidegate.spark.attempt import Attempt, SlotView
from tidegate.spark.hint import job_metrics
from tidegate.spark.job import Job, Splits, assign, fresh_splits
from tidegate.spark.retiring import ZOMBIE_LIFE_S
from tidegate.spark.session import offered_slots, start_session, wait_for_slots

COMMAND_POLL_S = 0.1
"""How often commands and signals are looked at, seconds."""
EXIT_JOB_FAILED = 6
"""Exit code of a driver whose job failed."""
EXIT_TERMINATED = 143
"""Exit code of a driver that was terminated before it could take a savepoint."""


class Supervision:
    """Runs attempts until the job ends."""

    def __init__(self, job: Job, terminated: threading.Event) -> None:
        self._job = job
        self._terminated = terminated
        strategy_delay_ms = int(job.options.restart_delay.total_seconds() * 1000)
        self._strategy = FixedDelayRestart(job.options.restart_attempts, strategy_delay_ms)
        self._lock = threading.Lock()
        self._carried: list[ev.Request] = []
        self._attempt: Attempt | None = None
        self._cancel: Command | None = None
        self._stop_commands: dict[str, str] = {}
        self._over = threading.Event()
        self._restarts = 0
        self._terminate_by: float | None = None
        job.retiring.grace_s = job.options.checkpoint_timeout.total_seconds() + ZOMBIE_LIFE_S

    def run(self) -> int:
        """Until the job ends; the driver's exit code."""
        job = self._job
        job.hint.update(slots_needed=job.options.parallelism, slots_registered=0, restarts=0)
        job.status("WAITING_FOR_SLOTS")
        found = job.find_restore()
        splits = job.splits(found[1] if found else None)
        session = start_session(job.spec, job.options)
        watcher = threading.Thread(target=self._watch, name="supervision", daemon=True)
        watcher.start()
        try:
            return self._loop(session, splits)
        finally:
            self._over.set()
            watcher.join(5.0)
            session.stop()

    def _loop(self, session: SparkSession, splits: Splits) -> int:
        job = self._job
        while True:
            try:
                there = wait_for_slots(
                    session,
                    job.spec,
                    job.options,
                    lambda n: job.hint.update(slots_registered=n),
                    lambda: self._cancel is not None or self._terminated.is_set(),
                )
            except SlotsUnavailableError as error:
                return self._failed(RunFailed(str(error), code=error.code), error.exit_code)
            if not there:
                return self._canceled() if self._cancel is not None else self._given_up("before the job ran")
            if self._cancel is not None:
                return self._canceled()
            outcome = self._one_run(session, splits)
            if isinstance(outcome, RunEnded):
                return self._ended(outcome)
            if self._cancel is not None:
                return self._canceled()
            if self._terminate_by is not None:
                return self._given_up(outcome.message)
            self._record(outcome)
            delay_ms = self._strategy.on_failure()
            if delay_ms is None:
                attempts = job.options.restart_attempts
                return self._failed(outcome, EXIT_JOB_FAILED, f"after {attempts} restarts: ", recorded=True)
            self._restarts += 1
            job.hint.update(restarts=self._restarts, slots_registered=offered_slots(session))
            job.status("RESTARTING", reason=outcome.message)
            if self._sleep(delay_ms / 1000):
                return self._canceled() if self._cancel is not None else self._given_up(outcome.message)

    def _one_run(self, session: SparkSession, splits: Splits) -> RunEnded | RunFailed:
        job = self._job
        run_id = secrets.token_hex(4)
        try:
            found = job.find_restore()
        except StoreError as error:
            return RunFailed(f"the restore point could not be read: {error}")
        restore = found[1] if found else None
        commit_only = found[0].checkpoint_id if found is not None and found[0].commit_only else None
        interval = job.options.checkpoint_interval
        interval_ms = 0 if interval is None else int(interval.total_seconds() * 1000)
        pause_ms = int(job.options.min_pause_between_checkpoints.total_seconds() * 1000)
        first_delay_ms = random.randint(min(pause_ms, interval_ms), interval_ms)
        facts = job.facts()

        def make_run(attempt: Attempt) -> JobRun:
            return JobRun(
                facts=facts,
                coordinator=job.coordinator(run_id, first_delay_ms, commit_only),
                slots=attempt,
                run_id=run_id,
                next_checkpoint_id=job.next_checkpoint_id(),
                splits=splits,
                restored_from=restore.location if restore else None,
                answer=self._answer,
                now_ms=lambda: time.time_ns() // 1_000_000,
                retire=job.retiring.add,
                on_completed=self._strategy.on_progress,
            )

        attempt = Attempt(
            session,
            job.options,
            {
                "root": job.root,
                "storage_options": job.storage_options,
                "job_id": job.spec.job_id,
                "spec": job.spec.number,
                "generation": job.reign.generation,
                "run_id": run_id,
                "digest": job.plan.digest,
            },
            master=job.spec.master,
            make_run=make_run,
            assignments=assign(fresh_splits(splits, restore), job.plan.parallelism),
            restore=restore,
            wait_for_final=commit_only is None and (interval is not None or facts.topology.commits),
            on_running=lambda: self._on_running(run_id, restore),
            on_metrics=self._on_metrics,
        )
        with self._lock:
            self._attempt = attempt
            carried, self._carried = self._carried, []
            for request in carried:
                self._deliver(attempt, request)
        try:
            outcome = attempt.run()
        finally:
            with self._lock:
                self._attempt = None
        if isinstance(outcome, RunFailed):
            again = attempt.shut_down(outcome.message)
            with self._lock:
                self._carried += again
        elif commit_only is not None and found is not None:
            point = found[0]
            outcome = RunEnded(point.stop_mode, point.checkpoint_id, point.location, outcome.request_id)
        return outcome

    # ------------------------------------------------------------ how it ends

    def _ended(self, outcome: RunEnded) -> int:
        job = self._job
        if outcome.stop is None:
            job.status("FINISHED")
        else:
            assert outcome.path is not None and outcome.checkpoint_id is not None
            answer = stop_answer(
                "", "drain" if outcome.stop == "drain" else "suspend", outcome.checkpoint_id, outcome.path
            )
            job.status("STOPPED", stop=dict(answer.data))
            for command_id in {outcome.request_id, *self._stop_commands} - {None}:
                assert command_id is not None
                job.desk.answer(ev.Answer(command_id, True, answer.code, answer.message, answer.data))
        job.desk.answer_all("job_ended", "the job has ended")
        return 0

    def _canceled(self) -> int:
        job = self._job
        command = self._cancel
        assert command is not None
        job.status("CANCELED", reason=f"by {command.issued_by}")
        if job.options.retention == "delete":
            job.store.delete_folder(job.layout.checkpoints)
        job.desk.answer(ev.Answer(command.command_id, True, "canceled", "the job is cancelled"))
        return 0

    def _given_up(self, reason: str) -> int:
        text = (
            f"the driver was terminated (SIGTERM) before a savepoint completed: {reason}. "
            "Restore the latest checkpoint to go on"
        )
        return self._failed(RunFailed(text), EXIT_TERMINATED)

    def _failed(self, failure: RunFailed, exit_code: int, prefix: str = "", *, recorded: bool = False) -> int:
        if not recorded:
            self._record(failure)
        self._job.status("FAILED", reason=prefix + failure.message)
        self._job.desk.answer_all("job_failed", failure.message)
        return exit_code

    def _record(self, failure: RunFailed) -> None:
        if failure.traceback:
            print(failure.traceback, flush=True)
        self._job.reign.append(
            "failure",
            {
                "message": failure.message,
                "operator": failure.operator,
                "subtask": failure.subtask,
                "traceback": failure.traceback,
                "code": failure.code,
            },
        )

    # ------------------------------------------------------------ from the attempt

    def _on_running(self, run_id: str, restore: Restore | None) -> None:
        data: dict[str, Any] = {"run_id": run_id}
        if restore is not None:
            data["restored_from"] = restore.location
        self._job.hint.update(run_id=run_id)
        self._job.status("RUNNING", **data)

    def _on_metrics(self, slots: Mapping[int, SlotView]) -> None:
        self._job.hint.update(**job_metrics(self._job.graph, slots))

    def _answer(self, answer: ev.Answer) -> None:
        self._stop_commands.pop(answer.request_id, None)
        self._job.desk.answer(answer)

    # ------------------------------------------------------------ commands and signals, own thread

    def _watch(self) -> None:
        """Nothing that goes wrong here may end it: the job would be deaf from then on."""
        while not self._over.wait(COMMAND_POLL_S):
            try:
                for command in self._job.desk.take():
                    self._on_command(command)
                self._look_for_cancel()
                self._look_for_signal()
            except Exception:
                traceback.print_exc()

    def _look_for_cancel(self) -> None:
        """Said again to every run until the job ends: a cancel may come when no run is there to hear it."""
        command = self._cancel
        if command is not None:
            self._call(lambda run: run.fail(RunFailed(f"cancelled by {command.issued_by}")))

    def _on_command(self, command: Command) -> None:
        arguments = command.arguments
        match command.verb:
            case "checkpoint":
                self._post(ev.Request("checkpoint", request_id=command.command_id))
            case "savepoint":
                self._post(ev.Request("savepoint", request_id=command.command_id, path=arguments.get("path")))
            case "stop":
                mode: StopMode = "drain" if arguments.get("mode") == "drain" else "suspend"
                self._stop_commands[command.command_id] = mode
                path = arguments.get("path")
                self._post(ev.Request("stop-savepoint", request_id=command.command_id, stop=mode, path=path))
            case "cancel":
                self._cancel = self._cancel or command
            case other:
                text = f"this version has no verb {other!r}"
                self._job.desk.answer(ev.Answer(command.command_id, False, "unknown_verb", text))

    def _look_for_signal(self) -> None:
        """SIGTERM: suspend with a savepoint within `sigterm_timeout`, else give the run up."""
        if not self._terminated.is_set():
            return
        if self._terminate_by is None:
            self._terminate_by = time.monotonic() + self._job.options.sigterm_timeout.total_seconds()
            self._post(ev.Request("stop-savepoint", stop="suspend"))
        elif time.monotonic() > self._terminate_by:
            self._call(lambda run: run.fail(RunFailed("no savepoint completed within sigterm_timeout")))

    def _post(self, request: ev.Request) -> None:
        """To the run that is there, else to the next one."""
        with self._lock:
            if self._attempt is None:
                self._carried.append(request)
            else:
                self._deliver(self._attempt, request)

    def _deliver(self, attempt: Attempt, request: ev.Request) -> None:
        """With the lock held. Kept until the run has taken it: one that is over takes nothing any more."""
        self._carried.append(request)

        def take(run: JobRun) -> None:
            if run.outcome is None:
                with self._lock:
                    self._carried.remove(request)
                run.on_event(ev.SnapshotRequested(request))

        attempt.post(take)

    def _call(self, call: Any) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.post(call)

    def _sleep(self, seconds: float) -> bool:
        """True when a cancel or a signal cut the sleep short."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._cancel is not None or self._terminated.is_set():
                return True
            time.sleep(COMMAND_POLL_S)
        return False
