"""FileSink: base of the sinks that write a folder of files with two-phase commit."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.encoded_file import FileEncoding
from tidegate.connectors.files.sink.existing_output import ExistingOutput, IfExists, check_if_exists, is_output
from tidegate.connectors.files.sink.file_leftovers import FileLeftovers
from tidegate.connectors.files.sink.file_rewind import FileRewind
from tidegate.connectors.files.sink.file_writer import FileCut, FileWriter
from tidegate.connectors.files.sink.growing_files import Extend, GrowingFiles
from tidegate.connectors.files.sink.hive_partitions import check_partition_columns, partition_columns
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.files.sink.staged_files import quarantine_files, staged_files
from tidegate.connectors.files.source.file_formats import FormatName
from tidegate.connectors.interface import NO_CHECKPOINT, Sink, SinkWriter
from tidegate.connectors.leftovers import LeftoverReport, NeededTransactions
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.storage import absolute_url, check_target_folder, is_local, list_folder, open_filesystem
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import OptionError, PipelineError
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity
from tidegate.units import ByteSize, parse_size

DEFAULT_TARGET_FILE_ROWS = 1_000_000
DEFAULT_TARGET_FILE_SIZE = "256 MiB"
NOT_COMPACTED = "0 B"
"""Value of `compact_below`: files do not grow."""
OTHER_FOLDER = "Write to another folder, or remove the existing files"
_EFFECTS: Mapping[IfExists, str] = {
    "error": "refuses the start if there are files",
    "append": "keeps the files that are there",
    "overwrite": "removes the files that are there with the first commit",
}


class FileSink(Sink):
    """Sink that writes records to `<path>/part-*`, or `<path>/<column>=<value>/part-*`.

    A subclass of each format defines its encoding and the accepted types.

    Args, raises: see the subclasses.
    """

    _format_name: ClassVar[FormatName]
    """Format of the files; existing files of this format in the folder count for `if_exists`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        encoding: FileEncoding,
        *,
        partition_by: str | Sequence[str],
        storage_options: Mapping[str, Any] | None,
        target_file_rows: int,
        target_file_size: str | ByteSize,
        if_exists: IfExists,
        compact_below: str | ByteSize = NOT_COMPACTED,
        extend: Extend | None = None,
    ) -> None:
        name = type(self).__name__
        self._compact_below = parse_size(compact_below, where=f"{name}(compact_below=...)")
        self._extend = extend
        self._url = absolute_url(path)
        self._encoding = encoding
        self._partition_by = partition_columns(partition_by, f"{name}(partition_by=...)")
        self._storage_options = dict(storage_options or {})
        self._cut = file_cut(target_file_rows, target_file_size, name)
        self.if_exists = check_if_exists(if_exists, name)

    def check(self, schema: pa.Schema) -> None:
        """Check, before anything runs, that the format has these types and the folder can be used. Changes nothing.

        Raises:
            PipelineError: a column's name or type, the folder, or existing files with another schema or partitioning.
        """
        if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
            raise PipelineError(
                "the records have several columns of the same name",
                where=self._url,
                cause=f"repeated names: {', '.join(map(repr, twice))}",
                remedy="Rename the columns with select()",
            )
        check_partition_columns(schema, self._partition_by, self._url)
        in_files = pa.schema([field for field in schema if field.name not in self._partition_by])
        self._check_types(in_files)
        filesystem, root = open_filesystem(self._url, self._storage_options)
        if self._compact_below and not is_local(filesystem):
            raise PipelineError(
                "compact_below needs a file system that renames files in one step",
                where=self._url,
                cause="an object store cannot keep a zombie from replacing a file that has grown since",
                remedy="Leave out compact_below, and use longer checkpoint intervals; or write to Delta or Iceberg",
            )
        check_target_folder(filesystem, root, self._url)
        if self.if_exists == "overwrite":
            return
        found = self._file_there(filesystem, root)
        if found is not None:
            self._check_same(filesystem, found, in_files)

    def check_fresh_start(self, ctx: SinkContext) -> None:
        """Check or prepare the folder for a fresh start.

        With `if_exists="error"`, check that the folder and its partitions hold no files of others. With "overwrite", in
        the driver, record that the first commit removes them.
        """
        filesystem, root = open_filesystem(self._url, self._storage_options)
        existing = ExistingOutput(filesystem, FileLayout(root, ctx), ctx, self._format_name)
        if self.if_exists == "error":
            existing.check_absent()
        # A context without lineage belongs to a check before the submission, which changes nothing.
        elif self.if_exists == "overwrite" and ctx.lineage:
            existing.begin()

    def existing_output(self) -> str:
        """Describe what `if_exists` does with existing files."""
        return f"{_EFFECTS[self.if_exists]} (if_exists={self.if_exists})"

    @property
    @abstractmethod
    def _suffixes(self) -> tuple[str, ...]:
        """Return the suffixes of all files of the format, under any compression."""

    @abstractmethod
    def _check_types(self, schema: pa.Schema) -> None:
        """Raise PipelineError with the name of a column that cannot be written."""

    def _check_same(self, filesystem: AbstractFileSystem, path: str, schema: pa.Schema) -> None:
        """Raise PipelineError unless the existing file has this schema, as far as its format shows."""

    def _file_there(self, filesystem: AbstractFileSystem, root: str) -> str | None:
        """Return an existing file of the format at a place where this sink writes files."""
        folder = root
        # None stands for the level of the files. Only one folder of each level is followed: one path shows the
        # partitioning.
        for column in (*self._partition_by, None):
            files, folders = list_folder(filesystem, folder)
            files = [path for path in files if is_output(path, self._suffixes)]
            parts = [path for path in folders if "=" in path.rsplit("/", 1)[-1]]
            strange = [p for p in parts if column is None or not p.rsplit("/", 1)[-1].startswith(f"{column}=")]
            if column is not None:
                strange += files
            if strange:
                raise PipelineError(
                    "the files in the folder of the sink are partitioned differently",
                    where=strange[0],
                    cause=f"the sink has partition_by={list(self._partition_by)}, which does not match this path",
                    remedy=OTHER_FOLDER,
                )
            if column is None:
                return files[0] if files else None
            if not parts:
                return None
            folder = parts[0]
        return None

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer into this subtask's staging folder."""
        filesystem, root = open_filesystem(self._url, self._storage_options)
        layout, existing, growing = FileLayout(root, ctx), None, None
        if is_local(filesystem):
            growing = GrowingFiles(layout, ctx, self._compact_below, self._extend)
        if self.if_exists == "overwrite":
            existing = ExistingOutput(filesystem, layout, ctx, self._format_name)
        return FileWriter(filesystem, layout, ctx, self._encoding, self._cut, self._partition_by, existing, growing)

    def rewind_to(
        self,
        ctx: SinkContext,
        checkpoint_id: int,
        pending: Sequence[Committable] = (),
        *,
        before: int = NO_CHECKPOINT,
    ) -> Callable[[], None]:
        """Return the function that removes files published after the snapshot, in the folder and all its partitions."""
        filesystem, root = open_filesystem(self._url, self._storage_options)
        rewind = FileRewind(filesystem, FileLayout(root, ctx), ctx, checkpoint_id, before)
        rewind.check()

        def take_back() -> None:
            # Before the published files are removed, so that a zombie finds no staged file to publish in their place.
            writer = self.create_writer(ctx)
            writer.recover(checkpoint_id, pending)
            writer.close()
            rewind.take_back()

        return take_back

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Move the staged files to quarantine."""
        filesystem, root = open_filesystem(self._url, self._storage_options)
        quarantine_files(filesystem, FileLayout(root, ctx), ctx, committables, into)

    def collect(self, ctx: SinkContext, needed: NeededTransactions, *, dry_run: bool = False) -> LeftoverReport:
        """Remove staged files that nothing needs, and pack commit markers."""
        filesystem, root = open_filesystem(self._url, self._storage_options)
        return FileLeftovers(filesystem, FileLayout(root, ctx), needed).collect(dry_run=dry_run)

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """Return the files in the staging folder."""
        root = open_filesystem(self._url, self._storage_options)[1]
        return staged_files(self._url, FileLayout(root, ctx), ctx.uid, checkpoint_id, handle)

    def identity(self) -> SinkIdentity:
        """Return the path and its partitioning."""
        by = {"partition_by": list(self._partition_by)} if self._partition_by else {}
        return SinkIdentity(type(self).__name__, (self._url,), by)


def file_cut(target_file_rows: int, target_file_size: str | ByteSize, name: str) -> FileCut:
    """Return when sink `name` closes a file and begins the next. Raises OptionError."""
    size = parse_size(target_file_size, where=f"{name}(target_file_size=...)")
    for option, value in (("target_file_rows", target_file_rows), ("target_file_size", size)):
        if value < 1:
            raise OptionError(f"{option}={value!r} is too small", where=f"{name}({option}=...)", remedy="Use 1 or more")
    return FileCut(target_file_rows, size)
