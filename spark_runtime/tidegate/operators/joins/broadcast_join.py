"""BroadcastJoin: joins a stream with a complete bounded side that every subtask holds in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.channel.elements import MAX_WATERMARK, Watermark
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS, concat_batches
from tidegate.operators.joins.join_specs import BUILD_SIDE, BroadcastJoinSpec
from tidegate.operators.joins.joined_columns import Condition
from tidegate.operators.joins.left_out_columns import note_left_out, without_left_out
from tidegate.operators.joins.matched_pairs import pair_rows
from tidegate.operators.restored_parts import single_part
from tidegate.operators.stream_operator import Output, StreamOperator
from tidegate.snapshot.parts import OWNER_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_index import Entries, KeyReader

RowNumbers = npt.NDArray[np.int64]
PROGRESS_SCHEMA = pa.schema([pa.field("build_ended", pa.bool_(), nullable=False)])
"""State `progress`: whether the build side is complete. It is restored from the subtask that the build rows come
from."""
HELD_SCHEMA = pa.schema([pa.field("held_us", pa.int64()), pa.field(OWNER_COLUMN, pa.int32())])
"""State `held`: the watermark held back until the build side is complete (null: none). Every subtask restores all of
them, because at another parallelism each subtask must hold back the earliest."""


class BuildSide:
    """An index over the build rows, to join probe batches with them.

    Rows with a null in a key match nothing, as in SQL. A probe row is emitted once for each build row of its key; build
    rows are in order of arrival.
    """

    def __init__(self, spec: BroadcastJoinSpec, rows: Sequence[pa.RecordBatch]) -> None:
        """Args: rows: all build rows."""
        self._spec = spec
        self._pairs = spec.pairs
        self._condition = None if spec.where is None else Condition(spec.where)
        self._keep_unmatched = spec.how == "left"
        mine, theirs = spec.on, spec.build_keys
        types = ((spec.left_schema.field(k).type, spec.right_schema.field(r).type) for k, r in zip(mine, theirs))
        same_types = all(left == right for left, right in types)
        self._probe_keys = KeyReader(spec.left_schema, mine, canonical=not same_types)
        table = pa.Table.from_batches(list(rows), schema=spec.right_schema)
        batches = table.filter(reduce(pc.and_, [pc.is_valid(table.column(key)) for key in theirs])).to_batches()
        build = concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=spec.right_schema)
        build_keys = KeyReader(spec.right_schema, theirs, canonical=not same_types)
        self._index = build_keys.new_index(build.num_rows)
        entries = np.empty(build.num_rows, np.int32)
        self._index.find_or_add(build_keys.read(build), 0, build.num_rows, entries)
        self._unique = self._index.size == build.num_rows
        self._rows = np.argsort(entries, kind="stable")
        counts = np.bincount(entries, minlength=self._index.size)
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._columns = build.select([column for column, _ in spec.build_columns])

    def join(self, probe: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Join a batch: emit rows in order of the probe rows, in batches of at most `MAX_BATCH_ROWS`.

        With a further condition, rows without a match are emitted last.
        """
        matches = np.empty(probe.num_rows, np.int32)
        self._index.find(self._probe_keys.read(probe), 0, probe.num_rows, matches)
        if self._condition is not None:
            yield from self._passing(probe, matches, self._condition)
        elif self._spec.how in ("semi", "anti"):
            yield from self._unmatched(probe, matches >= 0)
        # If no build key repeats, the entry of a key is the number of its row, and no pairs have to be formed.
        elif self._unique and (self._keep_unmatched or bool((matches >= 0).all())):
            for start in range(0, probe.num_rows, MAX_BATCH_ROWS):
                part = slice(start, start + MAX_BATCH_ROWS)
                yield self._emit(self._combined(probe.slice(start, MAX_BATCH_ROWS), matches[part].astype(np.int64)))
        else:
            for left, right in self._matched(matches, self._keep_unmatched):
                yield self._emit(self._combined(probe.take(pa.array(left)), right))

    def _passing(self, probe: pa.RecordBatch, matches: Entries, condition: Condition) -> Iterator[pa.RecordBatch]:
        hit = np.zeros(probe.num_rows, np.bool_)
        for left, right in self._matched(matches, False):
            pairs = self._combined(probe.take(pa.array(left)), right)
            passing = condition.filter(pairs)
            hit[left[passing]] = True
            if passing.any() and self._spec.how in ("inner", "left"):
                yield self._emit(pairs.filter(pa.array(passing)))
        if self._spec.how in ("semi", "anti"):
            yield from self._unmatched(probe, hit)
        elif self._keep_unmatched and not hit.all():
            left = np.flatnonzero(~hit)
            for start in range(0, len(left), MAX_BATCH_ROWS):
                rows = left[start : start + MAX_BATCH_ROWS]
                yield self._emit(self._combined(probe.take(pa.array(rows)), np.full(len(rows), -1)))

    def _matched(self, matches: Entries, keep_unmatched: bool) -> Iterator[tuple[RowNumbers, RowNumbers]]:
        left, right = pair_rows(matches, self._starts, self._rows, keep_unmatched)
        for start in range(0, len(left), MAX_BATCH_ROWS):
            part = slice(start, start + MAX_BATCH_ROWS)
            yield left[part], right[part]

    def _unmatched(self, probe: pa.RecordBatch, hit: Mask) -> Iterator[pa.RecordBatch]:
        """Emit the probe rows of a semi or anti join."""
        wanted = hit if self._spec.how == "semi" else ~hit
        if wanted.any():
            yield self._emit(probe if wanted.all() else probe.filter(pa.array(wanted)))

    def _combined(self, probe: pa.RecordBatch, rows: RowNumbers) -> pa.RecordBatch:
        missing = rows < 0
        added: list[pa.Array] = []
        if self._columns.num_columns:
            indices = pa.array(rows, mask=missing if missing.any() else None)
            added = self._columns.take(indices).columns
        return pa.RecordBatch.from_arrays([*probe.columns, *added], schema=self._pairs)

    def _emit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._spec.schema)


class BroadcastJoin(StreamOperator):
    """Joins input 0 (probe) with input 1 (build), which is broadcast and must end.

    Operators cannot choose which input is read, so probe rows that arrive before the build side is complete are
    buffered, and watermarks are held back. When the build side ends, the buffered rows are joined and emitted, then the
    held watermark is forwarded. After that, no probe rows are buffered. The build side is complete at `end_input(1)`,
    or at
    MAX_WATERMARK: it means that every input has ended, and may come before `end_input`.

    State: `build` and `progress` (broadcast), `buffered` probe rows and `held` (list). Batches are immutable, so
    `snapshot` copies nothing. At another parallelism, all probe rows of one old subtask go to one new subtask, so they
    stay in order among themselves. Rows that another subtask receives after the restore may overtake them.
    """

    def __init__(self, spec: BroadcastJoinSpec) -> None:
        self._spec = spec
        self._build_rows: list[pa.RecordBatch] = []
        self._buffered: list[pa.RecordBatch] = []
        self._build: BuildSide | None = None
        self._held_us: int | None = None

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Join a probe batch, or buffer it; store a build batch."""
        if input_index == BUILD_SIDE:
            assert self._build is None, "the build side sent a record after its end"
            self._build_rows.append(_as_declared(batch, self._spec.right_schema))
        elif self._build is None:
            self._buffered.append(_as_declared(batch, self._spec.left_schema))
        else:
            yield from self._build.join(batch)

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Hold the watermark back while probe rows wait. MAX_WATERMARK completes the build side."""
        if watermark_us == MAX_WATERMARK:
            yield from self._complete()
        elif self._build is None:
            self._held_us = watermark_us

    def forwards_watermarks(self) -> bool:
        """False until the build side is complete."""
        return self._build is not None

    def has_pending_rows(self) -> bool:
        """True while probe rows wait for the build side."""
        return bool(self._buffered)

    def end_input(self, input_index: int) -> Iterator[Output]:
        """Emit the buffered probe rows if the build side has ended."""
        if input_index == BUILD_SIDE:
            yield from self._complete()

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze build rows, buffered probe rows, and progress."""
        build, buffered = tuple(self._build_rows), tuple(self._buffered)
        progress = pa.table([[self._build is not None]], schema=PROGRESS_SCHEMA)
        held = pa.table([[self._held_us], [None]], schema=HELD_SCHEMA)
        return lambda: [
            StatePart("build", "broadcast", pa.Table.from_batches(build, schema=self._spec.right_schema)),
            StatePart("buffered", "list", self._buffered_table(buffered)),
            StatePart("progress", "broadcast", progress),
            StatePart("held", "list", held),
        ]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore what `snapshot` wrote. If a drain ended the build side early, it continues (S7.5).

        Raises:
            SnapshotError: a side has other columns now (S5.5).
        """
        ended, renamed = False, dict(self._spec.renamed)
        held: list[int | None] = []
        for part in parts:
            if part.name == "build":
                table = single_part(part, self._spec.right_schema, self.ctx.uid, renamed).table
                self._build_rows = _batches(table, self._spec.right_schema)
            elif part.name == "buffered":
                rows = part.table
                if OWNER_COLUMN in rows.column_names:  # the first version wrote no owners
                    rows = rows.drop_columns(OWNER_COLUMN)
                where = f"operator {self.ctx.uid!r}, state {part.name!r}"
                names, left_out = self._spec.left_schema.names, self._spec.left_out
                rows = without_left_out(rows, names, left_out, renamed, where)
                table = single_part(replace(part, table=rows), self._spec.left_schema, self.ctx.uid, renamed).table
                self._buffered.extend(_batches(table, self._spec.left_schema))
            elif part.name == "held":
                held += part.table.column("held_us").to_pylist()
            else:
                ended = any(part.table.column("build_ended").to_pylist())
                if "held_us" in part.table.column_names:  # the first version wrote it here
                    held += part.table.column("held_us").to_pylist()
        known = [time_us for time_us in held if time_us is not None]
        # An old subtask that held no watermark counts as the earliest, so that none is held then.
        self._held_us = min(known) if known and len(known) == len(held) else None
        if ended and not self.ctx.drained:
            self._build = BuildSide(self._spec, self._build_rows)

    def _buffered_table(self, buffered: Sequence[pa.RecordBatch]) -> pa.Table:
        table = pa.Table.from_batches(buffered, schema=self._spec.left_schema)
        owners = pa.array(np.full(table.num_rows, self.ctx.subtask, np.int32))
        return note_left_out(table.append_column(OWNER_COLUMN, owners), self._spec.left_out)

    def _complete(self) -> Iterator[Output]:
        if self._build is not None:
            return
        self._build = BuildSide(self._spec, self._build_rows)
        buffered, self._buffered = self._buffered, []
        for batch in buffered:
            yield from self._build.join(batch)
        if self._held_us is not None:
            yield Watermark(self._held_us)
            self._held_us = None


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast a batch to the declared schema: the batches of a source may differ from it in nullability."""
    return batch if batch.schema.equals(schema) else batch.cast(schema)


def _batches(table: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in table.to_batches() if b.num_rows]
