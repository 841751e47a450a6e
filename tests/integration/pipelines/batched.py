"""Pipelines that run in both execution modes, over rows that are known in closed form: row i has key i mod KEYS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from tidegate import (
    DataGen,
    FiredTimers,
    JsonLines,
    KeyedProcess,
    KeyedRows,
    Parquet,
    Pipeline,
    ProcessContext,
    SparkFrame,
    SparkWriter,
    Stream,
    count,
    reducing_state,
    sum,
    tumbling,
)

KEYS = 13
ROWS = pa.schema(
    [
        ("k", pa.uint16()),
        ("v", pa.int64()),
        ("ts", pa.timestamp("ns", tz="Europe/Berlin")),
        ("tags", pa.list_(pa.struct([("n", pa.uint8()), ("day", pa.date32())]))),
    ]
)
NAMES = pa.schema([("k", pa.uint16()), ("name", pa.large_string())])
SUMS = pa.schema([("k", pa.uint16()), ("total", pa.int64()), ("tagged", pa.int64())])
ORDERS = pa.schema(
    [("id", pa.int64()), ("key", pa.int32()), ("ts", pa.timestamp("us", tz="UTC")), ("note", pa.string())]
)


def rows(numbers: np.ndarray) -> dict[str, Any]:
    """Rows by number."""
    return {
        "k": pa.array(numbers % KEYS, pa.uint16()),
        "v": numbers,
        "ts": pa.array(numbers * 1_000_000).cast(ROWS.field("ts").type),
        "tags": pa.array([[{"n": 255, "day": n}] * (n % 3) for n in numbers.tolist()], ROWS.field("tags").type),
    }


def names(numbers: np.ndarray) -> dict[str, Any]:
    """Half of the keys have a name."""
    return {"k": pa.array(numbers, pa.uint16()), "name": pa.array([f"n{n}" for n in numbers], pa.large_string())}


class Sums(KeyedProcess):
    """Sums, and how many tags there were; nested columns come to it as they were."""

    states = (reducing_state("sums", {"total": "sum", "tagged": "sum"}),)

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        """Add up."""
        tags = rows.batch["tags"]
        assert pc.all(pc.equal(tags.flatten().field("n"), 255)).as_py() is not False
        columns = [rows.batch["v"], pc.list_value_length(tags).cast(pa.int64())]
        ctx.merging("sums").add(rows.keys, rows.owners, pa.record_batch(columns, names=["total", "tagged"]))
        every = np.arange(rows.keys.size, dtype=np.int32)
        ctx.event_timers.register(rows.keys, every, np.full(rows.keys.size, 10**15))

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        """One row for each key."""
        found = ctx.merging("sums").get(due.keys).columns
        yield pa.RecordBatch.from_arrays([due.keys.columns()["k"], found["total"], found["tagged"]], schema=SUMS)


def everything(args: Mapping[str, Any]) -> Pipeline:
    """One source read three times: summed by key, and named by a broadcast join of a union; two sinks. Arguments: rows,
    out (folder)."""
    p = Pipeline()
    source = p.read(DataGen(rows, ROWS, rows=int(args["rows"]), splits=3), uid="numbers").with_watermark("ts", "1 min")
    source.group_by("k").process(Sums(), schema=SUMS, uid="sums").write(Parquet(f"{args['out']}/sums"), uid="sums-out")
    named = p.read(DataGen(names, NAMES, rows=KEYS // 2), uid="names")
    low, high = source.filter(pc.field("v") < 1000), source.filter(pc.field("v") >= 1000)
    both = low.union(high).join(named.broadcast(), on="k", how="left", uid="named").select("v", "name")
    both.write(JsonLines(f"{args['out']}/named"), uid="named-out")
    return p


def expected_of_everything(n: int) -> tuple[list[tuple[int, int, int]], Counter[tuple[int, str | None]]]:
    """(k, total, tagged) sorted, and (v, name)."""
    numbers = range(n)
    by_key = [[i for i in numbers if i % KEYS == k] for k in range(KEYS)]
    sums = [(k, _sum(of), _sum([i % 3 for i in of])) for k, of in enumerate(by_key)]
    return sums, Counter((i, f"n{i % KEYS}" if i % KEYS < KEYS // 2 else None) for i in numbers)


def _sum(numbers: list[int]) -> int:
    return int(np.sum(numbers))


def lost_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail in the first attempt of each task, after the first batch."""
    for batch in batches:
        yield batch
        context: Any = TaskContext.get()
        if context.attemptNumber() == 0:
            raise ValueError("the first attempt is lost")


def retried(args: Mapping[str, Any]) -> Pipeline:
    """Windows over a union, and over names from a broadcast join, of which each task fails once. Spark sorts no rows.
    Two sinks. Arguments: rows, out (folder)."""
    p = Pipeline()
    source = p.read(DataGen(rows, ROWS, rows=int(args["rows"]), splits=3, batch_rows=100), uid="numbers")
    flat = source.select("k", "v", "ts")
    low, high = flat.filter(pc.field("v") < 1000), flat.filter(pc.field("v") >= 1000)
    both = low.union(high).map_in_arrow(lost_once, flat.schema, uid="before")
    windows = both.with_watermark("ts", "1 min").group_by("k").window(tumbling("1 s"))
    counted = windows.agg(n=count(), total=sum("v"), uid="counted")
    counted.map_in_arrow(lost_once, counted.schema, uid="after").write(Parquet(f"{args['out']}/counted"), uid="out")
    named = flat.join(
        p.read(DataGen(names, NAMES, rows=KEYS // 2), uid="names").broadcast(), on="k", how="inner", uid="named"
    )
    known = named.with_watermark("ts", "1 min").group_by("name").window(tumbling("1 min"))
    known.agg(n=count(), uid="known").write(Parquet(f"{args['out']}/known"), uid="known-out")
    return p


def expected_of_retried(n: int) -> tuple[list[tuple[int, int, int]], Counter[str]]:
    """(k, n, total) of each window and key, sorted; rows of each name."""
    by_window: dict[tuple[int, int], list[int]] = {}
    for i in range(n):
        by_window.setdefault((i % KEYS, i // 1000), []).append(i)
    counted = sorted((k, len(of), _sum(of)) for (k, _), of in by_window.items())
    return counted, Counter(f"n{i % KEYS}" for i in range(n) if i % KEYS < KEYS // 2)


def framed(args: Mapping[str, Any]) -> Pipeline:
    """Windows over DataFrames of less and of more partitions than subtasks, whose rows Spark gives in whatever order,
    and of which some rows and a column are left out. Arguments: rows, out."""
    n = int(args["rows"])
    p = Pipeline()

    def read(first: int, partitions: int, uid: str) -> Stream:
        columns = "id", "int(id % 17) key", "timestamp_millis(id) ts", "uuid() note"
        end = 2 * n - first % 2
        frame = SparkFrame(lambda spark: spark.range(first, end, 2, partitions).selectExpr(*columns), schema=ORDERS)
        return p.read(frame, uid=uid)

    named = {"id": pc.field("id"), "k": pc.field("key"), "ts": pc.field("ts")}
    orders = read(0, 1, "orders").filter(pc.field("id") < n).select(**named).with_watermark("ts", f"{n} ms")
    more = read(1, 3, "more").with_watermark("ts", f"{n} ms").filter(pc.field("id") < n).select(**named)
    counted = orders.union(more).group_by("k").window(tumbling("1 s"))
    counted.agg(n=count(), total=sum("id"), uid="per-second").write(Parquet(str(args["out"])), uid="out")
    return p


WRITTEN = pa.schema(
    [
        ("v", pa.int64()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("ns", tz="UTC")),
        ("x", pa.float64()),
        ("name", pa.large_string()),
    ]
)


def written_rows(numbers: np.ndarray) -> dict[str, Any]:
    """Rows by number: with nanoseconds, NaN and nulls."""
    return {
        "v": numbers,
        "day": pa.array(numbers % 3, pa.int32()).cast(pa.date32()),
        "ts": pa.array(numbers * 1_001).cast(WRITTEN.field("ts").type),
        "x": np.where(numbers % 2, np.nan, -0.0),
        "name": pa.array([f"n{n}" if n % 5 else None for n in numbers.tolist()], pa.large_string()),
    }


def spark_written(args: Mapping[str, Any]) -> Pipeline:
    """The same rows by three writers of Spark, of which the last can be kept from writing by a file `<out>/last`.
    Arguments: rows, out."""
    p, out = Pipeline(), str(args["out"])
    source = p.read(DataGen(written_rows, WRITTEN, rows=int(args["rows"]), splits=3), uid="numbers")
    source.write(SparkWriter(format="parquet", path=f"{out}/appended", mode="append"), uid="appended")
    by_day = SparkWriter(format="parquet", path=f"{out}/replaced", mode="overwrite", partition_by="day")
    source.write(by_day, uid="replaced")
    source.write(SparkWriter(format="json", path=f"{out}/last/made"), uid="made")
    return p


def broken(args: Mapping[str, Any]) -> Pipeline:
    """Fails at its last rows, when others have been staged."""

    def refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if pc.max(batch["v"]).as_py() == int(args["rows"]) - 1:
                raise ValueError("the last row is bad")
            yield batch

    p = Pipeline()
    source = p.read(DataGen(rows, ROWS, rows=int(args["rows"]), splits=1, batch_rows=100), uid="numbers")
    flat = source.select("k", "v")
    flat.map_in_arrow(refuse, flat.schema, uid="refuse").write(Parquet(str(args["out"])), uid="out")
    return p
