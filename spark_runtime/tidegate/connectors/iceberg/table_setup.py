"""The table of an Iceberg sink before its first record: created, evolved, checked; its branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.change_rows import change_kind_column
from tidegate.connectors.iceberg.catalog import MAIN, IcebergCatalog, is_local_location
from tidegate.connectors.iceberg.table_columns import Evolve, new_columns, new_schema, refuse_other_columns
from tidegate.connectors.iceberg.table_partitions import PartitionTerm, check_spec, new_spec
from tidegate.connectors.upserts.write_mode import check_key, rows_schema
from tidegate.errors import OptionError, OutageError, PipelineError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

SETUP_ATTEMPTS = 10
"""Attempts to create or evolve a table: all subtasks of a sink do it at once when a job starts."""
OLDEST_FORMAT, NEWEST_FORMAT = 1, 2
"""Format versions of tables that pyiceberg can write to."""


@dataclass(frozen=True)
class TableSetup:
    """Demands of a sink on its table. No I/O in the constructor.

    Attributes:
        table: the table's name, with its namespace: `sales.orders`.
        create: create a missing table.
        properties: properties of a new table.
        key: columns of the key, by which rows replace others; (): rows are appended.
    """

    catalog: IcebergCatalog
    table: str
    branch: str = MAIN
    partition_by: tuple[PartitionTerm, ...] = ()
    evolve: Evolve = "refuse"
    create: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The table, for messages."""
        return f"{self.catalog.place}, table {self.table}"

    def check(self, catalog: Catalog, records: pa.Schema) -> None:
        """Check that records of this schema can be stored. Changes nothing.

        Raises:
            PipelineError: the table is missing, or does not fit.
            OutageError: the catalog does not answer.
        """
        kind = change_kind_column(records)
        if kind is not None and not self.key:
            raise PipelineError(
                "the Iceberg sink appends rows, and cannot apply change rows",
                where=self.where,
                cause=f"column {kind!r} holds kinds of change",
                remedy='Use mode="upsert" with key=; or store the changes as rows, with changes_as_rows()',
            )
        records = rows_schema(records)
        check_key(records, self.key, self.where)
        found = self.catalog.find(catalog, self.table)
        if found is not None:
            self.check_table(found, records)
            return
        if not self.create:
            raise self._missing("the Iceberg table does not exist", "create the table, or pass create=True")
        with self.catalog.answering("the Iceberg catalog does not answer", self.table):
            exists = catalog.namespace_exists(self._namespace)
        if not exists:
            raise self._missing("the namespace of the Iceberg table does not exist", "create the namespace")
        new_spec(self.partition_by, new_schema(records, self.where), self.where)

    @property
    def _namespace(self) -> str:
        return self.table.rpartition(".")[0]

    def _missing(self, what: str, remedy: str) -> PipelineError:
        return PipelineError(what, where=self.where, remedy=f"Check the name; or {remedy}")

    def check_table(self, table: Table, records: pa.Schema) -> None:
        """Check that an existing table accepts these records. Raises PipelineError."""
        remedy = "Write to another table, or change the table"
        if not OLDEST_FORMAT <= table.format_version <= NEWEST_FORMAT:
            raise PipelineError(
                f"the Iceberg table has format version {table.format_version}",
                where=self.where,
                cause=f"pyiceberg writes to tables of the versions {OLDEST_FORMAT} to {NEWEST_FORMAT}",
                remedy=remedy,
            )
        file_format = table.properties.get("write.format.default", "parquet").lower()
        if file_format != "parquet":
            cause = f"write.format.default={file_format}"
            raise PipelineError(
                "the Iceberg table is not written as Parquet", where=self.where, cause=cause, remedy=remedy
            )
        data = table.location_provider().data_path
        if is_local_location(data) != is_local_location(table.location()):
            raise PipelineError(
                "the data files of the Iceberg table are on another file system than the table",
                where=self.where,
                cause=f"write.data.path={data}, location={table.location()}",
                remedy=remedy,
            )
        check_spec(self.partition_by, table.spec(), table.schema(), self.where)
        new_columns(records, table.schema(), self.evolve, self.where)
        if self.key:
            refuse_other_columns(table.schema(), records.names, self.where)

    def prepare(self, catalog: Catalog, records: pa.Schema) -> Table:
        """Return the table for records of this schema: created, with new columns, and with its branch, as needed.

        Several processes may do this at once.

        Raises:
            PipelineError: the table is missing, or does not fit.
            OutageError: the catalog does not answer.
        """
        from pyiceberg.exceptions import CommitFailedException

        records = rows_schema(records)
        problem: Exception | None = None
        for _ in range(SETUP_ATTEMPTS):
            table = self.catalog.find(catalog, self.table) or self._created(catalog, records)
            self.check_table(table, records)
            try:
                with self.catalog.answering("the Iceberg table cannot be changed", self.table):
                    if self._add_columns(table, records) and self._add_branch(table):
                        return table
            except CommitFailedException as e:
                problem = e  # another process changed the table: read it again
        raise OutageError(
            f"the Iceberg table could not be prepared in {SETUP_ATTEMPTS} attempts",
            where=self.where,
            cause=self.catalog.error_text(problem) if problem else "it was changed again and again",
            remedy="Check which other processes change the table",
        )

    def _created(self, catalog: Catalog, records: pa.Schema) -> Table:
        from pyiceberg.exceptions import NoSuchNamespaceError, TableAlreadyExistsError

        if not self.create:
            raise self._missing("the Iceberg table does not exist", "create the table, or pass create=True")
        schema = new_schema(records, self.where)
        spec = new_spec(self.partition_by, schema, self.where)
        try:
            with self.catalog.answering("the Iceberg table cannot be created", self.table):
                return catalog.create_table(self.table, schema, partition_spec=spec, properties=dict(self.properties))
        except TableAlreadyExistsError:
            return self.catalog.load(catalog, self.table)
        except NoSuchNamespaceError:
            raise self._missing("the namespace of the Iceberg table does not exist", "create the namespace") from None

    def _add_columns(self, table: Table, records: pa.Schema) -> bool:
        """Add columns that the table lacks. Return whether the table object is up to date."""
        columns = new_columns(records, table.schema(), self.evolve, self.where)
        if not columns:
            return True
        with table.update_schema() as update:
            for column in columns:
                update.add_column(column.name, column.field_type)
        return False

    def _add_branch(self, table: Table) -> bool:
        """Create the branch from the main branch. Return whether the table object is up to date."""
        if self.branch == MAIN or self.branch in table.refs():
            return True
        head = table.current_snapshot()
        if head is None:
            # A table without snapshots has no other branches: the main branch gets a snapshot without files.
            with table.transaction() as transaction, transaction.update_snapshot().fast_append():
                pass
            return False
        table.manage_snapshots().create_branch(head.snapshot_id, self.branch).commit()
        return False


def check_table_name(table: str, owner: str) -> None:
    """Raise OptionError unless the name has a namespace."""
    parts = table.split(".")
    if len(parts) < 2 or not all(parts):
        raise OptionError(
            f"{table!r} is not the name of an Iceberg table",
            where=f"{owner}(table=)",
            remedy='Write namespace and table, such as "sales.orders"',
        )
