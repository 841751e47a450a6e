"""The subtasks of one operator: which rows each gets, and how others take over from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.operators.stream_operator import StreamOperator
from tidegate.snapshot.redistribution import Rescale, redistributed
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.keys.key_hash import hash_keys, key_groups, subtask_of_key_groups


def rows_by_subtask(
    batch: pa.RecordBatch, keys: Sequence[str], parallelism: int, max_parallelism: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Index of a subtask and its rows, for those that get any."""
    groups = key_groups(hash_keys(batch, list(keys)), max_parallelism)
    owners = subtask_of_key_groups(parallelism, max_parallelism)[groups]
    for index in range(parallelism):
        part = batch.filter(pa.array(owners == index))
        if part.num_rows:
            yield index, part


def subtask_of(key: Any, parallelism: int, max_parallelism: int) -> int:
    """The subtask that gets the rows of a number's key."""
    ((index, _),) = rows_by_subtask(pa.record_batch({"k": [key]}), ["k"], parallelism, max_parallelism)
    return index


@dataclass(frozen=True)
class StoredState:
    """What all subtasks of an operator have stored.

    Attributes:
        streams: a state stream per subtask.
        blobs: the files beside them, by id.
    """

    streams: Sequence[bytes]
    blobs: dict[str, bytes]

    @classmethod
    def of(cls, operators: Sequence[StreamOperator]) -> StoredState:
        """A snapshot of these subtasks; whether for a savepoint, their `portable` says."""
        streams: list[bytes] = []
        blobs: dict[str, bytes] = {}
        for operator in operators:
            written = operator.snapshot(1)
            assert written is not None
            parts = list(written())
            streams.append(encode_parts(parts))
            blobs |= {blob.id: b"".join(map(bytes, blob.pieces())) for part in parts for blob in part.blobs}
        return cls(streams, blobs)

    def restore(self, operators: Sequence[StreamOperator], max_parallelism: int, broadcast_from: int = 0) -> None:
        """Restore opened subtasks from it, as many as there are now."""
        for index, operator in enumerate(operators):
            former = {
                i: decode_parts(stream, read_blob=self.blobs.__getitem__) for i, stream in enumerate(self.streams)
            }
            rescale = Rescale(len(self.streams), len(operators), max_parallelism, index)
            operator.restore(redistributed(former, broadcast_from, rescale))
