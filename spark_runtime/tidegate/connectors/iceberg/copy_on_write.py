"""Files of an Iceberg table that hold rows with some keys, and the rows of these files that stay.

pyiceberg writes no delete files, so a file with such a row is written again without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.connectors.iceberg.catalog import IcebergCatalog
from tidegate.connectors.iceberg.data_file_rows import file_batches
from tidegate.connectors.iceberg.table_columns import plain_schema
from tidegate.connectors.upserts.key_set import Bounds, KeySet, has_plain_order
from tidegate.errors import SinkConflictError

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.types import NestedField

FIRST_DAY, LAST_DAY = (day.toordinal() - date(1970, 1, 1).toordinal() for day in (date.min, date.max))
"""Days since 1970-01-01 of the dates that Python has."""

Source = tuple[str, frozenset[str]]
"""Content of a data file: its path, and the paths of its delete files."""


def source_of(task: FileScanTask) -> Source:
    """Return the content that a scan reads. It changes if another program deletes rows of the file."""
    return task.file.file_path, frozenset(file.file_path for file in task.delete_files)


def key_schema(table: Schema, key: Sequence[str]) -> pa.Schema:
    """Return the key columns with the types that keys are compared in."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    plain = plain_schema(schema_to_pyarrow(table.select(*key), include_field_ids=False))
    # A uuid is an extension type of Arrow, which has no comparisons.
    kinds = {f.name: f.type.storage_type if isinstance(f.type, pa.BaseExtensionType) else f.type for f in plain}
    return pa.schema([pa.field(name, kinds[name], nullable=False) for name in key])


class KeyedFiles:
    """Search for keys in the files of a table. Remembers results, because files never change. May block.

    Args:
        name: the table.
        keys: the keys to find.
        where: the sink and transaction, for messages.
    """

    def __init__(self, catalog: IcebergCatalog, name: str, keys: KeySet, where: str) -> None:
        self._catalog = catalog
        self._name = name
        self._keys = keys
        self._where = where
        self._known: dict[Source, bool] = {}

    def affected(self, table: Table, snapshot_id: int | None) -> list[FileScanTask]:
        """Return the files of a snapshot that hold one of the keys, in order of their paths.

        Args:
            snapshot_id: None: the table has no snapshot.

        Raises:
            SinkConflictError: the snapshot has equality deletes, or a file is missing.
            OutageError: the table's storage does not answer.
        """
        if snapshot_id is None:
            return []
        scan = table.scan(row_filter=self._range(), snapshot_id=snapshot_id)
        try:
            with self._catalog.answering("the Iceberg table cannot be read", self._name):
                tasks = list(scan.plan_files())
        except ValueError as e:
            raise SinkConflictError(
                "the rows of the Iceberg table cannot be replaced",
                where=self._where,
                cause=str(e),
                remedy="Rewrite the data files without the deleted rows (rewrite_data_files in Spark). The data stays "
                "staged, and the next start repeats the commit",
            ) from e
        found = [task for task in tasks if self._keys.may_be_within(self._bounds(table, task.file))]
        return sorted((task for task in found if self._has_key(table, task)), key=lambda task: task.file.file_path)

    def _range(self) -> BooleanExpression:
        """Return a condition that all keys fulfil, by which pyiceberg leaves out manifests and files."""
        from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual

        # Pydantic's signature of these classes has only their fields.
        at_least: Any = GreaterThanOrEqual
        at_most: Any = LessThanOrEqual
        condition: BooleanExpression = AlwaysTrue()
        kinds = dict(zip(self._keys.names, self._keys.types, strict=True))
        for name, (low, high) in self._keys.bounds().items():
            # Transforms of pyiceberg compute with Python's calendar, which lacks years that tables may have.
            if not pt.is_date(kinds[name]) or (low >= FIRST_DAY and high <= LAST_DAY):
                condition = And(condition, And(at_least(name, low), at_most(name, high)))
        return condition

    def _bounds(self, table: Table, file: DataFile) -> Bounds:
        found = {}
        for name, kind in zip(self._keys.names, key_schema(table.schema(), self._keys.names).types, strict=True):
            column = table.schema().find_field(name)
            ends = [_bound(of, column, kind) for of in (file.lower_bounds, file.upper_bounds)]
            if ends[0] is not None and ends[1] is not None:
                found[name] = (ends[0], ends[1])
        return found

    def _has_key(self, table: Table, task: FileScanTask) -> bool:
        of = source_of(task)
        if of not in self._known:
            projected = table.schema().select(*self._keys.names)
            self._known[of] = any(self._holds(rows).any() for rows in self._read(table, task, projected))
        return self._known[of]

    def staying(self, table: Table, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file without the keys, with all columns of the table."""
        for rows in self._read(table, task, table.schema()):
            stays = ~self._holds(rows)
            if stays.all():
                yield rows
            elif stays.any():
                # `take`, because Arrow cannot filter all types that files have.
                yield rows.take(pa.array(np.flatnonzero(stays)))

    def _holds(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        columns = [rows.column(name) for name in self._keys.names]
        plain = [one.storage if isinstance(one.type, pa.BaseExtensionType) else one for one in columns]
        return self._keys.holds([one.cast(kind) for one, kind in zip(plain, self._keys.types, strict=True)])

    def _read(self, table: Table, task: FileScanTask, projected: Schema) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.table import FileScanTask

        # Without the residual of the search: rows outside the range of the keys stay.
        whole = FileScanTask(task.file, set(task.delete_files))
        try:
            with self._catalog.answering("a data file of the Iceberg table cannot be read", self._name):
                yield from file_batches(table, whole, projected, AlwaysTrue())
        except FileNotFoundError as e:
            raise SinkConflictError(
                "a data file of the Iceberg table is missing, so its rows cannot be replaced",
                where=f"{self._where}, {task.file.file_path}",
                cause="another program has removed it, although the table still needs it",
                remedy="Restore the file from a backup, or remove it from the table",
            ) from e


def _bound(bounds: Mapping[int, bytes] | None, column: NestedField, kind: pa.DataType) -> Any:
    """Return a bound of a column in a file; None: it is not known, or its order is not the order of values."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    content = (bounds or {}).get(column.field_id)
    if content is None or not has_plain_order(kind) or not isinstance(column.field_type, PrimitiveType):
        return None
    value: Any = from_bytes(column.field_type, content)
    return value
