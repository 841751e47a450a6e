"""Taking back what a file sink published behind a snapshot (S9.3)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress

from fsspec import AbstractFileSystem

from tidegate.connectors.contract import SinkContext
from tidegate.connectors.file_layout import FileLayout
from tidegate.connectors.storage import is_local, list_folder, sync_to_disk
from tidegate.connectors.transactions import parse_transaction_id
from tidegate.contract.errors import TidegateError

MARKER_SUFFIX = ".json"
NAMED_FILES = 3
"""In an error."""


class FileRewind:
    """The published transactions of one sink behind snapshot `checkpoint_id`, up to and without checkpoint `before`: of
    all its subtasks, in `ctx`'s job and lineage; of other jobs, lineages and sinks in the same folder none.

    Markers go first, then files. So one that still has its marker has all its files, unless a reader took some; and
    what a crash leaves has no marker and is found by its name, as is a transaction whose commit a crash cut short.
    """

    def __init__(
        self, filesystem: AbstractFileSystem, layout: FileLayout, ctx: SinkContext, checkpoint_id: int, before: int
    ) -> None:
        self._fs = filesystem
        self._layout = layout
        self._ctx = ctx
        self._checkpoint_id = checkpoint_id
        self._before = before

    def check(self) -> None:
        """Whether everything can be taken back.

        Raises:
            TidegateError: published files are gone: what readers moved or removed cannot be taken back from them.
        """
        there = set(self._files())
        gone = [path for marker in self._markers() for path in self._files_of(marker) if path not in there]
        if gone:
            raise TidegateError(
                f"The sink cannot take back what it published behind checkpoint {self._checkpoint_id}",
                where=f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, {self._layout.root}",
                cause=f"{len(gone)} published files were moved or removed by someone: {gone[:NAMED_FILES]}",
                remedy="Bring them back; or restore with on_committed_after=accept_duplicates, and see to their rows",
            )

    def take_back(self) -> None:
        """Remove markers, then files. Idempotent; to be repeated after a failure."""
        for marker in self._markers():
            self._remove(marker)
        if is_local(self._fs) and os.path.isdir(self._layout.commits):
            sync_to_disk(self._layout.commits)
        files = list(self._files())
        for path in files:
            self._remove(path)
        if is_local(self._fs):
            for folder in {os.path.dirname(path) for path in files}:
                sync_to_disk(folder)

    def _markers(self) -> list[str]:
        """Paths of the markers of transactions to take back."""
        found = []
        for path in list_folder(self._fs, self._layout.commits)[0]:
            name = path.rsplit("/", 1)[-1]
            if not name.endswith(MARKER_SUFFIX):
                continue
            made = parse_transaction_id(name.removesuffix(MARKER_SUFFIX))
            own = (made.job_id, made.lineage, made.uid) == (self._ctx.job_id, self._ctx.lineage, self._ctx.uid)
            if own and self._checkpoint_id < made.checkpoint_id < self._before:
                found.append(path)
        return found

    def _files_of(self, marker: str) -> list[str]:
        record = json.loads(self._fs.cat_file(marker))
        return [self._layout.target(file["path"]) for file in record["files"]]

    def _files(self) -> Iterator[str]:
        """Paths of the published files to take back, found by their names."""
        right_here, folders = list_folder(self._fs, self._layout.root)
        yield from filter(self._is_behind, right_here)
        for folder in folders:
            # A folder of a partition; however the sink is partitioned by now.
            if "=" in folder.rsplit("/", 1)[-1]:
                yield from filter(self._is_behind, self._fs.find(folder))

    def _is_behind(self, path: str) -> bool:
        checkpoint_id = self._layout.checkpoint_of(path.rsplit("/", 1)[-1])
        return checkpoint_id is not None and self._checkpoint_id < checkpoint_id < self._before

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(path)
