"""Drives the subtasks of a keyed aggregation by hand: rows by key, watermarks, and restores at any parallelism and with
any back end in between."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import OperatorContext, SideOutput
from tidegate.snapshot.redistribution import Rescale, redistributed
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.keys.key_hash import hash_keys, key_groups, subtask_of_key_groups

GROUPS = 8
STATE_MEMORY_BYTES = 2**20


class HeldBytes:
    """While it is entered: what Python, numpy and Arrow have come to hold since; RocksDB itself does not count."""

    def __enter__(self) -> Self:
        gc.collect()
        self._arrow = pa.total_allocated_bytes()
        tracemalloc.start()
        return self

    def __call__(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] + int(pa.total_allocated_bytes()) - self._arrow

    def __exit__(self, *_: object) -> None:
        tracemalloc.stop()


class Subtasks:
    """All subtasks of one operator. Results of all steps are tuples of plain values; times are microseconds.

    Attributes:
        operators: that run.
        counters: of those that are closed.
    """

    def __init__(self, spec: OperatorSpec, folder: Path, back_end: str = "heap", parallelism: int = 1) -> None:
        self._folder, self._runs = folder, 0
        self.counters: Counter[str] = Counter()
        self._open(spec, back_end, parallelism)

    def _open(self, spec: OperatorSpec, back_end: str, parallelism: int) -> None:
        self._spec: Any = spec
        self._back_end = back_end
        self._runs += 1
        self._told = [MIN_WATERMARK] * parallelism
        self.operators: list[Any] = []
        for index in range(parallelism):
            operator: Any = create_operator(spec)
            scratch = self._folder / f"{back_end}-{self._runs}-{index}"
            scratch.mkdir(parents=True)
            operator.open(
                OperatorContext(
                    *("job", "l", "op", index, parallelism, GROUPS, 1, "r", (self._spec.input_schema,), lambda: 0),
                    side_outputs=frozenset({"late"}),
                    scratch=str(scratch),
                    state_backend=back_end,  # type: ignore[arg-type]
                    state_memory_bytes=STATE_MEMORY_BYTES,
                )
            )
            self.operators.append(operator)

    def feed(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        groups = key_groups(hash_keys(batch, list(self._spec.keys)), GROUPS)
        owners = subtask_of_key_groups(len(self.operators), GROUPS)[groups]
        out = []
        for index, operator in enumerate(self.operators):
            part = batch.filter(pa.array(owners == index))
            if part.num_rows:
                out += self.plain(operator.process(part, 0))
        return out

    def watermark(self, watermark_us: int, first: int = 0) -> list[tuple[Any, ...]]:
        """Subtasks from `first` on are told."""
        out = []
        for index, operator in enumerate(self.operators):
            if index >= first and watermark_us >= self._told[index]:
                self._told[index] = watermark_us
                out += self.plain(operator.on_watermark(watermark_us))
        return out

    def finish(self) -> list[tuple[Any, ...]]:
        return [row for operator in self.operators for row in self.plain(operator.finish())]

    def restart(
        self, parallelism: int, back_end: str, *, portable: bool = True, spec: OperatorSpec | None = None
    ) -> None:
        """A crash, and a restore from a snapshot that was taken just before."""
        streams, blobs = [], {}
        for operator in self.operators:
            operator.portable = portable
            parts = operator.snapshot(1)()
            streams.append(encode_parts(parts))
            blobs |= {blob.id: b"".join(map(bytes, blob.pieces())) for part in parts for blob in part.blobs}
        self.close()
        self._open(spec or self._spec, back_end, parallelism)
        for index, operator in enumerate(self.operators):
            former = {i: decode_parts(stream, read_blob=blobs.__getitem__) for i, stream in enumerate(streams)}
            operator.restore(redistributed(former, 0, Rescale(len(streams), parallelism, GROUPS, index)))

    def close(self) -> None:
        for operator in self.operators:
            self.counters.update(operator.ctx.counters)
            operator.close()

    def plain(self, emission: Iterable[Any]) -> list[tuple[Any, ...]]:
        out = []
        for element in emission:
            batch = element.batch if isinstance(element, SideOutput) else element
            assert batch.num_rows
            if batch is element:
                assert batch.schema.equals(self._spec.schema)
            columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
            rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
            out += [("late" if batch is not element else "", *map(_frozen, row.values())) for row in rows]
        return out


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else repr(value) if value != value else value
