"""A stateful job whose complete output is known in closed form: row i has key i mod KEYS, value i, time i
milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate import (
    DataGen,
    Delta,
    Discard,
    Files,
    FiredTimers,
    JsonLines,
    KeyedProcess,
    KeyedRows,
    Parquet,
    Pipeline,
    ProcessContext,
    SideOutput,
    count,
    list_state,
    map_state,
    reducing_state,
    sum,
    tumbling,
    value_state,
)
from tidegate.connectors.interface import Sink

KEYS = 17
WINDOW_MS = 1000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms", tz="UTC"))])
PER_SECOND = pa.schema(
    [
        ("k", pa.int64()),
        ("window_start", pa.timestamp("us")),
        ("window_end", pa.timestamp("us")),
        ("n", pa.int64()),
        ("total", pa.int64()),
    ]
)


def rows(numbers: np.ndarray) -> dict[str, Any]:
    """Rows by number."""
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms", tz="UTC"))}


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: rows (0: unbounded), rate (rows per second), out (folder)."""
    return _counted(args, Parquet(str(args["out"])))


class PerSecond(KeyedProcess):
    """What `build` does with a window, with a map state and event timers; it keeps the rest of the kinds besides, and
    looks at each window whether they agree."""

    states = (
        map_state("windows", {"start_ms": pa.int64()}, {"n": pa.int64(), "total": pa.int64()}),
        value_state("seen", {"n": pa.int64()}),
        reducing_state("sums", {"n": "count", "total": "sum"}),
        list_state("batches", {"n": pa.int64()}),
    )

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        v, keys = rows.batch["v"].to_numpy(), rows.keys
        pairs, of_row = np.unique(np.stack([rows.owners, v // WINDOW_MS * WINDOW_MS]), axis=1, return_inverse=True)
        of_row, owners, starts = of_row.reshape(-1), pairs[0].astype(np.int32), pairs[1]
        windows, wanted = ctx.map("windows"), pa.record_batch([starts], names=["start_ms"])
        held = windows.get(keys, owners, wanted)
        n, total = (np.where(held.present, held.columns[c].fill_null(0).to_numpy(), 0) for c in ("n", "total"))
        total = total + np.bincount(of_row, v, len(owners)).astype(np.int64)
        n = n + np.bincount(of_row, minlength=len(owners))
        windows.put(keys, owners, wanted, pa.record_batch([n, total], names=["n", "total"]))
        ctx.event_timers.register(keys, owners, (starts + WINDOW_MS) * 1000)
        seen = ctx.value("seen").get(keys)
        come = np.bincount(rows.owners, minlength=keys.size)
        before = np.where(seen.present, seen.columns["n"].fill_null(0).to_numpy(), 0)
        ctx.value("seen").put(keys, pa.record_batch([before + come], names=["n"]))
        ctx.merging("sums").add(keys, rows.owners, pa.record_batch([v, v], names=["n", "total"]))
        every = np.arange(keys.size, dtype=np.int32)
        ctx.list("batches").append(keys, every, pa.record_batch([come], names=["n"]))

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        starts = due.times_us // 1000 - WINDOW_MS
        wanted = pa.record_batch([starts], names=["start_ms"])
        found = ctx.map("windows").get(due.keys, due.owners, wanted)
        assert found.present.all(), "a timer fired twice, or its window is lost"
        ctx.map("windows").remove(due.keys, due.owners, wanted)
        seen = ctx.value("seen").get(due.keys).columns["n"].to_numpy()
        batches = ctx.list("batches").get(due.keys)
        assert (np.add.reduceat(batches.columns["n"].to_numpy(), batches.offsets[:-1]) == seen).all(), (
            "the list differs"
        )
        assert (ctx.merging("sums").get(due.keys).columns["n"].to_numpy() == seen).all(), "sums differ"
        bounds = [pa.array(starts * 1000 + shift).view(pa.timestamp("us")) for shift in (0, WINDOW_MS * 1000)]
        keys = due.keys.columns()["k"].take(pa.array(due.owners))
        yield pa.record_batch([keys, *bounds, found.columns["n"], found.columns["total"]], schema=PER_SECOND)


def processed(args: Mapping[str, Any]) -> Pipeline:
    """Like build, with a process of the user's own in the place of the window."""
    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=int(args["rows"]), splits=2, rate=float(args["rate"]), batch_rows=256)
    (
        p.read(source, uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .process(PerSecond(), schema=PER_SECOND, uid="per-second")
        .write(Parquet(str(args["out"])), uid="out")
    )
    return p


def into_delta(args: Mapping[str, Any]) -> Pipeline:
    """Like build, into a partitioned Delta table."""
    return _counted(args, Delta(str(args["out"]), partition_by="k"))


def into_json_lines(args: Mapping[str, Any]) -> Pipeline:
    """Like build, into compressed JSON lines by key."""
    return _counted(args, JsonLines(str(args["out"]), partition_by="k", compression="gzip"))


def _counted(args: Mapping[str, Any], sink: Sink) -> Pipeline:
    p = Pipeline()
    wanted = int(args["rows"])
    source = DataGen(rows, SCHEMA, rows=wanted or None, splits=2, rate=float(args["rate"]), batch_rows=256)
    (
        p.read(source, uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=sum("v"), uid="per-second")
        .write(sink, uid="out")
    )
    return p


def odd_aside(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | SideOutput]:
    """Odd values to the side output `odd`."""
    for batch in batches:
        odd = pa.array(batch["v"].to_numpy() % 2 == 1)
        yield SideOutput("odd", batch.filter(odd))
        yield batch.filter(pc.invert(odd))


def by_hundreds(batch: pa.RecordBatch, n: int) -> np.ndarray:
    """The subtasks in turn, 100 rows each."""
    return np.asarray(batch["v"].to_numpy() // 100 % n)


async def answered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows themselves, after a while."""
    await asyncio.sleep(0.005)
    return batch


def rerouted(args: Mapping[str, Any]) -> Pipeline:
    """Like build, over a side output, three more exchanges and asynchronous calls; the splits go on together."""
    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=int(args["rows"]), splits=2, rate=float(args["rate"]), batch_rows=256)
    timed = p.read(source, uid="numbers").with_watermark("ts", "0 s", group="splits", max_drift="2 s")
    even = timed.map_in_arrow(odd_aside, SCHEMA, side_outputs={"odd": SCHEMA}, uid="split")
    odd = even.side_output("odd").partition_by(by_hundreds)
    (
        even.rebalance()
        .map_async(answered, SCHEMA, capacity=8, batch_rows=64, ordered=False, uid="ask")
        .union(odd)
        .repartition("v")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=sum("v"), uid="per-second")
        .write(Parquet(str(args["out"])), uid="out")
    )
    return p


def by_clock(args: Mapping[str, Any]) -> Pipeline:
    """Like build, in windows of 500 ms of processing time."""
    p = Pipeline()
    wanted = int(args["rows"])
    source = DataGen(rows, SCHEMA, rows=wanted or None, splits=2, rate=float(args["rate"]), batch_rows=256)
    (
        p.read(source, uid="numbers")
        .group_by("k")
        .window(tumbling("500 ms", time="processing"))
        .agg(n=count(), total=sum("v"), uid="by-clock")
        .write(Parquet(str(args["out"])), uid="out")
    )
    return p


def discarding(args: Mapping[str, Any]) -> Pipeline:
    """Like build, with nothing to commit."""
    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=int(args["rows"]) or None, splits=2, rate=float(args["rate"]), batch_rows=256)
    (
        p.read(source, uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), uid="per-second")
        .write(Discard(), uid="out")
    )
    return p


def failing(args: Mapping[str, Any]) -> Pipeline:
    """Like build, with a user function that fails on a row in the middle."""

    def explode(batches: Any) -> Any:
        for batch in batches:
            if 777 in batch["v"].to_pylist():
                raise ValueError("row 777 is cursed")
            yield batch

    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=10_000, splits=2, batch_rows=256)
    p.read(source, uid="numbers").map_in_arrow(explode, SCHEMA, uid="explode").write(
        Parquet(str(args["out"])), uid="out"
    )
    return p


def typo(args: Mapping[str, Any]) -> Pipeline:
    """A column that does not exist."""
    p = Pipeline()
    numbers = p.read(DataGen(rows, SCHEMA, rows=100), uid="numbers")
    numbers.select("k", "vv").write(Parquet(str(args["out"])), uid="out")
    return p


def missing_input(args: Mapping[str, Any]) -> Pipeline:
    """Files that are not there."""
    p = Pipeline()
    p.read(Files("no-such-folder/*.parquet"), uid="files").write(Parquet(str(args["out"])), uid="out")
    return p


def expected(total_rows: int) -> list[tuple[int, int, int, int]]:
    """(key, window start in ms, n, total) of the first `total_rows` rows, sorted."""
    return expected_of(range(total_rows))


def expected_of(numbers: Iterable[int]) -> list[tuple[int, int, int, int]]:
    """The same for any set of row numbers."""
    windows: dict[tuple[int, int], list[int]] = {}
    for number in numbers:
        entry = windows.setdefault((number % KEYS, number // WINDOW_MS * WINDOW_MS), [0, 0])
        entry[0] += 1
        entry[1] += number
    return sorted((k, w, n, total) for (k, w), (n, total) in windows.items())
