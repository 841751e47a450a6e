"""Tags of rows that move to the subtask of their key: their target, and their order there (S8.1).

A subtask's rows are sorted by the hash of their key, event time, input and place of origin. So all rows of a key follow
one another, in order of event time, and have the same order however often a stage runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.plan.batch_plan import BatchPlan, Stage, StageInput
from tidegate.spark.batch.wire_rows import from_wire, to_wire, wire_schema
from tidegate.state.keys.key_hash import hash_keys, key_groups, subtask_of_key_groups
from tidegate.state.keys.key_types import is_key_type
from tidegate.subtask.partitioner import targets_of

TARGET, HASH, TIME, INPUT, ORDER = "target", "hash", "time", "input", "place"
TAG_SCHEMA = pa.schema(
    [(TARGET, pa.int32()), (HASH, pa.int64()), (TIME, pa.int64()), (INPUT, pa.int8()), (ORDER, pa.int64())]
)
SORTED_BY = (HASH, TIME, INPUT, ORDER)
_ORIGIN_BITS = 40
"""Bits of ORDER that number the rows of one subtask."""
_NO_TIME = np.iinfo(np.int64).min
"""Before all times."""


def exchange_schema(stage: Stage) -> pa.Schema:
    """Return the tags, then the columns of every input in turn, named `c<input>_<number>`; a row has its input's
    columns.
    """
    fields = list(TAG_SCHEMA)
    for given in stage.inputs:
        fields += list(wire_schema(given.schema, f"c{given.input_index}_"))
    return pa.schema(fields)


class ExchangeSender:
    """Prepares one input's rows for the exchange, in one upstream subtask."""

    def __init__(self, plan: BatchPlan, stage: Stage, given: StageInput, index: int) -> None:
        parallelism, max_parallelism = plan.parallelism, plan.max_parallelism
        self._plan = plan
        self._uid = plan.graph.nodes[stage.nodes[0]].uid
        self._stage = stage
        self._given = given
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._index = index
        self._owners = subtask_of_key_groups(parallelism, max_parallelism)
        self._time = None if given.event_time is None else EventTimeColumn(*given.event_time)
        self._schema = exchange_schema(stage)
        self._rows = 0
        self._batches = 0

    def tagged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in `exchange_schema`."""
        n = batch.num_rows
        hashes, targets = self._places(batch)
        columns: list[pa.Array] = [
            pa.array(targets),
            pa.array(hashes),
            self._times(batch),
            pa.array(np.full(n, self._given.input_index, np.int8)),
            # An int64 leaves 23 bits for the index of the subtask.
            pa.array(np.arange(n, dtype=np.int64) + ((self._index << _ORIGIN_BITS) + self._rows)),
        ]
        self._rows += n
        self._batches += 1
        for other in self._stage.inputs:
            mine = other.input_index == self._given.input_index
            columns += to_wire(batch) if mine else [pa.nulls(n, f.type) for f in wire_schema(other.schema)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _places(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        n = batch.num_rows
        if self._given.exchange == "hash" and self._given.keys:
            hashes = hash_keys(batch, self._given.keys)
            # Spark has no unsigned integers. Any order of the hashes suffices, as long as it is the same in all tasks.
            return hashes.view(np.int64), self._owners[key_groups(hashes, self._max_parallelism)].astype(np.int32)
        target = 0
        if self._given.exchange == "forward":
            target = self._index
        elif self._given.partitioner is not None:
            uid = self._uid
            return np.zeros(n, np.int64), targets_of(
                self._given.partitioner, batch, self._parallelism, uid, self._index
            )
        elif self._given.exchange == "rebalance":
            return np.zeros(n, np.int64), self._spread(batch)
        return np.zeros(n, np.int64), np.full(n, target, np.int32)

    def _spread(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """Distribute rows evenly.

        A row must go to the same subtask if Spark reruns this subtask after others have read its rows; else rows would
        be lost or duplicated. So the target depends on the place if the order is always the same, else on the content.
        """
        n = batch.num_rows
        if self._plan.stages[self._given.upstream].is_ordered:
            return np.full(n, (self._index + self._batches) % self._parallelism, np.int32)
        columns = [field.name for field in batch.schema if is_key_type(field.type)]
        if not columns:
            return np.full(n, self._index, np.int32)
        # uint64 on both sides: numpy converts a mix of uint64 and int64 to floats, which lose digits.
        return (hash_keys(batch, columns) % np.uint64(self._parallelism)).astype(np.int32)

    def _times(self, batch: pa.RecordBatch) -> pa.Array:
        if self._time is None or self._time.column not in batch.schema.names:
            return pa.array(np.zeros(batch.num_rows, np.int64))
        return pc.fill_null(self._time.microseconds(batch), _NO_TIME)


@dataclass(frozen=True)
class KeyRun:
    """Consecutive rows of one input.

    Attributes:
        input_index: input of the head.
        batch: the rows, in the input's schema.
    """

    input_index: int
    batch: pa.RecordBatch


@dataclass(frozen=True)
class SortedBlock:
    """All rows of some keys. `runs` must be exhausted before the next block is requested."""

    runs: Iterator[KeyRun]


class SortedBlocks:
    """Divides a subtask's sorted rows where a key ends, after `block_rows` or more rows.

    So the head holds the state of only some keys at a time. Without `block_rows`, all rows are one block.
    """

    def __init__(self, stage: Stage, batches: Iterable[pa.RecordBatch], block_rows: int | None) -> None:
        self._stage = stage
        self._batches = iter(batches)
        self._block_rows = block_rows
        self._rest: pa.RecordBatch | None = None
        self._ended = False

    def __iter__(self) -> Iterator[SortedBlock]:
        """Yield block after block; none if there is no row."""
        self._rest = self._next_batch()
        while self._rest is not None:
            yield SortedBlock(self._runs())

    def _next_batch(self) -> pa.RecordBatch | None:
        return next((batch for batch in self._batches if batch.num_rows), None)

    def _runs(self) -> Iterator[KeyRun]:
        rows, last = 0, 0
        while self._rest is not None:
            batch = self._rest
            hashes = batch.column(HASH).to_numpy()
            cut = self._cut(hashes, rows, last)
            yield from self._by_input(batch.slice(0, cut))
            if cut < batch.num_rows:
                self._rest = batch.slice(cut)
                return
            rows, last = rows + cut, int(hashes[-1])
            self._rest = self._next_batch()

    def _cut(self, hashes: npt.NDArray[np.int64], rows: int, last: int) -> int:
        """Return how many rows of the batch still belong to this block; at least one if the batch is the first.

        Args:
            rows: number of rows of the block before this batch.
            last: key hash of the last of them.
        """
        if self._block_rows is None:
            return len(hashes)
        ends = np.flatnonzero(hashes[1:] != hashes[:-1]) + 1
        if rows and hashes[0] != last:
            # The last key ended with the previous batch, so the block may end before this batch.
            ends = np.concatenate([[0], ends])
        far_enough = ends[ends + rows >= self._block_rows]
        return int(far_enough[0]) if len(far_enough) else len(hashes)

    def _by_input(self, batch: pa.RecordBatch) -> Iterator[KeyRun]:
        """Yield the batch's rows input by input. The order of inputs within a batch is undefined."""
        if not batch.num_rows:
            return
        inputs = self._stage.inputs
        if len(inputs) == 1:
            yield self._run(batch, inputs[0])
            return
        whose = batch.column(INPUT).to_numpy()
        for given in inputs:
            mine = np.flatnonzero(whose == given.input_index)
            if len(mine):
                yield self._run(batch.take(pa.array(mine)), given)

    def _run(self, batch: pa.RecordBatch, given: StageInput) -> KeyRun:
        prefix = f"c{given.input_index}_"
        columns: Sequence[pa.Array] = [batch.column(f"{prefix}{number}") for number in range(len(given.schema))]
        return KeyRun(given.input_index, from_wire(columns, given.schema))
