"""What an aggregate is: the description that a package registers, an aggregate of one column bound to types, and the
contract of what computes it; and the contract of a user's own. Light: the pipeline asks it too (S5.1, S5.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.state.cells import CopyOnWriteArrays
from tidegate.state.keys.key_types import is_key_type

SORTABLE = "numbers, decimals, strings, binary, booleans, dates and times"
"""Types that can be compared, in words; see `is_sortable`."""
RESERVED_NAMES = frozenset({"key", "map", "value"})
"""Prefixes of other columns of a state: no aggregate can have such a name."""

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


class AggregateArguments(Protocol):
    """What an aggregate was called with, before types are known."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns; the last `orders` are what rows are ordered by."""

    @property
    def n(self) -> int:
        """A number that the aggregate takes, such as the rows of top_n; 0: none was passed."""

    @property
    def orders(self) -> int:
        """As many columns, at the end, are what rows are ordered by."""

    @property
    def user(self) -> ArrowAggregate | None:
        """Of function "user"."""


def accept_all(arguments: AggregateArguments) -> None:
    """The check of an aggregate that takes any arguments."""


def cast_first(column: str, type_: pa.DataType) -> str:
    """How to make a number of a column, as part of a remedy."""
    as_float = pt.is_decimal(type_) or pt.is_float16(type_) or pt.is_string(type_)
    cast = "pa.float64()" if as_float else "pa.int64()"
    return f"to use the column as a number, cast it first: .with_columns({column}=pc.field({column!r}).cast({cast}))"


@dataclass(frozen=True, kw_only=True)
class AggregateFunction:
    """An aggregate as its module describes it. Built-in ones are listed in `aggregate_registry`; a package of your own
    registers one as an entry point of the group `tidegate.aggregates`, under its name. `AggregateConformance` of
    `tidegate.testing` checks it.

    Attributes:
        name: prefix of its columns in snapshots, so it never changes: `<name>:<output column>`, and for more than one
            `<name>_<part>:<output column>`.
        result_type: (types of the columns, arguments) -> type of the result; None: these types are not offered.
        state_schema: columns of the state, a row for each entry. All are nullable, and a state without rows is one that
            `merge` takes.
        accumulator: makes what computes it, with its arrays, where it has any, in the cells. An array's name begins
            with that of the output column.
        check: raises PipelineError for arguments that do not fit, without saying where in the pipeline.
        word: what users call it, in error messages; default: `name`.
        needs_column: it cannot count rows.
        most_columns: as many columns at most, besides those that rows are ordered by; None: any number.
        by: whether rows can be, or must be, ordered by another column.
        by_time: rows count in the order of event time, where the stream has one: its column is added to those that
            rows are ordered by.
        takes: types that it takes, in words.
        conversion: (column, type) -> how to make one of these types of a column, as the end of a remedy.
    """

    name: str
    result_type: Callable[[Sequence[pa.DataType], AggregateArguments], pa.DataType | None]
    state_schema: Callable[[Aggregation], pa.Schema]
    accumulator: Callable[[Aggregation, CopyOnWriteArrays], AggregateState]
    check: Callable[[AggregateArguments], None] = accept_all
    word: str = ""
    needs_column: bool = True
    most_columns: int | None = 1
    by: Literal["none", "optional", "required"] = "none"
    by_time: bool = False
    takes: str = SORTABLE
    conversion: Callable[[str, pa.DataType], str] = cast_first

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in RESERVED_NAMES:
            raise ValueError(f"{self.name!r} cannot be the prefix of an aggregate's columns in snapshots")
        if not self.word:
            object.__setattr__(self, "word", self.name)


@dataclass(frozen=True)
class Aggregation:
    """An aggregate bound to types.

    Attributes:
        name: of the output column.
        function: what it computes.
        types: of its input columns, as a stream has them; none: rows are counted.
        output: type of the result.
        n: rows of top_n; of var and stddev what is taken off the divisor.
        orders: as many columns at the end are what rows are ordered by.
        user: of function "user".
        columns: names of the columns, without those that rows are ordered by.
    """

    name: str
    function: AggregateFunction
    types: tuple[pa.DataType, ...]
    output: pa.DataType
    n: int = 0
    orders: int = 0
    user: ArrowAggregate | None = None
    columns: tuple[str, ...] = ()

    def state_schema(self) -> pa.Schema:
        """Columns of the state, a row for each entry."""
        return self.function.state_schema(self)

    def accumulator(self, cells: CopyOnWriteArrays) -> AggregateState:
        """An empty one, with its numbers, where it keeps some, in `cells`."""
        return self.function.accumulator(self, cells)


def is_number(type_: pa.DataType) -> bool:
    """A whole number, or a float of 32 or 64 bits."""
    return bool(pt.is_integer(type_) or pt.is_float32(type_) or pt.is_float64(type_))


def is_numeric_type(type_: pa.DataType) -> bool:
    """min and max of it are kept as a number of eight bytes."""
    plain = is_number(type_) or pt.is_boolean(type_)
    return bool(plain or pt.is_timestamp(type_) or pt.is_date(type_) or pt.is_time(type_) or pt.is_duration(type_))


def is_sortable(type_: pa.DataType) -> bool:
    """Values of it can be compared: `SORTABLE`."""
    return is_numeric_type(type_) or (is_key_type(type_) and not pt.is_float16(type_))


class ReadValues(Protocol):
    """What an aggregate has read of a batch."""

    def part(self, start: int, stop: int) -> Any:
        """Rows start..stop."""


StateColumns: TypeAlias = Callable[[Any, int, int], list[pa.Array]]
"""Gives the state columns of entries start..stop, given a frozen copy of the arrays of exactly those."""


class AggregateState(Protocol):
    """An aggregate of every entry 0, 1, 2, ... What it holds for one can be had as Arrow columns (`state`), and folded
    into another (`merge`): that is how panes become windows, sessions one, and snapshots state again.

    Not safe for several threads, but for what `freeze` gives. Whoever calls `add` or `merge` has made room in the Cells
    that it was made with, and has touched the entries.

    Attributes:
        state_schema: that of its function.
        reads: how it reads columns: of two that are equal in it, what one has read of some columns is passed to the
            other too. Begin it with the name of your package.
    """

    state_schema: pa.Schema
    reads: str

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
