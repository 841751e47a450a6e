"""Rows of tidegate alone: start, latency, checkpoints, slots, recovery and idle jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import idle
import latency
import recovery
import scaling
import start
from generated_runs import Generated

from bench_rows.row import MILLION, Row

MEASURED_S, WARM_UP_S = 10.0, 8.0
"""Length of a run for latency, seconds: three repetitions of a row must not take more than ten minutes."""
BESIDE_RATE = 20_000
"""Rows per second beside other engines."""


def starts(folder: Path, quick: bool, repeat: int) -> Row:
    """CPU seconds from start to the first result, beside a plain PySpark session."""
    row = Row("start", "Start")
    found = start.measure(folder, 2 if quick else max(repeat, 3), warm_up=2)
    row.lines = start.table(found)
    row.charts["CPU seconds from start to the first result"] = [(n, start.median_cpu_s(r)) for n, r in found.items()]
    row.figures = {"start_cpu": start.median_cpu_s(found["tidegate"])}
    row.runs = [{"engine": name, "wall_s": wall, **used} for name, runs in found.items() for wall, used in runs]
    return row


def latencies(folder: Path, quick: bool, repeat: int) -> Row:
    """Time from a row to its result, with two slots. `quick`: one rate of one kind of work."""
    rates = (20_000,) if quick else (20_000, 200_000, 2 * MILLION)
    work = ("total",) if quick else latency.WORK
    row, rows = _latencies("latency", "Latency", folder, [(2, rate) for rate in rates], work, repeat)
    p99_ms = median(r.p99_ms for r in rows if (r.rate, r.work) == (20_000, "total"))
    row.figures = {"latency_p99_20k": p99_ms}
    return row


def latencies_of_slots(folder: Path, quick: bool, repeat: int) -> Row:
    """The same with more slots than cores."""
    cases = [(4, 20_000)] if quick else [(4, 20_000), (4, 200_000), (8, 20_000)]
    title = "Latency with more slots than cores"
    return _latencies("latency_slots", title, folder, cases, latency.WORK, repeat)[0]


def _latencies(
    name: str, title: str, folder: Path, cases: Sequence[tuple[int, int]], work: Sequence[str], repeat: int
) -> tuple[Row, list[latency.Row]]:
    rows = [
        latency.ours(count, rate, MEASURED_S, WARM_UP_S, str(folder), kind)
        for _ in range(repeat)
        for count, rate in cases
        for kind in work
    ]
    return Row(name, title, latency.medians(rows), runs=[asdict(r) for r in rows]), rows


def latencies_beside(folder: Path, quick: bool, repeat: int) -> Row:
    """Latency beside Structured Streaming, its Real-Time Mode, and Flink SQL, in turn."""
    row, rows = Row("latency_beside", "Latency beside other engines"), list[latency.Row]()
    for _ in range(repeat):
        rows += [latency.ours(2, BESIDE_RATE, MEASURED_S, WARM_UP_S, str(folder), work) for work in ("total", "window")]
        rows += latency.peers(BESIDE_RATE, MEASURED_S, WARM_UP_S, str(folder))
    row.figures = {
        "latency_flink": latency.least_ratio(rows, latency.FLINK),
        "latency_flink_flushed": latency.least_ratio(rows, latency.FLUSHED_FLINK),
        "latency_ss": latency.least_ratio(rows, latency.STRUCTURED_STREAMING),
    }
    for work in ("total", "window"):
        title = f"Latency, 99th percentile, ms: {work}, {BESIDE_RATE:,} rows/s, 2 slots"
        row.charts[title] = latency.bars(rows, BESIDE_RATE, work)
    slow = (2, latency.REAL_TIME_RATE, MEASURED_S, WARM_UP_S, str(folder))
    rows += [latency.ours(*slow), latency.structured_streaming(*slow, real_time=True)]
    row.lines = latency.medians(rows)
    row.runs = [asdict(r) for r in rows]
    return row


def checkpoints(folder: Path, quick: bool, repeat: int) -> Row:
    """CPU of a checkpoint every second, over jobs without checkpoints."""
    row = Row("checkpoints", "Cost of checkpoints")
    row.lines = [
        "Generated rows (W1), heap, 2 slots: jobs with a checkpoint every second and jobs without, in turn.",
        "Skewed: keys by Zipf's law, times out of order by up to 4 s, windows of 2 s.",
        "",
        "| keys | rows | with, CPU s | without, CPU s | median of the pairs | seconds, with and without |",
        "| ---: | ---: | --- | --- | ---: | --- |",
    ]
    inputs = (
        Generated(400 * MILLION, 100_000),
        Generated(200 * MILLION, MILLION),
        Generated(200 * MILLION, 200_000, True),
    )
    for given in inputs:
        given = replace(given, rows=given.rows // 10) if quick else given
        found = scaling.checkpoint_pairs(folder, given, max(repeat, 5))
        wall = {on: median(run.warm_wall_s for run in runs) for on, runs in found.items()}
        each = {on: ", ".join(f"{run.warm_cpu_s:.1f}" for run in runs) for on, runs in found.items()}
        # The machine's speed changes over minutes, so the runs of a pair are compared.
        pairs = zip(found[True], found[False], strict=True)
        percent = 100 * (median(on.warm_cpu_s / off.warm_cpu_s for on, off in pairs) - 1)
        data = f"{given.keys:,}, skewed" if given.skewed else f"{given.keys:,}"
        row.lines.append(
            f"| {data} | {given.rows:,} | {each[True]} | {each[False]} | {percent:+.1f} % "
            f"| {wall[True]:.1f}, {wall[False]:.1f} |"
        )
        row.figures[f"checkpoint_percent_{given.keys}"] = percent
        row.runs += [
            {"keys": given.keys, "checkpoints": on, **asdict(run)} for on, runs in found.items() for run in runs
        ]
    return row


def slots(folder: Path, quick: bool, repeat: int) -> Row:
    """CPU per row with 2 to 32 slots on the same cores."""
    row, rows = Row("slots", "More slots on the same cores"), (20 if quick else 400) * MILLION
    found = scaling.by_slots(folder, Generated(rows, 100_000), (2, 8, 32), repeat)
    cpu = {count: median(run.warm_cpu_s for run in runs) for count, runs in found.items()}
    row.lines = [
        f"{rows:,} generated rows (W1), 100,000 keys, a checkpoint every second. Last column: with start.",
        "Each slot reads rows of the whole time, so that windows hold equally many rows.",
        "",
        "| slots | M rows per CPU second | cost of a row, 2 slots = 1 | each run, CPU s | with start, CPU s |",
        "| ---: | ---: | ---: | --- | ---: |",
    ]
    for count, runs in found.items():
        each = ", ".join(f"{run.warm_cpu_s:.1f}" for run in runs)
        row.lines.append(
            f"| {count} | {rows / cpu[count] / 1e6:.1f} | {cpu[count] / cpu[2]:.2f} | {each} "
            f"| {median(run.cpu_s for run in runs):.1f} |"
        )
    row.charts["CPU of a row, 2 slots = 1"] = [(f"tidegate, {count} slots", cpu[count] / cpu[2]) for count in found]
    row.figures = {"slots_32": cpu[32] / cpu[2]}
    row.runs = [{"slots": count, **asdict(run)} for count, runs in found.items() for run in runs]
    return row


def recoveries(folder: Path, quick: bool, repeat: int) -> Row:
    """Time from a death until all sinks have rows again."""
    row = Row("recovery", "Recovery")
    found = recovery.measure(folder, repeat)
    row.lines = [
        "Seconds from SIGKILL until rows reach the sinks of both slots again; default options, `tidegate agent`.",
        "",
        "| killed | median | each |",
        "| --- | ---: | --- |",
    ]
    for victim, seconds in found.items():
        row.lines.append(f"| {victim} | {median(seconds):.1f} | {', '.join(f'{s:.1f}' for s in seconds)} |")
        row.figures[f"recovery_{victim}_s"] = median(seconds)
    row.runs = [{"killed": victim, "seconds": s} for victim, seconds in found.items() for s in seconds]
    return row


def idles(folder: Path, quick: bool, repeat: int) -> Row:
    """Memory, CPU and threads of each of many jobs that get no rows."""
    row = Row("idle", "Idle jobs")
    jobs = 3 if quick else 50
    idle.warm_up(folder)
    found = [
        idle.measure(folder / str(number), jobs, 20.0 if quick else 60.0, 10.0 if quick else idle.SETTLE_S)
        for number in range(repeat if quick else 1)
    ]
    measured = [job for run in found for job in run]
    row.lines = idle.table(measured)
    middle = idle.medians(measured)
    row.figures = {
        "idle_mib": sum(middle["pss_mib"].values()),
        "idle_cpu_s_per_min": sum(middle["cpu_s_per_min"].values()),
    }
    row.charts["Memory of an idle job, MiB"] = list(middle["pss_mib"].items())
    row.runs = [asdict(job) for job in measured]
    return row
