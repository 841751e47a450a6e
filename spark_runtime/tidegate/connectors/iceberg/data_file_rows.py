"""Rows of one data file of an Iceberg table, with the columns of a schema of the table, without deleted rows.

The columns of a file are found by field id. pyiceberg does the same, but its reader turns a null list or map of
structures into an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table

BUFFER_BYTES = 8 * 2**20
"""Size of a read request, bytes: as pyiceberg has it, suitable for object stores."""
LAST_FORMAT_IN_MICROSECONDS = 2
"""Newest format version whose timestamps are all in microseconds: nanoseconds of a file are cut off."""


def file_batches(
    table: Table, task: FileScanTask, projected: Schema, filter_: BooleanExpression
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a data file that fulfil a filter, without rows that delete files remove.

    Args:
        projected: columns of a schema of the table. A column that the file lacks has its value from the file's
            partition, or its default.
        filter_: with the names of the table's current schema.

    Raises:
        FileNotFoundError: the file, or one of its delete files, is missing.
    """
    from pyiceberg.io.pyarrow import ArrowScan, _get_file_format, _read_all_delete_files

    # Reads nothing: it binds the filter, and finds the ids of the columns.
    scan = ArrowScan(table.metadata, table.io, projected, filter_)
    deletes = _read_all_delete_files(table.io, [task]) if task.delete_files else {}
    removed = deletes.get(task.file.file_path)
    file_format = _get_file_format(task.file.file_format, pre_buffer=True, buffer_size=BUFFER_BYTES)
    with table.io.new_input(task.file.file_path).open() as content:
        fragment = file_format.make_fragment(content)
        rows = _FileColumns(table, task, projected, scan, fragment.physical_schema)
        scanner = ds.Scanner.from_fragment(
            fragment,
            schema=fragment.physical_schema,
            # Positions of deleted rows count all rows of the file, so a filter is applied after them.
            filter=rows.filter if removed is None else None,
            columns=rows.names,
        )
        first = 0
        for batch in scanner.to_batches():
            kept = batch if removed is None else _without(batch, removed, first, rows.filter)
            first += batch.num_rows
            if kept.num_rows:
                yield rows.projected(kept)


def _without(batch: pa.RecordBatch, removed: list[pa.ChunkedArray], first: int, filter_: Any) -> pa.RecordBatch:
    """Return the rows whose position is not removed and that fulfil the filter. Args: first: position of the batch."""
    from pyiceberg.io.pyarrow import _combine_positional_deletes

    kept = batch.take(_combine_positional_deletes(removed, first, first + batch.num_rows))
    if filter_ is None:
        return kept
    # Older versions of Arrow cannot filter a batch without rows, but a table.
    batches = pa.Table.from_batches([kept]).filter(filter_).combine_chunks().to_batches()
    return batches[0] if batches else kept.slice(0, 0)


class _FileColumns:
    """The columns of one file, and their conversion to columns of the table.

    Attributes:
        names: of the columns to read.
        filter: for the rows to read; None: all.
    """

    def __init__(self, table: Table, task: FileScanTask, projected: Schema, scan: Any, physical: pa.Schema) -> None:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.expressions.visitors import bind, translate_column_names
        from pyiceberg.io.pyarrow import _get_column_projection_values, expression_to_pyarrow, pyarrow_to_schema
        from pyiceberg.schema import prune_columns

        metadata = table.metadata
        self._projected = projected
        self._cuts_nanoseconds = metadata.format_version <= LAST_FORMAT_IN_MICROSECONDS
        in_file = pyarrow_to_schema(
            physical,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=self._cuts_nanoseconds,
            format_version=metadata.format_version,
        )
        spec = metadata.specs().get(task.file.spec_id)
        self._missing = _get_column_projection_values(task.file, projected, metadata.schema(), spec, in_file.field_ids)
        self.filter: Any = None
        if scan._bound_row_filter != AlwaysTrue():
            translated = translate_column_names(scan._bound_row_filter, in_file, True, self._missing)
            self.filter = expression_to_pyarrow(bind(in_file, translated, case_sensitive=True), in_file)
        self._read: Schema = prune_columns(in_file, scan._projected_field_ids, select_full_types=False)
        self.names = [column.name for column in self._read.columns]

    def projected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the file with the columns of the table."""
        from pyiceberg.io.pyarrow import ArrowAccessor
        from pyiceberg.schema import visit_with_partner

        visitor = _projection()(
            self._read,
            self._cuts_nanoseconds,
            projected_missing_fields=self._missing,
            allow_timestamp_tz_mismatch=True,
        )
        made = visit_with_partner(self._projected, batch, visitor, ArrowAccessor(self._read))
        return pa.RecordBatch.from_struct_array(made)


def _projection() -> type[Any]:
    """Return pyiceberg's projection of columns, with lists and maps that may be null."""
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor
    from pyiceberg.types import ListType, MapType

    class Projection(ArrowProjectionVisitor):
        def list(self, list_type: ListType, list_array: Any, value_array: Any) -> Any:
            if list_array is None or value_array is None:
                return None
            values = self._cast_if_needed(list_type.element_field, value_array)
            element = self._construct_field(list_type.element_field, values.type)
            is_large = isinstance(list_array, pa.LargeListArray)
            kind, made = (pa.large_list, pa.LargeListArray) if is_large else (pa.list_, pa.ListArray)
            return made.from_arrays(_offsets(list_array), values, type=kind(element))

        def map(self, map_type: MapType, map_array: Any, key_result: Any, value_result: Any) -> Any:
            if map_array is None or key_result is None or value_result is None:
                return None
            keys = self._cast_if_needed(map_type.key_field, key_result)
            items = self._cast_if_needed(map_type.value_field, value_result)
            kind = pa.map_(
                self._construct_field(map_type.key_field, keys.type),
                self._construct_field(map_type.value_field, items.type),
            )
            return pa.MapArray.from_arrays(_offsets(map_array), keys, items, type=kind)

    return Projection


def _offsets(array: Any) -> pa.Array:
    """Return the offsets of a list or map, with null for each null value."""
    offsets = array.offsets.to_numpy()
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(offsets, mask=np.append(is_null, False))
