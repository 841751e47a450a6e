"""PostgresTable: a source that reads a table of a PostgreSQL database, or its changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, get_args

import pyarrow as pa

from tidegate.change_rows import change_kind_field
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
from tidegate.connectors.leftovers import Leftover
from tidegate.connectors.postgres.connection import Database, load_psycopg
from tidegate.connectors.postgres.source.change_check import (
    ChangeOptions,
    MissingValues,
    OldRows,
    OnAddedColumn,
    OnHiddenChange,
    OnTruncate,
    check_changes,
    check_creation,
    check_rights,
)
from tidegate.connectors.postgres.source.change_feed import FeedSettings
from tidegate.connectors.postgres.source.change_reader import ChangeReader
from tidegate.connectors.postgres.source.column_values import fields_of
from tidegate.connectors.postgres.source.handover import ChangePosition
from tidegate.connectors.postgres.source.scan_reader import Scan, ScanReader
from tidegate.connectors.postgres.source.scan_splits import ScanEnumerator, ScanSplits
from tidegate.connectors.postgres.source.slots import SlotOwner, default_publication, release_slot, slot_problem
from tidegate.connectors.postgres.source.source_errors import raise_alone, source_error
from tidegate.connectors.postgres.source.source_session import open_session
from tidegate.connectors.postgres.source.source_table import TableName, chosen_columns, find_table
from tidegate.connectors.postgres.source.table_copy import first_of
from tidegate.connectors.postgres.source.table_definition import hidden_changes, read_definition
from tidegate.errors import OptionError, PipelineError
from tidegate.units import parse_duration

if TYPE_CHECKING:
    import psycopg

SPLIT_ID = "changes"
"""The one split of a source of changes."""
DISCOVERY = ContinuousDiscovery(timedelta(seconds=1), open_splits=2, after_finished=True)
"""A reader has the next range before it has read the last one. The second search ends the common state."""


class PostgresTable(Source):
    """Reads a table of a PostgreSQL database (14 or newer): its rows once, or its rows and then all their changes.

    Without `changes` the source is bounded. Ranges of the table are read in parallel. All ranges see one state of the
    database, unless a run fails: ranges that are then unfinished are continued in the state at the restart, after their
    last row (S4.2). In batch mode each range sees its own state.

    With `changes` the source is unbounded, and one reader reads it by logical replication. Its rows are change rows
    (`tidegate.change_rows`): the rows of the table as inserts, then each change once, in the order of the commits. The
    server keeps the WAL from the last completed checkpoint on, in a replication slot that the job owns. The slot
    outlives the job: `tidegate gc --sources` drops it when the job has ended and no snapshot exists.

    Args:
        dsn: libpq's connection string or URL, without password.
        table: `table` (in the schema `public`) or `schema.table`; names are case-sensitive.
        password: reference to a secret, `secret:env/NAME` or `secret:file/PATH`. None: libpq finds it.
        columns: columns to read, in this order. None: all.
        types: column -> type to read it as, for types without a counterpart: a decimal for `numeric` without precision,
            or `pa.string()` for the text that PostgreSQL shows.
        where: SQL condition for rows; not with `changes`.
        split_by: column whose values divide the table into ranges. None: the first column of the primary key or of
            another unique key; without one, the place of rows in the table.
        splits: most ranges. None: up to 16, by the size of the table.
        changes: read changes, too.
        initial_copy: with `changes`: emit the rows of the table first. False: only changes after the start.
        publication: with `changes`: publication that contains the table. None: `tidegate_<schema>_<table>`, which is
            created if it is missing.
        kind_column: name of the column with the kind of change.
        on_truncate: what happens at a TRUNCATE: "fail", or "ignore" and log it.
        on_added_column: what happens when a column is added to the table: "ignore" and log it, or "fail".
        on_hidden_change: what happens when a statement has changed rows without changes in the stream, such as DETACH
            or DROP of a partition: "fail", or "ignore" and log it. Then the rows downstream stay as they are.
        missing_values: what happens if an update does not contain the unchanged value of a large column (TOAST):
            "fail", or "fetch" the present value from the table.
        old_rows: with `changes`: "key": rows of deletions have the key. "complete": they have all columns, and so have
            rows before updates. This needs REPLICA IDENTITY FULL, and permits filters by any column.
        keep_wal: with `changes`: time for which an earlier checkpoint can be restored after a later one has completed.
        outage_timeout: time for which the server may not answer before the job's run fails and restarts.

    Raises:
        OptionError: an option is wrong, contradicts another one, or a password is in plain text.
        EnvironmentProblemError: psycopg is not installed.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        password: str | None = None,
        columns: Sequence[str] | None = None,
        types: Mapping[str, pa.DataType] | None = None,
        where: str | None = None,
        split_by: str | None = None,
        splits: int | None = None,
        changes: bool = False,
        initial_copy: bool = True,
        publication: str | None = None,
        kind_column: str = "change_kind",
        on_truncate: OnTruncate = "fail",
        on_added_column: OnAddedColumn = "ignore",
        on_hidden_change: OnHiddenChange = "fail",
        missing_values: MissingValues = "fail",
        old_rows: OldRows = "key",
        keep_wal: str | timedelta = "0 s",
        outage_timeout: str | timedelta = "10 min",
    ) -> None:
        self._database = Database(dsn, password, "PostgresTable")
        self._table = _table_name(table)
        self._columns = None if columns is None else tuple(columns)
        self._types = dict(types or {})
        self._where, self._split_by, self._splits = where, split_by, splits
        for option, value, known in (
            ("on_truncate", on_truncate, OnTruncate),
            ("on_added_column", on_added_column, OnAddedColumn),
            ("on_hidden_change", on_hidden_change, OnHiddenChange),
            ("missing_values", missing_values, MissingValues),
            ("old_rows", old_rows, OldRows),
        ):
            if value not in get_args(known):
                remedy = f"Use one of {', '.join(map(repr, get_args(known)))}"
                raise _wrong(option, f"{option}={value!r} is unknown", remedy)
        options = ChangeOptions(
            initial_copy=initial_copy,
            publication=publication,
            kind_column=kind_column,
            on_truncate=on_truncate,
            on_added_column=on_added_column,
            on_hidden_change=on_hidden_change,
            missing_values=missing_values,
            old_rows=old_rows,
            keep_wal_s=_seconds("keep_wal", keep_wal),
        )
        self._check_options(changes, options)
        self._changes = options if changes else None
        self._outage_s = _seconds("outage_timeout", outage_timeout)
        self._found: pa.Schema | None = None
        self._used: frozenset[str] | None = None

    def _check_options(self, changes: bool, options: ChangeOptions) -> None:
        if self._columns is not None and (not self._columns or len(set(self._columns)) != len(self._columns)):
            raise _wrong("columns", "columns is empty, or names a column twice", "Name each column once")
        if self._splits is not None and self._splits < 1:
            raise _wrong("splits", f"splits={self._splits} is too small", "Use 1 or more")
        scans = {"where": self._where, "split_by": self._split_by, "splits": self._splits}
        for option, value in scans.items():
            if changes and value is not None:
                raise _wrong(option, f"{option}= is for a scan", "Leave it out with changes=True")
        if not changes and options != ChangeOptions():
            raise _wrong("changes", "an option of changes is set without changes=True", "Pass changes=True")

    @property
    def boundedness(self) -> Boundedness:
        """Return `bounded`; with `changes` `unbounded`."""
        return "bounded" if self._changes is None else "unbounded"

    def schema(self) -> pa.Schema:
        """Return the columns of the table; with `changes` the kind of change first.

        Raises:
            PipelineError: the table does not exist, has columns that cannot be read, or its changes cannot be read.
            OutageError: the server does not answer.
        """
        if self._found is None:
            self._found = self._read_schema()
        return self._with_kind(self._found)

    def _read_schema(self) -> pa.Schema:
        place = self._database.place
        where = f"table {self._table}"
        try:
            with closing(open_session(self._database, "tidegate check")) as connection:
                table = find_table(connection, self._table, place)
                columns = chosen_columns(table, self._columns, place)
                fields = [field for _, field in fields_of(columns, self._types, f"{place}, {where}")]
                if not fields:
                    remedy = "Add a column"
                    raise PipelineError("the table has no columns", where=f"{place}, {where}", remedy=remedy)
                # A deleted row has only its key.
                key = set(table.identity_key or ()) if self._changes is not None else set()
                if self._changes is not None:
                    fields = [field.with_nullable(field.name not in key) for field in fields]
                found = pa.schema(fields)
                self._check_kind(found)
                if self._changes is not None:
                    check_changes(connection, table, found, self._changes, place)
                    check_creation(connection, self._database, table, self._changes.publication)
                check_rights(connection, self._database, table, found.names)
        except load_psycopg().Error as error:
            raise_alone(source_error(self._database, error, "the table cannot be examined", where))
        return found

    def _check_kind(self, found: pa.Schema) -> None:
        if self._changes is not None and self._changes.kind_column in found.names:
            raise PipelineError(
                f"the table has a column {self._changes.kind_column!r}, like the column with the kind of change",
                where=f"{self._database.place}, table {self._table}",
                remedy="Pass another name as kind_column=",
            )

    def _with_kind(self, found: pa.Schema) -> pa.Schema:
        if self._changes is None:
            return found
        # Only columns of the key are never null, because old rows may have nothing else.
        key = [field.name for field in found if not field.nullable]
        old_columns = "all" if self._changes.old_rows == "complete" else key
        return pa.schema([change_kind_field(self._changes.kind_column, old_columns=old_columns), *found])

    def found_schema(self) -> FoundSchema | None:
        """Return the schema of the table when the job was first built."""
        self.schema()
        assert self._found is not None
        return FoundSchema(self._found, f"{self._database.place}, table {self._table}")

    def with_found_schema(self, found: FoundSchema) -> Self:
        """Return the same source with that schema (S5.5)."""
        other = copy.copy(self)
        other._found = found.schema
        return other

    def reading_only(self, columns: Sequence[str]) -> Self:
        """Return the same source; its readers read only these columns, and the key of changes."""
        if self._changes is not None:
            return self  # the key, which deletes need, is known only to the server
        other = copy.copy(self)
        other._used = frozenset(columns)
        return other

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return a split for each range, without a common state; with `changes` one split.

        Raises:
            OutageError: the server does not answer.
            PipelineError: the table cannot be divided as requested.
        """
        if self._changes is not None:
            return [Split(SPLIT_ID, {"table": str(self._table)})]
        ranges = self._ranges()
        with closing(ranges.connect()) as connection:
            return ranges.find(connection, share=False)

    def _ranges(self) -> ScanSplits:
        return ScanSplits(self._database, self._table, self._split_by, self._splits)

    def continuous_discovery(self) -> ContinuousDiscovery | None:
        """Return settings for a scan, whose enumerator holds the common state; None with `changes`."""
        return DISCOVERY if self._changes is None else None

    def create_enumerator(self, state: Any) -> SplitEnumerator:
        """Return the enumerator of a scan."""
        return ScanEnumerator(self._ranges(), state)

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader of ranges, or of changes. It connects when it gets a split."""
        schema = self.schema()
        if self._changes is not None:
            settings = FeedSettings(self._database, self._table, schema, self._types, self._changes, self._outage_s)
            return ChangeReader(ctx, settings)
        names = first_of(schema.names, self._used)
        read = pa.schema([schema.field(name) for name in names])
        return ScanReader(ctx, Scan(self._database, self._table, read, self._where, self._outage_s))

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        """Return the split of changes if its slot does not exist any more, or has released its position.

        Raises:
            OutageError: the server does not answer.
        """
        positions = {split.split_id: split.position for split in splits if split.position is not None}
        if self._changes is None or not positions:
            return []
        try:
            with closing(open_session(self._database, "tidegate check")) as connection:
                found = []
                for split_id, position in positions.items():
                    at = ChangePosition.from_json(position)
                    problem = slot_problem(connection, at.slot, at.lsn) or self._hidden_problem(connection, at)
                    found += [] if problem is None else [(split_id, problem)]
                return found
        except load_psycopg().Error as error:
            what = "the replication slot cannot be examined"
            raise_alone(source_error(self._database, error, what, f"table {self._table}"))

    def _hidden_problem(self, connection: psycopg.Connection[Any], at: ChangePosition) -> str | None:
        """Return what has changed rows since the position, without changes in the stream; None: nothing."""
        options = self._changes
        if at.definition is None or options is None or options.on_hidden_change == "ignore":
            return None
        publication = options.publication or default_publication(self._table)
        now = read_definition(connection, at.table_oid, list(at.definition.columns), publication)
        changes = "; ".join(hidden_changes(connection, at.definition, now))
        remedy = 'start the job afresh with an empty target, or set on_hidden_change="ignore"'
        return f"{changes}; {remedy}" if changes else None

    def release(self, ctx: SourceContext, *, dry_run: bool = False) -> Sequence[Leftover]:
        """Drop the replication slot of a lineage that is over, and with the last slot in the database the publication.

        Raises:
            OutageError: the server does not answer.
            PipelineError: the server refuses it.
        """
        if self._changes is None:
            return []
        created = None if self._changes.publication else default_publication(self._table)
        try:
            with closing(open_session(self._database, "tidegate gc")) as connection:
                return release_slot(connection, SlotOwner.of(ctx), created, dry_run=dry_run)
        except load_psycopg().Error as error:
            what = "the replication slot cannot be dropped"
            raise_alone(source_error(self._database, error, what, f"table {self._table}"))

    def describe(self) -> str:
        """Describe database and table."""
        changes = ", changes" if self._changes is not None else ""
        return f"PostgresTable({self._database.place!r}, {str(self._table)!r}{changes})"


def _table_name(text: str) -> TableName:
    schema, _, name = text.rpartition(".")
    if not name or "." in schema or text.startswith("."):
        raise _wrong("table", f"the table name {text!r} is invalid", 'Use "table" or "schema.table"')
    return TableName(schema or "public", name)


def _wrong(option: str, what: str, remedy: str) -> OptionError:
    return OptionError(what, where=f"PostgresTable({option}=...)", remedy=remedy)


def _seconds(option: str, value: str | timedelta) -> float:
    found = parse_duration(value, where=f"PostgresTable({option}=...)").total_seconds()
    if found < 0:
        raise _wrong(option, f"{option} is negative", 'Use a duration such as "10 min"')
    return found
