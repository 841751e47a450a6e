"""Apply a user's partitioner: split a batch into one batch per subtask."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.plan.job_graph import Partitioner
from tidegate.snapshot.channel_state import Cut
from tidegate.state.keys.key_hash import cut_by_target
from tidegate.subtask.chain import OperatorFailure


def partition_batch(partitioner: Partitioner, parallelism: int, uid: str, subtask: int) -> Cut:
    """Return a function that splits batches by the partitioner.

    The partitioner is called even with one subtask, so that its mistakes show early. If it raises, or returns anything
    but one subtask per row, an OperatorFailure is raised.

    Args:
        uid: uid of the operator that reads the records.
        subtask: index of the subtask that sends them.
    """

    def cut(batch: pa.RecordBatch) -> list[pa.RecordBatch | None]:
        targets = targets_of(partitioner, batch, parallelism, uid, subtask).astype(np.uint16)
        return cut_by_target(batch, targets, np.bincount(targets, minlength=parallelism))

    return cut


def targets_of(
    partitioner: Partitioner, batch: pa.RecordBatch, parallelism: int, uid: str, subtask: int
) -> npt.NDArray[np.int32]:
    """Return the subtask of each row. Args and errors as in `partition_batch`."""
    try:
        targets = _checked_targets(partitioner(batch, parallelism), batch.num_rows, parallelism, partitioner)
    except Exception as error:
        raise OperatorFailure(uid, subtask, error) from error
    return targets.astype(np.int32)


def _checked_targets(given: object, rows: int, parallelism: int, partitioner: Partitioner) -> npt.NDArray[np.uint16]:
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if isinstance(given, pa.Array):
        if given.null_count:
            raise _partitioner_error(
                partitioner,
                f"the partitioner returned {given.null_count} nulls",
                "Return the number of a subtask for every row",
            )
        given = given.to_numpy(zero_copy_only=False)
    numbers = np.asarray(given)
    # numpy gives an empty list the type float64, which is no mistake of the partitioner.
    if numbers.shape != (rows,) or (rows and numbers.dtype.kind not in "iu"):
        raise _partitioner_error(
            partitioner,
            f"the partitioner returned an array of shape {numbers.shape} and type {numbers.dtype} for {rows} rows",
            "Return an integer for each row, such as batch['k'].to_numpy() % n",
        )
    # Checked before the cast, because uint16 would wrap wrong numbers, and might turn them into valid ones.
    if rows and (numbers.min() < 0 or numbers.max() >= parallelism):
        raise _partitioner_error(
            partitioner,
            f"the partitioner returned subtasks {numbers.min()}..{numbers.max()}, but there are {parallelism}",
            f"Return numbers from 0 to n - 1. n is the second argument, here {parallelism}",
        )
    return numbers.astype(np.uint16)


def _partitioner_error(partitioner: Partitioner, cause: str, remedy: str) -> PipelineError:
    name = getattr(partitioner, "__qualname__", type(partitioner).__name__)
    return PipelineError(f"partitioner {name} does not return a subtask for each row", cause=cause, remedy=remedy)
