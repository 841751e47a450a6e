"""Rows beside Flink SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import generated_runs
from nexmark import beside_flink
from nexmark.queries import QUERIES

from bench_rows.row import MILLION, Row


def flink(folder: Path, quick: bool, repeat: int) -> Row:
    """Windows over generated rows beside Flink SQL, state in memory."""
    row = Row("flink", "Windows over generated rows, beside Flink SQL")
    rows = {100_000: 5 * MILLION} if quick else dict.fromkeys((10, 100_000, MILLION), 20 * MILLION)
    return _windows(row, "heap", folder, rows, repeat)


def rocksdb_flink(folder: Path, quick: bool, repeat: int) -> Row:
    """The same with state in RocksDB."""
    row = Row("rocksdb_flink", "State in RocksDB, beside Flink SQL")
    # Flink takes a minute for 10 million rows of 5 million keys.
    rows = {100_000: 5 * MILLION} if quick else {100_000: 10 * MILLION, MILLION: 5 * MILLION, 5 * MILLION: 5 * MILLION}
    return _windows(row, "rocksdb", folder, rows, repeat)


def _windows(row: Row, back_end: str, folder: Path, rows: Mapping[int, int], repeat: int) -> Row:
    found = generated_runs.measure(folder, back_end, rows, repeat)
    row.lines = ["Rows of W1, windows of 10 s, a checkpoint every second, 2 slots.", ""]
    row.lines += generated_runs.table(found, rows)
    row.charts["Million rows per CPU second, generated rows, source excluded"] = generated_runs.bars(found, rows)
    row.figures = {f"{row.name}_{count}": generated_runs.ratio(found, count) for count in rows}
    row.runs = [
        {"keys": count, "source_only": only, **asdict(run)} for (count, _, only), runs in found.items() for run in runs
    ]
    return row


def nexmark(folder: Path, quick: bool, repeat: int) -> Row:
    """Nexmark's queries q0 to q7 beside Flink SQL."""
    row = Row("nexmark", "Nexmark, beside Flink SQL")
    return _nexmark(row, folder, [query for query in QUERIES if int(query[1:]) <= 7], quick, repeat)


def nexmark_more(folder: Path, quick: bool, repeat: int) -> Row:
    """Nexmark's queries from q8 on."""
    row = Row("nexmark_more", "More queries of Nexmark, beside Flink SQL")
    return _nexmark(row, folder, [query for query in QUERIES if int(query[1:]) > 7], quick, repeat)


def _nexmark(row: Row, folder: Path, queries: Sequence[str], quick: bool, repeat: int) -> Row:
    events = 500_000 if quick else 2 * MILLION
    beside_flink.check_both(folder, queries)
    beside_flink.write_events(folder / "events", events)
    runs = [run for _ in range(repeat) for run in beside_flink.measured(folder / "events", folder, queries)]
    row.lines = [
        f"{events:,} events in two Parquet files, 2 slots, a checkpoint every second, results discarded. CPU seconds "
        "without start. Flink runs all queries in one process, after one that is not measured.",
        "",
        "| query | tidegate, CPU s | Flink, CPU s | ratio |",
        "| --- | --- | --- | ---: |",
    ]
    for query in queries:
        own, theirs = ([r.cpu_s for r in runs if (r.query, r.engine) == (query, e)] for e in ("tidegate", "flink"))
        ratio = median(theirs) / median(own)
        each = [", ".join(f"{cpu_s:.1f}" for cpu_s in some) for some in (own, theirs)]
        row.lines.append(f"| {query} | {each[0]} | {each[1]} | {ratio:.1f} |")
        row.figures[f"nexmark_{query}"] = ratio
    row.charts["CPU of Flink SQL, divided by tidegate's"] = [
        (query, row.figures[f"nexmark_{query}"]) for query in queries
    ]
    row.runs = [asdict(run) for run in runs]
    return row
