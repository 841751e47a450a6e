"""Interfaces of aggregates (S5.1, S5.5).

They are the description that a package registers, an aggregate of one column bound to types, the state that computes
it, and the base class of user aggregates. The module imports no kernels, because building a pipeline needs it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.state.keys.key_types import is_key_type

if TYPE_CHECKING:  # it has kernels, and pipelines are built without numba
    from tidegate.state.copy_on_write import CopyOnWriteArrays

SORTABLE = "numbers, decimals, strings, binary, booleans, dates and times"
"""Types that can be compared, in words; see `is_sortable`."""
RESERVED_NAMES = frozenset({"key", "map", "value"})
"""Prefixes of other columns of a state: no aggregate can have such a name."""

Selection: TypeAlias = slice | npt.NDArray[np.int32]
"""Entries: a range of them, or any by number."""
Groups: TypeAlias = npt.NDArray[np.int32]
StateColumns: TypeAlias = Callable[[Any, int, int], list[pa.Array]]
"""Returns the state columns of entries start..stop from a frozen copy of exactly their arrays."""


class ArrowAggregate:
    """Base class of a user aggregate over Arrow columns and many groups at once; pass an instance to `user_aggregate`.

    Its state is rows of declared Arrow columns, so it is part of snapshots and moves with a rescale. All windows and
    threads of a subtask share the instance: its methods must not change it, and must be pure and deterministic. `merge`
    must be associative: it is called with any grouping of neighbouring states.

    Attributes:
        state: columns of the state of a group.
        result_type: type of the result.
    """

    state: pa.Schema
    result_type: pa.DataType

    def accumulate(self, columns: Sequence[pa.Array], groups: Groups, count: int) -> pa.RecordBatch:
        """Return the states of the rows of a batch: row i belongs to group `groups[i]`.

        The result has a row of `state` for each of the groups 0..count - 1, each of which has rows. Columns may hold
        nulls.
        """
        raise NotImplementedError

    def merge(self, states: pa.RecordBatch, groups: Groups, count: int) -> pa.RecordBatch:
        """Return one state for each of the groups 0..count - 1: state i belongs to group `groups[i]`, earlier states
        first.
        """
        raise NotImplementedError

    def result(self, states: pa.RecordBatch) -> pa.Array:
        """Return the result of each state, of type `result_type`."""
        raise NotImplementedError


class AggregateArguments(Protocol):
    """Arguments of an aggregate's call, before types are known."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns; the last `orders` of them order the rows."""

    @property
    def n(self) -> int:
        """Return the aggregate's number, such as the rows of top_n; 0: none was passed."""

    @property
    def orders(self) -> int:
        """Return the number of columns, at the end, that order the rows."""

    @property
    def user(self) -> ArrowAggregate | None:
        """Return the user aggregate of function "user"; else None."""


def accept_all(arguments: AggregateArguments) -> None:
    """Accept any arguments."""


def cast_first(column: str, type_: pa.DataType) -> str:
    """Return how to convert a column to a number, as part of a remedy."""
    as_float = pt.is_decimal(type_) or pt.is_float16(type_) or pt.is_string(type_)
    cast = "pa.float64()" if as_float else "pa.int64()"
    return f"to use the column as a number, cast it first: .with_columns({column}=pc.field({column!r}).cast({cast}))"


@dataclass(frozen=True, kw_only=True)
class AggregateFunction:
    """Description of an aggregate.

    Built-in aggregates are listed in `aggregate_registry`. A package registers its own as an entry point of the group
    `tidegate.aggregates`, under its name. `AggregateConformance` of `tidegate.testing` checks it.

    Attributes:
        name: prefix of its columns in snapshots, so it never changes: `<name>:<output column>`, and with more than one
            column `<name>_<part>:<output column>`.
        result_type: (types of the columns, arguments) -> type of the result; None: these types are not supported.
        state_schema: columns of the state, a row for each entry. All are nullable, and `merge` accepts a state without
            rows.
        accumulator: creates the state that computes it, with its arrays, if any, in the cells. The name of an array
            begins with the name of the output column.
        check: raises PipelineError for arguments that do not fit, without the place in the pipeline.
        word: name for users in error messages; default: `name`.
        needs_column: it cannot count rows.
        most_columns: most columns, besides those that order the rows; None: any number.
        by: whether another column can, or must, order the rows.
        by_time: rows count in the order of event time, if the stream has it: its column is added to the ordering
            columns.
        any_order: the result does not depend on the order of the rows, except for the rounding of floats. So the rows
            can be aggregated in parts, before they are sent to the subtask of their key.
        takes: accepted types, in words.
        conversion: (column, type) -> how to convert a column to one of these types, as the end of a remedy.
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
    any_order: bool = False
    takes: str = SORTABLE
    conversion: Callable[[str, pa.DataType], str] = cast_first

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in RESERVED_NAMES:
            raise ValueError(
                f"{self.name!r} is not a valid name for an aggregate. Use a Python identifier other than "
                f"{', '.join(sorted(RESERVED_NAMES))}"
            )
        if not self.word:
            object.__setattr__(self, "word", self.name)


@dataclass(frozen=True)
class Aggregation:
    """An aggregate bound to types.

    Attributes:
        name: name of the output column.
        function: description of the aggregate.
        types: types of its input columns in the stream; none: rows are counted.
        output: type of the result.
        n: rows of top_n; for var and stddev the number subtracted in the divisor.
        orders: number of columns, at the end, that order the rows.
        user: user aggregate of function "user".
        columns: names of the columns, without those that order the rows.
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
        """Return the columns of the state, a row for each entry."""
        return self.function.state_schema(self)

    def accumulator(self, cells: CopyOnWriteArrays) -> AggregateState:
        """Return an empty state, with its numbers, if it keeps any, in `cells`."""
        return self.function.accumulator(self, cells)


def is_number(type_: pa.DataType) -> bool:
    """Return whether the type is an integer, or a float of 32 or 64 bits."""
    return bool(pt.is_integer(type_) or pt.is_float32(type_) or pt.is_float64(type_))


def is_numeric_type(type_: pa.DataType) -> bool:
    """Return whether min and max of the type are kept as a number of eight bytes."""
    plain = is_number(type_) or pt.is_boolean(type_)
    return bool(plain or pt.is_timestamp(type_) or pt.is_date(type_) or pt.is_time(type_) or pt.is_duration(type_))


def is_sortable(type_: pa.DataType) -> bool:
    """Return whether values of the type can be compared: `SORTABLE`."""
    return is_numeric_type(type_) or (is_key_type(type_) and not pt.is_float16(type_))


class ReadValues(Protocol):
    """Values that an aggregate has read from a batch."""

    def part(self, start: int, stop: int) -> Any:
        """Return rows start..stop."""


class AggregateState(Protocol):
    """An aggregate of every entry 0, 1, 2, ...

    The content of an entry can be read as Arrow columns (`state`), and folded into another entry (`merge`). So panes
    become windows, sessions are merged, and snapshots are restored.

    Not safe for several threads, except the result of `freeze`. A caller of `add` or `merge` has made room in the cells
    that the state was created with, and has touched the entries.

    Attributes:
        state_schema: state schema of its function.
        reads: identifies the way it reads columns. If it is equal for two aggregates, the result of one's `read` is
            passed to the other, too. Begin it with the name of your package.
    """

    state_schema: pa.Schema
    reads: str

    def read(self, columns: Sequence[pa.Array]) -> Any:
        """Return the aggregate's columns of a batch in the form for `add`."""

    def add(self, entries: npt.NDArray[np.int32], values: Any, known: int) -> None:
        """Add a row to each of `entries`; entries from `known` on are new. Raises SumOverflowError."""

    def merge(self, entries: npt.NDArray[np.int32], columns: Sequence[pa.Array], known: int) -> None:
        """Fold row i of state columns into `entries[i]`, in order; an entry may occur several times."""

    def state(self, entries: Selection) -> list[pa.Array]:
        """Return the state columns of some entries, a row for each."""

    def result(self, entries: Selection) -> pa.Array:
        """Return the output column of some entries."""

    def freeze(self) -> StateColumns:
        """Return a function for any thread that reads the present state, apart from what is in the cells."""
