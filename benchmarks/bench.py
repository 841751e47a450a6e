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
from dataclasses import asdict
from pathlib import Path

from bench_rows.flink_rows import flink, nexmark, nexmark_more, rocksdb_flink
from bench_rows.kafka_rows import kafka
from bench_rows.own_rows import (
    checkpoints,
    idles,
    latencies,
    latencies_beside,
    latencies_of_slots,
    recoveries,
    slots,
    starts,
)
from bench_rows.parquet_rows import bounded, per_key, pruned, rocksdb, windows, windows_of_keys
from bench_rows.row import Row
from charts import write_chart
from checkout import HERE
from results import machine, write_section

RESULTS = HERE / "results"

ROWS: Mapping[str, Callable[[Path, bool, int], Row]] = {
    "latency": latencies,
    "latency_slots": latencies_of_slots,
    "latency_beside": latencies_beside,
    "windows": windows,
    "windows_keys": windows_of_keys,
    "bounded": bounded,
    "pruned": pruned,
    "perkey": per_key,
    "start": starts,
    "rocksdb": rocksdb,
    "rocksdb_flink": rocksdb_flink,
    "flink": flink,
    "checkpoints": checkpoints,
    "slots": slots,
    "nexmark": nexmark,
    "nexmark_more": nexmark_more,
    "recovery": recoveries,
    "idle": idles,
    "kafka": kafka,
}
QUICK = ("latency", "windows", "pruned", "rocksdb", "perkey", "start")
"""Rows of `--quick`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows, print their tables, and the figures last."""
    parser = argparse.ArgumentParser(description="benchmarks beside other engines")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="rows, separated by commas (default: all; quick: some)")
    parser.add_argument("--repeat", type=int, default=None, help="runs of each engine (default: 3; quick: 1)")
    parser.add_argument("--again", action="store_true", help="run rows again that have a result")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that child processes are ended
    figures: dict[str, float] = {}
    for name in options.only.split(",") if options.only else QUICK if options.quick else ROWS:
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
