"""Deletes or archives watched files whose rows are committed."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fsspec import AbstractFileSystem

from tidegate.connectors.files.source.file_listing import FoundFile, fixed_part
from tidegate.connectors.storage import is_local, open_filesystem

logger = logging.getLogger("tidegate.connectors")

BLOCK_BYTES = 2**20
CLOSE_TIMEOUT_S = 10.0
"""Longest wait, in seconds, for the last files of a reader that closes."""

Dispose = Callable[[FoundFile], None]


class FileDisposal:
    """Files that a reader has read, from the end of their last row until they are deleted or archived.

    A file is due when a checkpoint has completed in which it was read to its end. A thread does the work. A file for
    which it fails stays, and is tried again after the next checkpoint. All methods are for the loop.
    """

    def __init__(self, dispose: Dispose) -> None:
        """Args: dispose: deletes or archives a file; succeeds if that was done before."""
        self._dispose = dispose
        self._waiting: list[tuple[int, FoundFile]] = []
        self._begun: dict[tuple[int, str], tuple[int, FoundFile]] = {}
        self._ended: queue.SimpleQueue[tuple[FoundFile, Exception | None]] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[FoundFile | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def read(self, number: int, file: FoundFile) -> None:
        """Add a file that has been read to its end. Args: number: files that the reader has read, with this one."""
        self._waiting.append((number, file))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the files for the reader's snapshot."""
        self._note_ended()
        return [asdict(file) for _, file in (*self._begun.values(), *self._waiting)]

    def restore(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Add files of a restored snapshot. They are due with the next checkpoint that completes."""
        self._waiting += [(0, FoundFile(**document)) for document in documents]

    def completed(self, number: int) -> None:
        """Process the completion of a checkpoint. Args: number: files that the reader had read in it."""
        self._note_ended()
        due = [entry for entry in self._waiting if entry[0] <= number]
        self._waiting = [entry for entry in self._waiting if entry[0] > number]
        if due and self._thread is None:
            self._thread = threading.Thread(target=self._work_off, name="file disposal", daemon=True)
            self._thread.start()
        for entry in due:
            self._begun[entry[1].given, entry[1].path] = entry
            self._work.put(entry[1])

    def close(self) -> None:
        """Wait for the work that has begun, at most `CLOSE_TIMEOUT_S`."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _note_ended(self) -> None:
        failed: list[str] = []
        while not self._ended.empty():
            file, error = self._ended.get_nowait()
            entry = self._begun.pop((file.given, file.path), None)
            if entry is not None and error is not None:
                self._waiting.append(entry)
                failed.append(f"{file.path}: {error}")
        if failed:
            logger.warning("%d files that were read stay in their place; it is tried again: %s", len(failed), failed[0])

    def _work_off(self) -> None:
        while (file := self._work.get()) is not None:
            try:
                self._dispose(file)
                self._ended.put((file, None))
            except Exception as error:
                self._ended.put((file, error))


def deleting(urls: Sequence[str], storage_options: Mapping[str, Any]) -> Dispose:
    """Return a function that deletes files."""

    def delete(file: FoundFile) -> None:
        filesystem, _ = open_filesystem(urls[file.given], storage_options)
        if _is_as_read(filesystem, file):
            filesystem.rm_file(file.path)

    return delete


def archiving(urls: Sequence[str], storage_options: Mapping[str, Any], archive: str) -> Dispose:
    """Return a function that moves files into the folder `archive`, with their path below the watched one."""

    def move(file: FoundFile) -> None:
        filesystem, watched = open_filesystem(urls[file.given], storage_options)
        _, folder = open_filesystem(archive, storage_options)
        base = fixed_part(watched)
        below = file.path[len(base) :].strip("/") if file.path.startswith(f"{base}/") else file.path.rpartition("/")[2]
        target, number = f"{folder.rstrip('/')}/{below}", 1
        if not _is_as_read(filesystem, file):
            return
        while filesystem.exists(target):
            if _are_equal(filesystem, file.path, target):
                filesystem.rm_file(file.path)  # copied by a run that ended before it could delete
                return
            number += 1
            target = f"{folder.rstrip('/')}/{below}.{number}"
        filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
        if is_local(filesystem):
            filesystem.mv(file.path, target)
        else:  # `mv` of object stores expands a name with a glob to other files
            filesystem.cp_file(file.path, target)
            filesystem.rm_file(file.path)

    return move


def _is_as_read(filesystem: AbstractFileSystem, file: FoundFile) -> bool:
    """Return whether a file is still there, and the one that was read. Another one with its path must stay."""
    try:
        change = file.change(filesystem.info(file.path))
    except FileNotFoundError:
        return False  # deleted or moved before
    if change:
        logger.warning("a file that was read has been replaced and stays in its place: %s: %s", file.path, change)
    return not change


def _are_equal(filesystem: AbstractFileSystem, one: str, other: str) -> bool:
    if filesystem.info(one).get("size") != filesystem.info(other).get("size"):
        return False
    with filesystem.open(one, "rb") as first, filesystem.open(other, "rb") as second:
        while block := first.read(BLOCK_BYTES):
            if block != second.read(BLOCK_BYTES):
                return False
    return True
