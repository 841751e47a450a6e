"""How far windows have fired, for each key group: what a restore must know to call a row late (S4.4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.operators.contract import OperatorContext
from tidegate.operators.open_windows import changed_window
from tidegate.operators.specs import WindowAggSpec
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, StatePart
from tidegate.state.keybytes import Int64s

PROGRESS = "progress"
MIN_TIME_US, MAX_TIME_US = -(2**62), 2**62
"""Event times beyond these (some 146,000 years from 1970) are refused: window bounds must fit timestamp[us]."""
LATENESS_COLUMN = "lateness_us"
"""Only where lateness is allowed."""


class WindowProgress:
    """One watermark for all key groups, and after a restore at another parallelism later ones for some of them, until
    it has caught up.

    Attributes:
        watermark_us: windows that end by it have fired for every key.
        passed_us: by key group, where some restored watermark is ahead; else None.
        closed_us: windows that end by it take no rows whatever lateness is allowed now: their state went when less was
            allowed.
    """

    def __init__(self, spec: WindowAggSpec) -> None:
        self.watermark_us = MIN_WATERMARK
        self.passed_us: Int64s | None = None
        self.closed_us = MIN_WATERMARK
        self._lateness_us = spec.lateness_us
        self._shape = {"size_us": spec.size_us, "offset_us": spec.offset_us}
        if spec.slide_us:
            self._shape["slide_us"] = spec.slide_us

    def advance(self, watermark_us: int) -> None:
        """The watermark, or the clock, has come to `watermark_us`."""
        self.watermark_us = max(self.watermark_us, watermark_us)
        if self.passed_us is not None and self.passed_us.max() <= self.watermark_us:
            self.passed_us = None

    def of(self, groups: npt.NDArray[np.uint16]) -> Int64s | None:
        """How far they have fired for each of the key groups; None: `watermark_us` for all."""
        return None if self.passed_us is None else np.maximum(self.passed_us[groups], self.watermark_us)

    def part(self, ctx: OperatorContext, *, is_over: bool = False) -> StatePart:
        """As it is now; `is_over`: nothing is late any more (S7.5)."""
        groups = key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        marks = np.full(len(groups), MIN_WATERMARK if is_over else self.watermark_us, np.int64)
        if self.passed_us is not None and not is_over:
            marks = np.maximum(marks, self.passed_us[groups.start : groups.stop])
        columns: dict[str, pa.Array] = {
            KEY_GROUP_COLUMN: pa.array(np.array(groups, np.uint16)),
            "watermark_us": pa.array(marks),
        }
        shape = dict(self._shape)
        if self._lateness_us:
            shape[LATENESS_COLUMN] = min(self._lateness_us, max(self.watermark_us - self.closed_us, 0))
        columns.update({name: pa.array(np.full(len(groups), us, np.int64)) for name, us in shape.items()})
        fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
        return StatePart(PROGRESS, "keyed", pa.table(list(columns.values()), schema=pa.schema(fields)))

    def restore(self, table: pa.Table, ctx: OperatorContext) -> None:
        """Take back the rows of one or several subtasks' parts.

        Raises:
            SnapshotError: they are of other windows.
        """
        if not table.num_rows:
            return
        names = [name for name in table.schema.names if name in ("size_us", "offset_us", "slide_us")]
        for found in set(zip(*(table[name].to_pylist() for name in names), strict=True)):
            was = dict(zip(names, found, strict=True))
            if was != self._shape:
                raise changed_window(ctx.uid, PROGRESS, f"{_names(was)} were {_values(was)}", self._now(was))
        marks = table.column("watermark_us").to_numpy()
        self.watermark_us = int(marks.min())
        allowed = table[LATENESS_COLUMN].to_numpy() if LATENESS_COLUMN in table.schema.names else np.zeros(len(marks))
        less = (allowed < self._lateness_us) & (marks > MIN_TIME_US)
        if less.any():
            self.closed_us = int((marks[less] - allowed[less].astype(np.int64)).max())
        if marks.max() > self.watermark_us:
            self.passed_us = np.full(ctx.max_parallelism, MIN_WATERMARK, np.int64)
            self.passed_us[table.column(KEY_GROUP_COLUMN).to_numpy()] = marks

    def _now(self, was: dict[str, int]) -> str:
        return (
            _values(self._shape) if list(was) == list(self._shape) else f"{_names(self._shape)} {_values(self._shape)}"
        )


def _names(shape: dict[str, int]) -> str:
    return f"{', '.join(name.removesuffix('_us') for name in shape)} in us"


def _values(shape: dict[str, int]) -> str:
    return ", ".join(map(str, shape.values()))
