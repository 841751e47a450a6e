"""`var` and `stddev`, by Welford's method: exact to rounding for any mean, and mergeable (Chan)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.state.aggregates.aggregation import (
    AggregateArguments,
    AggregateFunction,
    Aggregation,
    Selection,
    StateColumns,
    is_number,
)
from tidegate.state.aggregates.numbers import Values, read_values
from tidegate.state.copy_on_write import Arrays, CopyOnWriteArrays, Entries
from tidegate.state.numba_kernels import inlined, kernel


class VarianceState:
    """`var` or `stddev` of every entry; see `AggregateState`. With `n` values or fewer, where `n` is subtracted in the
    divisor, it is null.
    """

    reads = "floats"

    def __init__(self, aggregation: Aggregation, cells: CopyOnWriteArrays, *, is_root: bool) -> None:
        self.state_schema = aggregation.state_schema()
        self._off = aggregation.n
        self._is_root = is_root
        self._cells = cells
        self._names = tuple(f"{aggregation.name}/{part}" for part in ("count", "mean", "squares"))
        for name, dtype in zip(self._names, (np.int64, np.float64, np.float64), strict=True):
            cells.add(name, dtype)

    def read(self, columns: Sequence[pa.Array]) -> Values:
        """Return the one column, in float64."""
        return read_values(columns[0], "mean")

    def add(self, entries: Entries, values: Values, known: int) -> None:
        """See `AggregateState`."""
        numbers = values.numbers
        if values.valid is not None:
            rows = np.flatnonzero(values.valid)
            entries, numbers = entries[rows], None if numbers is None else numbers[rows]
        add_moments(entries, numbers, *self._arrays(self._cells.arrays))

    def merge(self, entries: Entries, columns: Sequence[pa.Array], known: int) -> None:
        """See `AggregateState`."""
        given = (column.to_numpy() for column in columns)
        merge_moments(entries, *given, *self._arrays(self._cells.arrays))

    def state(self, entries: Selection) -> list[pa.Array]:
        """See `AggregateState`."""
        return [pa.array(array[entries]) for array in self._arrays(self._cells.arrays)]

    def result(self, entries: Selection) -> pa.Array:
        """See `AggregateState`."""
        counts, _, squares = (array[entries] for array in self._arrays(self._cells.arrays))
        enough = counts > self._off
        found = np.divide(squares, counts - self._off, out=np.zeros(len(counts)), where=enough)
        return pa.array(np.sqrt(found) if self._is_root else found, mask=None if enough.all() else ~enough)

    def freeze(self) -> StateColumns:
        """See `AggregateState`."""
        return lambda arrays, start, stop: [pa.array(array) for array in self._arrays(arrays)]

    def _arrays(self, arrays: Arrays) -> list[Any]:
        return [arrays[name] for name in self._names]


@inlined
def _joined(at: Any, count: Any, mean: Any, square: Any, counts: Any, means: Any, squares: Any) -> None:
    total = counts[at] + count
    apart = mean - means[at]
    squares[at] += square + apart * apart * counts[at] * count / total
    means[at] += apart * count / total
    counts[at] = total


@kernel("void(i4[], f8[], i8[]!, f8[]!, f8[]!)")
def add_moments(entries: Any, values: Any, counts: Any, means: Any, squares: Any) -> None:
    """Add value i to entries[i]."""
    for i in range(len(entries)):
        _joined(entries[i], 1, values[i], 0.0, counts, means, squares)


@kernel("void(i4[], i8[], f8[], f8[], i8[]!, f8[]!, f8[]!)")
def merge_moments(
    entries: Any, others: Any, their_means: Any, their_squares: Any, counts: Any, means: Any, squares: Any
) -> None:
    """Add the moments i to entries[i]."""
    for i in range(len(entries)):
        # A state without values changes nothing, and would divide by zero if the entry has none either.
        if others[i]:
            _joined(entries[i], others[i], their_means[i], their_squares[i], counts, means, squares)


def _columns(aggregation: Aggregation) -> pa.Schema:
    prefix, name = aggregation.function.name, aggregation.name
    types = {"count": pa.int64(), "mean": pa.float64(), "squares": pa.float64()}
    return pa.schema([pa.field(f"{prefix}_{part}:{name}", type_) for part, type_ in types.items()])


def _function(name: str, *, is_root: bool) -> AggregateFunction:
    def accumulator(aggregation: Aggregation, cells: CopyOnWriteArrays) -> VarianceState:
        return VarianceState(aggregation, cells, is_root=is_root)

    def check(arguments: AggregateArguments) -> None:
        if arguments.n not in (0, 1):
            remedy = "Use ddof=1 for a sample, or ddof=0 for the whole population"
            raise PipelineError(f"{name} does not accept ddof={arguments.n!r}", remedy=remedy)

    return AggregateFunction(
        name=name,
        result_type=lambda types, _: pa.float64() if is_number(types[0]) else None,
        state_schema=_columns,
        accumulator=accumulator,
        check=check,
        any_order=True,
        takes="numbers",
    )


VAR = _function("var", is_root=False)
STDDEV = _function("stddev", is_root=True)
