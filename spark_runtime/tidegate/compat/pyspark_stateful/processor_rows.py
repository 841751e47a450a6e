"""Converts between record batches and the rows of a StatefulProcessor: `Row` objects or pandas frames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Row

from tidegate.compat.pyspark_stateful.frame_blocks import frame_access
from tidegate.compat.pyspark_stateful.spark_values import python_values
from tidegate.errors import PipelineError
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS, concat_batches
from tidegate.state.arrow.missing_values import arrow_array
from tidegate.state.keyed_state import KeySet

CONVERTED_ROWS = 1024
"""Rows that a processor returned are converted to columns in such parts; see `processor_calls.MAX_KEYS`."""


class KeyedInput(ABC):
    """The rows of a batch, by key."""

    @abstractmethod
    def of(self, key: int) -> Iterator[Any]:
        """Return the rows of key number `key`, in the form for `handleInputRows`."""


class ProcessorInput(ABC):
    """One form of a processor's rows.

    `add` collects the processor's results until `full`; `batches` converts them to batches of the declared schema.
    """

    def __init__(self, schema: pa.Schema, processor: str, where: str) -> None:
        """Args: schema: of the results. processor: name of its class, for errors."""
        self._schema = schema
        self._processor = processor
        self._where = where
        self._rows = 0
        self._method = "handleInputRows"

    @abstractmethod
    def by_key(self, batch: pa.RecordBatch, keys: KeySet) -> KeyedInput:
        """Return the rows of each key, in order."""

    @abstractmethod
    def keys(self, keys: KeySet) -> list[tuple[Any, ...]]:
        """Return the keys in the form for the processor's methods: tuples with one value for each key column."""

    @property
    def full(self) -> bool:
        """Return whether enough rows for a batch are collected."""
        return self._rows >= MAX_BATCH_ROWS

    def add(self, result: Any, method: str) -> None:
        """Collect one result of the method. Raises PipelineError if it has the wrong type."""
        self._method = method
        self._rows += self._collect(result)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the collected rows. Raises PipelineError if they do not match the declared schema."""
        if not self._rows:
            return
        batch = self._taken()
        self._rows = 0
        for field, array in zip(self._schema, batch.columns, strict=True):
            if not field.nullable and array.null_count:
                raise self.refused(
                    f"column {field.name!r} has nulls, but is declared not null",
                    f"Return a value, or declare {field.name!r} nullable",
                )
        for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
            yield batch.slice(start, MAX_BATCH_ROWS)

    @abstractmethod
    def _collect(self, result: Any) -> int:
        """Store the result, and return its number of rows."""

    @abstractmethod
    def _taken(self) -> pa.RecordBatch:
        """Return the stored rows and forget them."""

    def refused(self, cause: str, remedy: str) -> PipelineError:
        """Return the error for an invalid result."""
        return PipelineError(
            f"a row that {self._method} of the processor {self._processor} returned does not match outputStructType",
            where=self._where,
            cause=cause,
            remedy=remedy,
        )

    def _column(self, field: pa.Field, values: Any) -> pa.Array:
        try:
            return arrow_array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self.refused(
                f"column {field.name!r} is {field.type}: {error}",
                f"Return values of that type, or declare another type for {field.name!r}",
            ) from error


def row_type(names: Sequence[str]) -> type[Row]:
    """Return a class of rows with these names, which differ from other `Row` objects only in speed.

    A `Row` is created, and its fields are found, by Python code. Here both is done by the interpreter.
    """
    fields: Any = namedtuple("Fields", names, rename=True)  # type: ignore[misc]
    getters: dict[str, Any] = {}
    renamed: str
    for name, renamed in zip(names, fields._fields, strict=True):
        # Names of methods stay methods, as in Row; of equal names, the first is found.
        if not name.startswith("__") and not hasattr(Row, name):
            getters.setdefault(name, vars(fields)[renamed])
    return type("Row", (Row,), {**getters, "__fields__": list(names), "__module__": Row.__module__})


class _RowGroups(KeyedInput):
    def __init__(self, batch: pa.RecordBatch, keys: KeySet, row: type[Row]) -> None:
        ordered, self._bounds = _by_key(batch, keys)
        self._made = partial(tuple.__new__, row)
        self._values = list(zip(*map(python_values, ordered.columns), strict=True))

    def of(self, key: int) -> Iterator[Row]:
        return map(self._made, self._values[self._bounds[key] : self._bounds[key + 1]])


class RowObjects(ProcessorInput):
    """`Row` objects: the form of `transformWithState`."""

    def __init__(self, schema: pa.Schema, processor: str, where: str) -> None:
        super().__init__(schema, processor, where)
        self._names = schema.names
        self._flat = not any(pt.is_nested(field.type) for field in schema)
        self._collected: list[tuple[Any, ...]] = []
        self._converted: list[pa.RecordBatch] = []
        self._types: dict[pa.Schema, type[Row]] = {}

    def by_key(self, batch: pa.RecordBatch, keys: KeySet) -> KeyedInput:
        """See `ProcessorInput`."""
        row = self._types.get(batch.schema)
        if row is None:
            row = self._types[batch.schema] = row_type(batch.schema.names)
        return _RowGroups(batch, keys, row)

    def keys(self, keys: KeySet) -> list[tuple[Any, ...]]:
        """See `ProcessorInput`."""
        return list(zip(*map(python_values, keys.columns().columns), strict=True))

    def _collect(self, result: Any) -> int:
        if not isinstance(result, Row):
            raise self.refused(f"the result is a {type(result).__name__}", "Yield pyspark.sql.Row objects")
        if self._flat and getattr(result, "__fields__", None) == self._names and len(result) == len(self._names):
            return self._append(result)
        if not hasattr(result, "__fields__"):
            raise self.refused("the result is a Row without names", "Name the values of the Row: Row(k=..., count=...)")
        values = result.asDict(True)
        return self._append(tuple([values.get(name) for name in self._names]))

    def _append(self, row: tuple[Any, ...]) -> int:
        self._collected.append(row)
        if len(self._collected) == CONVERTED_ROWS:
            self._convert()
        return 1

    def _convert(self) -> None:
        rows, self._collected = self._collected, []
        columns = zip(*rows, strict=True)
        arrays = [self._column(field, list(column)) for field, column in zip(self._schema, columns, strict=True)]
        self._converted.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _taken(self) -> pa.RecordBatch:
        if self._collected:
            self._convert()
        converted, self._converted = self._converted, []
        return concat_batches(converted)


class _FrameGroups(KeyedInput):
    def __init__(self, batch: pa.RecordBatch, keys: KeySet) -> None:
        ordered, self._bounds = _by_key(batch, keys)
        frame, self._guessed = _frame(ordered)
        self._part = frame_access()[0](frame)

    def of(self, key: int) -> Iterator[Any]:
        frame = self._part(self._bounds[key], self._bounds[key + 1])
        for name in self._guessed:
            frame[name] = frame[name].infer_objects()
        yield frame


class PandasFrames(ProcessorInput):
    """pandas frames: the form of `transformWithStateInPandas`. One frame for each key and batch."""

    def __init__(self, schema: pa.Schema, processor: str, where: str) -> None:
        super().__init__(schema, processor, where)
        import pandas as pd

        self._pandas: Any = pd
        self._names = schema.names
        self._columns = frame_access()[1]
        self._collected: list[list[Any]] = [[] for _ in schema]

    def by_key(self, batch: pa.RecordBatch, keys: KeySet) -> KeyedInput:
        """See `ProcessorInput`."""
        return _FrameGroups(batch, keys)

    def keys(self, keys: KeySet) -> list[tuple[Any, ...]]:
        """See `ProcessorInput`; timestamps are pandas' own, without a zone; instants are in UTC."""
        columns = [
            _frame(pa.record_batch([column], names=["key"]))[0]["key"].tolist()
            if pt.is_timestamp(column.type)
            else python_values(column)
            for column in keys.columns().columns
        ]
        return list(zip(*columns, strict=True))

    def _collect(self, result: Any) -> int:
        if not isinstance(result, self._pandas.DataFrame):
            raise self.refused(f"the result is a {type(result).__name__}", "Yield pandas.DataFrame objects")
        names, size = list(result.columns), len(result)
        if names != self._names:
            if not size and not names:
                return 0
            result = self._declared(result, names)
        elif len(names) > 1 and len(set(names)) < len(names):
            result = self._declared(result, names)
        if size:
            for column, values in zip(self._columns(result), self._collected, strict=True):
                values.append(column)
        return size

    def _declared(self, result: Any, names: list[Any]) -> Any:
        """Return the declared columns of a frame with other columns."""
        declared = self._names
        by_name = any(isinstance(name, str) for name in names)
        if len(names) < len(declared) or (by_name and any(names.count(name) != 1 for name in declared)):
            raise self.refused(f"columns are {names}, but {declared} are declared", "Return each declared column once")
        return result[declared] if by_name else result.iloc[:, : len(declared)].set_axis(declared, axis=1)

    def _taken(self) -> pa.RecordBatch:
        collected, self._collected = self._collected, [[] for _ in self._schema]
        arrays = [self._array(field, values) for field, values in zip(self._schema, collected, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        """Return one column. Values of equal types are converted together, as Spark does for one frame."""
        arrays = [self._series(field, _joined(list(run))) for _, run in groupby(values, key=_pandas_type)]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)

    def _series(self, field: pa.Field, values: Any) -> pa.Array:
        """Convert as Spark does: to the declared type, or to pandas' own type and from that safely."""
        series = self._pandas.Series(values, dtype=values.dtype, copy=False)  # the type: objects stay objects
        try:
            return pa.Array.from_pandas(series, type=field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
        try:
            return pa.Array.from_pandas(series).cast(field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self.refused(
                f"column {field.name!r} is {field.type}: {error}",
                f"Return values of that type, or declare another type for {field.name!r}",
            ) from error


def _pandas_type(values: Any) -> Any:
    return values.dtype


def _joined(values: list[Any]) -> Any:
    """Join arrays of one type."""
    if len(values) == 1:
        return values[0]
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return type(values[0])._concat_same_type(values)


def _by_key(batch: pa.RecordBatch, keys: KeySet) -> tuple[pa.RecordBatch, list[int]]:
    """Order the rows by key, stably, and return where each key's rows begin."""
    counts = np.bincount(keys.rows, minlength=keys.size)
    bounds: list[int] = [0, *np.cumsum(counts).tolist()]
    if (np.diff(keys.rows) < 0).any():
        batch = batch.take(pa.array(np.argsort(keys.rows, kind="stable")))
    return batch, bounds


def _frame(batch: pa.RecordBatch) -> tuple[Any, Sequence[str]]:
    """Convert rows to a frame as Spark does, so that results are read with the same types.

    Integers have 64 bits (floats if there are nulls), floats have 64 bits, timestamps without a zone are in
    nanoseconds, instants are in UTC. Also returns the columns whose type depends on each key's rows.
    """
    columns = [array.dictionary_decode() if pt.is_dictionary(array.type) else array for array in batch.columns]
    batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    frame = pa.Table.from_batches([batch]).to_pandas(maps_as_pydicts="strict", date_as_object=True)
    guessed: list[str] = []
    for field in batch.schema:
        if pt.is_timestamp(field.type):
            series = frame[field.name]
            naive = series.dt.tz_convert(None) if field.type.tz is not None else series
            frame[field.name] = naive.astype("datetime64[ns]")
        elif pt.is_floating(field.type):
            frame[field.name] = frame[field.name].astype(np.float64)
        elif pt.is_integer(field.type) and not pt.is_uint64(field.type) and frame[field.name].dtype.kind in "iu":
            frame[field.name] = frame[field.name].astype(np.int64)
        elif pt.is_boolean(field.type) and frame[field.name].dtype == np.object_:
            guessed.append(field.name)
    return frame, guessed
