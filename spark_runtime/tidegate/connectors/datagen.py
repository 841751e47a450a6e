"""DataGen: a source that computes records from row numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.interface import Boundedness, PollResult, Source, SourceContext, SourceReader, Split
from tidegate.connectors.row_pacer import RowPacer
from tidegate.errors import OptionError, PipelineError
from tidegate.state.arrow.missing_values import arrow_array

RowFunction = Callable[[npt.NDArray[np.int64]], "pa.RecordBatch | Mapping[str, Any]"]
"""Function from row numbers (int64, ascending) to records: a RecordBatch, or one array (numpy, Arrow, list) per column.

It must be pure: the same row number always yields the same record, however the numbers are divided into batches.
"""

DEFAULT_BATCH_ROWS = 65_536


class DataGen(Source):
    """Source that makes records from row numbers 0, 1, 2, ...

    It is deterministic, so a restored run neither repeats nor skips a row. With `rows` it is bounded: split s of S
    holds the contiguous range [s * rows // S, (s + 1) * rows // S). Without `rows` it is unbounded: split s of S holds
    the rows s, s + S, s + 2 S, ... The position of a split is the number of rows it has emitted (S4.2).

    Args:
        function: gets row numbers (int64[n]), and returns their rows: a pyarrow.RecordBatch, or a dict of column name
            -> n values. It runs in the slots. Its arrays are not copied, so it must not change them in a later call.
        schema: schema of the records; each batch is checked against it.
        rows: number of rows over all splits; None: unbounded.
        splits: number of splits; None: the source's parallelism at the first start.
        rate: rows per second over all splits; None: as fast as downstream operators accept them.
        batch_rows: maximum number of rows in one batch.

    Raises:
        OptionError: a number is out of range.
    """

    def __init__(
        self,
        function: RowFunction,
        schema: pa.Schema,
        *,
        rows: int | None = None,
        splits: int | None = None,
        rate: float | None = None,
        batch_rows: int = DEFAULT_BATCH_ROWS,
    ) -> None:
        if not isinstance(schema, pa.Schema):
            raise OptionError(
                f"schema must be a pyarrow.Schema, but is a {type(schema).__name__}",
                where="DataGen(schema=...)",
                remedy='Write schema=pa.schema([("id", pa.int64())])',
            )
        for name, value, least in (("rows", rows, 0), ("splits", splits, 1), ("batch_rows", batch_rows, 1)):
            if value is not None and value < least:
                raise OptionError(
                    f"{name}={value} is too small", where=f"DataGen({name}=...)", remedy=f"Use {least} or more"
                )
        if rate is not None and not rate > 0:
            raise OptionError(
                f"rate={rate} is not positive",
                where="DataGen(rate=...)",
                remedy="Pass the rows per second, or None for no limit",
            )
        self._function = function
        self._schema = schema
        self._rows = rows
        self._splits = splits
        self._rate = rate
        self._batch_rows = batch_rows

    @property
    def boundedness(self) -> Boundedness:
        """Return `bounded` if `rows` was passed."""
        return "unbounded" if self._rows is None else "bounded"

    def schema(self) -> pa.Schema:
        """Return the schema that the user passed."""
        return self._schema

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return `splits` splits; the data of each is (first row, step, rows or None)."""
        count = self._splits or parallelism
        made = []
        for s in range(count):
            if self._rows is None:
                data: dict[str, Any] = {"first": s, "step": count, "rows": None}
                weight = 1
            else:
                first, stop = s * self._rows // count, (s + 1) * self._rows // count
                data = {"first": first, "step": 1, "rows": stop - first}
                weight = max(1, stop - first)
            made.append(Split(f"rows-{s:05d}-of-{count:05d}", {**data, "share": 1 / count}, weight=weight))
        return made

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader that emits one batch of each split in turn."""
        return DataGenReader(
            self._function, self._schema, self._rate, self._batch_rows, ctx, bounded=self._rows is not None
        )

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        """Return no split: records can always be computed again."""
        return ()

    def describe(self) -> str:
        """Describe rows and rate."""
        parts = ["unbounded" if self._rows is None else f"{self._rows:,} rows"]
        if self._rate is not None:
            parts.append(f"{self._rate:g} rows/s")
        return f"DataGen({', '.join(parts)})"


class _OpenSplit:
    """Progress of one split."""

    __slots__ = ("emitted", "first", "pacer", "rows", "split", "step")

    def __init__(self, split: Split, rate: float | None) -> None:
        self.split = split
        self.first: int = split.data["first"]
        self.step: int = split.data["step"]
        self.rows: int | None = split.data["rows"]
        self.emitted: int = split.position or 0
        self.pacer = None if rate is None else RowPacer(rate * split.data["share"])

    def left(self) -> int | None:
        """Return the number of rows not emitted yet; None: unlimited."""
        return None if self.rows is None else self.rows - self.emitted


class DataGenReader(SourceReader):
    """Reader of `DataGen`. Emits one batch of each split in turn."""

    def __init__(
        self,
        function: RowFunction,
        schema: pa.Schema,
        rate: float | None,
        batch_rows: int,
        ctx: SourceContext,
        *,
        bounded: bool,
    ) -> None:
        self._function = function
        self._schema = schema
        self._names = set(schema.names)
        self._fields = [(field.name, field.type, _raw_dtype(field.type)) for field in schema]
        self._rate = rate
        self._batch_rows = batch_rows
        self._ctx = ctx
        self._all: list[_OpenSplit] = []
        self._turn: deque[_OpenSplit] = deque()
        self._bounded = bounded

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits at their positions."""
        self._all = [_OpenSplit(s, self._rate) for s in splits]
        self._turn = deque(s for s in self._all if s.left() != 0)

    def poll(self, now_ms: int) -> PollResult:
        """Return the next batch of the split whose turn it is; `end` when all splits are read."""
        turn = self._turn
        if not turn:
            return (
                PollResult(state="end")
                if self._bounded
                else PollResult(state="nothing_now", retry_at_ms=now_ms + 1000, idle=True)
            )
        retry_at_ms = None
        for _ in range(len(turn)):
            current = turn[0]
            wanted = self._batch_rows
            left = current.left()
            if left is not None:
                wanted = min(wanted, left)
            if current.pacer is not None:
                wanted = min(wanted, current.pacer.due(now_ms))
                if wanted == 0:
                    due_ms = current.pacer.next_due_ms(now_ms)
                    retry_at_ms = due_ms if retry_at_ms is None else min(retry_at_ms, due_ms)
                    turn.rotate(-1)
                    continue
            return self._emit(current, wanted, now_ms)
        return PollResult(state="nothing_now", retry_at_ms=retry_at_ms or now_ms)

    def _emit(self, current: _OpenSplit, wanted: int, now_ms: int) -> PollResult:
        start = current.first + current.emitted * current.step
        batch = self._make(np.arange(start, start + wanted * current.step, current.step, dtype=np.int64))
        current.emitted += wanted
        if current.pacer is not None:
            current.pacer.emitted(wanted, now_ms)
        if current.emitted == current.rows:
            self._turn.popleft()
        elif len(self._turn) > 1:
            self._turn.rotate(-1)
        split_id = current.split.split_id
        if current.pacer is not None and len(self._turn) == 1 and current.emitted != current.rows:
            retry_at_ms = current.pacer.next_due_ms(now_ms)
            if retry_at_ms > now_ms:
                return PollResult(batch, split_id, "nothing_now", retry_at_ms)
        return PollResult(batch, split_id)

    def _make(self, numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
        made = self._function(numbers)
        if not isinstance(made, pa.RecordBatch):
            made = self._from_columns(made)
        elif not made.schema.equals(self._schema):
            raise PipelineError(
                "the function of DataGen returned a schema that differs from schema=",
                where=self._where(),
                cause=f"declared {_one_line(self._schema)}, returned {_one_line(made.schema)}",
                remedy="Return the columns and types declared in schema=",
            )
        if made.num_rows != len(numbers):
            raise PipelineError(
                f"the function of DataGen returned {made.num_rows} rows for {len(numbers)} row numbers",
                where=self._where(),
                remedy="Return exactly one row per row number",
            )
        return made

    def _where(self) -> str:
        return f"source {self._ctx.uid!r}, subtask {self._ctx.subtask}"

    def _from_columns(self, columns: Mapping[str, Any]) -> pa.RecordBatch:
        if type(columns) is not dict and not isinstance(columns, Mapping):  # the first test is cheap
            raise PipelineError(
                f"the function of DataGen returned {type(columns).__name__}",
                where=self._where(),
                remedy="Return a pyarrow.RecordBatch or a dict of arrays",
            )
        if columns.keys() != self._names:
            missing, extra = self._names - columns.keys(), columns.keys() - self._names
            raise PipelineError(
                "the function of DataGen returned columns that differ from schema=",
                where=self._where(),
                cause=f"missing {sorted(missing)}, undeclared {sorted(extra)}",
                remedy="Return exactly the columns declared in schema=",
            )
        arrays = []
        for name, type_, raw in self._fields:
            column = columns[name]
            try:
                if (
                    isinstance(column, np.ndarray)
                    and column.dtype == raw
                    and column.ndim == 1
                    and column.flags.c_contiguous
                ):
                    column = pa.Array.from_buffers(type_, len(column), [None, pa.py_buffer(column)])
                elif not isinstance(column, pa.Array):
                    of_python = isinstance(column, list | tuple)
                    column = arrow_array(column, type_) if of_python else pa.array(column, type=type_)
                elif column.type != type_:
                    raise pa.ArrowTypeError(f"got {column.type}")
            except (pa.ArrowException, TypeError, ValueError) as e:
                raise PipelineError(
                    f"column {name!r} from the function of DataGen is not {type_}",
                    where=self._where(),
                    cause=str(e),
                    remedy="Return the type declared in schema=",
                ) from e
            arrays.append(column)
        try:
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        except ValueError as e:
            raise PipelineError(
                "the columns from the function of DataGen cannot form one batch",
                where=self._where(),
                cause=str(e),
                remedy="Return exactly one value per row number in each column",
            ) from e

    def snapshot(self) -> Sequence[Split]:
        """Return all splits, each with the number of rows it has emitted."""
        return [replace(s.split, position=s.emitted, finished=s.left() == 0) for s in self._all]

    def progress(self) -> Mapping[str, Any]:
        """Return the rows emitted by this reader's splits, over all runs."""
        return {"rows": sum(s.emitted for s in self._all)}


def _raw_dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the numpy dtype with the same memory layout as `kind`, so that a column needs no conversion; None:
    convert.
    """
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    if (
        pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_date64(kind)
    ):
        return np.dtype(np.int64)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return np.dtype(np.int32)
    return None


def _one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in schema)
