"""What an aggregate is, apart from how it is computed: functions, the columns of their state, and the contract of a
user's own. Light: the pipeline and the documents of graphs ask it too (S5.1, S5.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.state.keys.key_types import stored_type

AggregateFunction = Literal[
    "count", "sum", "min", "max", "mean", "var", "stddev", "count_distinct", "collect_set", "collect", "first", "last",
    "min_by", "max_by", "top_n", "bottom_n", "top_rows", "bottom_rows", "user",
]  # fmt: skip
SETS = frozenset({"count_distinct", "collect_set"})
ROWS = frozenset({"top_rows", "bottom_rows"})
LISTS = frozenset({"collect", "top_n", "bottom_n", *SETS, *ROWS})
"""Functions whose state is a list for each entry."""
BY_ANOTHER = frozenset({"first", "last", "min_by", "max_by", "collect", "top_n", "bottom_n", *ROWS})
"""Functions that may take columns at the end, which the rows are ordered by."""

Selection: TypeAlias = slice | npt.NDArray[np.int32]
"""Entries: a range of them, or any by number."""
Groups: TypeAlias = npt.NDArray[np.int32]


class ArrowAggregate:
    """An aggregate of your own, over Arrow columns and many groups at once; subclass it, and use an instance with
    `user_aggregate`. Its state is rows of declared Arrow columns, so it is part of snapshots and moves with a rescale.

    The instance is shared by all windows and threads of a subtask: its methods must not change it, and be pure and
    deterministic. `merge` must be associative: it is called with any grouping of neighbouring states.

    Attributes:
        state: columns of the state of a group.
        result_type: of the result.
    """

    state: pa.Schema
    result_type: pa.DataType

    def accumulate(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.RecordBatch:
        """The states of the rows of a batch: row i is of group `groups[i]`; gives a row of `state` for each of groups
        0..count - 1, every one of which has rows. Nulls are left in."""
        raise NotImplementedError

    def merge(self, states: pa.RecordBatch, groups: Groups, count: int) -> pa.RecordBatch:
        """One state for each of groups 0..count - 1: state i is of group `groups[i]`, earlier ones first."""
        raise NotImplementedError

    def result(self, states: pa.RecordBatch) -> pa.Array:
        """The result of each state, of `result_type`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Aggregation:
    """An aggregate bound to types.

    Attributes:
        name: of the output column.
        function: what it computes.
        types: of its input columns, as a stream has them; none: rows are counted.
        output: type of the result.
        n: rows of top_n; of var and stddev what is taken off the divisor.
        orders: as many columns at the end are what rows are ordered by, of `BY_ANOTHER`.
        user: of function "user".
        columns: names of the columns, of `ROWS`.
    """

    name: str
    function: AggregateFunction
    types: tuple[pa.DataType, ...]
    output: pa.DataType
    n: int = 0
    orders: int = 0
    user: ArrowAggregate | None = None
    columns: tuple[str, ...] = ()

    @property
    def is_numeric(self) -> bool:
        """Its state is a few numbers."""
        if self.function in ("count", "mean", "var", "stddev"):
            return True
        return self.function in ("sum", "min", "max") and is_numeric_type(self.types[0])

    def state_schema(self) -> pa.Schema:
        """Columns of the state, a row for each entry."""
        if self.function == "user":
            assert self.user is not None
            return pa.schema([pa.field(f"user:{self.name}:{field.name}", field.type) for field in self.user.state])
        if self.function in ("var", "stddev"):
            count = pa.field(f"{self.function}_count:{self.name}", pa.int64())
            return pa.schema([count, *(pa.field(f"{self.function}_{x}:{self.name}", pa.float64()) for x in _MOMENTS)])
        if self.is_numeric:
            return numeric_state_schema(self.name, self.function, self.types[0] if self.types else None)
        names = [f"{self.function}:{self.name}"]
        if self.function in ROWS:
            names = [f"{names[0]}:{column}" for column in self.columns]
        names += [f"{self.function}_{order}:{self.name}" for order in ("by", "then")[: self.orders]]
        types = self.logged_types()
        if self.function in LISTS:
            types = [pa.list_(type_) for type_ in types]
        return pa.schema(zip(names, types, strict=True))

    def logged_types(self) -> list[pa.DataType]:
        """Types of the values that are kept as such."""
        if self.function == "sum":
            return [self.output]
        return [stored_type(type_) for type_ in self.types]


_MOMENTS = ("mean", "squares")


def is_numeric_type(type_: pa.DataType) -> bool:
    """min and max of it are kept as a number of eight bytes."""
    plain = pt.is_integer(type_) or pt.is_float32(type_) or pt.is_float64(type_) or pt.is_boolean(type_)
    return bool(plain or pt.is_timestamp(type_) or pt.is_date(type_) or pt.is_time(type_) or pt.is_duration(type_))


def numeric_dtype(function: str, type_: pa.DataType | None) -> np.dtype[Any]:
    """Of the numbers that count, sum, min, max or mean keep."""
    if function == "mean" or (function != "count" and type_ is not None and pt.is_floating(type_)):
        return np.dtype(np.float64)
    if function in ("min", "max") and type_ is not None and pt.is_uint64(type_):
        return np.dtype(np.uint64)
    return np.dtype(np.int64)


def numeric_state_schema(name: str, function: str, type_: pa.DataType | None) -> pa.Schema:
    """State of count, sum, min, max or mean."""
    fields = [pa.field(f"{function}:{name}", pa.from_numpy_dtype(numeric_dtype(function, type_)))]
    if function == "mean":
        fields.append(pa.field(f"mean_count:{name}", pa.int64()))
    return pa.schema(fields)


class ReadValues(Protocol):
    """What an aggregate has read of a batch."""

    def part(self, start: int, stop: int) -> Any:
        """Rows start..stop."""


StateColumns: TypeAlias = Callable[[Any, int, int], list[pa.Array]]
"""Gives the state columns of entries start..stop, given a frozen copy of the arrays of exactly those."""


class Accumulating(Protocol):
    """An aggregate of every entry 0, 1, 2, ... What it holds for one can be had as Arrow columns (`state`), and folded
    into another (`merge`): that is how panes become windows, sessions one, and snapshots state again.

    Not safe for several threads, but for what `freeze` gives. Whoever calls `add` or `merge` has made room in the Cells
    that it was made with, and has touched the entries.
    """

    state_schema: pa.Schema

    def read(self, columns: Sequence[pa.Array]) -> Any:
        """The aggregate's columns of a batch, as `add` takes them."""

    def add(self, entries: npt.NDArray[np.int32], values: Any, known: int) -> None:
        """Take a row for each of `entries`; those from `known` on are new. Raises SumOverflowError."""

    def merge(self, entries: npt.NDArray[np.int32], columns: Sequence[pa.Array], known: int) -> None:
        """Fold row i of state columns into `entries[i]`, in order; an entry may come several times."""

    def state(self, entries: Selection) -> list[pa.Array]:
        """State columns of some entries, a row for each."""

    def result(self, entries: Selection) -> pa.Array:
        """Output column of some entries."""

    def freeze(self) -> StateColumns:
        """The state as it is now, but for what is in the Cells; for any thread."""
