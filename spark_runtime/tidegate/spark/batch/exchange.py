"""Tags of rows that move to the subtask of their key: their target, and their order there (S8.1).

A subtask's rows are sorted by the hash of their key, event time, input and place of origin. So all rows of a key follow
one another, in order of event time, and have the same order however often a stage runs.

Rows of partial aggregates move in packs, which `packs` describes: Spark need not sort them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.plan.batch_plan import Stage, StageInput
from tidegate.spark.batch.wire_rows import from_wire, wire_schema

TARGET, HASH, TIME, INPUT, ORDER = "target", "hash", "time", "input", "place"
TAG_SCHEMA = pa.schema(
    [(TARGET, pa.int32()), (HASH, pa.int64()), (TIME, pa.int64()), (INPUT, pa.int8()), (ORDER, pa.int64())]
)
PACK = "pack"
PACK_SCHEMA = pa.schema([(TARGET, pa.int32()), (PACK, pa.binary())])


def sort_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns by which the rows of a subtask are sorted after an exchange: none for packs.

    Args:
        schema: of the rows.
    """
    return () if PACK in schema.names else (HASH, TIME, INPUT, ORDER)


def exchange_schema(stage: Stage) -> pa.Schema:
    """Return the tags, then the columns of every input in turn, named `c<input>_<number>`; a row has its input's
    columns. For a stage that merges partial aggregates: `PACK_SCHEMA`.
    """
    if stage.merges:
        return PACK_SCHEMA
    fields = list(TAG_SCHEMA)
    for given in stage.inputs:
        fields += list(wire_schema(given.schema, f"c{given.input_index}_"))
    return pa.schema(fields)


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
