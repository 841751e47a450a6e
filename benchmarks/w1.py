"""W1: compares tidegate's rows per CPU second with Structured Streaming, and measures the cost of checkpoints.

See README.md.

    python benchmarks/w1.py [--write]

Prints a table and, last, `w1 ratio 10=<x> 100k=<x> 1M=<x> overhead_100k=<percent>`. Takes about half an hour.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tidegate_w1
from checkout import HERE
from results import RESULTS, machine, write_section

KEYS = {10: "10", 100_000: "100k", 1_000_000: "1M"}
OVERHEAD_KEYS = 100_000
PAIRS = 5
HEADING = "## W1"


@dataclass(frozen=True)
class Row:
    """One engine at one K."""

    keys: int
    engine: str
    rows: int
    wall_s: float
    cpu_s: float
    note: str

    @property
    def rows_per_cpu_s(self) -> float:
        """Return the rows per CPU second of the whole process tree."""
        return self.rows / self.cpu_s


@dataclass(frozen=True)
class Overhead:
    """Time share of checkpoints every second, in percent; medians over pairs of runs."""

    wall_percent: float
    cpu_percent: float
    pairs: tuple[float, ...]


def structured_streaming(keys: int, seconds: float, batch_seconds: float, work: str) -> Row:
    """Run Structured Streaming in a process of its own."""
    command = [sys.executable, str(HERE / "structured_streaming.py"), "--keys", str(keys), "--seconds", str(seconds)]
    command += ["--batch-seconds", str(batch_seconds), "--work", work]
    log = Path(work, f"structured-streaming-{keys}.log")
    with log.open("w") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"Structured Streaming failed at K = {keys}:\n{log.read_text()[-4000:]}")
    facts: Mapping[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    note = f"{facts['micro_batches']} micro-batches, {facts['checked_results']:,} results checked"
    return Row(keys, "Structured Streaming", facts["rows"], facts["wall_s"], facts["cpu_s"], note)


def ours(keys: int, seconds: float, work: str) -> Row:
    """Run tidegate, with checkpoints every second."""
    measured = tidegate_w1.measure(work, keys, seconds)
    checkpoints = f"{measured.checkpoints} checkpoints of {measured.checkpoint_ms:.0f} ms"
    note = f"{checkpoints}, {measured.result_rows:,} results checked"
    return Row(keys, "tidegate", measured.rows, measured.wall_s, measured.cpu_s, note)


def overhead(rows: int, pairs: int, work: str) -> Overhead:
    """Alternate runs of `rows` rows with and without checkpoints; the order within a pair alternates too."""
    walls: list[float] = []
    cpus: list[float] = []
    for pair in range(pairs):
        order: Sequence[str | None] = ("1 s", None) if pair % 2 == 0 else (None, "1 s")
        runs = {interval: tidegate_w1.run(work, rows, OVERHEAD_KEYS, interval) for interval in order}
        on, off = runs["1 s"], runs[None]
        walls.append(100 * (on.wall_s / off.wall_s - 1))
        cpus.append(100 * (on.cpu_s / off.cpu_s - 1))
        say(f"pair {pair + 1} of {pairs}: wall {walls[-1]:+.1f} %, CPU {cpus[-1]:+.1f} %, {on.checkpoints} checkpoints")
    return Overhead(statistics.median(walls), statistics.median(cpus), tuple(walls))


def table(rows: Sequence[Row], cost: Overhead | None) -> list[str]:
    """Return the result as Markdown."""
    lines = [
        "| K | engine | rows | seconds | CPU seconds | M rows/s | M rows per CPU second | ratio | |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    base = {row.keys: row.rows_per_cpu_s for row in rows if row.engine != "tidegate"}
    for row in rows:
        ratio = f"{row.rows_per_cpu_s / base[row.keys]:.1f}" if row.keys in base else "-"
        lines.append(
            f"| {KEYS.get(row.keys, row.keys)} | {row.engine} | {row.rows:,} | {row.wall_s:.1f} | {row.cpu_s:.1f} "
            f"| {row.rows / row.wall_s / 1e6:.2f} | {row.rows_per_cpu_s / 1e6:.3f} | {ratio} | {row.note} |"
        )
    if cost is not None:
        pairs = ", ".join(f"{percent:+.1f}" for percent in cost.pairs)
        lines += [
            "",
            f"Checkpoints each second at K = 100k cost {cost.wall_percent:.1f} % of the time, "
            f"{cost.cpu_percent:.1f} % of the CPU (medians of {len(cost.pairs)} alternating pairs). "
            f"Time, pair by pair: {pairs} %.",
        ]
    return lines


def last_line(rows: Sequence[Row], cost: Overhead | None) -> str:
    """Return `w1 ratio 10=<x> 100k=<x> 1M=<x> overhead_100k=<percent>`; `-` for missing values."""
    speed = {(row.keys, row.engine): row.rows_per_cpu_s for row in rows}
    ratios = []
    for keys, name in KEYS.items():
        mine, theirs = speed.get((keys, "tidegate")), speed.get((keys, "Structured Streaming"))
        ratios.append(f"{name}={mine / theirs:.1f}" if mine and theirs else f"{name}=-")
    return f"w1 ratio {' '.join(ratios)} overhead_100k={f'{cost.wall_percent:.1f}' if cost is not None else '-'}"


def write(lines: Sequence[str], path: Path = RESULTS) -> None:
    """Write the section to the results file, replacing an older one."""
    write_section(HEADING, lines, path)


def say(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="W1: tidegate beside Structured Streaming")
    parser.add_argument("--keys", type=int, nargs="*", choices=list(KEYS), default=list(KEYS))
    parser.add_argument("--seconds", type=float, default=30.0, help="least length of a measured part (default: 30)")
    parser.add_argument("--batch-seconds", type=float, default=5.0, help="length of Spark's micro-batches (default: 5)")
    parser.add_argument(
        "--pairs", type=int, default=PAIRS, help=f"pairs for the checkpoint overhead (default: {PAIRS})"
    )
    parser.add_argument("--engine", choices=("both", "tidegate", "structured-streaming"), default="both")
    parser.add_argument("--write", action="store_true", help=f"put the table into {RESULTS.name}")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that child processes are ended
    work = tempfile.mkdtemp(prefix="w1-")
    rows: list[Row] = []
    cost: Overhead | None = None
    try:
        for keys in args.keys:
            if args.engine != "tidegate":
                rows.append(structured_streaming(keys, args.seconds, args.batch_seconds, work))
                say(f"K = {KEYS[keys]}: Structured Streaming {rows[-1].rows_per_cpu_s / 1e6:.3f} M rows per CPU second")
            if args.engine != "structured-streaming":
                rows.append(ours(keys, args.seconds, work))
                say(f"K = {KEYS[keys]}: tidegate {rows[-1].rows_per_cpu_s / 1e6:.3f} M rows per CPU second")
        mine = [row for row in rows if row.keys == OVERHEAD_KEYS and row.engine == "tidegate"]
        if mine and args.pairs:
            cost = overhead(mine[0].rows, args.pairs, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    lines = table(rows, cost)
    print("\n".join(lines))
    print(f"\n{machine()}")
    if args.write:
        write([*lines, "", f"{machine()}. What is measured, and how: README.md in this folder."])
    print(last_line(rows, cost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
