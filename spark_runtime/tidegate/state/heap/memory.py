"""The memory back end: as heap, but its snapshot travels whole in the acknowledgement, with a limit (S5.2)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.heap.heap_backend import HeapBackend

MAX_SNAPSHOT_BYTES = 5 * 2**20
"""What a subtask's keyed state and timers may take in a snapshot, uncompressed: it travels as one message."""


class MemoryBackend(HeapBackend):
    """See the module and `KeyedStateBackend`."""

    def __init__(self, limit_bytes: int = MAX_SNAPSHOT_BYTES) -> None:
        """Args: limit_bytes: see `MAX_SNAPSHOT_BYTES`."""
        super().__init__()
        self._limit_bytes = limit_bytes

    def snapshot(self, checkpoint_id: int, *, portable: bool = False) -> AsyncSnapshot:
        """See `KeyedStateBackend`. No part has blobs.

        Raises:
            SnapshotError: from what is returned: the parts are larger than the limit.
        """
        frozen = self._freeze()

        def write() -> Sequence[StatePart]:
            parts: list[StatePart] = []
            taken_bytes = 0
            for state in frozen:
                tables: list[pa.Table] = []
                for table in state.tables():
                    tables.append(table)
                    taken_bytes += table.nbytes
                    if taken_bytes > self._limit_bytes:
                        raise self._too_large(checkpoint_id, state.name, taken_bytes)
                parts.append(StatePart(state.name, "keyed", state.table(tables)))
            return parts

        return write

    def _too_large(self, checkpoint_id: int, name: str, taken_bytes: int) -> SnapshotError:
        return SnapshotError(
            f"The state of a subtask takes at least {taken_bytes} bytes, and the back end 'memory' puts at most "
            f"{self._limit_bytes} into a snapshot",
            where=f"checkpoint {checkpoint_id}, operator {self._ctx.uid!r}, state {name!r}",
            cause="its snapshots travel whole in one message",
            remedy="Use state_backend='heap'",
        )
