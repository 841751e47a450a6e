"""Finds new commands in the job directory (design, section 4).

It polls one object, the bell, and lists the commands only when the bell has changed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidegate.errors import NotFoundError, OptionError, RecordError, TidegateError
from tidegate.jobs.json_documents import parse_json, read_bounded
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Command, decode
from tidegate.jobs.stores.store import Store
from tidegate.log_format import context

logger = logging.getLogger("tidegate.spark")

POLL_S = 0.25
"""Interval, in seconds, at which the bell is read."""
POLLS_PER_LISTING = 120
"""Polls after which commands are listed although the bell has not changed, about 30 s: a client may die before it
rings.
"""


class CommandPoller:
    """Calls `on_command` once per command that has neither result nor withdrawal, from its own thread.

    It calls `on_unreadable` with id, submission (if known) and problem of a command that cannot be decoded.
    """

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        on_command: Callable[[Command], None],
        on_unreadable: Callable[[str, int | None, str], None],
    ) -> None:
        self._store, self._layout = store, layout
        self._on_command, self._on_unreadable = on_command, on_unreadable
        self._seen: set[str] = set()
        self._bell: bytes | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="command-poller", daemon=True)

    def start(self) -> None:
        """Start polling; waiting commands are found first."""
        self._thread.start()

    def close(self) -> None:
        """Stop polling, after a last poll."""
        self._over.set()
        self._thread.join(5.0)
        try:
            self._poll()
        except TidegateError as error:
            logger.warning(
                "commands that arrived at the end of the job could not be read, and stay without an answer: %s", error
            )

    def _work(self) -> None:
        polls_left = 0
        while not self._over.wait(POLL_S):
            try:
                # Read before the listing: a command that the listing misses rings later, so the next poll finds another
                # bell.
                bell = self._read_bell()
                if not polls_left or bell != self._bell:
                    self._poll()
                    # Stored after the listing has succeeded. If it fails, the next poll lists again.
                    self._bell, polls_left = bell, POLLS_PER_LISTING
                polls_left -= 1
            except TidegateError as error:
                logger.warning("commands could not be read; they are read again: %s", error)

    def _read_bell(self) -> bytes | None:
        try:
            return self._store.read(self._layout.bell)
        except NotFoundError:
            return None

    def _poll(self) -> None:
        """Find new commands. Commands found together are passed in order of issue, not of name."""
        found: list[Command] = []
        unreadable: dict[str, tuple[int | None, str]] = {}
        for command_id in self._layout.unanswered(self._store.list(self._layout.commands)):
            if command_id in self._seen:
                continue
            try:
                path = self._layout.command(command_id)
            except OptionError as error:  # no client wrote it, and no answer could have its name
                logger.warning(
                    "a file in the folder of the commands is not a command and is ignored: %s",
                    error,
                    extra=context(command=command_id),
                )
                self._seen.add(command_id)
                continue
            data = b""
            try:
                data = read_bounded(self._store, path)
                command = decode(data, Command, path)
                if command.command_id != command_id:
                    raise RecordError(
                        f"the command's file contains the id {command.command_id!r}, not the id of its name", where=path
                    )
                found.append(command)
            except RecordError as error:
                logger.warning(
                    "a command is refused because its file cannot be read: %s", error, extra=context(command=command_id)
                )
                unreadable[command_id] = _submission_of(data), str(error)
        for command in sorted(found, key=lambda c: (c.issued_at, c.command_id)):
            self._on_command(command)
        for command_id, (spec, problem) in unreadable.items():
            self._on_unreadable(command_id, spec, problem)
        # Only now: if the store fails above, the next poll reads all new commands again, and in order.
        self._seen |= unreadable.keys() | {command.command_id for command in found}


def _submission_of(data: bytes) -> int | None:
    """Return the submission that an undecodable command is meant for; None: unknown."""
    try:
        spec = parse_json(data)["spec"]
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    return spec if isinstance(spec, int) else None
