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
from builders.operators import open_operator
from builders.rescaling import StoredState, rows_by_subtask

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import SideOutput

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
            scratch = self._folder / f"{back_end}-{self._runs}-{index}"
            scratch.mkdir(parents=True)
            operator = open_operator(
                spec,
                self._spec.input_schema,
                subtask=index,
                parallelism=parallelism,
                max_parallelism=GROUPS,
                side_outputs=frozenset({"late"}),
                scratch=str(scratch),
                state_backend=back_end,
                state_memory_bytes=STATE_MEMORY_BYTES,
            )
            self.operators.append(operator)

    def feed(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        out = []
        for index, part in rows_by_subtask(batch, self._spec.keys, len(self.operators), GROUPS):
            out += self.plain(self.operators[index].process(part, 0))
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
        for operator in self.operators:
            operator.portable = portable
        stored = StoredState.of(self.operators)
        self.close()
        self._open(spec or self._spec, back_end, parallelism)
        stored.restore(self.operators, GROUPS)

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
