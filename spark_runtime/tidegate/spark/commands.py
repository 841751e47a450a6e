"""The driver's side of commands: each is taken once, answered once, and only while it is meant for us (S9.4)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from tidegate.contract.errors import AlreadyExistsError, StoreError, TidegateError
from tidegate.contract.layout import JobLayout
from tidegate.contract.records import Command, CommandResult, Spec, encode
from tidegate.contract.store import Store
from tidegate.coordinator.events import Answer
from tidegate.spark.command_poller import CommandPoller


class CommandDesk:
    """Holds commands until the job can take them.

    `take` returns what has come; `answer` writes a result. A command of another submission is answered `superseded`, an
    expired one `expired`, a withdrawn one never executed.
    """

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        spec: Spec,
        generation: int,
        now_iso: Callable[[], str],
        now_s: Callable[[], float],
    ) -> None:
        self._store, self._layout, self._spec = store, layout, spec
        self._generation, self._now_iso, self._now_s = generation, now_iso, now_s
        self._lock = threading.Lock()
        self._open: dict[str, Command] = {}
        self._new: list[Command] = []
        self._unwritten: list[CommandResult] = []
        self._abandoned = False
        self._poller = CommandPoller(store, layout, self._on_command)
        self._poller.start()

    def take(self) -> list[Command]:
        """Commands that arrived since the last call, valid ones only, in order of arrival. What the store does not
        tell now is looked at again at the next call; so are answers it did not take."""
        with self._lock:
            new, self._new = self._new, []
            unwritten, self._unwritten = self._unwritten, []
        for result in unwritten:
            self._write(result)
        valid: list[Command] = []
        for position, command in enumerate(new):
            try:
                if self._is_valid(command):
                    valid.append(command)
            except ValueError as error:
                text = f"expires_at is no time: {error}"
                self.answer(Answer(command.command_id, False, "invalid_command", text))
            except StoreError as error:
                print(f"tidegate: command {command.command_id} could not be checked: {error}", flush=True)
                with self._lock:
                    self._new[:0] = new[position:]
                break
        return valid

    def answer(self, answer: Answer) -> None:
        """Write the result of a command; a second answer changes nothing."""
        with self._lock:
            if self._open.pop(answer.request_id, None) is None:
                return
        data = dict(answer.data)
        result = CommandResult(
            answer.request_id, answer.ok, answer.code, answer.message, data, self._generation, self._now_iso()
        )
        self._write(result)

    def answer_all(self, code: str, message: str) -> None:
        """Refuse whatever is open."""
        with self._lock:
            waiting = list(self._open)
        for command_id in waiting:
            self.answer(Answer(command_id, False, code, message))

    def abandon(self) -> None:
        """A newer generation reigns: what is open is its to answer (S9.2)."""
        with self._lock:
            self._abandoned = True
            self._open.clear()
            self._new.clear()
            self._unwritten.clear()

    def close(self) -> None:
        """Stop polling; refuse what is still open."""
        self._poller.close()
        self.answer_all("job_ended", "the driver ended before it could carry the command out")
        with self._lock:
            unwritten, self._unwritten = self._unwritten, []
        for result in unwritten:
            self._write(result)

    def _on_command(self, command: Command) -> None:
        """A command for a newer submission is its driver's: this one may be a zombie."""
        if self._abandoned or command.spec > self._spec.number:
            return
        with self._lock:
            self._open[command.command_id] = command
            self._new.append(command)

    def _is_valid(self, command: Command) -> bool:
        if self._store.exists(self._layout.withdrawn(command.command_id)):
            with self._lock:
                self._open.pop(command.command_id, None)
            return False
        if command.spec != self._spec.number:
            text = f"meant for submission {command.spec}, this driver runs submission {self._spec.number}"
            self.answer(Answer(command.command_id, False, "superseded", text))
            return False
        if datetime.fromisoformat(command.expires_at).timestamp() < self._now_s():
            text = f"the command expired at {command.expires_at} before a driver saw it; send it again"
            self.answer(Answer(command.command_id, False, "expired", text))
            return False
        return True

    def _write(self, result: CommandResult) -> None:
        try:
            self._store.create(self._layout.result(result.command_id), encode(result))
        except AlreadyExistsError:
            return
        except TidegateError as error:
            print(f"tidegate: command {result.command_id} could not be answered: {error}", flush=True)
            with self._lock:
                self._unwritten.append(result)
