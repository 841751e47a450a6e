"""The records of a simulated job: a source that counts, and operators whose every row can be accounted for.

A row is (src, split, seq, key, path, at): row `seq` of split `split` of source `src`, with a key and an event time that
follow from `seq`, and the code of the way it took through the graph. So what must come out, and what an operator must
hold after any prefix of the input, can be computed without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from random import Random
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from simulator.pieces import keyed_in_pieces
from tidegate.channel.elements import MAX_WATERMARK
from tidegate.connectors.interface import (
    Boundedness,
    ContinuousDiscovery,
    Discovery,
    PollResult,
    Source,
    SourceContext,
    SourceReader,
    Split,
    SplitEnumerator,
)
from tidegate.operators.operator_registry import register_operator
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import TURN_OVER, OperatorContext, Output, StreamOperator
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.snapshot.streams import decode_parts
from tidegate.state.keys.key_hash import hash_keys, key_groups, subtask_of_key_groups

KEYS = 5
"""Keys of every split: 0 to KEYS - 1; the rows of one key are every KEYS-th."""
ROW_TIME_US = 1_000_000
"""Event time between two rows of a split, microseconds."""
WINDOW_US = 10 * ROW_TIME_US
"""Length of a tumbling window, microseconds."""

SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("src", "split", "seq", "key", "path")] + [("at", pa.timestamp("us", "UTC"))]
)
Row = tuple[int, int, int, int, int, int]
"""In the order of SCHEMA; the time in microseconds."""
TALLY_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("src", "split", "key", "path", "last", "count")]
    + [(KEY_GROUP_COLUMN, pa.uint16())]
)
WINDOW_SCHEMA = pa.schema(
    [(name, pa.int64()) for name in ("key", "start", "path", "count")] + [(KEY_GROUP_COLUMN, pa.uint16())]
)


def next_path(path: int, node_id: int) -> int:
    """Code of the way `path`, and then through node `node_id`."""
    return (path * 31 + node_id + 1) % (1 << 40)


def key_of(split: int, seq: int) -> int:
    """Key of row `seq` of split `split`."""
    return (split + seq) % KEYS


def row_of(src: int, split: int, seq: int, path: int) -> Row:
    """The whole row."""
    return (src, split, seq, key_of(split, seq), path, seq * ROW_TIME_US)


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as a batch of SCHEMA."""
    return pa.RecordBatch.from_arrays(_columns(rows, SCHEMA), schema=SCHEMA)


def _columns(rows: Sequence[Sequence[int]], schema: pa.Schema) -> list[pa.Array]:
    """Columns of 64-bit numbers and times (and key groups), without looking at the values one by one."""
    types = _TYPES[len(schema)]
    count, width = len(rows), 8 * len(rows)
    values = np.array(rows, dtype=np.int64).reshape(count, len(types)).T
    buffer = pa.py_buffer(values.tobytes())
    return [
        pa.Array.from_buffers(
            of, count, [None, pa.py_buffer(values[k].astype(np.uint16)) if narrow else buffer.slice(k * width, width)]
        )
        for k, (of, narrow) in enumerate(types)
    ]


_TYPES = {len(s): [(f.type, f.type == pa.uint16()) for f in s] for s in (SCHEMA, TALLY_SCHEMA, WINDOW_SCHEMA)}
"""(type, whether it is that of key groups) of each column, by the number of columns: a schema takes long to hash."""
_PATH = SCHEMA.field("path")


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """A batch of SCHEMA as rows."""
    columns = [batch.column(k) for k in range(5)]
    times = batch.column(5).view(pa.int64())
    return list(zip(*(c.to_pylist() for c in (*columns, times)), strict=True))


def rows_in_flight(stream: bytes) -> list[Row]:
    """The rows that a state stream holds as channel state."""
    rows: list[Row] = []
    for part in decode_parts(stream):
        if part.kind == "channel":
            for encoded in part.table.column("batch").drop_null().to_pylist():
                rows += rows_of(pa.ipc.open_stream(encoded).read_next_batch())
    return rows


@lru_cache(maxsize=64)
def owners(parallelism: int, max_parallelism: int) -> Mapping[int, tuple[int, int]]:
    """Key -> (its key group, the subtask that owns it)."""
    batch = pa.RecordBatch.from_arrays([pa.array(range(KEYS), pa.int64())], ["key"])
    groups = key_groups(hash_keys(batch, ["key"]), max_parallelism)
    owner = subtask_of_key_groups(parallelism, max_parallelism)
    return {key: (int(groups[key]), int(owner[groups[key]])) for key in range(KEYS)}


class Observer(Protocol):
    """Whom sources and operators tell what they do, apart from the runtime's own ways."""

    def now_ms(self) -> int:
        """Virtual time."""

    def violation(self, what: str) -> None:
        """Something happened that must not."""

    def given(self, ctx: SourceContext, splits: Sequence[Split]) -> None:
        """A reader was given splits."""

    def positions(self, ctx: SourceContext, splits: Sequence[Split]) -> None:
        """A reader was asked for its positions: a snapshot."""

    def state(self, ctx: OperatorContext, checkpoint_id: int, state: Mapping[Any, Any]) -> None:
        """An operator froze `state` for a snapshot."""


# ---------------------------------------------------------------- source


@dataclass(frozen=True, eq=False)
class CountingSource(Source):
    """Splits that count.

    Attributes:
        src: number of the source.
        splits: number of splits.
        rows: in each split; None: unbounded.
        pause_ms: most time between two batches of a reader.
        observer: see there.
        random: 0 <= x < 1.
        growth: numbers by which its splits are discovered while the job runs; None: all are there from the start.
    """

    src: int
    splits: int
    rows: int | None
    pause_ms: int
    observer: Observer
    random: Callable[[], float]
    growth: Random | None = None

    @property
    def boundedness(self) -> Boundedness:
        """By `rows`."""
        return "unbounded" if self.rows is None else "bounded"

    def schema(self) -> pa.Schema:
        """SCHEMA."""
        return SCHEMA

    def discover(self, parallelism: int) -> Sequence[Split]:
        """All splits."""
        return [self.split(k) for k in range(self.splits)]

    def split(self, number: int) -> Split:
        """One split, from its start."""
        return Split(f"{self.src}-{number}", {"split": number})

    def continuous_discovery(self) -> ContinuousDiscovery | None:
        """With `growth`. A split that never ends must not keep another one from its reader."""
        if self.growth is None:
            return None
        most = None if self.rows is None else (None, 1, 2)[self.src % 3]
        # A split that never ends would keep the next search from its turn.
        after_finished = self.rows is not None and self.splits % 3 == 0
        return ContinuousDiscovery(timedelta(milliseconds=60), most, after_finished)

    def create_enumerator(self, state: Any) -> SplitEnumerator:
        """Its state is the number of splits that it has found."""
        return GrowingSplits(self, int(state or 0))

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """A reader."""
        return CountingReader(self, ctx)


class GrowingSplits(SplitEnumerator):
    """Finds a few splits with each search, in order."""

    def __init__(self, source: CountingSource, found: int) -> None:
        self._source = source
        self._found = found

    def discover(self) -> Discovery:
        """None, one or two splits."""
        source = self._source
        assert source.growth is not None
        first, self._found = self._found, min(source.splits, self._found + source.growth.choice((0, 1, 1, 2)))
        complete = source.rows is not None and self._found == source.splits
        splits = [source.split(k) for k in range(first, self._found)]
        return Discovery(splits, self._found, complete, more=source.growth.random() < 0.3)


class CountingReader(SourceReader):
    """Takes its splits in turn, a few rows at a time."""

    def __init__(self, source: CountingSource, ctx: SourceContext) -> None:
        self._source = source
        self._ctx = ctx
        self._splits: dict[str, tuple[int, int]] = {}
        self._turn: list[str] = []
        self._next_ms = 0
        self._awaits_more = True

    def no_more_splits(self) -> None:
        """Then it may end."""
        self._awaits_more = False

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take splits with their positions."""
        self._source.observer.given(self._ctx, splits)
        for split in splits:
            if split.split_id in self._splits:
                self._source.observer.violation(f"split {split.split_id} was given twice to {self._ctx}")
            self._splits[split.split_id] = (split.data["split"], int(split.position or 0))
        self._turn = [s for s in self._splits if not self._is_finished(s)]

    def poll(self, now_ms: int) -> PollResult:
        """Up to 8 rows of the next split."""
        if not self._turn:
            if self._source.rows is None or self._awaits_more:
                return PollResult(state="nothing_now", retry_at_ms=now_ms + 1_000)
            return PollResult(state="end")
        if now_ms < self._next_ms:
            return PollResult(state="nothing_now", retry_at_ms=self._next_ms)
        self._next_ms = now_ms + 1 + int(self._source.random() * self._source.pause_ms)
        split_id = self._turn.pop(0)
        split, seq = self._splits[split_id]
        end = seq + 1 + int(self._source.random() * 8)
        if self._source.rows is not None:
            end = min(end, self._source.rows)
        self._splits[split_id] = (split, end)
        if not self._is_finished(split_id):
            self._turn.append(split_id)
        batch = batch_of([row_of(self._source.src, split, k, 0) for k in range(seq, end)])
        return PollResult(batch, split_id)

    def snapshot(self) -> Sequence[Split]:
        """Positions."""
        splits = [
            Split(split_id, {"split": split}, position, self._is_finished(split_id))
            for split_id, (split, position) in self._splits.items()
        ]
        self._source.observer.positions(self._ctx, splits)
        return splits

    def active_splits(self) -> frozenset[str]:
        """Not finished."""
        return frozenset(self._turn)

    def _is_finished(self, split_id: str) -> bool:
        return self._source.rows is not None and self._splits[split_id][1] >= self._source.rows


# ---------------------------------------------------------------- operators


@dataclass(frozen=True, eq=False)
class RowSpec(OperatorSpec):
    """Description of an operator of this module: `kind` is one of OPERATORS."""

    kind: str
    node_id: int
    in_order: bool
    exactly_once: bool
    observer: Observer

    def describe(self) -> str:
        """The kind."""
        return self.kind


class Pass(StreamOperator):
    """Passes rows on with their path extended; drops those of key 1 when it is a `filter`."""

    def __init__(self, spec: RowSpec) -> None:
        self._spec = spec

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Rows on, of some batches after turns of the other subtasks."""
        for _ in range(batch.num_rows % 3):
            yield TURN_OVER
        if self._spec.kind != "filter":
            yield self._passed(batch)
        elif rows := self._through(rows_of(batch)):
            yield batch_of(rows)

    def _passed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """As `_through`, of a whole batch."""
        path = batch.column(4)
        numbers = np.frombuffer(path.buffers()[1], np.int64, len(path), 8 * path.offset)
        further = pa.py_buffer((numbers * 31 + self._spec.node_id + 1) % (1 << 40))
        return batch.set_column(4, _PATH, pa.Array.from_buffers(_PATH.type, len(path), [None, further]))

    def _through(self, rows: Sequence[Row]) -> list[Row]:
        node_id, is_filter = self._spec.node_id, self._spec.kind == "filter"
        return [(a, b, c, key, next_path(p, node_id), t) for a, b, c, key, p, t in rows if not (is_filter and key == 1)]


class Buffer(Pass):
    """Holds rows back until there are some, or a barrier, or the end comes (S3.6): never state."""

    def __init__(self, spec: RowSpec) -> None:
        super().__init__(spec)
        self._held: list[Row] = []

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Keep, perhaps flush."""
        self._held += self._through(rows_of(batch))
        if len(self._held) > 12:
            yield from self._flush()

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Nothing may be later than the watermark that is passed on; a `hold` has no windows after it and waits."""
        if self._spec.kind == "buffer":
            yield from self._flush()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Iterator[Output]:
        """Flush."""
        yield from self._flush()

    def finish(self) -> Iterator[Output]:
        """Flush."""
        yield from self._flush()

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """None; nothing may be held now."""
        if self._held:
            self._spec.observer.violation(f"{self.ctx.uid} was snapshotted before it was flushed")
        return None

    def _flush(self) -> Iterator[Output]:
        rows, self._held = self._held, []
        if rows:
            yield batch_of(rows)


class Tally(Pass):
    """Keyed state: for each (src, split, key, path) the last row and the number of rows. With one path per key it
    demands every row once, in order; a row that came by a rebalanced way is counted only."""

    def __init__(self, spec: RowSpec) -> None:
        super().__init__(spec)
        self._state: dict[tuple[int, int, int, int], tuple[int, int]] = {}

    def open(self, ctx: OperatorContext) -> None:
        """Learn which keys are its own."""
        super().open(ctx)
        self._owners = owners(ctx.parallelism, ctx.max_parallelism)

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take rows back; none twice."""
        for table in (table for part in parts for table in part.tables()):
            for row in table.to_pylist():
                key = (row["src"], row["split"], row["key"], row["path"])
                if key in self._state:
                    self._spec.observer.violation(f"{self.ctx.uid}[{self.ctx.subtask}] was given {key} twice")
                self._own(row["key"])
                self._state[key] = (row["last"], row["count"])

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Check, count, pass on."""
        rows = rows_of(batch)
        for src, split, seq, key, path, _ in rows:
            self._own(key)
            last, count = self._state.get((src, split, key, path), (-1, 0))
            if self._spec.in_order:
                due = last + KEYS if count else (key - split) % KEYS
                if seq > due or (seq < due and self._spec.exactly_once):
                    self._spec.observer.violation(
                        f"{self.ctx.uid}[{self.ctx.subtask}] got row {seq} of {(src, split, key, path)}, "
                        f"due was {due} (run {self.ctx.run_id})"
                    )
            self._state[(src, split, key, path)] = (max(seq, last), count + 1)
        yield self._passed(batch)

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """One keyed part, a piece for each key; it changes with the number of its rows."""
        frozen = dict(self._state)
        self._spec.observer.state(self.ctx, checkpoint_id, frozen)

        def write() -> Sequence[StatePart]:
            rows: dict[int, list[tuple[int, ...]]] = {}
            for k, v in frozen.items():
                rows.setdefault(k[2], []).append((*k, *v, self._owners[k[2]][0]))
            ids = {f"k{key}-{sum(row[5] for row in of_key)}": of_key for key, of_key in rows.items()}
            pieces = {piece: partial(_table, of_key, TALLY_SCHEMA) for piece, of_key in ids.items()}
            return [keyed_in_pieces("tally", TALLY_SCHEMA, pieces)]

        return write

    def _own(self, key: int) -> None:
        if self._owners[key][1] != self.ctx.subtask:
            self._spec.observer.violation(f"{self.ctx.uid}[{self.ctx.subtask}] got key {key} of another subtask")


class Window(StreamOperator):
    """Counts rows per (key, tumbling window, path); fires each once, when the watermark passes its end."""

    def __init__(self, spec: RowSpec) -> None:
        self._spec = spec
        self._state: dict[tuple[int, int, int], int] = {}
        self._watermark_us = -(2**63)

    def open(self, ctx: OperatorContext) -> None:
        """Learn which keys are its own."""
        super().open(ctx)
        self._owners = owners(ctx.parallelism, ctx.max_parallelism)

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take open windows back; none twice."""
        for part in parts:
            for row in part.table.to_pylist():
                key = (row["key"], row["start"], row["path"])
                if key in self._state or self._owners[row["key"]][1] != self.ctx.subtask:
                    self._spec.observer.violation(f"{self.ctx.uid}[{self.ctx.subtask}] was given {key}")
                self._state[key] = row["count"]

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Count."""
        for _, _, seq, key, path, at in rows_of(batch):
            if self._owners[key][1] != self.ctx.subtask:
                self._spec.observer.violation(f"{self.ctx.uid}[{self.ctx.subtask}] got key {key} of another subtask")
            start = at - at % WINDOW_US
            if start + WINDOW_US <= self._watermark_us:
                self._spec.observer.violation(f"{self.ctx.uid} got row {seq} of key {key} after its watermark")
            self._state[key, start, path] = self._state.get((key, start, path), 0) + 1
        for _ in range(batch.num_rows % 2):
            yield TURN_OVER

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Fire what is over."""
        if watermark_us <= self._watermark_us:
            self._spec.observer.violation(f"{self.ctx.uid}: watermark {watermark_us} after {self._watermark_us}")
        self._watermark_us = watermark_us
        over = sorted(k for k in self._state if watermark_us == MAX_WATERMARK or k[1] + WINDOW_US <= watermark_us)
        rows = [window_row(self._spec.node_id, *k, self._state.pop(k)) for k in over]
        if rows:
            yield batch_of(rows)

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """One keyed part."""
        frozen = dict(self._state)

        def write() -> Sequence[StatePart]:
            rows = [(*k, v, self._owners[k[0]][0]) for k, v in frozen.items()]
            return [StatePart("windows", "keyed", _table(rows, WINDOW_SCHEMA))]

        return write


def window_row(node_id: int, key: int, start: int, path: int, count: int) -> Row:
    """What a window emits: the count stands in `seq`, the start in `split`, the window's number in `src`, negative."""
    return (-1 - node_id, start // WINDOW_US, count, key, next_path(path, node_id), start + WINDOW_US - 1)


OPERATORS: Mapping[str, Callable[[RowSpec], StreamOperator]] = {
    "pass": Pass,
    "filter": Pass,
    "union": Pass,
    "buffer": Buffer,
    "hold": Buffer,
    "tally": Tally,
    "window": Window,
}


def row_operator(spec: RowSpec) -> StreamOperator:
    """The operator of a kind."""
    return OPERATORS[spec.kind](spec)


register_operator(RowSpec, "simulator.rows:row_operator")


def _table(rows: Sequence[Sequence[int]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays(_columns(rows, schema), schema=schema)
