"""What `Files` and `Replay` share: the user's paths and format arguments, the files they lead to, and their schema."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.connectors.file_formats import (
    CsvFormat,
    FileFormat,
    FormatName,
    JsonLinesFormat,
    ParquetFormat,
    format_of,
)
from tidegate.connectors.file_listing import FoundFile, find_files
from tidegate.connectors.storage import absolute, open_filesystem
from tidegate.contract.errors import OptionError, PipelineError

DEFAULT_NULL_VALUES = ("", "NA")
_FORMATS = ("parquet", "csv", "json")

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, folder, glob or fsspec URL, or several."""


class FileSet:
    """Files of one format and one schema. No I/O before `schema` or `files` is asked.

    Args:
        paths: where the files are.
        format: None: by the suffix, which all files must then share (`.parquet`, `.csv`, `.json`, `.jsonl`, `.ndjson`;
            text also
            compressed: `.csv.gz`).
        schema: None: from the first file: a footer, or the types of a text file's first block.
        columns: names to read, in this order; None: all.
        storage_options: fsspec options; values may be references to secrets.
        null_values: texts that mean null in CSV.

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
        null_values: Sequence[str],
    ) -> None:
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        if not given:
            raise OptionError("No path was given", where="paths", remedy="Name a file, a folder, a glob or a URL")
        if format is not None and format not in _FORMATS:
            raise OptionError(
                f"format={format!r} is unknown", where="format", remedy=f"Use one of {', '.join(_FORMATS)}"
            )
        if isinstance(columns, str) or isinstance(null_values, str):
            raise OptionError(
                "A list of texts is needed, not one text", where="columns, null_values", remedy="Use [...]"
            )
        self.urls = tuple(absolute(path) for path in given)
        self._format_name = format
        self._given_schema = schema
        self._columns = None if columns is None else tuple(columns)
        self._storage_options = dict(storage_options or {})
        self._null_values = tuple(null_values)
        self._exact = schema is None and columns is None
        self._known_files: list[FoundFile] | None = None
        self._known_schema: pa.Schema | None = None

    def describe(self) -> str:
        """The paths."""
        return ", ".join(self.urls)

    def schema(self) -> pa.Schema:
        """The schema of the records, remembered.

        Raises:
            PipelineError: no file, an unreadable first file, or a name in `columns` that it lacks.
        """
        if self._known_schema is None:
            self._known_schema = self._find_schema()
        return self._known_schema

    def _find_schema(self) -> pa.Schema:
        first = self._listed()[0]
        whole = self._given_schema
        if whole is None:
            whole = self.format(first.path).infer(*self._at(first))
        if self._columns is None:
            return whole
        missing = [name for name in self._columns if name not in whole.names]
        if missing:
            raise PipelineError(
                f"There is no column {missing[0]!r}",
                where=first.path,
                cause=f"the columns are {', '.join(whole.names)}",
                remedy="Check columns=",
            )
        return pa.schema([whole.field(name) for name in self._columns])

    def files(self) -> Sequence[FoundFile]:
        """All files now there, each checked to have the schema.

        Raises:
            PipelineError: a file differs from the first; names both.
        """
        self._known_files = None
        listed = self._listed()
        schema = self.schema()
        for file in listed if self._given_schema is not None else listed[1:]:
            why = self.format(file.path).differs(*self._at(file), schema, self._exact)
            if why:
                against = "schema=" if self._given_schema is not None else listed[0].path
                raise PipelineError(
                    "Files of one source differ in their schema",
                    where=f"{file.path}, compared with {against}",
                    cause=why,
                    remedy="Read them as two sources, or give schema= or columns= that fit both",
                )
        return listed

    def _listed(self) -> list[FoundFile]:
        if self._known_files is None:
            listed = find_files(self.urls, self._storage_options)
            kinds = {f.path: format_of(f.path) for f in listed} if self._format_name is None else {}
            first = kinds.get(listed[0].path)
            for path, kind in kinds.items():
                if kind is None or kind != first:
                    raise PipelineError(
                        "Cannot tell the format of this file"
                        if kind is None
                        else "Files of one source differ in their format",
                        where=path if kind is None else f"{path}, compared with {listed[0].path}",
                        remedy="Give format=, or a glob that leaves the file out",
                    )
            self._known_files = listed
        return self._known_files

    def format(self, path: str) -> FileFormat:
        """How `path` is read."""
        name = self._format_name or format_of(path)
        if name == "csv":
            return CsvFormat(self._null_values)
        if name == "json":
            return JsonLinesFormat(strict=self._exact)
        return ParquetFormat()

    def row_groups(self, file: FoundFile) -> Sequence[int]:
        """See `FileFormat.row_groups`."""
        return self.format(file.path).row_groups(*self._at(file))

    def batches(
        self, file: FoundFile, *, groups: tuple[int, int] | None = None, skip_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """The file's records, see `FileFormat.batches`; opened at the first `next`.

        Raises:
            PipelineError: the file is gone, or has another size than when it was listed.
        """
        refused = self._refused(file)
        if refused is not None:
            raise refused
        filesystem, path = self._at(file)
        yield from self.format(path).batches(filesystem, path, self.schema(), groups, skip_rows)

    def why_unreadable(self, file: FoundFile) -> str:
        """Why the file is not there as it was listed; "": it is."""
        refused = self._refused(file)
        return "" if refused is None else f"{refused.what}: {refused.cause}"

    def _refused(self, file: FoundFile) -> PipelineError | None:
        filesystem, path = self._at(file)
        try:
            size_bytes = filesystem.size(path)
        except OSError as e:
            return PipelineError(
                "An input file is gone", where=path, cause=str(e), remedy="Bring it back, or start without the snapshot"
            )
        if size_bytes == file.size_bytes:
            return None
        return PipelineError(
            "An input file was changed while the job was using it",
            where=path,
            cause=f"{file.size_bytes:,} bytes when the job started, {size_bytes:,} now",
            remedy="Write new data to new files; bring the old file back, or start without the snapshot",
        )

    def _at(self, file: FoundFile) -> tuple[Any, str]:
        url = self.urls[min(file.given, len(self.urls) - 1)]
        return open_filesystem(url, self._storage_options)[0], file.path
