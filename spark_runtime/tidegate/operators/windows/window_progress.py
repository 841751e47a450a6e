"""WindowProgress: the time up to which windows have fired, by key group. A restore needs it to find late rows
(S4.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.errors import SnapshotError
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.time.late_rows import MIN_TIME_US
from tidegate.operators.windows.window_specs import PROGRESS
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, StatePart
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_hash import hash_keys, key_groups

SHAPE_COLUMNS = frozenset({"size_us", "offset_us", "slide_us", "gap_us", "calendar"})
Shape: TypeAlias = dict[str, int | str]
"""Properties that must be equal in a snapshot and the pipeline."""
LATENESS_COLUMN = "lateness_us"
"""Column of snapshots, present only if lateness is allowed."""


class WindowProgress:
    """The watermark up to which windows have fired.

    There is one watermark for all key groups. After a restore at another parallelism, some key groups have later ones,
    until the common watermark has caught up.

    Attributes:
        watermark_us: windows that end by it have fired for every key.
        passed_us: watermark by key group, if some are ahead of `watermark_us`; else None.
        closed_us: windows that end by it accept no rows, whatever lateness is allowed now: their state was deleted
            when less lateness was allowed.
    """

    def __init__(self, shape: Mapping[str, int | str], lateness_us: int = 0) -> None:
        """Args: shape: properties of the windows, by name: durations or a calendar. lateness_us: allowed lateness."""
        self.watermark_us = MIN_WATERMARK
        self.passed_us: Int64s | None = None
        self.closed_us = MIN_WATERMARK
        self._lateness_us = lateness_us
        self._shape = dict(shape)

    def advance(self, watermark_us: int) -> None:
        """Set the watermark or clock to `watermark_us`, if it is later."""
        self.watermark_us = max(self.watermark_us, watermark_us)
        if self.passed_us is not None and self.passed_us.max() <= self.watermark_us:
            self.passed_us = None

    def reset(self) -> None:
        """Handle MAX_WATERMARK, which is never part of a snapshot.

        From now on no row is late, and no new window counts as fired, neither here nor after a restore (S4.4, S7.5).
        """
        self.watermark_us, self.passed_us, self.closed_us = MIN_WATERMARK, None, MIN_WATERMARK

    def closed_at(self, fired_us: int) -> int:
        """Return the time by which windows are closed, for keys whose windows have fired up to `fired_us`."""
        return max(fired_us - self._lateness_us, min(self.closed_us, fired_us))

    @property
    def open_after_us(self) -> int:
        """Return a time: windows that end by it are closed for every key."""
        return self.watermark_us - self._lateness_us if self.watermark_us > MIN_TIME_US else MIN_WATERMARK

    def split(
        self, batch: pa.RecordBatch, times: Int64s, keys: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, Int64s, int]]:
        """Divide rows and their times by the watermark of their key groups. There is one group, except for a while
        after a restore at another parallelism."""
        if self.passed_us is None:
            yield batch, times, self.watermark_us
            return
        groups = key_groups(hash_keys(batch, keys), len(self.passed_us))
        marks = np.maximum(self.passed_us[groups], self.watermark_us)
        for mark in np.unique(marks).tolist():
            mine = marks == mark
            yield batch.filter(pa.array(mine)), times[mine], mark

    def part(self, ctx: OperatorContext) -> StatePart:
        """Return the current progress as state."""
        groups = key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        marks = np.full(len(groups), self.watermark_us, np.int64)
        if self.passed_us is not None:
            marks = np.maximum(marks, self.passed_us[groups.start : groups.stop])
        columns: dict[str, pa.Array] = {
            KEY_GROUP_COLUMN: pa.array(np.array(groups, np.uint16)),
            "watermark_us": pa.array(marks),
        }
        shape: Shape = dict(self._shape)
        if self._lateness_us:
            shape[LATENESS_COLUMN] = min(self._lateness_us, max(self.watermark_us - self.closed_us, 0))
        columns.update({name: pa.array([value] * len(groups)) for name, value in shape.items()})
        fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
        return StatePart(PROGRESS, "keyed", pa.table(list(columns.values()), schema=pa.schema(fields)))

    def restore(self, table: pa.Table, ctx: OperatorContext) -> None:
        """Restore the parts of one or several subtasks.

        Raises:
            SnapshotError: the snapshot's windows differ from the pipeline's.
        """
        if not table.num_rows:
            return
        names = [name for name in table.schema.names if name in SHAPE_COLUMNS]
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

    def _now(self, was: Shape) -> str:
        return (
            _values(self._shape) if list(was) == list(self._shape) else f"{_names(self._shape)} {_values(self._shape)}"
        )


def changed_window(uid: str, state: str, was: str, now: str) -> SnapshotError:
    """Return the error for a snapshot whose windows differ from the pipeline's."""
    return SnapshotError(
        f"the window of operator {uid!r} has changed",
        where=f"state {state!r} of operator {uid!r}",
        cause=f"in the snapshot, {was}; in the pipeline, {now}",
        remedy="Restore with the window of the snapshot, or give the operator a new uid",
    )


def _names(shape: Shape) -> str:
    if "calendar" in shape:
        return "windows"
    return f"{', '.join(name.removesuffix('_us') for name in shape)} in us"


def _values(shape: Shape) -> str:
    return ", ".join(map(str, shape.values()))
