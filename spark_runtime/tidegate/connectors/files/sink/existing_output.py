"""Existing files in a file sink's folder when a job starts fresh: refused, kept, or replaced (`if_exists`)."""

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
    """Return the checked option `if_exists` of sink `name`. Raises OptionError."""
    for known in get_args(IfExists):
        if value == known:
            return known
    raise OptionError(
        f"if_exists={value!r} is unknown",
        where=f"{name}(if_exists=...)",
        remedy='Use "error", "append" or "overwrite"',
    )


def is_output(path: str, suffixes: Sequence[str]) -> bool:
    """Return whether readers of the format accept the file: it has a matching suffix, and its name does not hide it
    from them.
    """
    name = path.rsplit("/", 1)[-1]
    return name.lower().endswith(tuple(suffixes)) and not name.startswith((".", "_"))


class ExistingOutput:
    """Files of one format below a sink's folder that another job or another lineage of this job published, or that are
    older.

    Files of this job and lineage are excluded, whichever sink wrote them.

    Args:
        format_name: every file that readers accept for this format counts, whatever its suffix (`.json`, `.jsonl.gz`).
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
        """Raise PipelineError if such a file exists; the message lists the remedies."""
        found = next(self._foreign(), None)
        if found is not None:
            raise PipelineError(
                "the folder of the sink already holds files",
                where=f"sink {self._ctx.uid!r}, {found}",
                cause="the job starts fresh, so its rows would be added to the rows of an earlier job",
                remedy='Write to another folder, or set if_exists="append", which keeps the existing files, or '
                'if_exists="overwrite", which removes them at the first commit',
            )

    def begin(self) -> None:
        """Record that this lineage starts fresh and replaces existing files.

        Without the record, nothing is removed: a restore keeps existing files, also under another job id or with a
        changed pipeline.
        """
        if not self._fs.exists(self._layout.replaces):
            self._fs.makedirs(os.path.dirname(self._layout.replaces), exist_ok=True)
            self._fs.pipe_file(self._layout.replaces, b'{"version": 1}')

    @property
    def is_due(self) -> bool:
        """Return whether this lineage still has to replace existing files. Files that arrive after the replacement
        stay.
        """
        # Only "settled" is cached, because another subtask may complete the replacement at any time.
        if not self._is_settled:
            self._is_settled = self._fs.exists(self._layout.replaced) or not self._fs.exists(self._layout.replaces)
        return not self._is_settled

    def replace(self, write_marker: Callable[[str, dict[str, int]], None]) -> None:
        """Remove the existing files, once in the life of a lineage.

        Idempotent, also when several subtasks do it at once; the caller repeats it after a failure. Call it when the
        first transaction's files are in place: a commit that fails earlier has then removed nothing.

        Args:
            write_marker: writes a small record durably at a path.
        """
        if not self.is_due:
            return
        removed, folders = 0, set()
        for path in list(self._foreign()):
            with suppress(FileNotFoundError):  # another subtask may have removed it
                self._fs.rm_file(path)
                removed += 1
            folders.add(os.path.dirname(path))
        # The removals must be durable before the marker states that they are done.
        if is_local(self._fs):
            os.makedirs(os.path.dirname(self._layout.replaced), exist_ok=True)
            for folder in folders:
                sync_to_disk(folder)
        write_marker(self._layout.replaced, {"removed": removed})
        self._is_settled = True

    def _foreign(self) -> Iterator[str]:
        """Yield the paths of the existing files, in the folder and in the folders of its partitions, under any
        partitioning.
        """
        files, folders = list_folder(self._fs, self._layout.root)
        for folder in folders:
            if "=" in folder.rsplit("/", 1)[-1]:
                files += self._fs.find(folder)
        for path in files:
            own = path.rsplit("/", 1)[-1].startswith(self._layout.own_files_begin)
            if not own and is_output(path, self._suffixes):
                yield path
