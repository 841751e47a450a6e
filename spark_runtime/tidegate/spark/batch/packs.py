"""Packs: rows of partial aggregates on their way to the subtask of their keys (S8.1).

A pack holds rows of some upstream batches for one subtask, encoded by Arrow and sorted by bucket. The bucket of a row
is the first bits of its key's hash. The subtask merges a block of rows at a time, so that it holds little state: all
rows of some panes if no other pack has rows of these panes, else all rows of some buckets. It orders packs by their
place, so the result is the same however often a stage runs.

Packs exist only within a run. A pack begins with a header:

- its place, int64;
- the first and the last pane that it may have rows of, int64; both 0 if panes are not to be processed apart;
- the number of rows of each bucket, int32;
- for each column its base and its width in bytes, int64. A narrow column of int64 has unsigned numbers of this width,
  to which the base is added. Width 0: the column is as it is.

Header and rows are multiples of eight bytes, so received columns are aligned, as compiled kernels expect.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.batch_sizes import coalesce_batches, concat_batches
from tidegate.plan.batch_plan import Stage
from tidegate.spark.batch.exchange import PACK, KeyRun, SortedBlock
from tidegate.state.keys.stored_values import Int64s, plain_int64s
from tidegate.state.value_kernels import extent, write_offsets, write_sums

BUCKET_BITS = 6
BUCKETS = 1 << BUCKET_BITS
PACKED_ROWS = 1 << 15
"""Rows for each subtask that are packed together: smaller packs would cost more than their rows."""
PACKED_BYTES = 64 << 20
"""Size of the rows for all subtasks that are packed at once, even if they are fewer."""
PANE_FACTOR = 4
"""Packs end with a pane, unless they have this many times `PACKED_ROWS` for each subtask."""
BLOCK_ROWS = 1 << 20
"""Rows after which a block ends with the present panes or bucket. Merged, they take 100 MB or less."""
MEMORY_BYTES = 256 << 20
"""Size of the packs that a subtask keeps in memory. It writes later ones to a file."""
_NARROW = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32()}
"""Types of narrow columns, by their width in bytes."""


def gather(batches: Iterable[pa.RecordBatch], parallelism: int, pane: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of at least `PACKED_ROWS` for each subtask, or of `PACKED_BYTES`, except the last.

    Args:
        pane: column by which the rows are ordered, most of the time. A batch then ends where the pane does, if it is
            not too far away. None: it ends anywhere.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    enough = PACKED_ROWS * parallelism
    for batch in (batch for batch in batches if batch.num_rows):
        if pane is not None and enough <= rows and waiting[-1][pane][-1] != batch[pane][0]:
            yield concat_batches(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= (enough if pane is None else enough * PANE_FACTOR) or size >= PACKED_BYTES:
            yield concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield concat_batches(waiting)


@dataclass(frozen=True)
class NarrowRows:
    """Rows, of which columns of int64 are as narrow as their values allow. Most are counts, times and small sums.

    So Spark moves a fraction of the bytes.

    Attributes:
        widths, bases: by column, see the module.
    """

    rows: pa.RecordBatch
    widths: tuple[int, ...]
    bases: tuple[int, ...]


def narrow(rows: pa.RecordBatch) -> NarrowRows:
    """Return the rows with narrow columns."""
    found = [_narrow_column(column) for column in rows.columns]
    columns, widths, bases = zip(*found, strict=True)
    return NarrowRows(pa.RecordBatch.from_arrays(list(columns), rows.schema.names), widths, bases)


def _narrow_column(column: pa.Array) -> tuple[pa.Array, int, int]:
    """Return the column, its width and its base."""
    if column.type != pa.int64() or column.null_count == len(column):
        return column, 0, 0
    values = plain_int64s(column)
    if values is not None:
        return _narrow_values(column, values)
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    width = next((width for width in _NARROW if high - low < 1 << (8 * width)), 0)
    return (pc.subtract(column, low).cast(_NARROW[width]), width, low) if width else (column, 0, 0)


def _narrow_values(column: pa.Array, values: Int64s) -> tuple[pa.Array, int, int]:
    """Return the same for a column without nulls, at least one row."""
    low, high = extent(values)
    width = next((width for width in _NARROW if high - low < 1 << (8 * width)), 0)
    if not width:
        return column, 0, 0
    offsets = np.empty(len(values), f"u{width}")
    write_offsets(values, low, offsets)
    return pa.Array.from_buffers(_NARROW[width], len(values), [None, pa.py_buffer(offsets)]), width, low


def _wide_column(column: pa.Array, width: int, base: int) -> pa.Array:
    """Inverse of `_narrow_column`."""
    if not width:
        return column
    if column.null_count:
        return pc.add(column.cast(pa.int64()), base)
    offsets = np.frombuffer(column.buffers()[1], f"u{width}", len(column), column.offset * width)
    values = np.empty(len(offsets), np.int64)
    write_sums(offsets, base, values)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _widened(rows: pa.RecordBatch, widths: Sequence[int], bases: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
    """Inverse of `narrow`."""
    columns = [_wide_column(*given) for given in zip(rows.columns, widths, bases, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _header(columns: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            ("place", np.int64),
            ("panes", np.int64, (2,)),
            ("counts", np.int32, (BUCKETS,)),
            ("bases", np.int64, (columns,)),
            ("widths", np.int64, (columns,)),
        ]
    )


def encode_pack(place: int, panes: tuple[int, int], counts: npt.NDArray[np.integer], rows: NarrowRows) -> bytes:
    """Return a pack.

    Args:
        place: position in the order of the subtask's packs.
        panes: the first and the last pane.
        counts: number of rows of each bucket.
        rows: sorted by bucket.
    """
    header = np.zeros(1, _header(len(rows.widths)))
    header["place"], header["panes"], header["counts"] = place, panes, counts
    header["bases"], header["widths"] = rows.bases, rows.widths
    return b"".join([header.tobytes(), rows.rows.serialize()])


class PackedBlocks:
    """All packs of a subtask as blocks of whole panes or whole buckets."""

    def __init__(self, stage: Stage, batches: Iterable[pa.RecordBatch], folder: str) -> None:
        """Args: batches: in `PACK_SCHEMA`. folder: for packs that exceed `MEMORY_BYTES`; "": the system's own."""
        (self._given,) = stage.inputs
        self._batches = batches
        self._folder = folder

    def __iter__(self) -> Iterator[SortedBlock]:
        """Yield block after block; none if there is no row."""
        schema = self._given.schema
        packs = sorted(
            (_Pack(pack, schema) for pack in _received(self._batches, self._folder)), key=lambda one: one.place
        )
        together: list[_Pack] = []
        for same_panes in _by_panes(packs):
            rows = sum(pack.num_rows for pack in same_panes)
            if together and rows + sum(pack.num_rows for pack in together) > BLOCK_ROWS:
                yield SortedBlock(self._runs(together, 0, BUCKETS))
                together = []
            if rows > BLOCK_ROWS:
                yield from self._by_bucket(same_panes)
            elif rows:
                together += same_panes
        if together:
            yield SortedBlock(self._runs(together, 0, BUCKETS))

    def _by_bucket(self, packs: Sequence[_Pack]) -> Iterator[SortedBlock]:
        """Yield blocks of whole buckets."""
        ends = sum((pack.bounds for pack in packs), np.zeros(BUCKETS + 1, np.int64))
        first = 0
        while ends[first] < ends[-1]:
            last = min(int(np.searchsorted(ends, ends[first] + BLOCK_ROWS)), BUCKETS)
            yield SortedBlock(self._runs(packs, first, last))
            first = last

    def _runs(self, packs: Sequence[_Pack], first: int, last: int) -> Iterator[KeyRun]:
        """Yield the rows of buckets first..last."""
        parts = (part for pack in packs if (part := pack.rows_of(first, last)).num_rows)
        return (KeyRun(self._given.input_index, run) for run in coalesce_batches(parts))


def _by_panes(packs: Sequence[_Pack]) -> Iterator[list[_Pack]]:
    """Yield packs of which no other pack has rows of the same panes, in order of time.

    Args:
        packs: in the order of their places, which packs of the same panes keep.
    """
    found: list[_Pack] = []
    end = 0
    for pack in sorted(packs, key=lambda one: one.panes[0]):
        if found and pack.panes[0] > end:
            yield sorted(found, key=lambda one: one.place)
            found = []
        end = max(end, pack.panes[1]) if found else pack.panes[1]
        found.append(pack)
    if found:
        yield sorted(found, key=lambda one: one.place)


class _Pack:
    """A received pack, whose rows stay in its memory.

    Attributes:
        place: position in the order of the subtask's packs.
        panes: the first and the last pane that it may have rows of.
        bounds: row numbers at which its buckets begin, and at which the last one ends.
    """

    def __init__(self, pack: pa.Buffer, schema: pa.Schema) -> None:
        """Args: schema: schema of the rows."""
        kind = _header(len(schema))
        header = np.frombuffer(pack, kind, 1)[0]
        self._schema = schema
        self._bases, self._widths = header["bases"].tolist(), header["widths"].tolist()
        fields = zip(schema, self._widths, strict=True)
        packed = pa.schema([field.with_type(_NARROW[width]) if width else field for field, width in fields])
        self._rows = pa.ipc.read_record_batch(pack[kind.itemsize :], packed)
        self.place = int(header["place"])
        self.panes: tuple[int, int] = tuple(header["panes"].tolist())
        self.bounds = np.concatenate([[0], np.cumsum(header["counts"])])

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return int(self.bounds[-1])

    def rows_of(self, first: int, last: int) -> pa.RecordBatch:
        """Return the rows of buckets first..last, without the last."""
        start, end = int(self.bounds[first]), int(self.bounds[last])
        return _widened(self._rows.slice(start, end - start), self._widths, self._bases, self._schema)


def _received(batches: Iterable[pa.RecordBatch], folder: str) -> list[pa.Buffer]:
    """Return the packs, of which those beyond `MEMORY_BYTES` are mapped from a file without a name."""
    packs: list[pa.Buffer] = []
    spilled: list[tuple[int, int]] = []
    file: IO[bytes] | None = None
    size = 0
    with contextlib.ExitStack() as opened:
        for pack in (value.as_buffer() for batch in batches for value in batch.column(PACK)):
            size += pack.size
            if size <= MEMORY_BYTES:
                packs.append(pack)
                continue
            file = file or opened.enter_context(tempfile.TemporaryFile(dir=folder or None))
            spilled.append((file.tell(), pack.size))
            file.write(pack)
        if file is None:
            return packs
        file.flush()
        mapped = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return packs + [mapped.slice(start, length) for start, length in spilled]
