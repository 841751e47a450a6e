"""Cuts a batch by the subtask that owns each row's key group."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.compiled import kernel
from tidegate.state.keyhash import hash_keys, key_group, subtask_of_key_groups


def partition_hash(
    batch: pa.RecordBatch, columns: Sequence[str], parallelism: int, max_parallelism: int
) -> list[pa.RecordBatch | None]:
    """One batch for each subtask, None where it gets no row. Rows of one subtask keep their order.

    Args:
        batch: any batch.
        columns: key columns, in order.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.

    Returns:
        `parallelism` entries; slices of one copy, or `batch` itself where all rows go to one subtask.

    Raises:
        PipelineError: a column's type cannot be a key.
    """
    if parallelism == 1 or not batch.num_rows:
        return [batch if batch.num_rows else None] + [None] * (parallelism - 1)
    owners, first_groups = _owners(parallelism, max_parallelism)
    targets = np.empty(batch.num_rows, np.uint16)
    in_group = np.zeros(max_parallelism, np.int64)
    _targets(hash_keys(batch, columns), np.uint64(max_parallelism), owners, targets, in_group)
    return _cut(batch, targets, np.add.reduceat(in_group, first_groups))


def scatter_index(groups: npt.NDArray[np.uint16], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Row numbers ordered by group, stable: a counting sort.

    Args:
        groups: group of each row, 0 <= group < len(counts).
        counts: rows in each group.
    """
    order = np.empty(len(groups), np.uint32)
    starts = np.cumsum(counts) - counts
    _scatter(groups, starts, order)
    return order


def _cut(
    batch: pa.RecordBatch, targets: npt.NDArray[np.uint16], counts: npt.NDArray[np.int64]
) -> list[pa.RecordBatch | None]:
    out: list[pa.RecordBatch | None] = [None] * len(counts)
    filled = np.flatnonzero(counts)
    if len(filled) == 1:
        out[int(filled[0])] = batch
        return out
    ordered = batch.take(pa.array(scatter_index(targets, counts)))
    start = 0
    for target in filled.tolist():
        rows = int(counts[target])
        out[target] = ordered.slice(start, rows)
        start += rows
    return out


@lru_cache(maxsize=64)
def _owners(parallelism: int, max_parallelism: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """The subtask of each key group, and the first key group of each subtask."""
    owners = subtask_of_key_groups(parallelism, max_parallelism)
    owners.flags.writeable = False
    return owners, np.searchsorted(owners, np.arange(parallelism)).astype(np.int64)


@kernel("void(u8[], u8, u2[], u2[]!, i8[]!)")
def _targets(hashes: Any, groups: Any, owners: Any, targets: Any, in_group: Any) -> None:
    for i in range(len(hashes)):  # counted by group: two targets alone would wait for each other's last addition
        group = key_group(hashes[i], groups)
        targets[i] = owners[group]
        in_group[group] += 1


@kernel("void(u2[], i8[]!, u4[]!)")
def _scatter(groups: Any, starts: Any, order: Any) -> None:
    for i in range(len(groups)):
        group = groups[i]
        order[starts[group]] = i
        starts[group] += 1
