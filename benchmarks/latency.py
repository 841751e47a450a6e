"""Measures the latency from a row's time to its result at the sink, over rates and slots. See README.md.

    python benchmarks/latency.py [--write]

Prints a table and, last, `latency: p99_5k=<ms> p99_20k=<ms> p99_200k=<ms> cores_20k=<n>` for two slots. Takes about
half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from checkout import HERE
from cpu_timeline import CpuTimeline
from environments import flink_jars, flink_python
from results import machine, write_section
from tidegate_w1 import driver

from tidegate.errors import JobFailedError
from tidegate.jobs.client.job_client import JobClient

PIPELINE = str(HERE / "pipelines" / "latency.py") + ":build"
RATES = {2_000: "2k", 5_000: "5k", 20_000: "20k", 50_000: "50k", 200_000: "200k", 2_000_000: "2M"}
WORK = ("total", "window", "join")
"""A running total per key, with the state API; windows of 0.1 s; a join of each row with the row before of its key."""
SLOTS = (1, 2, 4)
KEYS = 1_000
RUN_TIMEOUT = timedelta(minutes=5)
POLL_S = 0.5
HEADING = "## Latency"
STRUCTURED_STREAMING, REAL_TIME_MODE, FLINK = "Structured Streaming", "Spark Real-Time Mode", "Flink SQL"
FLUSH_MS = 5
"""Shortest useful interval of Flink's buffers and watermarks: sources with a rate have rows every 5 to 6 ms, too."""
FLUSHED_FLINK = f"{FLINK}, flush {FLUSH_MS} ms"
REAL_TIME_RATE = 2_000
"""Rows per second in Real-Time Mode: its source hands over one row at a time."""


@dataclass(frozen=True)
class Row:
    """One engine at one rate (rows per second) and number of slots."""

    engine: str
    slots: int
    rate: int
    work: str
    p50_ms: float
    p99_ms: float
    cores: float
    note: str


def ours(slots: int, rate: int, seconds: float, warm_up_s: float, folder: str, work: str = "total") -> Row:
    """Run tidegate, with checkpoints every second. Raises JobFailedError if it restarted or its results are wrong."""
    rows = int(rate * (warm_up_s + seconds)) // (slots * KEYS) * (slots * KEYS)
    with tempfile.TemporaryDirectory(prefix="latency-report-", dir=folder) as report:
        client = JobClient(folder, f"latency-{secrets.token_hex(4)}")
        spec = client.submit(
            pipeline=PIPELINE,
            arguments={
                "rows": rows,
                "rate": rate,
                "keys": KEYS,
                "work": work,
                "slots": slots,
                "warm_up_s": warm_up_s,
                "report": report,
            },
            options={"parallelism": slots, "checkpoint_interval": "1 s", "restart_strategy": "none"},
            master=f"local[{slots}]",
            submitted_by="benchmark",
        )
        with driver(client, spec) as pid, CpuTimeline(pid) as timeline:
            view = client.wait_status({"FINISHED"}, RUN_TIMEOUT, POLL_S)
        reports = [json.loads(path.read_text()) for path in sorted(Path(report).glob("*.json"))]
        latencies_ms = np.concatenate([np.load(path) for path in sorted(Path(report).glob("*.npy"))]) / 1000
    check(reports, slots, rows, work)
    begin_s = max(facts["first_s"] for facts in reports) + warm_up_s
    end_s = min(facts["last_s"] for facts in reports)
    periodic = [c.duration_ms or 0 for c in view.completed if c.kind == "checkpoint"]
    checkpoints = f"{len(periodic)} checkpoints of {np.median(periodic):.0f} ms" if periodic else "no checkpoint"
    return Row(
        "tidegate",
        slots,
        rate,
        work,
        float(np.percentile(latencies_ms, 50)),
        float(np.percentile(latencies_ms, 99)),
        timeline.between(begin_s, end_s) / (end_s - begin_s),
        checkpoints,
    )


def check(reports: Sequence[dict[str, Any]], slots: int, rows: int, work: str) -> None:
    """Compare number and sums of the results. Raises JobFailedError."""
    came, sums = sum(facts["rows"] for facts in reports), sum(facts["sum"] for facts in reports)
    totals = np.max([facts["totals"] for facts in reports], axis=0)
    right = {
        "total": came == rows and np.array_equal(totals, np.full(KEYS, rows // KEYS)),
        "window": sums == rows,
        "join": came == sums == rows // 2,
    }
    if len(reports) != slots or not right[work]:
        raise JobFailedError(
            f"the results of {work!r} are wrong",
            cause=f"{len(reports)} sinks saw {came} results of {rows} rows, sum {sums}, totals "
            f"{sorted(set(totals.tolist()))[:9]}",
        )


def structured_streaming(
    slots: int, rate: int, seconds: float, warm_up_s: float, work: str, *, real_time: bool = False
) -> Row:
    """Run Structured Streaming in a process of its own, with micro-batches or in Real-Time Mode."""
    name = REAL_TIME_MODE if real_time else STRUCTURED_STREAMING
    script = "real_time_mode_latency.py" if real_time else "structured_streaming_latency.py"
    command = [sys.executable, str(HERE / script), "--rate", str(rate)]
    command += ["--slots", str(slots), "--keys", str(KEYS), "--seconds", str(seconds), "--warm-up", str(warm_up_s)]
    command += ["--work", os.path.join(work, f"{Path(script).stem}-{slots}-{rate}")]
    return _peer(name, command, slots, rate, "total", work)


def flink(slots: int, rate: int, seconds: float, warm_up_s: float, work: str, kind: str, flush_ms: int) -> Row:
    """Run Flink SQL in a process of its own.

    Args:
        slots, rate, seconds, warm_up_s, work: as for the others.
        kind: "total" or "window".
        flush_ms: milliseconds between flushes of network buffers, and between watermarks: FLUSH_MS, or 0 for Flink's
            defaults.
    """
    rows = int(rate * (warm_up_s + seconds)) // (slots * KEYS) * (slots * KEYS)
    name = FLUSHED_FLINK if flush_ms else FLINK
    command = [flink_python(), str(HERE / "engines" / "flink_latency.py"), str(rows), str(rate), str(KEYS), str(slots)]
    return _peer(name, [*command, kind, str(warm_up_s), str(flush_ms), flink_jars()], slots, rate, kind, work)


def _peer(name: str, command: Sequence[str], slots: int, rate: int, kind: str, work: str) -> Row:
    log = Path(work, "peer.log")
    with log.open("w") as errors:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False, timeout=RUN_TIMEOUT.total_seconds()
        )
    if done.returncode:
        raise SystemExit(f"{name} failed at {rate} rows/s:\n{log.read_text()[-4000:]}")
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    return Row(name, slots, rate, kind, facts["p50_ms"], facts["p99_ms"], facts["cores"], facts["note"])


def peers(rate: int, seconds: float, warm_up_s: float, work: str) -> list[Row]:
    """Run all peers with two slots."""
    rows = [structured_streaming(2, rate, seconds, warm_up_s, work)]
    rows += [
        flink(2, rate, seconds, warm_up_s, work, kind, flush_ms)
        for kind in ("total", "window")
        for flush_ms in (0, FLUSH_MS)
    ]
    return rows


def grouped(rows: Sequence[Row]) -> dict[tuple[int, int, str, str], list[Row]]:
    """Return the repetitions of each (slots, rate, kind of work, engine)."""
    found: dict[tuple[int, int, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.slots, row.rate, row.work, row.engine), []).append(row)
    return found


def least_ratio(rows: Sequence[Row], engine: str) -> float:
    """Return how many times as long an engine takes as tidegate: the least ratio of medians and of 99th percentiles,
    over all rates and kinds of work with two slots. Of repetitions, the median counts.
    """
    found = grouped(rows)
    return min(
        median(getattr(row, name) for row in theirs) / median(getattr(row, name) for row in mine)
        for (slots, rate, work, other), theirs in found.items()
        if other == engine and (mine := found.get((slots, rate, work, "tidegate")))
        for name in ("p50_ms", "p99_ms")
    )


def bars(rows: Sequence[Row], rate: int, work: str) -> list[tuple[str, float]]:
    """Return the 99th percentiles of all engines with two slots, for a chart."""
    return [
        (engine, median(row.p99_ms for row in some))
        for (slots, at_rate, kind, engine), some in grouped(rows).items()
        if (slots, at_rate, kind) == (2, rate, work)
    ]


def medians(rows: Sequence[Row]) -> list[str]:
    """Return a table in Markdown of the medians of repetitions, with the least and the greatest in brackets."""
    lines = [
        "| slots | rows/s | work | engine | p50 ms | p99 ms | cores | runs |",
        "| ---: | ---: | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for (slots, rate, work, engine), some in sorted(grouped(rows).items()):
        cells = []
        for name, digits in (("p50_ms", 1), ("p99_ms", 1), ("cores", 2)):
            values = [getattr(row, name) for row in some]
            spread = f" ({min(values):.{digits}f}-{max(values):.{digits}f})" if len(values) > 1 else ""
            cells.append(f"{median(values):.{digits}f}{spread}")
        lines.append(f"| {slots} | {rate:,} | {work} | {engine} | {' | '.join(cells)} | {len(some)} |")
    return lines


def table(rows: Sequence[Row]) -> list[str]:
    """Return the result as Markdown."""
    lines = [
        "| slots | rows/s | work | engine | p50 ms | p99 ms | cores | |",
        "| ---: | ---: | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for row in sorted(rows, key=lambda row: (row.slots, row.rate, row.work, row.engine)):
        lines.append(
            f"| {row.slots} | {row.rate:,} | {row.work} | {row.engine} | {row.p50_ms:.1f} | {row.p99_ms:.1f} "
            f"| {row.cores:.2f} | {row.note} |"
        )
    return lines


def last_line(rows: Sequence[Row]) -> str:
    """Return `latency: p99_5k=<ms> p99_20k=<ms> p99_200k=<ms> cores_20k=<n>`; `-` for missing values."""
    two = {row.rate: row for row in rows if (row.engine, row.slots, row.work) == ("tidegate", 2, "total")}
    parts = [
        f"p99_{RATES[r]}={two[r].p99_ms:.1f}" if r in two else f"p99_{RATES[r]}=-" for r in (5_000, 20_000, 200_000)
    ]
    cores = f"{two[20_000].cores:.2f}" if 20_000 in two else "-"
    return f"latency: {' '.join(parts)} cores_20k={cores}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="latency: tidegate beside Structured Streaming")
    parser.add_argument("--rates", type=int, nargs="*", choices=list(RATES), default=list(RATES))
    parser.add_argument("--slots", type=int, nargs="*", default=list(SLOTS))
    parser.add_argument("--seconds", type=float, default=15.0, help="length of the measured part (default: 15)")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds before it (default: 20)")
    parser.add_argument("--engine", choices=("both", "tidegate", "structured-streaming"), default="both")
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that child processes are ended
    engines = {"tidegate": ours, "structured-streaming": structured_streaming}
    work = tempfile.mkdtemp(prefix="latency-")
    rows: list[Row] = []
    try:
        for slots in args.slots:
            for rate in args.rates:
                for name, engine in engines.items():
                    if args.engine in ("both", name):
                        rows.append(engine(slots, rate, args.seconds, args.warm_up, work))
                        print(table(rows[-1:])[-1], file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    lines = table(rows)
    print("\n".join(lines))
    print(f"\n{machine()}")
    if args.write:
        write_section(HEADING, [*lines, "", f"{machine()}. What is measured, and how: README.md in this folder."])
    print(last_line(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
