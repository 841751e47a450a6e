"""The driver's side of commands, around `CommandBook`: finds them, reads the objects the book needs, writes answers
(S9.4).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidegate.coordinator.events import CommandAnswer
from tidegate.coordinator.supervision.command_book import AcceptCommand, CommandBook, RefuseCommand
from tidegate.coordinator.supervision.supervision_events import AnswerAllOpen
from tidegate.errors import AlreadyExistsError, StoreError, TidegateError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Command, CommandResult, Spec, encode
from tidegate.jobs.stores.store import Store
from tidegate.log_format import context
from tidegate.spark.driver_loop.command_poller import CommandPoller

logger = logging.getLogger("tidegate.spark")

DRIVER_ENDED = AnswerAllOpen(
    CommandAnswer("", False, "job_ended", "the driver ended before it could execute the command"),
)
"""Answer to open commands if the driver ends without another one."""


class CommandDesk:
    """Holds commands until the job can process them. Safe for several threads; blocks on the store.

    Attributes:
        arrived: set when a command has arrived. The caller of `take` may wait for it, and clears it before.
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
        self._store, self._layout = store, layout
        self._generation, self._now_iso, self._now_s = generation, now_iso, now_s
        self.arrived = threading.Event()
        self._lock = threading.Lock()
        self._book = CommandBook(spec.number)
        self._new: list[Command] = []
        self._unwritten: list[CommandResult] = []
        self._farewell = DRIVER_ENDED
        self._poller = CommandPoller(store, layout, self._on_command, self._on_unreadable)
        self._poller.start()

    def take(self) -> list[Command]:
        """Return valid commands that arrived since the last call, in order of arrival.

        Commands that cannot be checked because of the store are checked again at the next call. Answers that the store
        did not accept are written again.
        """
        with self._lock:
            new, self._new = self._new, []
            unwritten, self._unwritten = self._unwritten, []
        for result in unwritten:
            self._write(result)
        valid: list[Command] = []
        for position, command in enumerate(new):
            try:
                if self.is_wanted(command.command_id):
                    valid.append(command)
            except StoreError as error:
                logger.warning(
                    "the store does not answer, so a command waits and is checked again: %s",
                    error,
                    extra=context(command=command.command_id),
                )
                with self._lock:
                    # Before the commands that have arrived since, to keep the order of arrival.
                    self._new[:0] = new[position:]
                break
        return valid

    def is_wanted(self, command_id: str, *, begun: bool = False) -> bool:
        """Return whether a command may be executed now. Called when it is found, and when a run is about to receive it.

        A command that may not be executed is answered, if it needs an answer. `begun`: see `CommandBook.decide`. Raises
        StoreError if the store does not answer.
        """
        # Without the lock, because the store may block for long, and the poller needs the lock.
        withdrawn = self._store.exists(self._layout.withdrawn(command_id))
        answered = self._store.exists(self._layout.result(command_id))
        with self._lock:
            now_ms = int(self._now_s() * 1000)
            verdict = self._book.decide(command_id, now_ms, withdrawn=withdrawn, answered=answered, begun=begun)
        if isinstance(verdict, RefuseCommand):
            self._write(self._result(verdict.answer))
        return isinstance(verdict, AcceptCommand)

    def answer(self, answer: CommandAnswer) -> None:
        """Write the result of a command; a second answer changes nothing."""
        with self._lock:
            is_first = self._book.answer(answer)
        if is_first:
            self._write(self._result(answer))

    def answer_all(self, farewell: AnswerAllOpen) -> None:
        """Answer all open commands now, and later ones at `close`."""
        with self._lock:
            self._farewell = farewell
            answers = self._book.answer_all(farewell)
        for answer in answers:
            self._write(self._result(answer))

    def abandon(self) -> None:
        """Drop open commands: a newer generation runs the job and will answer them (S9.2)."""
        with self._lock:
            self._book.discard()
            self._new.clear()
            self._unwritten.clear()

    def close(self) -> None:
        """Stop polling, and answer the commands that are still open."""
        self._poller.close()
        self.answer_all(self._farewell)
        with self._lock:
            unwritten, self._unwritten = self._unwritten, []
        for result in unwritten:
            self._write(result)

    def _on_command(self, command: Command) -> None:
        with self._lock:
            if self._book.register(command):
                self._new.append(command)
        self.arrived.set()

    def _on_unreadable(self, command_id: str, spec: int | None, problem: str) -> None:
        with self._lock:
            answer = self._book.unreadable(command_id, spec, problem)
        if answer is not None:
            self._write(self._result(answer))

    def _result(self, answer: CommandAnswer) -> CommandResult:
        data, at = dict(answer.data), self._now_iso()
        return CommandResult(answer.request_id, answer.ok, answer.code, answer.message, data, self._generation, at)

    def _write(self, result: CommandResult) -> None:
        try:
            self._store.create(self._layout.result(result.command_id), encode(result))
        # The first answer counts. An earlier attempt may have written it, and lost the store's confirmation.
        except AlreadyExistsError:
            return
        except TidegateError as error:
            logger.warning(
                "the answer to a command could not be written; it is written again later: %s",
                error,
                extra=context(command=result.command_id),
            )
            with self._lock:
                self._unwritten.append(result)
