"""Sends rows of batch stages through Spark's shuffle: tags them with their target and their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.plan.batch_plan import BatchPlan, Stage, StageInput
from tidegate.spark.batch.exchange import PACK_SCHEMA, exchange_schema
from tidegate.spark.batch.packs import BUCKET_BITS, BUCKETS, encode_pack, narrow
from tidegate.spark.batch.wire_rows import to_wire, wire_schema
from tidegate.state.keys.key_hash import hash_keys, key_groups, scatter_index, subtask_of_key_groups
from tidegate.state.keys.key_types import is_key_type
from tidegate.state.value_kernels import extent
from tidegate.subtask.partitioner import targets_of

_ORIGIN_BITS = 40
"""Bits of ORDER that number the rows of one subtask."""
_NO_TIME = np.iinfo(np.int64).min
"""Before all times."""


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


class PackSender:
    """Packs rows of partial aggregates, in one upstream subtask."""

    def __init__(self, plan: BatchPlan, stage: Stage, index: int) -> None:
        (given,) = stage.inputs
        self._keys = given.keys
        self._pane = stage.pane
        self._max_parallelism = plan.max_parallelism
        self._owners = subtask_of_key_groups(plan.parallelism, plan.max_parallelism)
        self._parallelism = plan.parallelism
        self._next = index << _ORIGIN_BITS

    def tagged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a pack for each subtask that has rows in the batch, in `PACK_SCHEMA`."""
        hashes = hash_keys(batch, self._keys)
        targets = self._owners[key_groups(hashes, self._max_parallelism)].astype(np.uint32)
        numbers = (targets << np.uint32(BUCKET_BITS)) | (hashes >> np.uint64(64 - BUCKET_BITS)).astype(np.uint32)
        size = self._parallelism << BUCKET_BITS
        flat = np.bincount(numbers, minlength=size)
        if size <= 1 << 16:
            order: npt.NDArray[Any] = scatter_index(numbers.astype(np.uint16), flat)
        else:
            order = np.argsort(numbers, kind="stable")
        panes = (0, 0) if self._pane is None or not batch.num_rows else extent(batch[self._pane].to_numpy())
        whole = narrow(batch)
        rows = whole.rows.take(pa.array(order))
        counts = flat.reshape(-1, BUCKETS)
        of_target = counts.sum(axis=1)
        starts = np.cumsum(of_target) - of_target
        used = np.flatnonzero(of_target)
        packs = []
        for target in used.tolist():
            part = replace(whole, rows=rows.slice(starts[target], of_target[target]))
            packs.append(encode_pack(self._next, panes, counts[target], part))
            self._next += 1
        return pa.RecordBatch.from_arrays(
            [pa.array(used.astype(np.int32)), pa.array(packs, pa.binary())], schema=PACK_SCHEMA
        )
