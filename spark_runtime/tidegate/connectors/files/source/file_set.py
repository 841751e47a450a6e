"""Common part of `Files` and `Replay`: paths and format arguments of the user, the files found there, and their schema
(inferred or declared).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.files.source.bad_records import BAD_RECORDS, BAD_RECORDS_SCHEMA, refused
from tidegate.connectors.files.source.file_errors import as_os_error
from tidegate.connectors.files.source.file_formats import (
    CsvFormat,
    FileFormat,
    FormatName,
    JsonLinesFormat,
    ParquetFormat,
    format_of,
)
from tidegate.connectors.files.source.file_listing import FoundFile, find_files, list_one
from tidegate.connectors.files.source.file_schema import (
    FilePolicy,
    FileSchema,
    differences,
    missing_columns,
    new_columns,
    refuse_doubled,
)
from tidegate.connectors.files.source.text_records import Chunk
from tidegate.connectors.found_schema import FoundSchema
from tidegate.connectors.storage import absolute_url, is_local, open_filesystem
from tidegate.errors import OptionError, PipelineError

_FORMATS = ("parquet", "csv", "json")

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, folder, glob or fsspec URL, or several."""


CHECKED_CHUNKS = 64
"""Chunks between two checks whether a file that is not local was changed; it is also checked at its end."""


class ColumnDifferenceListener(Protocol):
    """Receiver of the columns that a file lacks, or has beyond the schema, where that is allowed."""

    def __call__(self, *, missing: Sequence[str], new: Sequence[str]) -> None:
        """Receive the columns by path."""


class FileSet:
    """Files of one format and one schema. No I/O before `schema` or `files` is called.

    Args:
        paths: where the files are.
        format: format name; None: by the suffix, which all files must then share (`.parquet`, `.csv`, `.json`,
            `.jsonl`, `.ndjson`; text also compressed: `.csv.gz`).
        schema: schema; None: from the first file with a record: its footer, or the types in a text file's first 4 MiB.
            Numbers that would lose digits there, such as `007`, `0xff` or 2**63, make their column a string, and so do
            JSON times if only some have a zone.
        columns: names to read, in this order, at least one; None: all.
        storage_options: fsspec options; values may be references to secrets.
        policy: options for reading files.

    Raises:
        OptionError: an argument is empty or unknown.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        format: FormatName | None,
        schema: pa.Schema | None,
        columns: Sequence[str] | None,
        storage_options: Mapping[str, Any] | None,
        policy: FilePolicy,
    ) -> None:
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        if not given:
            raise OptionError(
                "the source has an empty list of paths", where="paths", remedy="Pass a file, a folder, a glob or a URL"
            )
        if format is not None and format not in _FORMATS:
            raise OptionError(
                f"format={format!r} is unknown", where="format", remedy=f"Use one of {', '.join(_FORMATS)}"
            )
        if isinstance(columns, str):
            raise OptionError(
                f"columns must be a list of names, but is the text {columns!r}",
                where="columns",
                remedy=f"Write it as a list: columns=[{columns!r}]",
            )
        if columns is not None and not columns:
            raise OptionError(
                "the list of columns is empty", where="columns", remedy="Name columns, or omit columns= to read all"
            )
        self.urls = tuple(absolute_url(path) for path in given)
        self._format_name = format
        self._given_schema = schema
        self._columns = None if columns is None else tuple(columns)
        self._storage_options = dict(storage_options or {})
        self.policy = policy
        self._fails_on_missing = (policy.on_missing_field or ("fail" if schema is None else "null")) == "fail"
        self._known_files: list[FoundFile] | None = None
        self._known_columns: FileSchema | None = None
        self._found: FoundSchema | None = None
        self._used: frozenset[str] | None = None
        self._from = "schema="

    def describe(self) -> str:
        """Return the paths."""
        return ", ".join(self.urls)

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """The fsspec options, as the user passed them."""
        return self._storage_options

    @property
    def needs_a_file(self) -> bool:
        """True if the schema is found in a file that must exist."""
        return self._given_schema is None and self._found is None

    def schema(self) -> pa.Schema:
        """Return the schema of the records. It is found once.

        Raises:
            PipelineError: no file, an unreadable first file, or a name in `columns` that the file lacks.
        """
        return self._columns_known().emitted

    def found_schema(self) -> FoundSchema | None:
        """See `Source.found_schema`."""
        self._columns_known()
        return self._found

    def with_found_schema(self, found: FoundSchema) -> FileSet:
        """See `Source.with_found_schema`; no file is then read to find the schema."""
        if self._given_schema is not None:
            return self
        other = copy.copy(self)
        other._found, other._known_columns = found, None
        return other

    def _columns_known(self) -> FileSchema:
        if self._known_columns is None:
            self._known_columns = self._find_columns()
        return self._known_columns

    def _find_columns(self) -> FileSchema:
        whole = self._given_schema
        if whole is None:
            self._found = self._found or self._inferred()
            whole, self._from = self._found.schema, self._found.where
        emitted = whole
        refuse_doubled(self._from, whole.names, whole.names if self._columns is None else self._columns)
        if self._columns is not None:
            missing = [name for name in self._columns if name not in whole.names]
            if missing:
                raise PipelineError(
                    f"column {missing[0]!r} does not exist",
                    where=self._listed()[0].path if self._given_schema is not None else self._from,
                    cause=f"the columns are {', '.join(whole.names)}",
                    remedy="Name existing columns in columns=",
                )
            emitted = pa.schema([whole.field(name) for name in self._columns])
        return FileSchema(emitted, whole, inferred=self._given_schema is None, read=self._read_of(emitted))

    def _read_of(self, emitted: pa.Schema) -> pa.Schema:
        """Return the columns that must be read of a Parquet file.

        If bad records are not to fail the job, text is read whether it is used or not: where it is not valid UTF-8, the
        record is bad, and must be left out.
        """
        if self._used is None:
            return emitted
        checks_text = not self.policy.stops_at_bad
        used = [field for field in emitted if field.name in self._used or (checks_text and _may_hold_text(field.type))]
        return pa.schema(used)

    def reading_only(self, columns: Sequence[str]) -> FileSet:
        """See `Source.reading_only`. Text formats read all columns: another one may show that a record is bad."""
        other = copy.copy(self)
        other._used, other._known_columns = frozenset(columns), None
        return other

    def _inferred(self) -> FoundSchema:
        """Return the schema of the first file that has a record."""
        listed = self._listed()
        for file in listed:
            found = self.format(file.path).infer(*self._at(file))
            if found is not None:
                return FoundSchema(found, file.path)
        bad = self._no_good_record()
        if bad is not None:
            raise bad
        names = self.format(listed[0].path).fields(*self._at(listed[0]))
        if names is None:
            raise PipelineError(
                "no input file has a record, so the schema is unknown",
                where=listed[0].path,
                remedy="Declare schema=, or start the job when a file has records",
            )
        return FoundSchema(names, listed[0].path)

    def _no_good_record(self) -> PipelineError | None:
        """Return the error for files whose records are all bad; None: no file has a record."""
        for file in self._listed():
            bad = self.format(file.path).first_bad(*self._at(file))
            if bad is not None:
                return PipelineError(
                    "no input file has a readable record, so the schema is unknown",
                    where=f"{file.path}, offset {bad.offset:,}",
                    cause=f"the first unreadable record: {bad.reason}",
                    remedy="Correct the file, check format= and encoding=, or declare schema=",
                )
        return None

    def side_outputs(self) -> Mapping[str, pa.Schema]:
        """See `Source.side_outputs`."""
        return {BAD_RECORDS: BAD_RECORDS_SCHEMA} if self.policy.on_bad_record == "dead_letter" else {}

    def must_be_read(self) -> Mapping[str, str]:
        """See `Source.required_side_outputs`."""
        return dict.fromkeys(self.side_outputs(), 'on_bad_record="dead_letter" sends bad records to this side output')

    def has_files(self) -> bool:
        """Return whether any path leads to a file now."""
        places = (open_filesystem(url, self._storage_options) for url in self.urls)
        return any(list_one(filesystem, path) for filesystem, path in places)

    def files(self) -> Sequence[FoundFile]:
        """Return all files that exist now, each checked to have the schema.

        Raises:
            PipelineError: a file differs from the first; the message names both.
        """
        self._known_files = None
        listed = self._listed()
        columns = self._columns_known()
        for file in listed:
            if file.path != self._from and self._is_compared(file):
                self._compare(file, columns)
        return listed

    def _is_compared(self, file: FoundFile) -> bool:
        """Return whether a file's columns are compared, which for JSON lines needs a large part of the file."""
        is_json = isinstance(self.format(file.path), JsonLinesFormat)
        return not is_json or self._fails_on_missing or self.policy.on_new_field == "fail"

    def _compare(self, file: FoundFile, columns: FileSchema) -> None:
        kind = self.format(file.path)
        there = kind.fields(*self._at(file))
        if there is None:
            return
        refuse_doubled(file.path, there.names, columns.emitted.names)
        unlike = differences(there, columns)
        if unlike.types and isinstance(kind, ParquetFormat):
            name, other, own = unlike.types[0]
            raise PipelineError(
                "files of one source have different schemas",
                where=f"{file.path}, compared with {self._from}",
                cause=f"column {name!r} has type {other} in this file, but {own} is expected",
                remedy="Read the files as two sources, or pass schema= or columns= that fit both files",
            )
        self._report(file.path, missing=unlike.missing, new=unlike.new)

    def _report(self, path: str, *, missing: Sequence[str] = (), new: Sequence[str] = ()) -> None:
        """Raise if a difference is not allowed."""
        if missing and self._fails_on_missing:
            raise missing_columns(path, self._from, missing)
        if new and self.policy.on_new_field == "fail":
            raise new_columns(path, self._from, new)

    def _listed(self) -> list[FoundFile]:
        if self._known_files is None:
            listed = find_files(self.urls, self._storage_options)
            kinds = {f.path: format_of(f.path) for f in listed} if self._format_name is None else {}
            first = kinds.get(listed[0].path)
            for path, kind in kinds.items():
                self.check_format(path)
                if kind != first:
                    raise PipelineError(
                        "files of one source have different formats",
                        where=f"{path}, compared with {listed[0].path}",
                        remedy="Pass format=, or a glob that excludes the file",
                    )
            self._known_files = listed
        return self._known_files

    def check_format(self, path: str) -> None:
        """Raise PipelineError if the format of a file is unknown."""
        if self._format_name is None and format_of(path) is None:
            raise PipelineError(
                "the format of the input file is unknown",
                where=path,
                remedy="Pass format=, or a glob that excludes the file",
            )

    def format(self, path: str) -> FileFormat:
        """Return the reader for `path`."""
        name = self._format_name or format_of(path)
        if name == "csv":
            return CsvFormat(self.policy)
        if name == "json":
            return JsonLinesFormat(self.policy)
        return ParquetFormat()

    def row_groups(self, file: FoundFile) -> Sequence[int]:
        """See `FileFormat.row_groups`."""
        return self.format(file.path).row_groups(*self._at(file))

    def chunks(
        self,
        file: FoundFile,
        *,
        groups: tuple[int, int] | None = None,
        at: int = 0,
        noted: ColumnDifferenceListener | None = None,
    ) -> Iterator[Chunk]:
        """Yield the file's records from position `at` on, see `FileFormat.chunks`; the file is opened at the first
        `next`.

        Raises:
            PipelineError: the file is missing, or was changed since it was listed; a record is bad and fails the job.
        """

        def on_difference(path: str, *, missing: Sequence[str] = (), new: Sequence[str] = ()) -> None:
            self._report(path, missing=missing, new=new)
            if noted is not None:
                noted(missing=missing, new=new)

        filesystem, path = self._at(file)

        def refuse_changed() -> None:
            refusal = _refused(filesystem, file)
            if refusal is not None:
                raise refusal

        # Each check of an object store is a request, so remote files are checked less often.
        every = 1 if is_local(filesystem) else CHECKED_CHUNKS
        refuse_changed()
        read = self.format(path).chunks(filesystem, path, self._columns_known(), groups, at, on_difference)
        for number, chunk in enumerate(read, 1):
            if number % every == 0:
                refuse_changed()
            if chunk.bad and self.policy.stops_at_bad:
                raise refused(path, chunk.bad[0])
            yield chunk
        # Again at the end, because a change after the last check may have mixed two versions of the file.
        refuse_changed()

    def why_unreadable(self, file: FoundFile) -> str:
        """Return why the file does not exist as it was listed; "": it does. Raises OSError if its system does not
        answer.
        """
        try:
            refusal = _refused(self._at(file)[0], file)
        except PipelineError as error:
            return str(error)
        return "" if refusal is None else f"{refusal.what}: {refusal.cause}"

    def _at(self, file: FoundFile) -> tuple[Any, str]:
        url = self.urls[min(file.given, len(self.urls) - 1)]
        return open_filesystem(url, self._storage_options)[0], file.path


def _may_hold_text(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) or not pa.types.is_primitive(kind)


def _refused(filesystem: AbstractFileSystem, file: FoundFile) -> PipelineError | None:
    """Raise OSError if the file system does not answer, because then nothing is known about the file."""
    try:
        change = file.change(filesystem.info(file.path))
    except FileNotFoundError as e:
        return PipelineError(
            "an input file is missing",
            where=file.path,
            cause=str(e),
            remedy="Put the file back, or start the job without the snapshot",
        )
    except OSError as e:
        raise as_os_error(file.path, e) from e
    if not change:
        return None
    return PipelineError(
        "an input file was changed after the job had started",
        where=file.path,
        cause=change,
        remedy="Put the original file back, or start the job without the snapshot. Write new data to new files",
    )
