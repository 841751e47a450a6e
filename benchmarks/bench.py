"""The benchmark harness: engines do the same work on the same input, in turn, in one run. See README.md.

    python benchmarks/bench.py [--quick] [--only windows,start] [--repeat 3] [--again]

A row writes `results/<row>.json` and its section of RESULTS.md. A row that has a result is skipped, unless `--again` is
given, so an interrupted run continues where it ended. With `--quick`, rows are smaller, nothing is written, and the
last line is `bench: <figure>=<value> ...`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import latency
import start
from charts import write_chart
from checkout import HERE
from engine_runs import BUILT_IN, PEERS, EngineRun, run_engine
from parquet_input import Input
from results import machine, write_section

RESULTS = HERE / "results"
MILLION = 1_000_000


@dataclass
class Row:
    """One row of the harness.

    Attributes:
        name: for `--only`, and of the result's file.
        title: heading of its section.
        lines: the section, Markdown.
        figures: name -> value, for the last line and `bench_compare.py`.
        charts: title with unit -> (label, value) of each bar.
        runs: every single run, as measured.
    """

    name: str
    title: str
    lines: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    charts: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    runs: list[Mapping[str, object]] = field(default_factory=list)


def windows(folder: Path, quick: bool, repeat: int) -> Row:
    """Windows of one second, from Parquet to Parquet, over numbers and texts as keys."""
    row = Row("windows", "Windows from Parquet to Parquet")
    engines = ("streaming", "batch", "spark", "duckdb") if quick else (*BUILT_IN, *PEERS)
    keys = (100_000,) if quick else (10, 100_000, MILLION)
    found: dict[tuple[int, bool, str], list[EngineRun]] = {}
    for count in keys:
        for text in (False, True):
            given = Input(20 * MILLION, count, text)
            chosen = ("streaming",) if quick and text else engines
            for engine, runs in _in_turn(folder, given, chosen, repeat, row).items():
                found[(count, text, engine)] = runs
    row.lines = [
        "Rows per CPU second of the whole process tree, in millions. With start: one run in a new process. Without: "
        "tidegate from RUNNING to FINISHED; the others a second query in the same process.",
        "",
        "| keys | engine | with start | without start | seconds with start | each run, CPU s |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for (count, text, engine), runs in found.items():
        rate, warm = _rate(20 * MILLION, runs), _rate(20 * MILLION, runs, warm=True)
        each = ", ".join(f"{run.cpu_s:.1f}" for run in runs)
        wall = median(run.wall_s for run in runs)
        label = f"{count:,}{' texts' if text else ''}"
        row.lines.append(f"| {label} | {engine} | {rate:.2f} | {warm:.2f} | {wall:.1f} | {each} |")

    for text in (False, True):
        bars = [
            (_label(engine), _rate(20 * MILLION, runs))
            for (count, of_text, engine), runs in found.items()
            if (count, of_text) == (100_000, text)
        ]
        row.charts[
            f"Million rows per CPU second, 100,000 {'texts' if text else 'integers'} as keys, start included"
        ] = bars

    def ratio(one: tuple[bool, str], other: tuple[bool, str], *, warm: bool) -> float:
        mine, theirs = found.get((100_000, *one)), found.get((100_000, *other))
        assert mine and theirs
        return _rate(1, mine, warm=warm) / _rate(1, theirs, warm=warm)

    row.figures = {
        "batch_spark": ratio((False, "batch"), (False, "spark"), warm=False),
        "w1_text": ratio((True, "streaming"), (False, "streaming"), warm=True),
        "w1_parquet_duckdb": ratio((False, "streaming"), (False, "duckdb"), warm=True),
    }
    return row


def bounded(folder: Path, quick: bool, repeat: int) -> Row:
    """Both modes over 100 million rows, start included."""
    row = Row("bounded", "Batch mode beside streaming mode")
    given = Input((20 if quick else 100) * MILLION, 100_000)
    found = _in_turn(folder, given, BUILT_IN, repeat, row)
    rates = {engine: _rate(given.rows, runs) for engine, runs in found.items()}
    row.lines = [
        f"{given.name}, the windows of the row above, in new processes.",
        "",
        "| mode | M rows per CPU second | seconds | each run, CPU s |",
        "| --- | ---: | ---: | --- |",
    ]
    for mode, runs in found.items():
        each = ", ".join(f"{run.cpu_s:.1f}" for run in runs)
        row.lines.append(f"| {mode} | {rates[mode]:.2f} | {median(run.wall_s for run in runs):.1f} | {each} |")
    row.charts["Million rows per CPU second, 100 million rows, start included"] = [
        (_label(mode), rate) for mode, rate in rates.items()
    ]
    row.figures = {"batch_streaming": rates["batch"] / rates["streaming"]}
    return row


def pruned(folder: Path, quick: bool, repeat: int) -> Row:
    """Two of 20 columns, beside a job that declares to read only these."""
    row = Row("pruned", "Columns that nobody reads")
    given = Input((4 if quick else 20) * MILLION, 100_000, wide=True)
    found = _in_turn(folder, given, ("streaming", "streaming-declared"), repeat, row)
    rates = {engine: _rate(given.rows, runs, warm=True) for engine, runs in found.items()}
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
    """Time from a row to its result."""
    row = Row("latency", "Latency")
    (folder / "latency").mkdir(exist_ok=True)
    rates = (20_000,) if quick else (20_000, 200_000, 2 * MILLION)
    slots = (2,) if quick else (2, 4, 8)
    rows = [
        latency.ours(s, rate, 10.0 if quick else 15.0, 10.0 if quick else 20.0, str(folder / "latency"), work)
        for s in slots
        for rate in rates
        for work in (("total",) if quick else latency.WORK)
    ]
    row.lines = latency.table(rows)
    row.figures = {"latency_p99_20k": next(r.p99_ms for r in rows if (r.slots, r.rate, r.work) == (2, 20_000, "total"))}
    row.runs = [asdict(r) for r in rows]
    return row


ROWS: Mapping[str, Callable[[Path, bool, int], Row]] = {
    "latency": latencies,
    "windows": windows,
    "bounded": bounded,
    "pruned": pruned,
    "start": starts,
}
QUICK_ROWS = tuple(name for name in ROWS if name != "bounded")
"""Rows of a quick run: in a short run of both modes, their start is most of their cost."""


def _in_turn(folder: Path, given: Input, engines: Sequence[str], repeat: int, row: Row) -> dict[str, list[EngineRun]]:
    """Run the engines in turn, `repeat` times. Ends the benchmark if results differ."""
    source = folder / given.name.replace(" ", "-").replace(",", "")
    given.write(source)
    found: dict[str, list[EngineRun]] = {engine: [] for engine in engines}
    for _ in range(repeat):
        for engine in engines:
            run = run_engine(engine, source, folder, given)
            found[engine].append(run)
            row.runs.append({"input": given.name, **asdict(run)})
            print(f"{given.name}: {engine}: {run.wall_s:.1f} s, {run.cpu_s:.1f} CPU s", file=sys.stderr, flush=True)
    digests = {run.digest for runs in found.values() for run in runs}
    if len(digests) != 1:
        raise SystemExit(
            f"{given.name}: the results differ: {[(e, {r.digest for r in runs}) for e, runs in found.items()]}"
        )
    return found


def _label(engine: str) -> str:
    return f"tidegate, {engine}" if engine in BUILT_IN else engine.replace("_", " ")


def _rate(rows: int, runs: Sequence[EngineRun], *, warm: bool = False) -> float:
    """Return millions of rows per CPU second."""
    return rows / median(run.warm_cpu_s if warm else run.cpu_s for run in runs) / 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows, print their tables, and the figures last."""
    parser = argparse.ArgumentParser(description="benchmarks beside other engines")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="rows, separated by commas (default: all; quick: all but bounded)")
    parser.add_argument("--repeat", type=int, default=None, help="runs of each engine (default: 3; quick: 1)")
    parser.add_argument("--again", action="store_true", help="run rows again that have a result")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that child processes are ended
    figures: dict[str, float] = {}
    for name in options.only.split(",") if options.only else QUICK_ROWS if options.quick else ROWS:
        stored = RESULTS / f"{name}.json"
        if stored.exists() and not options.quick and not options.again:
            figures |= json.loads(stored.read_text())["figures"]
            continue
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as folder:
            row = ROWS[name](Path(folder), options.quick, options.repeat or (1 if options.quick else 3))
        figures |= row.figures
        print(f"## {row.title}\n\n" + "\n".join(row.lines) + "\n", flush=True)
        if not options.quick:
            RESULTS.mkdir(exist_ok=True)
            stored.write_text(json.dumps({**asdict(row), "machine": machine()}, indent=1) + "\n", encoding="utf-8")
            images = []
            for number, (title, bars) in enumerate(row.charts.items()):
                path = HERE / "charts" / f"{name}-{number}.svg"
                write_chart(path, title, bars)
                images += [f"![{title}](charts/{path.name})", ""]
            write_section(f"## {row.title}", [*images, *row.lines, "", f"{machine()}. `make bench ONLY={name}`."])
    print("bench: " + " ".join(f"{name}={value:.2f}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
