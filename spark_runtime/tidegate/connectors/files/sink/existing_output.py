"""What lies in a file sink's folder when a job starts afresh: refused, added to, or replaced (`if_exists`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, get_args

from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.files.source.file_formats import FormatName, suffixes_of
from tidegate.connectors.storage import is_local, list_folder, sync_to_disk
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import OptionError, PipelineError

IfExists = Literal["error", "append", "overwrite"]


def check_if_exists(value: str, name: str) -> IfExists:
    """The option `if_exists` of sink `name`. Raises OptionError."""
    for known in get_args(IfExists):
        if value == known:
            return known
    raise OptionError(
        f"if_exists={value!r} is unknown",
        where=f"{name}(if_exists=...)",
        remedy='Use "error", "append" or "overwrite"',
    )


def is_output(path: str, suffixes: Sequence[str]) -> bool:
    """Whether readers of the format take the file: by its suffix, and its name does not hide it from them."""
    name = path.rsplit("/", 1)[-1]
    return name.lower().endswith(tuple(suffixes)) and not name.startswith((".", "_"))


class ExistingOutput:
    """The files of one format below a sink's folder that another job or another lineage of this job published, or
    that were there before any of them. Every sink of this job and lineage is spared.

    Args:
        format_name: what readers take for the same format counts, whatever its suffix (`.json`, `.jsonl.gz`).
    """

    def __init__(
        self, filesystem: AbstractFileSystem, layout: FileLayout, ctx: SinkContext, format_name: FormatName
    ) -> None:
        self._fs = filesystem
        self._layout = layout
        self._ctx = ctx
        self._suffixes = suffixes_of(format_name)
        self._is_settled = False

    def check_absent(self) -> None:
        """Raise PipelineError when there is such a file, naming the ways out."""
        found = next(self._foreign(), None)
        if found is not None:
            raise PipelineError(
                "the sink's folder holds files already",
                where=f"sink {self._ctx.uid!r}, {found}",
                cause="the job starts afresh, so its rows would be added to those of an earlier job",
                remedy='Write to another folder; or say what happens to these files: if_exists="append" keeps them, '
                'if_exists="overwrite" removes them with the first commit',
            )

    def begin(self) -> None:
        """Record that this lineage starts afresh and is to replace them. Without the record nothing is removed: a
        restore, also under another id or with a changed pipeline, keeps what is there."""
        if not self._fs.exists(self._layout.replaces):
            self._fs.makedirs(os.path.dirname(self._layout.replaces), exist_ok=True)
            self._fs.pipe_file(self._layout.replaces, b'{"version": 1}')

    @property
    def is_due(self) -> bool:
        """Whether this lineage is to replace them and has not. What comes to the folder after that stays."""
        if not self._is_settled:
            self._is_settled = self._fs.exists(self._layout.replaced) or not self._fs.exists(self._layout.replaces)
        return not self._is_settled

    def replace(self, write_marker: Callable[[str, dict[str, int]], None]) -> None:
        """Remove them, once in the life of a lineage. Idempotent, also when several subtasks do it at once; to be
        repeated after a failure. Called when the first transaction's files are in their place, so that a commit that
        fails before has removed nothing.

        Args:
            write_marker: writes a small record durably at a path.
        """
        if not self.is_due:
            return
        removed, folders = 0, set()
        for path in list(self._foreign()):
            with suppress(FileNotFoundError):  # another subtask was quicker
                self._fs.rm_file(path)
                removed += 1
            folders.add(os.path.dirname(path))
        if is_local(self._fs):
            os.makedirs(os.path.dirname(self._layout.replaced), exist_ok=True)
            for folder in folders:
                sync_to_disk(folder)
        write_marker(self._layout.replaced, {"removed": removed})
        self._is_settled = True

    def _foreign(self) -> Iterator[str]:
        """Their paths: in the folder and in those of its partitions, however it is partitioned."""
        files, folders = list_folder(self._fs, self._layout.root)
        for folder in folders:
            if "=" in folder.rsplit("/", 1)[-1]:
                files += self._fs.find(folder)
        for path in files:
            own = path.rsplit("/", 1)[-1].startswith(self._layout.own_files_begin)
            if not own and is_output(path, self._suffixes):
                yield path
