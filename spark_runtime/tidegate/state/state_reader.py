"""`tidegate.read_state`: a state of a snapshot as an Arrow table, a stream of batches, or a Spark DataFrame."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.jobs.stores.store import Store
from tidegate.snapshot.reader import SnapshotReader
from tidegate.state.backend_registry import new_backend
from tidegate.state.rocksdb.file_reader import RocksFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@overload
def read_state(path: str, uid: str, state: str, *, storage_options: Mapping[str, Any] | None = None) -> pa.Table: ...
@overload
def read_state(
    path: str, uid: str, state: str, *, spark: SparkSession, storage_options: Mapping[str, Any] | None = None
) -> DataFrame: ...


def read_state(
    path: str,
    uid: str,
    state: str,
    *,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table | DataFrame:
    """Return all rows of state `state` of operator `uid` of a snapshot.

    Args:
        path: folder of the snapshot, absolute or a URL.
        spark: session; if passed, the result is a DataFrame instead of a table. Spark's tasks read its rows, one task
            for each subtask of the snapshot, and must be able to read the folder. Unsigned integers become the next
            wider type.
        storage_options: options of the folder's store; secrets as references.

    Raises:
        OptionError: the operator or state does not exist; the message suggests the nearest name.
        SnapshotError: the snapshot is incomplete or damaged, or has files that only another back end reads.
    """
    reader = open_reader(path, storage_options)
    if spark is None:
        return state_batches(reader, uid, state).read_all()
    from pyspark.sql.pandas.types import from_arrow_schema

    subtasks = reader.subtasks(uid, state)
    schema = spark_schema(state_batches(reader, uid, state).schema)
    read = _by_number(path, storage_options, uid, state, subtasks, schema)
    count = len(subtasks)
    return spark.range(0, count, 1, count).mapInArrow(read, from_arrow_schema(schema))


def read_state_batches(
    path: str, uid: str, state: str, *, storage_options: Mapping[str, Any] | None = None
) -> pa.RecordBatchReader:
    """Return a reader like `read_state`, batch by batch, for states larger than memory. Reading may raise errors of the
    store.
    """
    return state_batches(open_reader(path, storage_options), uid, state)


def open_reader(
    path: str, storage_options: Mapping[str, Any] | None = None, *, root: Store | None = None
) -> SnapshotReader:
    """Return a snapshot's reader that can read the files of every back end. See `SnapshotReader`."""
    return SnapshotReader(
        path, storage_options, root=root, native={"rocksdb": RocksFiles(partial(new_backend, "rocksdb"))}
    )


def state_batches(reader: SnapshotReader, uid: str, state: str) -> pa.RecordBatchReader:
    """Return a reader of the rows of a state, in pieces."""
    tables = reader.tables(uid, state)
    first = next(tables)

    def batches() -> Iterator[pa.RecordBatch]:
        for table in itertools.chain([first], tables):
            if not table.schema.equals(first.schema):
                raise SnapshotError(
                    f"state {state!r} has different columns in the subtasks of the snapshot",
                    where=f"snapshot {reader.path}, operator {uid!r}",
                    cause=f"the columns are {table.schema} and {first.schema}",
                    remedy="Read another snapshot",
                )
            yield from table.to_batches()

    return pa.RecordBatchReader.from_batches(first.schema, batches())


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns as Spark has them. Spark has no unsigned integers: the next wider type stores all values."""
    signed = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
    }
    return pa.schema([field.with_type(signed.get(field.type, field.type)) for field in schema])


def _by_number(
    path: str,
    storage_options: Mapping[str, Any] | None,
    uid: str,
    state: str,
    subtasks: Sequence[int],
    schema: pa.Schema,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for Spark's tasks: from rows with numbers to the rows of these elements of `subtasks`."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = [subtasks[n] for batch in numbers for n in batch.column(0).to_pylist()]
        for table in open_reader(path, storage_options).tables(uid, state, wanted):
            yield from table.cast(schema).to_batches()

    return read
