"""Proofs of code of the user's own with state: processes of all classes, and PySpark's StatefulProcessor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from proof_cases import Case, Drawing, Result
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tidegate import (
    BroadcastProcess,
    CoProcess,
    FiredTimers,
    KeyedBroadcastProcess,
    KeyedCoProcess,
    KeyedProcess,
    KeyedRows,
    Process,
    ProcessContext,
    Rows,
    SideOutput,
    SubtaskContext,
    broadcast_state,
    map_state,
    operator_list_state,
    reducing_state,
)

IDS = pa.schema([("id", pa.int64())])
TOTALS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())])
NAMED = pa.schema([("id", pa.int64()), ("name", pa.string())])
WINDOW_US = 25_000
END_MS = 10**9


class Waits(Process):
    """Rows come out when the watermark has passed them, those without a number at a side output."""

    states = (operator_list_state("waiting", {"id": pa.int64(), "v": pa.int64(), "ms": pa.int64()}),)

    def process(self, rows: Rows, ctx: SubtaskContext) -> None:
        """They wait."""
        ctx.operator_list("waiting").append(rows.batch.select(["id", "v", "ms"]))

    def on_watermark(self, watermark_us: int, ctx: SubtaskContext) -> Iterator[pa.RecordBatch | SideOutput]:
        """Those that are due."""
        waiting = batch_of(ctx.operator_list("waiting").get())
        due = pc.less(pc.multiply(waiting["ms"], 1000), watermark_us)
        ctx.operator_list("waiting").put(waiting.filter(pc.invert(due)))
        yield waiting.filter(pc.and_(due, pc.is_valid(waiting["v"]))).select(["id"])
        yield SideOutput("empty", waiting.filter(pc.and_(due, pc.is_null(waiting["v"]))).select(["id"]))


class Windows(KeyedProcess):
    """Count and sum of windows, kept in a map and told by timers."""

    states = (map_state("windows", {"end_us": pa.int64()}, {"n": pa.int64(), "total": pa.int64()}),)

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        """Add to the windows of the rows."""
        ends = (rows.event_time_us.to_numpy() // WINDOW_US + 1) * WINDOW_US
        pairs, pair = np.unique(np.stack([rows.owners, ends]), axis=1, return_inverse=True)
        owners, ends, pair = pairs[0].astype(np.int32), pairs[1], pair.reshape(-1)
        map_keys = pa.record_batch([pa.array(ends)], names=["end_us"])
        held = ctx.map("windows").get(rows.keys, owners, map_keys)
        n, total = (np.where(held.present, held.columns[c].fill_null(0).to_numpy(), 0) for c in ("n", "total"))
        v = rows.batch["v"].fill_null(0).to_numpy()
        sums = np.bincount(pair, v, len(ends)).astype(np.int64)
        values = pa.record_batch([n + np.bincount(pair, minlength=len(ends)), total + sums], names=["n", "total"])
        ctx.map("windows").put(rows.keys, owners, map_keys, values)
        ctx.event_timers.register(rows.keys, owners, ends)

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        """Windows that are over."""
        map_keys = pa.record_batch([pa.array(due.times_us)], names=["end_us"])
        found = ctx.map("windows").get(due.keys, due.owners, map_keys).columns
        ctx.map("windows").remove(due.keys, due.owners, map_keys)
        yield pa.record_batch([due.keys.columns()["k"].take(pa.array(due.owners)), *found.columns], schema=TOTALS)


class Collects(CoProcess):
    """Ids of both sides, those of the right one negative, at the end."""

    states = (operator_list_state("seen", {"id": pa.int64()}),)

    def process_left(self, rows: Rows, ctx: SubtaskContext) -> None:
        """Keep."""
        ctx.operator_list("seen").append(rows.batch.select(["id"]))

    def process_right(self, rows: Rows, ctx: SubtaskContext) -> None:
        """Keep."""
        ids = pc.negate(rows.batch["rid"])
        ctx.operator_list("seen").append(pa.record_batch([ids], names=["id"]))

    def finish(self, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        """All of them."""
        yield batch_of(ctx.operator_list("seen").get())


class Sums(KeyedCoProcess):
    """Rows and sum of both sides of a key, by a timer far away."""

    states = (reducing_state("sums", {"n": "count", "total": "sum"}),)

    def process_left(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        """Add."""
        self.add(rows, rows.batch["v"], ctx)

    def process_right(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        """Add."""
        self.add(rows, rows.batch["y"], ctx)

    def add(self, rows: KeyedRows, numbers: pa.Array, ctx: ProcessContext) -> None:
        """To the sums of the keys."""
        numbers = numbers.fill_null(0)
        ctx.merging("sums").add(rows.keys, rows.owners, pa.record_batch([numbers, numbers], names=["n", "total"]))
        every = np.arange(rows.keys.size, dtype=np.int32)
        ctx.event_timers.register(rows.keys, every, np.full(rows.keys.size, END_MS * 1000))

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        """All has come."""
        found = ctx.merging("sums").get(due.keys).columns
        yield pa.record_batch([due.keys.columns()["k"], *found.columns], schema=TOTALS).take(pa.array(due.owners))


class Names(BroadcastProcess):
    """Rows wait for the end, then they have names."""

    states = (
        operator_list_state("waiting", {"k": pa.string(), "id": pa.int64()}),
        broadcast_state("names", {"k": pa.string()}, {"name": pa.string()}),
    )

    def process(self, rows: Rows, ctx: SubtaskContext) -> None:
        """Keep."""
        ctx.operator_list("waiting").append(rows.batch.select(["k", "id"]))

    def process_broadcast(self, rows: Rows, ctx: SubtaskContext) -> None:
        """Learn the least name of each key, in whatever order they come."""
        ctx.broadcast("names").put(least_names(rows.batch, ctx.broadcast("names")))

    def finish(self, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        """All of them."""
        waiting = batch_of(ctx.operator_list("waiting").get())
        names = ctx.broadcast("names").get(waiting.select(["k"])).columns["name"]
        yield pa.record_batch([waiting["id"], names], schema=NAMED)


class Labels(KeyedBroadcastProcess):
    """Rows of each key, with its name, at the end."""

    states = (
        reducing_state("rows", {"n": "count"}),
        broadcast_state("names", {"k": pa.string()}, {"name": pa.string()}),
    )

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        """Count."""
        ctx.merging("rows").add(rows.keys, rows.owners, pa.record_batch([rows.batch["id"]], names=["n"]))

    def process_broadcast(self, rows: Rows, ctx: ProcessContext) -> None:
        """As `Names`."""
        ctx.broadcast("names").put(least_names(rows.batch, ctx.broadcast("names")))

    def finish(self, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        """Every key."""
        for keys in ctx.all_keys("rows", 4):
            names = ctx.broadcast("names").get(keys.columns().select(["k"])).columns["name"]
            yield pa.record_batch([ctx.merging("rows").get(keys).columns["n"], names], schema=NAMED)


def batch_of(table: pa.Table) -> pa.RecordBatch:
    """All its rows."""
    return pa.RecordBatch.from_arrays([c.combine_chunks() for c in table.columns], schema=table.schema)


def least_names(batch: pa.RecordBatch, known: Any) -> pa.RecordBatch:
    """The least name of each key of the batch, also of those that are known."""
    held = known.get(batch.select(["k"])).columns["name"]
    table = pa.table([pa.concat_arrays([batch["k"]] * 2), pa.concat_arrays([batch["name"], held])], names=["k", "name"])
    least = table.group_by("k").aggregate([("name", "min")]).rename_columns(["k", "name"])
    return batch_of(least)


class Processor(StatefulProcessor):
    """Rows and sum of a key, on top of where it begins, by a timer far away."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """A value."""
        self.handle = handle
        self.held = handle.getValueState("held", "n BIGINT, total BIGINT")

    def add(self, n: int, total: int) -> None:
        """To what is held."""
        before = self.held.get() or (0, 0)
        self.held.update((before[0] + n, before[1] + total))
        self.handle.registerTimer(END_MS)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        """A name counts a hundred."""
        self.add(0, 100)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add."""
        numbers = [row.v or 0 for row in rows]
        self.add(len(numbers), sum(numbers))
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """All has come."""
        n, total = self.held.get()
        yield Row(k=key[0], n=n, total=total)


class PandasProcessor(Processor):
    """The same with frames."""

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        """A name counts a hundred."""
        self.add(0, 100 * len(initialState))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Add."""
        for frame in rows:
            self.add(len(frame), int(frame.v.fillna(0).sum()))
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """All has come."""
        n, total = self.held.get()
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


def processes(d: Drawing) -> Mapping[str, Result]:
    """A process of each class."""
    waits = d.left.process(Waits(), schema=IDS, side_outputs={"empty": IDS}, uid="waits")
    both = d.left.connect(d.right)
    named = "(select k, min(name) as name from names group by k)"
    broadcast = d.names.broadcast()
    keyed = d.left.group_by("k")
    return {
        "Process": Result(waits, "select id from l where v is not null"),
        "side output": Result(waits.side_output("empty"), "select id from l where v is null"),
        "KeyedProcess": Result(
            keyed.process(Windows(), schema=TOTALS, uid="windows"),
            "select k, count(*), coalesce(sum(v), 0)::bigint from l group by k, ms // 25",
        ),
        "CoProcess": Result(
            both.process(Collects(), schema=IDS, uid="collects"), "select id from l union all select -rid from r"
        ),
        "KeyedCoProcess": Result(
            both.group_by("k").process(Sums(), schema=TOTALS, uid="sums"),
            "select k, count(*), coalesce(sum(v), 0)::bigint from (select k, v from l union all select k, y from r) "
            "group by k",
        ),
        "BroadcastProcess": Result(
            d.left.connect(broadcast).process(Names(), schema=NAMED, uid="names-of-rows"),
            f"select id, name from l left join {named} n using (k)",
        ),
        "KeyedBroadcastProcess": Result(
            keyed.connect(broadcast).process(Labels(), schema=NAMED, uid="labels"),
            f"select count(*), any_value(name) from l left join {named} n using (k) group by l.k",
        ),
    }


def processors(d: Drawing) -> Mapping[str, Result]:
    """Rows and frames, with an initial state and without."""
    keyed, starts = d.left.group_by("k"), d.names.group_by("k")
    declared: tuple[str, str, str] = ("k STRING, n BIGINT, total BIGINT", "Append", "EventTime")
    alone = "select k, count(*), coalesce(sum(v), 0)::bigint from l group by k"
    begun = """select k, sum(n)::bigint, sum(v)::bigint from (select k, 1 as n, coalesce(v, 0) v from l
    union all select k, 0, 100 from names) group by k"""
    return {
        "rows": Result(keyed.transform_with_state(Processor(), *declared, uid="rows"), alone),
        "rows with a start": Result(
            keyed.transform_with_state(Processor(), *declared, initialState=starts, uid="rows-begun"), begun
        ),
        "frames": Result(
            keyed.transform_with_state_in_pandas(PandasProcessor(), *declared, starts, uid="frames"), begun
        ),
    }


PROCESSES = {"processes": Case(processes), "stateful processors": Case(processors)}
