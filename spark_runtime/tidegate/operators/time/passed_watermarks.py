"""The watermark of each key group of a subtask. A restore needs it to decide which rows are late (S4.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, OWNER_COLUMN, StatePart

PASSED_STATE = "watermark:passed"
"""Reserved name: states of users have no colon in their names."""
PASSED_SCHEMA = pa.schema(
    [
        pa.field(KEY_GROUP_COLUMN, pa.uint16(), nullable=False),
        pa.field("watermark_us", pa.int64(), nullable=False),
    ]
)
SUBTASK_SCHEMA = pa.schema([pa.field("watermark_us", pa.int64(), nullable=False), pa.field(OWNER_COLUMN, pa.int32())])


class WatermarkByKeyGroup:
    """The watermarks of all key groups of a subtask.

    There is one watermark for all. After a restore at another parallelism, some key groups have later ones, until the
    common watermark has caught up. MAX_WATERMARK is never part of a snapshot: drained inputs continue after a restore
    (S7.5).

    Attributes:
        watermark_us: the earliest of them.
    """

    def __init__(self, subtask: int, parallelism: int, max_parallelism: int) -> None:
        self.watermark_us = MIN_WATERMARK
        self._groups = key_group_range(subtask, parallelism, max_parallelism)
        self._ahead: npt.NDArray[np.int64] | None = None  # by key group, if some are ahead of `watermark_us`

    def advance(self, watermark_us: int) -> None:
        """Set the watermark to `watermark_us`, if it is later."""
        self.watermark_us = max(self.watermark_us, watermark_us)
        if self._ahead is not None and self._ahead.max() <= self.watermark_us:
            self._ahead = None

    @property
    def is_even(self) -> bool:
        """Return whether all key groups have the same watermark."""
        return self._ahead is None

    def of(self, groups: npt.NDArray[np.uint16]) -> npt.NDArray[np.int64]:
        """Return the watermark of each key group."""
        if self._ahead is None:
            return np.full(len(groups), self.watermark_us, np.int64)
        return np.maximum(self._ahead[groups.astype(np.int64) - self._groups.start], self.watermark_us)

    def part(self) -> StatePart:
        """Return the current watermarks as state."""
        groups = np.array(self._groups, np.uint16)
        passed = self.of(groups)
        if self.watermark_us == MAX_WATERMARK:
            passed = np.full(len(groups), MIN_WATERMARK, np.int64)
        return StatePart(PASSED_STATE, "keyed", pa.table([pa.array(groups), pa.array(passed)], schema=PASSED_SCHEMA))

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the parts of one or several subtasks. Rows of other subtasks' key groups are skipped."""
        first, stop = self._groups.start, self._groups.stop
        tables = [part.table for part in parts]
        groups = np.concatenate([table[KEY_GROUP_COLUMN].to_numpy() for table in tables]).astype(np.int64)
        passed = np.concatenate([table["watermark_us"].to_numpy() for table in tables])
        mine = (groups >= first) & (groups < stop)
        groups, passed = groups[mine], passed[mine]
        if not len(passed):
            return
        self.watermark_us = int(passed.min())
        if passed.max() > self.watermark_us:
            self._ahead = np.full(len(self._groups), MIN_WATERMARK, np.int64)
            self._ahead[groups - first] = passed


class SubtaskWatermark:
    """The watermark of a subtask without keys; compare `WatermarkByKeyGroup`.

    Its row belongs to no subtask: at another parallelism, every subtask restores all rows and uses the earliest.

    Attributes:
        watermark_us: the watermark.
    """

    def __init__(self) -> None:
        self.watermark_us = MIN_WATERMARK

    def advance(self, watermark_us: int) -> None:
        """Set the watermark to `watermark_us`, if it is later."""
        self.watermark_us = max(self.watermark_us, watermark_us)

    def part(self) -> StatePart:
        """Return the current watermark as state."""
        passed = MIN_WATERMARK if self.watermark_us == MAX_WATERMARK else self.watermark_us
        return StatePart(PASSED_STATE, "list", pa.table([[passed], [None]], schema=SUBTASK_SCHEMA))

    def restore(self, part: StatePart) -> None:
        """Restore the part of one or several subtasks."""
        times = part.table["watermark_us"].to_pylist()
        self.watermark_us = min(times, default=MIN_WATERMARK)
