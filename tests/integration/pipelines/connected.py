"""The job of counting.py in processes of every kind that has no keys or two inputs: rows wait for the watermark in list
state, are cut in two streams that meet again per key and second, and go on once the rule of their key is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate import (
    BroadcastProcess,
    DataGen,
    FiredTimers,
    KeyedCoProcess,
    KeyedRows,
    Parquet,
    Pipeline,
    Process,
    ProcessContext,
    RawInput,
    RawOutput,
    Rows,
    SubtaskContext,
    broadcast_state,
    operator_list_state,
    raw_state,
    reducing_state,
)

KEYS = 17
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms", tz="UTC"))])
PER_SECOND = pa.schema(
    [
        ("k", pa.int64()),
        ("window_start", pa.timestamp("us")),
        ("n", pa.int64()),
        ("total", pa.int64()),
    ]
)
RULES = pa.schema([("k", pa.int64()), ("version", pa.int64())])


def rows(numbers: np.ndarray) -> dict[str, Any]:
    """As in counting.py."""
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms", tz="UTC"))}


class InOrder(Process):
    """Rows wait for the watermark; how many have come is raw state, and must be how many have gone in the end."""

    states = (operator_list_state("waiting", SCHEMA), raw_state("come"))

    def open(self, ctx: SubtaskContext) -> None:
        self.come = self.gone = 0
        self.parallelism = ctx.parallelism

    def process(self, rows: Rows, ctx: SubtaskContext) -> None:
        self.come += rows.batch.num_rows
        ctx.operator_list("waiting").append(rows.batch)

    def on_watermark(self, watermark_us: int, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        waiting = ctx.operator_list("waiting").get()
        due = pc.less_equal(pc.multiply(waiting["v"], 1000), watermark_us)
        ctx.operator_list("waiting").put(waiting.filter(pc.invert(due)))
        for batch in waiting.filter(due).to_batches():
            self.gone += batch.num_rows
            yield batch

    def finish(self, ctx: SubtaskContext) -> None:
        assert self.come == self.gone, f"{self.come} rows have come, {self.gone} have gone"

    def write_raw(self, name: str, out: RawOutput) -> None:
        out.write(f"{self.come} {self.gone} {self.parallelism}".encode())

    def read_raw(self, name: str, pieces: Sequence[RawInput]) -> None:
        found = [[int(number) for number in piece.read().split()] for piece in pieces]
        self.come, self.gone = (sum(piece[i] for piece in found) for i in (0, 1))
        self.former = {piece[2] for piece in found}

    def restored(self, ctx: SubtaskContext) -> None:
        waiting = ctx.operator_list("waiting").get().num_rows
        if self.former == {ctx.parallelism}:
            assert self.come == self.gone + waiting, f"{self.come} rows had come, {self.gone} gone, {waiting} wait"
        self.come = self.gone + waiting  # at another parallelism pieces and rows come apart


class PerSecond(KeyedCoProcess):
    """Count and sum of both sides, when the second is over."""

    states = (reducing_state("sums", {"n": "count", "total": "sum"}),)

    def process_left(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        self._add(rows, ctx)

    def process_right(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        self._add(rows, ctx)

    def _add(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        v = rows.batch["v"]
        ctx.merging("sums").add(rows.keys, rows.owners, pa.record_batch([v, v], names=["n", "total"]))
        ends = (v.to_numpy() // 1000 + 1) * 1_000_000
        ctx.event_timers.register(rows.keys, rows.owners, ends)

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        assert len(due.owners) == due.keys.size, "a second has two ends"
        keys, sums = due.keys.columns(), ctx.merging("sums").get(due.keys)
        assert sums.present.all(), "a timer fired twice, or its sums are lost"
        ctx.merging("sums").clear(due.keys)
        starts = pc.multiply(keys["second"], 1_000_000).view(pa.timestamp("us"))
        yield pa.record_batch([keys["k"], starts, *sums.columns.columns], schema=PER_SECOND)


class Ruled(BroadcastProcess):
    """Rows go on once there is a rule for their key."""

    states = (
        broadcast_state("rules", {"k": pa.int64()}, {"version": pa.int64()}),
        operator_list_state("waiting", PER_SECOND),
    )

    def process(self, rows: Rows, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        ctx.operator_list("waiting").append(rows.batch)
        yield from self._ruled(ctx)

    def process_broadcast(self, rows: Rows, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        ctx.broadcast("rules").put(rows.batch)
        yield from self._ruled(ctx)

    def _ruled(self, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        waiting = ctx.operator_list("waiting").get().combine_chunks()
        for batch in waiting.to_batches():
            known = pa.array(ctx.broadcast("rules").get(batch.select(["k"])).present)
            ctx.operator_list("waiting").put(batch.filter(pc.invert(known)))
            yield batch.filter(known)

    def finish(self, ctx: SubtaskContext) -> None:
        assert not ctx.operator_list("waiting").get().num_rows and len(ctx.broadcast("rules")) == KEYS
        versions = ctx.broadcast("rules").entries().to_pydict()
        last = {k: max(n for n in range(4 * KEYS) if n % KEYS == k) for k in range(KEYS)}
        assert dict(zip(versions["k"], versions["version"], strict=True)) == last


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: rows, rate (rows per second), out (folder)."""
    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=int(args["rows"]), splits=2, rate=float(args["rate"]), batch_rows=256)
    rules = DataGen(lambda n: {"k": n % KEYS, "version": n}, RULES, rows=4 * KEYS, splits=1, batch_rows=1, rate=20)
    numbers = (
        p.read(source, uid="numbers").with_watermark("ts", "0 s").process(InOrder(), schema=SCHEMA, uid="in-order")
    )
    second = pc.divide(pc.field("v"), 1000)
    even, odd = (numbers.filter(pc.equal(pc.bit_wise_and(pc.field("v"), 1), bit)) for bit in (0, 1))
    both = even.with_columns(second=second).connect(odd.select("v", "ts", id=pc.field("k"), sec=second))
    per_second = both.group_by("k", "second", right=("id", "sec")).process(
        PerSecond(), schema=PER_SECOND, uid="seconds"
    )
    ruled = per_second.connect(p.read(rules, uid="rules").broadcast())
    ruled.process(Ruled(), schema=PER_SECOND, uid="ruled").write(Parquet(str(args["out"])), uid="out")
    return p
