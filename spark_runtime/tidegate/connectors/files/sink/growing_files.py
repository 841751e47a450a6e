"""Small files that grow: a commit extends the last small file of its partition instead of adding another (ADR 0047).

    <path>/_tidegate/growing/<job>/<lineage>/<uid>/<subtask>/<generation>--<run>/       extended copies, and plans

The extended file begins with all bytes of the old one, and takes its place by one rename. So a reader that lists the
folder sees the old rows or all rows, and never a row twice. A reader that has listed the old file with its size, or has
opened it, reads the old rows. A rewind cuts the file off where it ended before.

A plan is written before the renames. It names the size of each file before and after, so that a run that repeats the
commit knows what the crashed run has done. A rename needs the folder of its run. The next run renames this folder
before it reads the plans: from then on no zombie can extend a file (S9.2). A run extends only files that it has
published itself.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.files.sink.sink_layout import FENCED_SUFFIX, FileLayout
from tidegate.connectors.storage import sync_to_disk
from tidegate.connectors.transactions import (
    Committable,
    SinkContext,
    TransactionId,
    owns_leftovers_of,
    parse_transaction_id,
)
from tidegate.errors import FencedError, SinkConflictError

PLAN_VERSION = 1
MOST_PARTS = 64
"""Most parts of a file. Each part of a Parquet file repeats the footers before it, whose bytes nobody reads again."""

Extend = Callable[[str, str, str], None]
"""Writes a new file: all bytes of the first file, so that the rows of the second follow. (old, staged, new)"""


@dataclass(frozen=True)
class Growth:
    """Extension of a published file.

    Attributes:
        target: path of the file below the sink's folder.
        before, after: its size in bytes.
    """

    target: str
    before: int
    after: int

    def to_json(self, rows: int) -> dict[str, Any]:
        """Return the entry in a marker."""
        return {"path": self.target, "rows": rows, "before": self.before, "after": self.after}


def growths_of(entries: Sequence[Mapping[str, Any]]) -> list[Growth]:
    """Return the extensions among the files of a marker or plan."""
    return [Growth(e["path"], e["before"], e["after"]) for e in entries if "before" in e]


@dataclass(frozen=True)
class _Last:
    target: str
    size_bytes: int
    parts: int


class GrowingFiles:
    """Extensions of one writer's files, on a local file system.

    Args:
        below: size in bytes up to which a file is small; 0: files do not grow, and only plans of earlier runs count.
        extend: extends a file of the sink's format; None: as 0.
    """

    def __init__(self, layout: FileLayout, ctx: SinkContext, below: int, extend: Extend | None) -> None:
        self._layout = layout
        self._ctx = ctx
        self._below = below if extend is not None else 0
        self._extend = extend
        self._last: dict[str, _Last] = {}
        if self._below:
            os.makedirs(layout.growing, exist_ok=True)

    def grown_before(self, handle: Committable, *, replaces: bool) -> dict[int, Growth]:
        """Extend files by the files of a transaction, as far as they are small. Durable with the marker.

        Returns:
            Index of the file in the transaction -> its extension. The other files must be published as ever.

        Raises:
            FencedError: a newer run has begun.
            SinkConflictError: another process has changed or removed a file, so that it is not known what it holds.
        """
        made = parse_transaction_id(handle.transaction_id)
        self._fence(made.subtask)
        if (plan := self._plan_of(made)) is not None:
            return self._done(handle, plan)
        is_own = (made.subtask, made.generation, made.run_id) == (
            self._ctx.subtask,
            self._ctx.generation,
            self._ctx.run_id,
        )
        if not self._below or replaces or not is_own:
            return {}
        chosen: dict[int, _Last] = {}
        for n, file in enumerate(handle.data["files"]):
            last = self._last.get(file.get("folder", ""))
            # Only one file of a transaction extends another one, so that each file is extended once in a commit.
            if last is not None and last not in chosen.values() and self._may_grow(last, file["bytes"]):
                chosen[n] = last
        try:
            return self._grow(made, handle, chosen) if chosen else {}
        except FileNotFoundError as error:
            if os.path.isdir(self._layout.growing):
                # A staged file is lost, which its publication reports, or a reader has moved the file to extend.
                plan = self._plan_of(made)
                return {} if plan is None else self._done(handle, plan)
            raise FencedError(
                "a newer run of the job writes to the sink's folder",
                where=f"sink {self._ctx.uid!r}, subtask {self._ctx.subtask}, {self._layout.root}",
                remedy="Do nothing: this process belongs to an earlier run",
            ) from error

    def _may_grow(self, last: _Last, more_bytes: int) -> bool:
        if last.size_bytes >= self._below or more_bytes >= self._below or last.parts >= MOST_PARTS:
            return False
        # A reader may have moved the file, or another program may have changed it.
        return _size(self._layout.target(last.target)) == last.size_bytes

    def _grow(self, made: TransactionId, handle: Committable, chosen: Mapping[int, _Last]) -> dict[int, Growth]:
        assert self._extend is not None
        found: dict[int, Growth] = {}
        copies: dict[int, str] = {}
        for n, last in chosen.items():
            staged = self._layout.staged(handle.data["files"][n]["staged"], made.subtask)
            copies[n] = f"{self._layout.growing}/{made.number}-{n}"
            self._extend(self._layout.target(last.target), staged, copies[n])
            sync_to_disk(copies[n])
            found[n] = Growth(last.target, last.size_bytes, os.stat(copies[n]).st_size)
        self._write_plan(made, found)
        for n, growth in found.items():
            os.replace(copies[n], self._layout.target(growth.target))
        return found

    def _write_plan(self, made: TransactionId, found: Mapping[int, Growth]) -> None:
        files = [{"file": n, **growth.to_json(0)} for n, growth in found.items()]
        record = {"version": PLAN_VERSION, "transaction_id": str(made), "files": files}
        path = f"{self._layout.growing}/{made.number}.json"
        with open(f"{path}.tmp", "wb") as file:
            file.write(json.dumps(record, sort_keys=True).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.tmp", path)
        sync_to_disk(self._layout.growing)

    def _done(self, handle: Committable, plan: Mapping[str, Any]) -> dict[int, Growth]:
        """Return the extensions that a crashed commit of the transaction has made."""
        found = {}
        for entry, growth in zip(plan["files"], growths_of(plan["files"]), strict=True):
            size = _size(self._layout.target(growth.target))
            if size == growth.after:
                found[int(entry["file"])] = growth
            elif size != growth.before:
                raise SinkConflictError(
                    "a commit cannot be repeated, because another process has changed a file that it extends",
                    where=self._layout.target(growth.target),
                    cause=f"transaction {handle.transaction_id} extends the file from {growth.before} to "
                    f"{growth.after} bytes, but " + ("it is missing" if size is None else f"it has {size} bytes"),
                    remedy="Put the file back, then restore the job, which repeats the commit",
                )
        return found

    def committed(self, handle: Committable, grown: Mapping[int, Growth], targets: Sequence[str]) -> None:
        """Note the small files of a transaction that has its marker, and remove its plan."""
        made = parse_transaction_id(handle.transaction_id)
        if grown:
            for folder in self._folders(made.subtask):
                with suppress(FileNotFoundError):
                    os.remove(f"{folder}/{made.number}.json")
        if not self._below or (made.generation, made.run_id) != (self._ctx.generation, self._ctx.run_id):
            return
        for n, (file, target) in enumerate(zip(handle.data["files"], targets, strict=True)):
            folder = file.get("folder", "")
            if n in grown:
                parts = self._last[folder].parts if folder in self._last else 1
                self._last[folder] = _Last(target, grown[n].after, parts + 1)
            elif made.subtask == self._ctx.subtask and file["bytes"] < self._below:
                self._last[folder] = _Last(target, file["bytes"], 1)

    def failed(self) -> None:
        """Extend no present file any more: a commit has failed, so their content is not known."""
        self._last.clear()

    # ------------------------------------------------------------ earlier runs

    def unfinished(self) -> list[tuple[TransactionId, list[Growth]]]:
        """Fence earlier runs. Return their transactions that have extended files, with these extensions.

        It concerns all subtask indices that this one cleans up. The transactions may have their marker.
        """
        found = []
        for subtask in self._subtasks():
            self._fence(subtask)
            for folder in self._folders(subtask):
                for plan in _plans(folder):
                    made = parse_transaction_id(plan["transaction_id"])
                    done = [g for g in growths_of(plan["files"]) if _size(self._layout.target(g.target)) == g.after]
                    if done:
                        found.append((made, done))
        return found

    def clean(self) -> None:
        """Remove the folders of earlier runs."""
        for subtask in self._subtasks():
            for folder in self._folders(subtask):
                if folder.endswith(FENCED_SUFFIX):
                    shutil.rmtree(folder, ignore_errors=True)

    def _subtasks(self) -> list[int]:
        names = _names(self._layout.growing_of_all)
        return [int(name) for name in names if name.isdecimal() and owns_leftovers_of(self._ctx, int(name))]

    def _folders(self, subtask: int) -> list[str]:
        parent = f"{self._layout.growing_of_all}/{subtask}"
        return [f"{parent}/{name}" for name in _names(parent)]

    def _fence(self, subtask: int) -> None:
        """Rename the folders of earlier runs: no process can rename a file out of them any more."""
        for folder in self._folders(subtask):
            if self._layout.is_of_earlier_run(folder.rsplit("/", 1)[-1]):
                # The random part: a process of that run may have made the folder again.
                with suppress(FileNotFoundError):
                    os.rename(folder, f"{folder}.{secrets.token_hex(4)}{FENCED_SUFFIX}")

    def _plan_of(self, made: TransactionId) -> Mapping[str, Any] | None:
        for folder in self._folders(made.subtask):
            for plan in _plans(folder, made.number):
                if plan["transaction_id"] == str(made):
                    return plan
        return None


def _plans(folder: str, number: int | None = None) -> list[dict[str, Any]]:
    names = _names(folder) if number is None else [f"{number}.json"]
    found = []
    for name in names:
        if name.endswith(".json"):
            with suppress(FileNotFoundError), open(f"{folder}/{name}", "rb") as file:
                found.append(json.load(file))
    return found


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def cut_off(path: str, size_bytes: int, scratch: str) -> None:
    """Replace a file by its first bytes, in one step and durably. Idempotent."""
    if os.stat(path).st_size > size_bytes:
        os.makedirs(os.path.dirname(scratch), exist_ok=True)
        copy_bytes(path, scratch, size_bytes)
        sync_to_disk(scratch)
        os.replace(scratch, path)
    sync_to_disk(os.path.dirname(path))


def copy_bytes(source: str, target: str, size_bytes: int) -> None:
    """Copy the first bytes of a file to a new file."""
    with open(source, "rb") as old, open(target, "wb") as new:
        left = size_bytes
        while left and (block := old.read(min(left, 2**20))):
            left -= new.write(block)
