"""State of joins of two streams in the keyed back end (S5.1): rows of both sides, by key and span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.errors import SnapshotError
from tidegate.operators.joins.join_specs import FORM_STATE, MATCHED, POSITIONS, SIDES, StreamJoinSpec
from tidegate.operators.keyed_backend import open_keyed_backend
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.time.passed_watermarks import PASSED_STATE, WatermarkByKeyGroup
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.evolved_parts import evolved_parts
from tidegate.state.keyed_state import KeyedStateBackend, KeyNumbers, KeySet, Mask, StateDescriptor
from tidegate.state.keys.key_bytes import Int64s

FORM_SCHEMA = pa.schema([pa.field(KEY_GROUP_COLUMN, pa.uint16(), nullable=False), pa.field("form", pa.string())])

Names = Mapping[str, str]


class JoinProgress:
    """The watermarks of a join subtask, and the form of its state.

    Attributes:
        passed: the watermark for each key group.
    """

    def __init__(self, ctx: OperatorContext, form: str) -> None:
        self._uid, self._form = ctx.uid, form
        self._groups = key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        self.passed = WatermarkByKeyGroup(ctx.subtask, ctx.parallelism, ctx.max_parallelism)

    def parts(self) -> list[StatePart]:
        """Return the present watermarks and the form as state."""
        groups = pa.array(np.array(self._groups, np.uint16))
        # A row for each key group, so that every subtask receives the form, at any parallelism.
        form = pa.table([groups, pa.array([self._form] * len(groups))], schema=FORM_SCHEMA)
        return [self.passed.part(), StatePart(FORM_STATE, "keyed", form)]

    def restore(self, parts: Sequence[StatePart]) -> list[StatePart]:
        """Restore what `parts` returned, and return all other parts.

        Raises:
            SnapshotError: the snapshot was written by another kind of join or with other bounds.
        """
        passed = [part for part in parts if part.name == PASSED_STATE]
        if passed:
            self.passed.restore(passed)
        for part in parts:
            if part.name == FORM_STATE:
                self._require_form(part.table)
        return [part for part in parts if part.name not in (PASSED_STATE, FORM_STATE)]

    def _require_form(self, table: pa.Table) -> None:
        for form in table.column("form").unique().to_pylist():
            if form != self._form:
                raise SnapshotError(
                    f"the join {self._uid!r} has changed, so it cannot use its state in the snapshot",
                    where=f"state {FORM_STATE!r} of operator {self._uid!r}",
                    cause=f"the join of the snapshot is {form}, the join of the pipeline is {self._form}",
                    remedy="Restore with the join of the snapshot, or give the operator a new uid",
                )


class JoinState:
    """The back end of one join subtask, and its progress.

    Attributes:
        back_end: the open back end; its batches have the columns of the key schema.
        passed: the watermark for each key group.
    """

    def __init__(
        self,
        ctx: OperatorContext,
        key_schema: pa.Schema,
        descriptors: Sequence[StateDescriptor],
        form: str,
        renamed: Sequence[tuple[str, str]],
        namespace_columns: int,
    ) -> None:
        self._ctx, self._key_schema, self._descriptors = ctx, key_schema, tuple(descriptors)
        self._renamed_keys = {old: new for old, new in renamed if new in key_schema.names}
        self._progress = JoinProgress(ctx, form)
        self.passed = self._progress.passed
        self.back_end: KeyedStateBackend = open_keyed_backend(
            ctx, key_schema, namespace_columns=namespace_columns, renamed=self._renamed_keys.items()
        )
        self.lists = {descriptor.name: self.back_end.list(descriptor) for descriptor in descriptors}
        self.timers = self.back_end.timers("event")
        # Opened even if unused, because a snapshot contains the timers of both kinds.
        self.back_end.timers("processing")

    def keys(self, columns: Sequence[pa.Array]) -> KeySet:
        """Return the keys of rows with these key columns."""
        return self.back_end.keys(pa.RecordBatch.from_arrays(columns, schema=self._key_schema))

    def register(self, keys: KeySet, owners: KeyNumbers, times: Int64s) -> None:
        """Register an event timer for each key, at the earliest of its times."""
        earliest = np.full(keys.size, MAX_WATERMARK)
        np.minimum.at(earliest, owners, times)
        timed = np.flatnonzero(earliest < MAX_WATERMARK).astype(np.int32)
        self.timers.register(keys, timed, earliest[timed])

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """Freeze the state."""
        write, progress = self.back_end.snapshot(checkpoint_id, portable=portable), self._progress.parts()
        return lambda: [*write(), *progress]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore what `snapshot` wrote.

        Raises:
            SnapshotError: the snapshot was written by another kind of join or with other bounds, or its columns cannot
                be adapted (S5.5).
        """
        states = self._progress.restore(parts)
        rows = [part for part in states if part.format == "rows"]
        changed = evolved_parts(rows, self._descriptors, self._key_schema, self._ctx.uid, self._renamed_keys)
        self.back_end.restore([*changed, *(part for part in states if part.format != "rows")])


@dataclass(frozen=True)
class JoinRows:
    """Rows of one side for some keys.

    Attributes:
        offsets: key k has rows offsets[k]:offsets[k + 1].
        rows: in order of arrival.
        matched: which of them have found a match; None: not tracked.
    """

    offsets: Int64s
    rows: pa.RecordBatch
    matched: Mask | None

    @property
    def owners(self) -> KeyNumbers:
        """Return the number of its key for each row."""
        sizes = np.diff(self.offsets)
        return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)


class SideRows:
    """The rows of one side, and which of them have found a match.

    A match on arrival is stored in a column, a later match as a mark with the row's position in its list. Positions
    stay valid, because lists are only deleted as a whole.
    """

    def __init__(self, state: JoinState, spec: StreamJoinSpec, side: int) -> None:
        name = SIDES[side]
        self.descriptor = next(d for d in spec.descriptors if d.name == name)
        self._rows = state.lists[name]
        self._marks = state.lists.get(MATCHED.format(name))
        self._columns = self.descriptor.columns
        self._width = len(self._columns) - spec.tracks_matches(side)

    def fetch(self, keys: KeySet) -> JoinRows:
        """Return the rows of each key."""
        found = self._rows.get(keys)
        if self._marks is None:
            return JoinRows(found.offsets, found.columns, None)
        matched = found.columns.column(self._width).to_numpy(zero_copy_only=False).astype(np.bool_)
        marks = self._marks.get(keys)
        owners = np.repeat(np.arange(keys.size), np.diff(marks.offsets))
        matched[found.offsets[owners] + marks.columns.column(0).to_numpy()] = True
        return JoinRows(found.offsets, found.columns.select(range(self._width)), matched)

    def add(self, keys: KeySet, owners: KeyNumbers, rows: pa.RecordBatch, matched: Mask) -> None:
        """Append rows. `matched` is stored only if matches are tracked."""
        arrays = [rows.column(name) for name in self._columns.names[: self._width]]
        if self._marks is not None:
            arrays.append(pa.array(matched))
        self._rows.append(keys, owners, pa.RecordBatch.from_arrays(arrays, schema=self._columns))

    def mark(self, keys: KeySet, stored: JoinRows, which: npt.NDArray[np.int64]) -> None:
        """Mark fetched rows that have found a match or were emitted alone: they no longer wait for a match."""
        if len(which):
            assert self._marks is not None, "matches of this side are not tracked"
            owners = stored.owners[which]
            positions = pa.array(which - stored.offsets[owners])
            self._marks.append(keys, owners, pa.RecordBatch.from_arrays([positions], schema=POSITIONS))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """Delete keys."""
        self._rows.clear(keys, where)
        if self._marks is not None:
            self._marks.clear(keys, where)
