"""Iceberg: a sink that appends to an Apache Iceberg table, or upserts by key, with two-phase commit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa

from tidegate.connectors.files.sink.file_leftovers import FileLeftovers
from tidegate.connectors.files.sink.file_rewind import FileRewind
from tidegate.connectors.files.sink.file_writer import FileCut
from tidegate.connectors.files.sink.marker_packs import MarkerPacks
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.files.sink.staged_files import quarantine_files, staged_files
from tidegate.connectors.iceberg.catalog import MAIN, IcebergCatalog, table_filesystem
from tidegate.connectors.iceberg.commit_log import CommitLog, forget_commits
from tidegate.connectors.iceberg.iceberg_upsert_writer import IcebergUpsertWriter
from tidegate.connectors.iceberg.iceberg_writer import IcebergWriter
from tidegate.connectors.iceberg.table_columns import Evolve
from tidegate.connectors.iceberg.table_partitions import PartitionTerm
from tidegate.connectors.iceberg.table_restore import TableRestore
from tidegate.connectors.iceberg.table_rewind import TableRewind
from tidegate.connectors.iceberg.table_setup import TableSetup, check_table_name
from tidegate.connectors.interface import NO_CHECKPOINT, Sink, SinkWriter
from tidegate.connectors.leftovers import LeftoverReport, NeededTransactions
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.connectors.upserts.upsert_staging import quarantine_keys
from tidegate.connectors.upserts.write_mode import (
    IfRows,
    WriteMode,
    check_if_rows,
    existing_rows_error,
    key_columns,
    refuses_rows,
)
from tidegate.errors import OptionError
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity
from tidegate.units import ByteSize, parse_size

if TYPE_CHECKING:
    from pyiceberg.table import Table


DEFAULT_FILE_SIZE_BYTES = 512 * 2**20
"""pyiceberg's default of the table's property `write.target-file-size-bytes`."""
_EFFECTS: Mapping[IfRows, str] = {
    "append": "keeps the rows that are there",
    "error": "refuses the start if there are rows",
}


class Iceberg(Sink):
    """Appends records to an Apache Iceberg table, or upserts them by key, for Spark, Trino, Flink, DuckDB and every
    other reader of Iceberg.

    Needs the extra `tidegate[iceberg]`. Guarantee: exactly once, end to end, for readers of the table. Each record
    before a completed checkpoint's barrier is in the table once, whatever fails (S7.4), and also if snapshots expire
    between a crash and the restore. The records of all subtasks for a checkpoint normally become visible in one
    snapshot of the table. If the subtask that commits for the others dies, or is late, there are several. Other writers
    may append to the table, rewrite its files and expire snapshots meanwhile. `IcebergWriter` describes how
    transactions are staged and published, `IcebergUpsertWriter` what differs with `upsert`.

    Args:
        table: the table's name, with its namespace: "sales.orders".
        catalog: properties of the catalog, as pyiceberg accepts them: `type`, `uri`, `warehouse`, and properties of the
            storage (`s3.endpoint`). Secrets are references. `name` is the catalog's name; default: "default".
        mode: `append` adds rows. `upsert` adds a row or, if rows with its key exist, replaces them by it. If a
            checkpoint has several rows with a key, the last wins, and a later checkpoint wins over an earlier one. All
            rows of a key must arrive through one subtask, as they do downstream of `group_by(key)`.
        key: with `upsert`: the column or columns of the key, never null. The table need not be unique by it: a row
            replaces all rows of its key. Change rows (`tidegate.change_rows`) need `upsert`: an insert or update_after
            upserts its row, a delete or update_before deletes the rows with its key. The last change of a key in a
            checkpoint wins.
        branch: branch of the table to commit to; a missing one is created from the main branch. Default: the main
            branch, which readers read.
        create: create a missing table with the records' columns when the job starts. Default: it is an error.
        partition_by: partition terms, such as `["day(ts)", "bucket(16, id)"]`. A new table gets them; an existing table
            must have them. Default: a new table is not partitioned, and an existing one may be.
        properties: properties of a new table, such as `{"write.parquet.compression-codec": "zstd"}`.
        evolve: what happens to columns of the records that the table does not have: "refuse" them when the pipeline is
            built, or "add_columns" to the table, as optional ones, when the job starts.
        if_exists: what happens at a fresh start if the branch has rows of other jobs: "append" to them, or "error".
            None: "error" for change rows, because rows that were deleted at their source would stay; else "append".
        target_file_size: approximate size on disk at which a file is closed and the next begun, as text: "256 MiB".
            Default: the table's property `write.target-file-size-bytes`, or else 512 MiB. A subtask writes at least one
            file per checkpoint and partition that had records.

    Raises:
        OptionError: an option has an unknown value, mode and key do not fit, the table's name has no namespace, or
            `catalog` holds a secret in plain text.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: Mapping[str, Any],
        mode: WriteMode = "append",
        key: str | Sequence[str] = (),
        branch: str = MAIN,
        create: bool = False,
        partition_by: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        evolve: Evolve = "refuse",
        if_exists: IfRows | None = None,
        target_file_size: str | ByteSize | None = None,
    ) -> None:
        check_table_name(table, "Iceberg")
        check_if_rows(if_exists, "Iceberg")
        if evolve not in get_args(Evolve):
            remedy = f"Use {' or '.join(repr(one) for one in get_args(Evolve))}"
            raise OptionError(f"evolve={evolve!r} is unknown", where="Iceberg(evolve=)", remedy=remedy)
        terms = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        parsed = tuple(map(PartitionTerm.parse, terms))
        if len(set(parsed)) < len(parsed):
            remedy = "Name each term once"
            raise OptionError("a partition term is repeated", where="Iceberg(partition_by=)", remedy=remedy)
        self._setup = TableSetup(
            IcebergCatalog(dict(catalog)),
            table,
            branch,
            parsed,
            evolve,
            create,
            dict(properties or {}),
            key_columns(mode, key, "Iceberg"),
        )
        self.if_exists = if_exists
        self._file_bytes: int | None = None
        if target_file_size is not None:
            self._file_bytes = parse_size(target_file_size, where="Iceberg(target_file_size=)")

    def check(self, schema: pa.Schema) -> None:
        """Check, before anything runs, that the table has these columns, or can be created. Changes nothing.

        Raises:
            PipelineError: the table is missing or does not fit; with all problems of its columns. Change rows are
                refused without `upsert`.
            OutageError: the catalog does not answer.
            MissingExtraError: a package is missing.
        """
        with self._setup.catalog.opened() as catalog:
            self._setup.check(catalog, schema)

    def check_fresh_start(self, ctx: SinkContext) -> None:
        """Check that the branch has no rows of another job or lineage, if `if_exists` demands it."""
        if not refuses_rows(self.if_exists, ctx.schema):
            return
        with self._setup.catalog.opened() as catalog:
            table = self._setup.catalog.find(catalog, self._setup.table)
        if table is None:
            return
        branch = self._setup.branch if self._setup.branch in table.refs() else MAIN
        log = CommitLog(table.metadata, branch, ctx)
        summary = log.head.summary if log.head is not None else None
        is_empty = log.head is None or (summary is not None and summary["total-records"] == "0")
        if not is_empty and not all(log.is_own(snapshot) for snapshot in log.history()):
            raise existing_rows_error(f"sink {ctx.uid!r}, {self._setup.where}, branch {branch}")

    def existing_output(self) -> str:
        """Describe what `if_exists` does with existing rows."""
        chosen = self.if_exists or "append"
        unless = ", but refuses the start for change rows" if self.if_exists is None and self._setup.key else ""
        return f"{_EFFECTS[chosen]}{unless} (if_exists={self.if_exists or 'default'})"

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer into this subtask's staging folder. Creates or evolves the table first, as the options say.

        Raises:
            PipelineError: the table is missing or does not fit.
            OutageError: the catalog does not answer.
        """
        opened = self._setup.catalog.open()
        try:
            table = self._setup.prepare(opened, ctx.schema)
            filesystem, root = table_filesystem(table)
            size = self._file_bytes or int(
                table.properties.get("write.target-file-size-bytes", DEFAULT_FILE_SIZE_BYTES)
            )
            cut = FileCut(sys.maxsize, size)
            layout = FileLayout(root, ctx)
            setup = self._setup
            if setup.key:
                return IcebergUpsertWriter(
                    setup.catalog, opened, table, setup.branch, filesystem, layout, ctx, cut, setup.key
                )
            return IcebergWriter(setup.catalog, opened, table, setup.branch, filesystem, layout, ctx, cut)
        except BaseException:
            opened.close()
            raise

    def rewind_to(
        self,
        ctx: SinkContext,
        checkpoint_id: int,
        pending: Sequence[Committable] = (),
        *,
        before: int = NO_CHECKPOINT,
    ) -> Callable[[], None]:
        """Return the function that removes what was committed after the checkpoint, in one snapshot.

        Appended files leave the branch, and files of other writers stay. With `upsert`, the branch gets the files of
        its snapshot before; other programs must not have changed rows since.

        Raises:
            SinkConflictError: another program has rewritten files of the sink since, or with `upsert` changed any rows;
                or the snapshots are expired.
        """
        setup = self._setup
        kind = TableRestore if setup.key else TableRewind

        def rewind_of(table: Table) -> TableRewind:
            layout = FileLayout(table_filesystem(table)[1], ctx)
            return kind(setup.catalog, setup.table, setup.branch, layout, ctx, checkpoint_id, before)

        with setup.catalog.opened() as catalog:
            table = setup.catalog.load(catalog, setup.table)
            rewind_of(table).check(table)

        def take_back() -> None:
            # Before files leave the table, so that a zombie finds no staged file to commit afterwards.
            writer = self.create_writer(ctx)
            writer.recover(checkpoint_id, pending)
            writer.close()
            with setup.catalog.opened() as catalog:
                table = setup.catalog.load(catalog, setup.table)
                filesystem, root = table_filesystem(table)
                layout = FileLayout(root, ctx)
                packs = MarkerPacks(filesystem, layout.committed)
                FileRewind(filesystem, layout, ctx, checkpoint_id, before).take_back()
                rewind_of(table).take_back(catalog, lambda newest: packs.rewind(checkpoint_id, newest + 1))

        return take_back

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Move the staged files to quarantine."""
        with self._setup.catalog.opened() as catalog:
            table = self._setup.catalog.load(catalog, self._setup.table)
            filesystem, root = table_filesystem(table)
            quarantine_files(filesystem, FileLayout(root, ctx), ctx, committables, into)
            quarantine_keys(filesystem, FileLayout(root, ctx), committables, into)

    def collect(self, ctx: SinkContext, needed: NeededTransactions, *, dry_run: bool = False) -> LeftoverReport:
        """Remove staged files that nothing needs, pack commit markers, and remove the table's property of a sink that
        no restore can need.
        """
        with self._setup.catalog.opened() as catalog:
            table = self._setup.catalog.find(catalog, self._setup.table)
            if table is None:
                return LeftoverReport()
            filesystem, root = table_filesystem(table)
            report = FileLeftovers(filesystem, FileLayout(root, ctx), needed).collect(dry_run=dry_run)
            last = CommitLog(table.metadata, self._setup.branch, ctx).last
            if last and max(last.values()) < needed.markers_from and not dry_run:
                forget_commits(table, ctx)
            return report

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """Return the Parquet files in the staging folder."""
        # Readers of files accept paths of local files, and not all of them accept URLs.
        location = str(handle.data["location"]).removeprefix("file://")
        return staged_files(location, FileLayout(location, ctx), ctx.uid, checkpoint_id, handle)

    def identity(self) -> SinkIdentity:
        """Return catalog and table, the branch unless it is the main one, and the key."""
        setup = self._setup
        branch = () if setup.branch == MAIN else (setup.branch,)
        key = {"key": list(setup.key)} if setup.key else {}
        return SinkIdentity("Iceberg", (setup.catalog.place, setup.table, *branch), key)
