"""Rows by start and key that are only appended, read together and deleted together, such as the panes of windows.

Rows of one key are never looked up or changed. They are appended in sorted runs, several rows for a key if need be, and
merged by who reads them. So a row costs RocksDB a share of one large value instead of a read and a write. If runs
become many, or repeat keys, the rows of a key are combined into one (as a tree of merged runs does).

Not thread-safe. Before a call, the rows of the last snapshot must have been written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.rocksdb.byte_rows import ByteRows, fixed_width_bytes, interleave
from tidegate.state.rocksdb.database import RocksTable
from tidegate.state.rocksdb.database_keys import group_key
from tidegate.state.rocksdb.row_codec import RowCodec
from tidegate.state.rocksdb.run_chunks import (
    CHUNK_BYTES,
    COUNTS,
    HASH_BITS,
    LAST_RANK,
    Chunks,
    Ranks,
    RunLayout,
    chunk_bounds,
    chunk_keys,
    chunk_values,
    cut,
    groups_of_ranks,
    head_key,
    head_keys,
    read_head,
)

PIECE_ROWS = 2**16
"""Rows that are encoded at a time."""
SEGMENT_BYTES = 4 * 2**20
"""Approximate bytes of encoded rows that are read at a time."""
SAMPLE_ROWS = 1024
MIN_COMBINED_ROWS = 2**15
"""Rows of a key group and start below which their keys are not combined."""
MAX_RUNS = 128
"""Runs of a key group and start after which they become one, because each of them has small chunks."""

Combine = Callable[[pa.RecordBatch], pa.RecordBatch]


class NewRows(Protocol):
    """Rows to append, with one start. Used by any thread, but only by one at a time."""

    start_us: int

    def keys(self) -> pa.RecordBatch:
        """Return the key columns of all rows."""

    def rows(self, numbers: npt.NDArray[Any]) -> pa.RecordBatch:
        """Return the rows of these numbers, with all columns."""


class SortedRuns:
    """The rows of one table."""

    def __init__(self, table: RocksTable, layout: RunLayout, key_groups: range, combine: Combine | None) -> None:
        """Create without I/O.

        Args:
            table: of these rows alone.
            key_groups: of the subtask.
            combine: called with rows, in order of appending: returns one row for each key. None: rows stay as they are.
        """
        self._table = table
        self._layout = layout
        self._codec = RowCodec(layout.schema)
        self._key_groups = key_groups
        self._combine = combine
        self._counts: dict[int, npt.NDArray[Any]] = {}
        self._failure: Exception | None = None

    def load(self) -> None:
        """Read which starts the table has. Called once, after a restore and before the other methods."""
        self._counts.clear()
        lower = group_key(self._key_groups.start)
        for key, value in self._table.skip_scan(lower, group_key(self._key_groups.stop), lambda k: chunk_bounds(k)[1]):
            group, start_us = read_head(key)
            counts = self._counts[start_us] = self._counts_of(start_us)
            counts[group - self._key_groups.start] = np.frombuffer(value, COUNTS)[0]

    def starts_us(self) -> list[int]:
        """Return the starts that have rows."""
        return sorted(self._counts)

    def append(self, new: NewRows) -> None:
        """Append rows. May be called again with the same rows if the database failed to write them."""
        self._require_whole()
        keys = new.keys()
        if not keys.num_rows:
            return
        ranks = self._layout.ranks(keys)
        order = np.argsort(ranks)
        counts = self._counts_of(new.start_us).copy()
        # Until the counts are stored, these rows do not exist, and a second call replaces them.
        appended = self._write_run(new.start_us, ranks[order], order, new.rows, counts["next_run"])
        for field in ("next_run", "runs", "rows", "bytes"):
            counts[field] += appended[field]
        self._store_counts(new.start_us, counts, np.flatnonzero(appended["rows"]))
        self._combine_some(new.start_us, 2 * len(order) + MIN_COMBINED_ROWS)

    def delete(self, start_us: int) -> None:
        """Delete the rows of a start, if there are any."""
        counts = self._counts.pop(start_us, None)
        if counts is not None:
            for group in np.flatnonzero(counts["next_run"]).tolist():
                head = head_key(group + self._key_groups.start, start_us)
                self._table.delete_range(head, chunk_bounds(head)[1])

    def read(
        self, starts_us: Sequence[int], groups: Mask | None = None
    ) -> Iterator[tuple[int, list[list[pa.RecordBatch]]]]:
        """Yield (end, rows of each start): all rows, of the lowest ranks first, with a rank less than `end` that were
        not yielded before. Rows of one key are together, and in order of appending.

        Args:
            groups: which key groups of the subtask to read; None: all.
        """
        self._require_whole()
        sizes = self._sizes(starts_us, groups)
        few: list[int] = []
        for group in np.flatnonzero(sizes).tolist():
            if sizes[group] > SEGMENT_BYTES or sizes[few].sum() + sizes[group] > SEGMENT_BYTES:
                if few:
                    yield self._end_of(few[-1]), self._whole(few, starts_us)
                few = []
            if sizes[group] > SEGMENT_BYTES:
                heads = [head_key(group + self._key_groups.start, start_us) for start_us in starts_us]
                for end, batches, _ in self._segments(heads):
                    yield (self._end_of(group) if end == LAST_RANK else end), [[batch] for batch in batches]
            else:
                few.append(group)
        if few:
            yield self._end_of(few[-1]), self._whole(few, starts_us)

    def combine_all(self) -> None:
        """Combine the rows of every key that has several."""
        for start_us, counts in list(self._counts.items()):
            for group in np.flatnonzero(counts["runs"] > 1).tolist():
                self._combine_group(start_us, group)

    # ------------------------------------------------------------ counts

    def _counts_of(self, start_us: int) -> npt.NDArray[Any]:
        found = self._counts.get(start_us)
        return np.zeros(len(self._key_groups), COUNTS) if found is None else found

    def _store_counts(self, start_us: int, counts: npt.NDArray[Any], groups: Int64s) -> None:
        """Replace the counts of a start, which have changed in `groups`."""
        keys = head_keys(groups + self._key_groups.start, start_us)
        self._table.write(keys, fixed_width_bytes(counts[groups]))
        self._counts[start_us] = counts

    def _sizes(self, starts_us: Sequence[int], groups: Mask | None) -> Int64s:
        """Return the bytes of each key group of the subtask."""
        sizes = np.zeros(len(self._key_groups), np.int64)
        for start_us in starts_us:
            sizes += self._counts_of(start_us)["bytes"].astype(np.int64)
        return sizes if groups is None else np.where(groups, sizes, 0)

    def _end_of(self, group: int) -> int:
        return (group + self._key_groups.start + 1) << HASH_BITS

    # ------------------------------------------------------------ writing

    def _write_run(
        self,
        start_us: int,
        ranks: Ranks,
        numbers: npt.NDArray[Any],
        rows_of: Callable[[npt.NDArray[Any]], pa.RecordBatch],
        next_run: npt.NDArray[Any],
    ) -> npt.NDArray[Any]:
        """Write rows in order of their ranks, and return what they add to the counts of each key group.

        Args:
            numbers: of the row with each rank.
            next_run: number of the run, by key group.
        """
        sample = rows_of(numbers[:SAMPLE_ROWS])
        firsts, lowest = cut(ranks, max(1, CHUNK_BYTES * sample.num_rows // max(sample.nbytes, 1)))
        groups = groups_of_ranks(lowest) - self._key_groups.start
        keys = chunk_keys(start_us, lowest, next_run[groups])
        ends = np.append(firsts[1:], len(ranks))
        added = np.zeros(len(self._key_groups), COUNTS)
        cuts = np.unique(np.append(np.searchsorted(firsts, np.arange(0, len(ranks), PIECE_ROWS)), len(firsts)))
        for first, end in pairwise(cuts.tolist()):
            rows = rows_of(numbers[firsts[first] : ends[end - 1]])
            values = chunk_values(self._codec, rows, firsts[first:end] - firsts[first])
            self._table.write(keys.take(slice(first, end)), values)
            np.add.at(added["bytes"], groups[first:end], values.lengths.astype(np.uint64))
        np.add.at(added["rows"], groups, (ends - firsts).astype(np.uint64))
        added["next_run"] = added["runs"] = added["rows"] > 0
        return added

    def _combine_some(self, start_us: int, most_rows: int) -> None:
        """Combine rows in key groups that need it most, about `most_rows` at once. So a snapshot waits for no more than
        some of them, and there are about three rows for each key at most."""
        counts = self._counts[start_us]
        rows, base = counts["rows"].astype(np.int64), counts["base"].astype(np.int64)
        due = (rows - base >= np.maximum(2 * base, MIN_COMBINED_ROWS)) | (counts["runs"] > MAX_RUNS)
        for group in sorted(np.flatnonzero(due).tolist(), key=lambda group: int(base[group] - rows[group])):
            if most_rows <= 0:
                return
            most_rows -= int(rows[group])
            self._combine_group(start_us, group)

    def _combine_group(self, start_us: int, group: int) -> None:
        """Write the rows of a key group and start as one run, with a row for each key."""
        try:
            self._combine_rows(start_us, group)
        except Exception as error:
            # Some rows are now in the database twice, and others not at all.
            self._failure = error
            raise

    def _combine_rows(self, start_us: int, group: int) -> None:
        counts = self._counts[start_us].copy()
        next_run, rows_left, bytes_left = counts["next_run"].copy(), 0, 0
        for _, (batch,), keys in self._segments([head_key(group + self._key_groups.start, start_us)]):
            self._table.write(keys, ByteRows.missing(len(keys)))
            if not batch.num_rows:
                continue
            rows = batch if self._combine is None else self._combine(batch)
            ranks = self._layout.ranks(rows)
            # Rows of one key keep their order.
            order = np.argsort(ranks, kind="stable")
            added = self._write_run(start_us, ranks[order], order, _taken(rows), next_run)[group]
            rows_left, bytes_left = rows_left + int(added["rows"]), bytes_left + int(added["bytes"])
            # Two segments may both have rows in a chunk, so their chunks must not have the same key.
            next_run[group] += 1
        counts[group] = (next_run[group], 1, rows_left, rows_left, bytes_left)
        self._store_counts(start_us, counts, np.array([group]))

    def _require_whole(self) -> None:
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------ reading

    def _whole(self, groups: Sequence[int], starts_us: Sequence[int]) -> list[list[pa.RecordBatch]]:
        """Return the rows of each start in some key groups, which are small."""
        found: list[list[pa.RecordBatch]] = []
        for start_us in starts_us:
            heads = [group for group in groups if self._counts_of(start_us)["rows"][group]]
            scans = [self._table.scan(*self._bounds(group, start_us)) for group in heads]
            steps = [step for scan in scans for step in scan]
            found.append([])
            if steps:
                keys, values = (interleave(*column) for column in zip(*steps, strict=True))
                chunks = Chunks.of(keys, values)
                rows, _ = chunks.take(np.argsort(chunks.keys["run"], kind="stable")).rows(self._codec)
                found[-1].append(rows)
        return found

    def _bounds(self, group: int, start_us: int) -> tuple[bytes, bytes]:
        return chunk_bounds(head_key(group + self._key_groups.start, start_us))

    def _segments(self, heads: Sequence[bytes]) -> Iterator[tuple[int, list[pa.RecordBatch], ByteRows]]:
        """Yield (end, rows of each head with a lower rank, keys of the chunks that were read) for one key group."""
        sources = [_Source(self._table.scan(*chunk_bounds(head)), self._layout, self._codec) for head in heads]
        while True:
            end = min(source.end for source in sources)
            read = [source.read_keys() for source in sources]
            yield end, [source.take(end) for source in sources], interleave(*read)
            if end == LAST_RANK:
                return
            for source in sources:
                if source.end == end:
                    source.advance()


class _Source:
    """The rows of one key group and start, read in order of rank.

    Attributes:
        end: all rows with a lower rank have been read.
    """

    def __init__(self, steps: Iterator[tuple[ByteRows, ByteRows]], layout: RunLayout, codec: RowCodec) -> None:
        self._steps, self._layout, self._codec = steps, layout, codec
        self._rows = layout.schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], layout.schema)]
        self._ranks: Ranks = np.zeros(0, np.uint64)
        self._runs = np.zeros(0, np.int64)
        self._keys = ByteRows.missing(0)
        self.end = 0
        self.advance()

    def advance(self) -> None:
        """Read some more rows."""
        step = next(self._steps, None)
        if step is None:
            self.end = LAST_RANK
            return
        self._keys = interleave(self._keys, step[0])
        chunks = Chunks.of(*step)
        rows, numbers = chunks.rows(self._codec)
        # The next chunk may have the lowest rank of the last one, but not a lower one.
        self.end = int(chunks.keys["rank"][-1])
        self._rows.append(rows)
        self._ranks = np.append(self._ranks, self._layout.ranks(rows))
        self._runs = np.append(self._runs, chunks.keys["run"].astype(np.int64)[numbers])

    def read_keys(self) -> ByteRows:
        """Return the keys of the chunks that were read since the last call."""
        keys, self._keys = self._keys, ByteRows.missing(0)
        return keys

    def take(self, end: int) -> pa.RecordBatch:
        """Return and forget the rows with a lower rank, in order of appending."""
        rows = pa.Table.from_batches(self._rows, self._layout.schema).combine_chunks().to_batches()
        together = rows[0] if rows else pa.RecordBatch.from_pylist([], self._layout.schema)
        below = np.flatnonzero(self._ranks < np.uint64(end))
        above = np.flatnonzero(self._ranks >= np.uint64(end))
        order = below[np.argsort(self._runs[below], kind="stable")]
        self._rows = [together.take(pa.array(above))]
        self._ranks, self._runs = self._ranks[above], self._runs[above]
        return together.take(pa.array(order))


def _taken(rows: pa.RecordBatch) -> Callable[[npt.NDArray[Any]], pa.RecordBatch]:
    return lambda numbers: rows.take(pa.array(numbers))
