"""How far event time has come for each key group of a subtask: what a restore must know to call a row late (S4.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, OWNER_COLUMN, StatePart

PASSED_STATE = "watermark:passed"
"""A state of the runtime's own: users' names hold no colon."""
PASSED_SCHEMA = pa.schema(
    [
        pa.field(KEY_GROUP_COLUMN, pa.uint16(), nullable=False),
        pa.field("watermark_us", pa.int64(), nullable=False),
    ]
)


class WatermarkByKeyGroup:
    """One watermark for all key groups, and after a restore at another parallelism later ones for some of them, until
    it has caught up. MAX_WATERMARK is never part of a snapshot: inputs that are drained go on after a restore (S7.5).

    Attributes:
        watermark_us: the earliest of them.
    """

    def __init__(self, subtask: int, parallelism: int, max_parallelism: int) -> None:
        self.watermark_us = MIN_WATERMARK
        self._groups = key_group_range(subtask, parallelism, max_parallelism)
        self._ahead: npt.NDArray[np.int64] | None = None  # by key group, where some are ahead

    def advance(self, watermark_us: int) -> None:
        """The watermark has come to `watermark_us`."""
        self.watermark_us = max(self.watermark_us, watermark_us)
        if self._ahead is not None and self._ahead.max() <= self.watermark_us:
            self._ahead = None

    @property
    def is_even(self) -> bool:
        """It has come equally far for all key groups."""
        return self._ahead is None

    def of(self, groups: npt.NDArray[np.uint16]) -> npt.NDArray[np.int64]:
        """How far it has come for each of the key groups."""
        if self._ahead is None:
            return np.full(len(groups), self.watermark_us, np.int64)
        return np.maximum(self._ahead[groups.astype(np.int64) - self._groups.start], self.watermark_us)

    def part(self) -> StatePart:
        """As it is now."""
        groups = np.array(self._groups, np.uint16)
        passed = self.of(groups)
        if self.watermark_us == MAX_WATERMARK:
            passed = np.full(len(groups), MIN_WATERMARK, np.int64)
        return StatePart(PASSED_STATE, "keyed", pa.table([pa.array(groups), pa.array(passed)], schema=PASSED_SCHEMA))

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back what `part` gave in one or several subtasks; rows of others' key groups are passed over."""
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


SUBTASK_SCHEMA = pa.schema([pa.field("watermark_us", pa.int64(), nullable=False), pa.field(OWNER_COLUMN, pa.int32())])


class SubtaskWatermark:
    """As `WatermarkByKeyGroup`, of a subtask without keys. Its row has no owner: at another parallelism every subtask
    learns all of them, and goes on from the earliest.

    Attributes:
        watermark_us: how far event time has come.
    """

    def __init__(self) -> None:
        self.watermark_us = MIN_WATERMARK

    def advance(self, watermark_us: int) -> None:
        """The watermark has come to `watermark_us`."""
        self.watermark_us = max(self.watermark_us, watermark_us)

    def part(self) -> StatePart:
        """As it is now."""
        passed = MIN_WATERMARK if self.watermark_us == MAX_WATERMARK else self.watermark_us
        return StatePart(PASSED_STATE, "list", pa.table([[passed], [None]], schema=SUBTASK_SCHEMA))

    def restore(self, part: StatePart) -> None:
        """Take back what `part` gave in one or several subtasks."""
        times = part.table["watermark_us"].to_pylist()
        self.watermark_us = min(times, default=MIN_WATERMARK)
