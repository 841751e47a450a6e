"""A source whose splits a test feeds while the job runs, and a job that is let run for a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidegate.connectors.interface import Boundedness, PollResult, Source, SourceContext, SourceReader, Split
from tidegate.testing.in_process_job import InProcessRun

SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("ms"))])


class Fed(Source):
    """Splits that give what `feed` puts there."""

    boundedness: Boundedness = "unbounded"

    def __init__(self, *splits: str, batch_rows: int = 1_000_000) -> None:
        self.batch_rows = batch_rows
        self.waiting: dict[str, list[int]] = {split: [] for split in splits}

    def feed(self, split: str, *times_ms: int) -> None:
        self.waiting[split] += times_ms

    def schema(self) -> pa.Schema:
        return SCHEMA

    def discover(self, parallelism: int) -> Sequence[Split]:
        return [Split(name, {}) for name in self.waiting]

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        return FedReader(self)


class FedReader(SourceReader):
    def __init__(self, source: Fed) -> None:
        self._source = source
        self._splits: dict[str, Split] = {}

    def add_splits(self, splits: Sequence[Split]) -> None:
        self._splits = {split.split_id: split for split in splits}

    def poll(self, now_ms: int) -> PollResult:
        for name, split in self._splits.items():
            times = self._source.waiting[name]
            if times:
                taken = times[: self._source.batch_rows]
                del times[: self._source.batch_rows]
                self._splits[name] = replace(split, position=(split.position or 0) + len(taken))
                columns = [pa.array([1] * len(taken)), pa.array(taken).cast(pa.timestamp("ms"))]
                return PollResult(pa.record_batch(columns, schema=SCHEMA), name)
        return PollResult(state="nothing_now", retry_at_ms=now_ms + 50)

    def snapshot(self) -> Sequence[Split]:
        return list(self._splits.values())


def passed(run: InProcessRun, ms: int) -> None:
    """Let the job run for so long."""
    for _ in range(ms // 50):
        while run.pump():
            pass
        run.tick(50)
    while run.pump():
        pass
