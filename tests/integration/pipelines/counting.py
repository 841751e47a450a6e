"""A stateful job whose complete output is known in closed form: row i has key i mod KEYS, value i, time i
milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate import DataGen, Delta, Discard, Files, JsonLines, Parquet, Pipeline, count, sum, tumbling
from tidegate.connectors.contract import Sink

KEYS = 17
WINDOW_MS = 1000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms", tz="UTC"))])


def rows(numbers: np.ndarray) -> dict[str, Any]:
    """Rows by number."""
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms", tz="UTC"))}


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: rows (0: unbounded), rate (rows per second), out (folder)."""
    return _counted(args, Parquet(str(args["out"])))


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
