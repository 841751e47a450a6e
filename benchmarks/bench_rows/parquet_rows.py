"""Rows from Parquet to Parquet, beside other engines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from engine_runs import BUILT_IN, PER_KEY, ROCKSDB_WINDOW_S, WINDOWS, EngineRun, Query, run_engine
from parquet_input import Input

from bench_rows.row import MILLION, Row

BESIDE_FLINK = ("streaming-process", "flink-thread")
BESIDE_SPARK = ("streaming-rows", "spark-rows", "streaming-pandas", "spark-pandas")
"""Engines of row `perkey`, in their order."""


ROWS = {10: 50 * MILLION, 100_000: 20 * MILLION, MILLION: 10 * MILLION}
"""Rows of the windows by number of keys. With few keys 20 million rows take less than a second, and the end of the job
takes much of it. With many keys they take minutes in some engines."""


Cases = dict[tuple[int, bool, str], list[EngineRun]]
"""Runs by number of keys, whether these are texts, and engine."""
LIMITS = ("duckdb", "polars")
"""Engines without snapshots."""


def windows(folder: Path, quick: bool, repeat: int) -> Row:
    """Windows of one second, from Parquet to Parquet, over numbers and texts as keys."""
    row = Row("windows", "Windows from Parquet to Parquet")
    keys, texts = (100_000, False), (100_000, True)
    if quick:
        engines = {keys: ("streaming", "batch", "spark", "duckdb"), texts: ("streaming",)}
    else:
        engines = dict.fromkeys((keys, texts), _engines())
    found = _windows(row, folder, engines, repeat)
    row.figures = {
        "batch_spark": _ratio(found, (*keys, "batch"), (*keys, "spark"), warm=False),
        "w1_text": _ratio(found, (*texts, "streaming"), (*keys, "streaming"), warm=True),
        "w1_parquet_duckdb": _ratio(found, (*keys, "streaming"), (*keys, "duckdb"), warm=True),
    }
    if not quick:
        row.figures |= _beside_peers(found, 100_000)
        row.figures["w1_text_ss"] = _ratio(found, (*texts, "streaming"), (*texts, "structured_streaming"), warm=True)
    return row


def windows_of_keys(folder: Path, quick: bool, repeat: int) -> Row:
    """The same with few and with many keys."""
    row, keys = Row("windows_keys", "Windows from Parquet to Parquet, few and many keys"), (10, MILLION)
    found = _windows(row, folder, {(count, False): _engines() for count in keys}, repeat)
    row.figures = {name: value for count in keys for name, value in _beside_peers(found, count).items()}
    return row


def _engines() -> Sequence[str]:
    """Return all that run these windows. Row `rocksdb` has Structured Streaming with RocksDB."""
    return (*BUILT_IN, *(peer for peer in WINDOWS.peers if not peer.endswith("-rocksdb")))


def _windows(row: Row, folder: Path, engines: Mapping[tuple[int, bool], Sequence[str]], repeat: int) -> Cases:
    """Run the engines of each number and kind of keys, and fill the table and the charts."""
    found: Cases = {}
    row.lines = [
        "Rows per CPU second of the whole process tree, in millions. With start: one run in a new process. Without: "
        "tidegate from RUNNING to FINISHED; the others a second query in the same process.",
        "",
        "| keys | rows | engine | with start | without start | seconds with start | each run, CPU s |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for (count, text), chosen in engines.items():
        bars: list[tuple[str, float]] = []
        given = Input(ROWS[count], count, text)
        for engine, runs in in_turn(WINDOWS, folder, given, chosen, repeat, row).items():
            found[(count, text, engine)] = runs
            rate, warm = rate_of(given.rows, runs), rate_of(given.rows, runs, warm=True)
            each, wall = ", ".join(f"{run.cpu_s:.1f}" for run in runs), median(run.wall_s for run in runs)
            label = f"{count:,}{' texts' if text else ''}"
            millions = given.rows // MILLION
            row.lines.append(f"| {label} | {millions} M | {engine} | {rate:.2f} | {warm:.2f} | {wall:.1f} | {each} |")
            bars.append((label_of(engine), rate))
        kind = "texts" if text else "integers"
        row.charts[f"Million rows per CPU second, {count:,} {kind} as keys, start included"] = bars
    return found


def _beside_peers(found: Cases, count: int) -> dict[str, float]:
    """Return the ratios to other engines, with integers as keys."""
    own = (count, False, "streaming")
    return {
        f"w1_parquet_limit_{count}": min(_ratio(found, own, (count, False, peer), warm=True) for peer in LIMITS),
        f"w1_parquet_spark_{count}": _ratio(found, own, (count, False, "spark"), warm=True),
        f"w1_parquet_ss_{count}": _ratio(found, own, (count, False, "structured_streaming"), warm=False),
    }


def _ratio(found: Cases, one: tuple[int, bool, str], other: tuple[int, bool, str], *, warm: bool) -> float:
    return rate_of(1, found[one], warm=warm) / rate_of(1, found[other], warm=warm)


def bounded(folder: Path, quick: bool, repeat: int) -> Row:
    """Both modes over 200 million rows, start included."""
    row = Row("bounded", "Batch mode beside streaming mode")
    given = Input((20 if quick else 200) * MILLION, 100_000)
    found = in_turn(WINDOWS, folder, given, BUILT_IN, repeat, row)
    rates = {engine: rate_of(given.rows, runs) for engine, runs in found.items()}
    row.lines = [
        f"{given.name}, the windows of the row above, in new processes.",
        "",
        "| mode | M rows per CPU second | seconds | each run, CPU s |",
        "| --- | ---: | ---: | --- |",
    ]
    for mode, runs in found.items():
        each = ", ".join(f"{run.cpu_s:.1f}" for run in runs)
        row.lines.append(f"| {mode} | {rates[mode]:.2f} | {median(run.wall_s for run in runs):.1f} | {each} |")
    row.charts["Million rows per CPU second, 200 million rows, start included"] = [
        (label_of(mode), rate) for mode, rate in rates.items()
    ]
    row.figures = {"batch_streaming": rates["batch"] / rates["streaming"]}
    return row


def pruned(folder: Path, quick: bool, repeat: int) -> Row:
    """Two of 20 columns, beside a job that declares to read only these."""
    row = Row("pruned", "Columns that nobody reads")
    given = Input((4 if quick else 20) * MILLION, 100_000, wide=True)
    found = in_turn(WINDOWS, folder, given, ("streaming", "streaming-declared"), repeat, row)
    rates = {engine: rate_of(given.rows, runs, warm=True) for engine, runs in found.items()}
    row.lines = [
        f"{given.name}, of which the windows read 3. M rows per CPU second without start; medians of {repeat}.",
        "",
        "| | M rows per CPU second |",
        "| --- | ---: |",
        f"| all columns declared | {rates['streaming']:.2f} |",
        f"| `columns=` names three | {rates['streaming-declared']:.2f} |",
    ]
    row.charts["Million rows per CPU second, 3 of 20 columns read, without start"] = [
        ("tidegate, all columns", rates["streaming"]),
        ("tidegate, columns= names 3", rates["streaming-declared"]),
    ]
    row.figures = {"pruned": rates["streaming"] / rates["streaming-declared"]}
    return row


def per_key(folder: Path, quick: bool, repeat: int) -> Row:
    """A processor in Python that is called for each key, with rows and with pandas frames; and a process that is called
    for each batch, beside PyFlink (not if `quick`)."""
    row = Row("perkey", "Python for each key")
    given = Input(60_000, 6_000) if quick else Input(1_250_000, 25_000)
    found = in_turn(PER_KEY, folder, given, BESIDE_SPARK, repeat, row)
    row.lines = [
        f"{given.name}, a running count and sum of each key by PySpark's `StatefulProcessor`, beside PySpark's own "
        "`transformWithState` and `transformWithStateInPandas` (`availableNow`, RocksDB). Rows per CPU second of the "
        "whole process tree, in millions.",
        "",
        "| engine | with start | without start | seconds without start | each run, CPU s without start |",
        "| --- | ---: | ---: | ---: | --- |",
        *per_key_lines(found, given.rows),
    ]
    for variant in ("rows", "pandas"):
        row.charts[f"Million rows per CPU second, Python for each key, {variant}, without start"] = [
            (label_of(engine), rate_of(given.rows, found[engine], warm=True))
            for engine in (f"streaming-{variant}", f"spark-{variant}")
        ]
    row.figures = {"twspark": min(warm_ratio(found, f"streaming-{v}", f"spark-{v}") for v in ("rows", "pandas"))}
    if quick:
        return row
    many, few = Input(500_000, 10_000), Input(100_000, 5_000)
    threads = in_turn(PER_KEY, folder, many, BESIDE_FLINK, repeat, row)
    processes = in_turn(PER_KEY, folder, few, ("streaming-process", "flink-process"), 1, row)
    row.figures["pyflink"] = warm_ratio(threads, *BESIDE_FLINK)
    row.charts["Million rows per CPU second, a process for batches beside PyFlink, without start"] = [
        (label_of(engine), rate_of(many.rows, threads[engine], warm=True)) for engine in BESIDE_FLINK
    ]
    head = row.lines[2:4]
    row.lines += [
        "",
        f"{many.name}, the same results by a `KeyedProcess` for whole batches, beside PyFlink's `KeyedProcessFunction` "
        "(Python in the JVM, state on the heap):",
        "",
        *head,
        *per_key_lines(threads, many.rows),
        "",
        f"{few.name}: PyFlink with Python in processes of their own, one run. With so few rows, tidegate's figure is "
        "mostly its end.",
        "",
        *head,
        *per_key_lines(processes, few.rows),
    ]
    return row


def per_key_lines(found: Mapping[str, Sequence[EngineRun]], rows: int) -> list[str]:
    """Return a line of row `perkey`'s table for each engine."""
    lines = []
    for engine, runs in found.items():
        rate, warm = rate_of(rows, runs), rate_of(rows, runs, warm=True)
        each = ", ".join(f"{run.warm_cpu_s:.1f}" for run in runs)
        wall = median(run.warm_wall_s for run in runs)
        lines.append(f"| {label_of(engine)} | {rate:.3f} | {warm:.3f} | {wall:.1f} | {each} |")
    return lines


def warm_ratio(found: Mapping[str, Sequence[EngineRun]], own: str, other: str) -> float:
    """Return how many times as many rows one engine processes per CPU second as another, without start."""
    return rate_of(1, found[own], warm=True) / rate_of(1, found[other], warm=True)


def rocksdb(folder: Path, quick: bool, repeat: int) -> Row:
    """Windows with state in RocksDB, beside Structured Streaming with RocksDB."""
    row = Row("rocksdb", "State in RocksDB")
    keys = (100_000,) if quick else (100_000, MILLION, 5 * MILLION)
    row.lines = [
        "From Parquet to Parquet, windows of 5 s: M rows per CPU second. Structured Streaming has a micro-batch for "
        "each of 8 files, tidegate a checkpoint every second.",
        "",
        "| M rows | keys | engine | with start | without start | each run, CPU s without start |",
        "| ---: | ---: | --- | ---: | ---: | --- |",
    ]
    bars: list[tuple[str, float]] = []
    for count in keys:
        # Structured Streaming takes a minute for 5 million rows of 5 million keys.
        rows = (5 if quick else 10 if count == 100_000 else 4) * MILLION
        found = in_turn(
            WINDOWS,
            folder,
            Input(rows, count, window_s=ROCKSDB_WINDOW_S),
            ("streaming-rocksdb", "structured_streaming-rocksdb"),
            repeat,
            row,
        )
        for engine, runs in found.items():
            each = ", ".join(f"{run.warm_cpu_s:.1f}" for run in runs)
            cold, warm = rate_of(rows, runs), rate_of(rows, runs, warm=True)
            row.lines.append(
                f"| {rows // MILLION} | {count:,} | {label_of(engine)} | {cold:.2f} | {warm:.2f} | {each} |"
            )
            bars.append((f"{label_of(engine).partition('-')[0].removesuffix(', streaming')}, {count:,} keys", warm))
        own, theirs = (rate_of(rows, runs, warm=True) for runs in found.values())
        row.figures["rocksdb_ss" if count == 100_000 else f"rocksdb_ss_{count}"] = own / theirs
    row.charts["Million rows per CPU second, RocksDB, from Parquet to Parquet, without start"] = bars
    return row


def in_turn(
    query: Query, folder: Path, given: Input, engines: Sequence[str], repeat: int, row: Row
) -> dict[str, list[EngineRun]]:
    """Run the engines in turn, `repeat` times. Ends the benchmark if results differ."""
    source = folder / given.name.replace(" ", "-").replace(",", "")
    given.write(source)
    found: dict[str, list[EngineRun]] = {engine: [] for engine in engines}
    for _ in range(repeat):
        for engine in engines:
            run = run_engine(query, engine, source, folder, given)
            found[engine].append(run)
            row.runs.append({"input": given.name, **asdict(run)})
            print(f"{given.name}: {engine}: {run.wall_s:.1f} s, {run.cpu_s:.1f} CPU s", file=sys.stderr, flush=True)
    digests = {run.digest for runs in found.values() for run in runs}
    if len(digests) != 1:
        raise SystemExit(
            f"{given.name}: the results differ: {[(e, {r.digest for r in runs}) for e, runs in found.items()]}"
        )
    return found


def label_of(engine: str) -> str:
    return f"tidegate, {engine}" if engine.partition("-")[0] in BUILT_IN else engine.replace("_", " ")


def rate_of(rows: int, runs: Sequence[EngineRun], *, warm: bool = False) -> float:
    """Return millions of rows per CPU second."""
    return rows / median(run.warm_cpu_s if warm else run.cpu_s for run in runs) / 1e6
