"""Finds new commands in the job directory: polls one object, the bell, and lists only when it rang (design, section
4)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from tidegate.errors import NotFoundError, OptionError, RecordError, TidegateError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Command, decode
from tidegate.jobs.stores.store import Store

POLL_S = 0.25
"""How often the bell is read, seconds."""
POLLS_PER_LISTING = 120
"""After so many polls the commands are listed although no bell rang, some 30 s: a client may die before it rings."""


class CommandPoller:
    """Calls `on_command` once per command that has neither result nor withdrawal, and `on_unreadable` with id,
    submission (if that can be told) and problem of one that cannot be decoded, from its own thread."""

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
        """Start polling; commands that wait already are found first."""
        self._thread.start()

    def close(self) -> None:
        """Stop polling; what has come by now is found."""
        self._over.set()
        self._thread.join(5.0)
        try:
            self._poll()
        except TidegateError as error:
            print(f"tidegate: the last commands could not be read: {error}", flush=True)

    def _work(self) -> None:
        polls_left = 0
        while not self._over.wait(POLL_S):
            try:
                bell = self._read_bell()
                if not polls_left or bell != self._bell:
                    self._poll()
                    self._bell, polls_left = bell, POLLS_PER_LISTING
                polls_left -= 1
            except TidegateError as error:
                print(f"tidegate: commands could not be read: {error}", flush=True)

    def _read_bell(self) -> bytes | None:
        try:
            return self._store.read(self._layout.bell)
        except NotFoundError:
            return None

    def _poll(self) -> None:
        """Those that come together are taken as they were issued, not by name."""
        found: list[Command] = []
        unreadable: dict[str, tuple[int | None, str]] = {}
        for command_id in self._layout.unanswered(self._store.list(self._layout.commands)):
            if command_id in self._seen:
                continue
            try:
                path = self._layout.command(command_id)
            except OptionError as error:  # no client wrote it, and no answer could have its name
                print(f"tidegate: {command_id!r} among the commands is none: {error}", flush=True)
                self._seen.add(command_id)
                continue
            data = self._store.read(path)
            try:
                command = decode(data, Command, path)
                if command.command_id != command_id:
                    raise RecordError(f"it calls itself {command.command_id!r}", where=path)
                found.append(command)
            except RecordError as error:
                print(f"tidegate: command {command_id} is not one: {error}", flush=True)
                unreadable[command_id] = _submission_of(data), str(error)
        for command in sorted(found, key=lambda c: (c.issued_at, c.command_id)):
            self._on_command(command)
        for command_id, (spec, problem) in unreadable.items():
            self._on_unreadable(command_id, spec, problem)
        self._seen |= unreadable.keys() | {command.command_id for command in found}


def _submission_of(data: bytes) -> int | None:
    """Which submission a command is meant for that cannot be read otherwise."""
    try:
        spec = json.loads(data)["spec"]
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    return spec if isinstance(spec, int) else None
