"""IcebergTable: a source that reads an Apache Iceberg table, once or while it grows."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, get_args

import pyarrow as pa

from tidegate.connectors.found_schema import FoundSchema
from tidegate.connectors.iceberg.catalog import MAIN, IcebergCatalog
from tidegate.connectors.iceberg.table_enumerator import OnOverwrite, Start, TableEnumerator
from tidegate.connectors.iceberg.table_reading import TableSelection, can_read, files_of
from tidegate.connectors.iceberg.table_setup import check_table_name
from tidegate.connectors.interface import (
    Boundedness,
    ContinuousDiscovery,
    PollResult,
    Source,
    SourceContext,
    SourceReader,
    Split,
    SplitEnumerator,
)
from tidegate.errors import OptionError
from tidegate.units import format_duration, parse_duration

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

OPEN_FILES = 2
"""Most data files that a reader of a followed table has: the one that it reads, and the next."""
RETRY_MS = 1_000
"""Wait for the next poll of a reader that has no file, milliseconds. An assignment ends it."""
RELOAD_MS = 600_000
"""Time after which a reader loads the table again, milliseconds: catalogs send credentials for about an hour."""
CHECKS_AT_ONCE = 16
"""Most requests at a time of a check whether files exist."""


class IcebergTable(Source):
    """Reads the rows of an Apache Iceberg table.

    Needs the extra `tidegate[iceberg]`. Without `follow` it is bounded and reads one snapshot. With `follow` it is
    unbounded: it reads the snapshot at the start, then the rows of each later append, each once, in order of the
    snapshots. A split is a data file. Its position (S4.2) is the number of rows emitted. Rows that delete files remove
    are not emitted.

    Args:
        table: the table's name, with its namespace: "sales.orders".
        catalog: properties of the catalog, see `Iceberg`.
        ref: branch or tag to read. Default: the main branch.
        snapshot_id: snapshot to read, or to start with. Default: the newest one.
        as_of: the snapshot that was the newest one at this time: a datetime with a time zone, or ISO text with one.
        columns: names to read, in this order; None: all.
        filter: only rows for which this condition holds, such as "amount > 5 and day >= '2026-11-01'"; pyiceberg skips
            files by it.
        follow: pause between two searches for new snapshots, such as "30 s". None: the source is bounded.
        start: with `follow`: "all": the rows of the first snapshot, then new ones. "new": only rows of later snapshots.
        on_overwrite: with `follow`, at a snapshot that removes or replaces rows: "refuse": the job fails. "ignore": the
            snapshot is skipped, and logged. Snapshots that only rewrite files, such as compactions, are always skipped.

    Raises:
        OptionError: an option has an unknown value, options contradict each other, or `catalog` holds a secret in plain
            text.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: Mapping[str, Any],
        ref: str = MAIN,
        snapshot_id: int | None = None,
        as_of: datetime | str | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        follow: str | timedelta | None = None,
        start: Start = "all",
        on_overwrite: OnOverwrite = "refuse",
    ) -> None:
        check_table_name(table, "IcebergTable")
        for option, value, known in (("start", start, Start), ("on_overwrite", on_overwrite, OnOverwrite)):
            if value not in get_args(known):
                remedy = f"Use {' or '.join(repr(one) for one in get_args(known))}"
                raise OptionError(f"{option}={value!r} is unknown", where=f"IcebergTable({option}=)", remedy=remedy)
        if snapshot_id is not None and as_of is not None:
            raise OptionError(
                "the snapshot is chosen twice", where="IcebergTable(as_of=)", remedy="Leave out snapshot_id= or as_of="
            )
        self._interval = None if follow is None else parse_duration(follow, where="IcebergTable(follow=)")
        if self._interval is not None and self._interval <= timedelta(0):
            raise OptionError(
                "follow must be longer than 0", where="IcebergTable(follow=)", remedy='Use a duration such as "30 s"'
            )
        self._selection = TableSelection(
            IcebergCatalog(dict(catalog), "IcebergTable"),
            table,
            ref,
            snapshot_id,
            _time(as_of),
            tuple(columns or ()),
            filter or "",
        )
        self._start: Start = start
        self._on_overwrite: OnOverwrite = on_overwrite
        self._schema: pa.Schema | None = None
        self._read: tuple[str, ...] | None = None

    @property
    def boundedness(self) -> Boundedness:
        """Return `bounded`; with `follow` `unbounded`."""
        return "bounded" if self._interval is None else "unbounded"

    def schema(self) -> pa.Schema:
        """Return the schema of the table, of which the job reads `columns`.

        Raises:
            PipelineError: the table, the snapshot or a column does not exist, or the filter does not fit.
            OutageError: the catalog does not answer.
        """
        if self._schema is None:
            with self._selection.catalog.opened() as catalog:
                table = self._selection.catalog.load(catalog, self._selection.table)
                self._schema = self._selection.schema(table)
        return self._schema

    def found_schema(self) -> FoundSchema | None:
        """Return the schema of the table when the job was first built: later columns are not read (S5.5)."""
        return FoundSchema(self.schema(), self._selection.where)

    def with_found_schema(self, found: FoundSchema) -> Self:
        """Return the same source, whose records have that schema."""
        other = copy.copy(self)
        other._schema = found.schema
        return other

    def reading_only(self, columns: Sequence[str]) -> Self:
        """Return the same source; its readers read only these columns of the files."""
        other = copy.copy(self)
        # A batch without columns would have no rows.
        other._read = tuple(columns) or tuple(self.schema().names[:1])
        return other

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return one split per data file of the snapshot, in the order of their paths."""
        with self._selection.catalog.opened() as catalog:
            table = self._selection.catalog.load(catalog, self._selection.table)
            snapshot = self._selection.start(table)
            return [] if snapshot is None else self._selection.splits(table, snapshot)

    def continuous_discovery(self) -> ContinuousDiscovery | None:
        """Return the interval of `follow`. A reader gets its next file while it reads one."""
        return None if self._interval is None else ContinuousDiscovery(self._interval, OPEN_FILES)

    def create_enumerator(self, state: Any) -> SplitEnumerator:
        """Return an enumerator of the table's snapshots."""
        return TableEnumerator(self._selection, state, start=self._start, on_overwrite=self._on_overwrite)

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader that reads its splits one after the other."""
        schema = self.schema()
        return TableReader(self._selection, schema, self._read or tuple(schema.names), self._interval is not None)

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        """Return the splits of which a file is missing, because snapshots were expired."""
        with self._selection.catalog.opened() as catalog:
            io = self._selection.catalog.load(catalog, self._selection.table).io
            files = list(files_of(splits))
            with ThreadPoolExecutor(CHECKS_AT_ONCE) as threads:
                found = list(threads.map(lambda file: io.new_input(file[1]).exists(), files))
        why = "the snapshot that referred to it is probably expired"
        missing = {name: path for (name, path), exists in zip(files, found, strict=True) if not exists}
        return [(name, f"{path} is missing; {why}") for name, path in missing.items()]

    def unavailable_state(self, state: Any) -> str | None:
        """Return why the table can no longer be followed from a snapshot: it is expired, with snapshots after it, or
        is not in the history of the branch.

        Raises:
            OutageError: the catalog does not answer.
        """
        with closing(TableEnumerator(self._selection, state)) as enumerator:
            return enumerator.problem()

    def describe(self) -> str:
        """Describe catalog, table, and what is read of it."""
        chosen = self._selection
        parts = [f"{chosen.catalog.place}, {chosen.table}"]
        parts += [f"ref={chosen.ref}"] if chosen.ref != MAIN else []
        parts += [f"snapshot_id={chosen.snapshot_id}"] if chosen.snapshot_id is not None else []
        parts += [f"as_of={chosen.as_of.isoformat()}"] if chosen.as_of is not None else []
        parts += [f"filter={chosen.filter!r}"] if chosen.filter else []
        parts += [f"followed every {format_duration(self._interval)}"] if self._interval is not None else []
        return f"IcebergTable({', '.join(parts)})"


def _time(given: datetime | str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        moment = datetime.min  # refused below: it has no zone
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise OptionError(
            f"as_of={given!r} is not a time with a time zone",
            where="IcebergTable(as_of=)",
            remedy='Write a time such as "2026-11-21T12:00:00Z"',
        )
    return moment.astimezone(UTC)


class TableReader(SourceReader):
    """Reader of a table: one data file after the other, in order.

    Args:
        schema: the records' schema.
        columns: the names of its columns that are read.
        follows: splits may be added later, and files that are read to their end are forgotten.
    """

    def __init__(self, selection: TableSelection, schema: pa.Schema, columns: tuple[str, ...], follows: bool) -> None:
        self._selection = selection
        self._schema = schema
        self._columns = columns
        self._follows = follows
        self._splits: dict[str, Split] = {}
        self._left: deque[str] = deque()
        self._rows: Iterator[pa.RecordBatch] | None = None
        self._emitted = 0
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._loaded_ms = 0
        self._changed = False

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits; no file is opened yet."""
        self._splits |= {split.split_id: split for split in splits}
        self._left.extend(split.split_id for split in splits if not split.finished)

    def poll(self, now_ms: int) -> PollResult:
        """Return the next batch of the file being read, or the first of the next file."""
        while self._left:
            split = self._splits[self._left[0]]
            if self._rows is None:
                self._emitted = split.position or 0
                self._rows = self._open(split, self._loaded(split, now_ms))
            batch = next(self._rows, None)
            if batch is None:
                self._finish()
                continue
            self._emitted += batch.num_rows
            return PollResult(batch, split.split_id)
        if not self._follows:
            return PollResult(state="end")
        changed, self._changed = self._changed, False
        return PollResult(state="nothing_now", retry_at_ms=now_ms + RETRY_MS, idle=True, splits_changed=changed)

    def _open(self, split: Split, table: Table) -> Iterator[pa.RecordBatch]:
        skip = self._emitted
        for batch in self._selection.rows(table, split, self._schema, self._columns):
            rows = batch.slice(min(skip, batch.num_rows))
            skip -= batch.num_rows - rows.num_rows
            if rows.num_rows:
                yield rows

    def _loaded(self, split: Split, now_ms: int) -> Table:
        """Return a version of the table that has the split's schema and partitioning, with valid credentials."""
        if self._catalog is None:
            self._catalog = self._selection.catalog.open()
        if self._table is None or now_ms >= self._loaded_ms + RELOAD_MS or not can_read(self._table, split):
            self._table = self._selection.catalog.load(self._catalog, self._selection.table)
            self._loaded_ms = now_ms
        return self._table

    def _finish(self) -> None:
        name = self._left.popleft()
        if self._follows:
            del self._splits[name]  # the state of the enumerator contains it
        else:
            self._splits[name] = replace(self._splits[name], position=self._emitted, finished=True)
        self._rows = None
        self._changed = True

    def snapshot(self) -> Sequence[Split]:
        """Return all splits; the one being read has its position. A followed table's finished splits are left out."""
        now = dict(self._splits)
        if self._rows is not None:
            now[self._left[0]] = replace(now[self._left[0]], position=self._emitted)
        return list(now.values())

    def progress(self) -> Mapping[str, Any]:
        """Return the number of data files left."""
        return {"splits_left": len(self._left)}

    def close(self) -> None:
        """Close the open file and the catalog."""
        if self._rows is not None:
            self._splits = {split.split_id: split for split in self.snapshot()}
            self._rows.close()  # type: ignore[attr-defined]
            self._rows = None
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None
