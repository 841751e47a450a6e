"""The counting job with its input pushed: a thread per subtask makes the rows of `counting` and emits them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate import Parquet, Pipeline, PushContext, Pusher, PushSource, count, sum, tumbling
from tidegate.connectors.interface import Boundedness, SourceContext, Split

KEYS = 17
SPLITS = 3
BATCH = 64
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms", tz="UTC"))])


class Numbers(PushSource):
    """Row n belongs to split n mod 3; a position is the split's next row."""

    buffer_bytes = 64 * 1024

    def __init__(self, rows: int, rate: float) -> None:
        self._rows = rows
        self._rate = rate

    @property
    def boundedness(self) -> Boundedness:
        return "bounded"

    def schema(self) -> pa.Schema:
        return SCHEMA

    def discover(self, parallelism: int) -> Sequence[Split]:
        return [Split(f"numbers-{i}", {"first": i}) for i in range(SPLITS)]

    def create_pusher(self, ctx: SourceContext) -> Pusher:
        return Numbering(self._rows, self._rate / SPLITS)


class Numbering(Pusher):
    """Emits its splits in turn, `rate` rows a second each."""

    def __init__(self, rows: int, rate: float) -> None:
        self._rows = rows
        self._pause_s = BATCH / rate

    def run(self, push: PushContext) -> None:
        at = {s.split_id: s.data["first"] if s.position is None else s.position for s in push.splits}
        due_s = time.monotonic()
        while at:
            for split_id in list(at):
                end = at[split_id] + BATCH * SPLITS
                push.emit(rows(at[split_id], min(end, self._rows)), split_id=split_id, position=end)
                at[split_id] = end
                if end >= self._rows:
                    del at[split_id]
                    push.finish_split(split_id)
            due_s += self._pause_s
            push.wait_until_closed(max(0.0, due_s - time.monotonic()))


def rows(start: int, stop: int) -> pa.RecordBatch:
    """Every third row from `start`."""
    numbers = np.arange(start, stop, SPLITS)
    times = pa.array(numbers).cast(pa.timestamp("ms", tz="UTC"))
    return pa.record_batch([pa.array(numbers % KEYS), pa.array(numbers), times], schema=SCHEMA)


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: rows, rate (rows per second over all splits), out (folder)."""
    p = Pipeline()
    (
        p.read(Numbers(int(args["rows"]), float(args["rate"])), uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=sum("v"), uid="per-second")
        .write(Parquet(str(args["out"])), uid="out")
    )
    return p
