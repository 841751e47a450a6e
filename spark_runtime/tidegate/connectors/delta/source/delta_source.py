"""DeltaTable: a source that reads a Delta Lake table, once or while it grows."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Self, get_args

import pyarrow as pa

from tidegate.clock import steady_clock
from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.connectors.delta.source.deletion_vectors import vector_path
from tidegate.connectors.delta.source.file_rows import FilePart, FileRows
from tidegate.connectors.delta.source.table_enumerator import (
    OnNewColumns,
    OnRewrite,
    Start,
    TableEnumerator,
    check_schema,
    split_of,
    stays_from_ms,
    whole_version,
)
from tidegate.connectors.delta.source.table_reader import TableReader
from tidegate.connectors.delta.source.table_selection import PartitionFilter, TableSelection
from tidegate.connectors.delta.source.version_changes import TableFacts
from tidegate.connectors.found_schema import FoundSchema
from tidegate.connectors.interface import (
    Boundedness,
    ContinuousDiscovery,
    Source,
    SourceContext,
    SourceReader,
    Split,
    SplitEnumerator,
)
from tidegate.connectors.storage import absolute_url
from tidegate.errors import OptionError
from tidegate.units import format_duration, parse_duration

OPEN_FILES = 2
"""Most data files that a reader of a followed table has: the one that it reads, and the next."""
CHECKS_AT_ONCE = 16
"""Most requests at a time of a check whether files exist."""


class DeltaTable(Source):
    """Reads the rows of a Delta Lake table, without a JVM and without delta-rs.

    Without `follow` it is bounded and reads one version. With `follow` it is unbounded: it reads the version at the
    start, then the rows of each later append, each once, in the order of versions. A split is a data file. Its position
    (S4.2) is the number of rows of the file that were read. Rows in deletion vectors are not emitted.

    With `changes` it emits change rows: the rows of the first version as inserts, then what each later version changes.
    One subtask reads them all, in the order of versions.

    Args:
        path: the table's folder, local or any fsspec URL.
        storage_options: fsspec options; values may be references to secrets.
        version: version to read, or to start with. Default: the newest one.
        timestamp: the version that was the newest one at this time: a datetime with a time zone, or ISO text with one.
        columns: names to read, in this order; None: all.
        partitions: partition column -> value or values: only rows of these partitions. Texts are read as the column's
            type; None is null.
        follow: pause between two searches for new versions, such as "30 s". None: the source is bounded.
        start: with `follow`: "all": the rows of the first version, then later ones. "new": only rows of later versions.
        changes: emit change rows, with a column `change_kind`. The table must have the property
            `delta.enableChangeDataFeed`. Needs `follow`.
        commit_columns: add the columns `commit_version` and `commit_time` of the version that a row belongs to.
        on_rewrite: with `follow`, at a version that removes or rewrites rows: "refuse": the job fails. "ignore": the
            version is skipped, and logged. Versions that only rewrite files, such as compactions, are always skipped.
        on_new_columns: with `follow` and without `columns`, at a version that adds columns: "refuse": the job fails.
            "ignore": it does not read them.

    Raises:
        OptionError: an option has an unknown value, or options contradict each other.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        version: int | None = None,
        timestamp: datetime | str | None = None,
        columns: Sequence[str] | None = None,
        partitions: Mapping[str, Any] | None = None,
        follow: str | timedelta | None = None,
        start: Start = "all",
        changes: bool = False,
        commit_columns: bool = False,
        on_rewrite: OnRewrite = "refuse",
        on_new_columns: OnNewColumns = "refuse",
    ) -> None:
        for option, value, known in (
            ("start", start, Start),
            ("on_rewrite", on_rewrite, OnRewrite),
            ("on_new_columns", on_new_columns, OnNewColumns),
        ):
            if value not in get_args(known):
                remedy = f"Use {' or '.join(repr(one) for one in get_args(known))}"
                raise OptionError(f"{option}={value!r} is unknown", where=f"DeltaTable({option}=)", remedy=remedy)
        if version is not None and timestamp is not None:
            raise OptionError(
                "the version is chosen twice",
                where="DeltaTable(timestamp=)",
                remedy="Leave out version= or timestamp=",
            )
        if changes and follow is None:
            raise OptionError(
                "changes=True needs follow=",
                where="DeltaTable(changes=)",
                remedy='Pass a pause, for example follow="30 s"',
            )
        self._interval = None if follow is None else parse_duration(follow, where="DeltaTable(follow=)")
        if self._interval is not None and self._interval <= timedelta(0):
            raise OptionError(
                "follow must be longer than 0", where="DeltaTable(follow=)", remedy='Use a duration such as "30 s"'
            )
        self._selection = TableSelection(
            absolute_url(path),
            dict(storage_options or {}),
            version,
            _moment(timestamp),
            tuple(columns or ()),
            {name: _values(value) for name, value in (partitions or {}).items()},
            changes,
            commit_columns,
        )
        self._start: Start = start
        self._on_rewrite: OnRewrite = on_rewrite
        self._on_new_columns: OnNewColumns = on_new_columns
        self._table: pa.Schema | None = None
        self._unknown: Mapping[str, str] = {}
        self._read: tuple[str, ...] | None = None

    @property
    def boundedness(self) -> Boundedness:
        """Return `bounded`, or `unbounded` with `follow`."""
        return "bounded" if self._interval is None else "unbounded"

    def schema(self) -> pa.Schema:
        """Return the schema of the table, of which the job reads `columns`, with the added columns.

        Raises:
            PipelineError: the table, the version or a column does not exist, or the table requires a feature that this
                source lacks.
            OutageError: the storage does not answer.
        """
        return self._selection.records(self._columns_of_table(), self._unknown)

    def _columns_of_table(self) -> pa.Schema:
        if self._table is None:
            metadata = self._selection.start(self._selection.log(), files=False).metadata
            self._table, self._unknown = metadata.schema, metadata.unknown_types
        return self._table

    def found_schema(self) -> FoundSchema | None:
        """Return the columns of the table when the job was first built: later columns are not read (S5.5)."""
        return FoundSchema(self._columns_of_table(), self._selection.url)

    def with_found_schema(self, found: FoundSchema) -> Self:
        """Return the same source, for a table with these columns."""
        other = copy.copy(self)
        other._table, other._unknown = found.schema, {}
        return other

    def reading_only(self, columns: Sequence[str]) -> Self:
        """Return the same source; its readers read only these columns of the files."""
        other = copy.copy(self)
        # A batch without columns would have no rows.
        other._read = tuple(columns) or tuple(self.schema().names[:1])
        return other

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return one split per data file of the version, in the order of their paths."""
        table = self._columns_of_table()
        log = self._selection.log()
        listing = log.listed()
        state = self._selection.start(log, files=True, listing=listing)
        check_schema(self._selection, table, state.metadata, state.version, refuse_new=False)
        facts = TableFacts.of(state.metadata)
        base_ms = stays_from_ms(listing, state.version, steady_clock()())
        chosen = PartitionFilter(self._selection, table, facts.names)
        parts = whole_version(log, state, chosen)
        return [split_of(part.file.path, [part], facts, base_ms) for part in parts]

    def continuous_discovery(self) -> ContinuousDiscovery | None:
        """Return the interval of `follow`. A reader gets its next file while it reads one.

        Change rows have an order, so there is one split at a time: with equal loads, it always goes to the same reader.
        """
        if self._interval is None:
            return None
        if self._selection.changes:
            return ContinuousDiscovery(self._interval, after_finished=True)
        return ContinuousDiscovery(self._interval, OPEN_FILES)

    def create_enumerator(self, state: Any) -> SplitEnumerator:
        """Return an enumerator of the table's versions."""
        return TableEnumerator(
            self._selection,
            self._columns_of_table(),
            state,
            start=self._start,
            on_rewrite=self._on_rewrite,
            on_new_columns=self._on_new_columns,
        )

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader that reads its splits one after the other."""
        schema = self.schema()
        read = pa.schema([schema.field(name) for name in self._read or schema.names])
        table = self._selection.columns or self._columns_of_table().names
        return TableReader(FileRows(self._selection.log(), read, table), self._interval is not None)

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        """Return the splits of which a file is missing, because it was vacuumed."""
        log = self._selection.log()
        files = list(_files_of(log, splits))

        def exists(file: tuple[str, str]) -> bool:
            filesystem, path = log.locate(file[1])
            return bool(filesystem.exists(path))

        with ThreadPoolExecutor(CHECKS_AT_ONCE) as threads:
            found = list(threads.map(exists, files))
        missing = {name: path for (name, path), there in zip(files, found, strict=True) if not there}
        why = "VACUUM has probably removed it, because a later version no longer needs it"
        return [(name, f"{path} is missing; {why}") for name, path in missing.items()]

    def unavailable_state(self, state: Any) -> str | None:
        """Return why the table can no longer be followed from a version: log entries after it are cleaned up, or it is
        another table.

        Raises:
            OutageError: the storage does not answer.
        """
        return TableEnumerator(self._selection, self._columns_of_table(), state).problem()

    def describe(self) -> str:
        """Describe the path, and what is read of the table."""
        chosen = self._selection
        parts = [chosen.url]
        parts += [f"version={chosen.version}"] if chosen.version is not None else []
        parts += [f"timestamp={chosen.moment.isoformat()}"] if chosen.moment is not None else []
        parts += [f"partitions={dict(chosen.partitions)}"] if chosen.partitions else []
        parts += ["changes"] if chosen.changes else []
        parts += [f"followed every {format_duration(self._interval)}"] if self._interval is not None else []
        return f"DeltaTable({', '.join(parts)})"


def _values(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, list | tuple | set | frozenset) else (given,)


def _moment(given: datetime | str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        moment = datetime.min  # refused below: it has no zone
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise OptionError(
            f"timestamp={given!r} is not a time with a time zone",
            where="DeltaTable(timestamp=)",
            remedy='Write a time such as "2026-11-21T12:00:00Z"',
        )
    return moment.astimezone(UTC)


def _files_of(log: LogFiles, splits: Sequence[Split]) -> Iterator[tuple[str, str]]:
    """Yield split id and path, as the log would name it, of the files that are not read to their end."""
    for split in splits:
        if split.finished:
            continue
        for document in split.data["files"][(split.position or (0,))[0] :]:
            part = FilePart.from_json(document)
            yield split.split_id, part.file.path
            vectors = (path for one in (part.file.vector, part.only) if one and (path := vector_path(log, one)))
            yield from ((split.split_id, path) for path in vectors)
