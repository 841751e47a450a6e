"""Compares the figures of two commits: quick rows of the harness, in turn, on this machine.

    python benchmarks/bench_compare.py main~5 main [--only start,windows] [--repeat 3]

Both commits are measured by this checkout's benchmarks, with their own runtime.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
LAST_LINE = "bench: "


def figures_of(output: str) -> dict[str, float]:
    """Return the figures of the last line of `bench.py --quick`."""
    line = output.strip().splitlines()[-1]
    if not line.startswith(LAST_LINE):
        raise ValueError(f"the last line is not one of figures: {line!r}")
    return {name: float(value) for name, value in (part.split("=") for part in line[len(LAST_LINE) :].split())}


def table(commits: Sequence[str], found: Sequence[Sequence[dict[str, float]]]) -> list[str]:
    """Return the medians of both commits and their ratio, as Markdown.

    Args:
        commits: both names.
        found: for each commit, the figures of each round.
    """
    lines = [f"| figure | {commits[0]} | {commits[1]} | ratio | each round |", "| --- | ---: | ---: | ---: | --- |"]
    for name in found[0][0]:
        values = [[figures[name] for figures in rounds] for rounds in found]
        old, new = (median(of_commit) for of_commit in values)
        each = "; ".join(", ".join(f"{value:.2f}" for value in of_commit) for of_commit in values)
        lines.append(f"| {name} | {old:.2f} | {new:.2f} | {new / old:.2f} | {each} |")
    return lines


def main() -> int:
    """Measure both commits in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs=2)
    parser.add_argument("--only", default=None, help="rows of the harness, separated by commas")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    found: list[list[dict[str, float]]] = [[], []]
    with tempfile.TemporaryDirectory(prefix="bench-compare-") as folder:
        trees = [Path(folder, str(number)) for number in range(2)]
        try:
            for tree, commit in zip(trees, options.commits, strict=True):
                subprocess.run(
                    ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=HERE, check=True
                )
            command = [sys.executable, str(HERE / "bench.py"), "--quick"]
            command += ["--only", options.only] if options.only else []
            for _ in range(options.repeat):
                for number, tree in enumerate(trees):
                    environment = {**os.environ, "BENCH_REPOSITORY": str(tree)}
                    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
                    found[number].append(figures_of(done.stdout))
        finally:
            for tree in trees:
                subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=HERE, check=False)
    print("\n".join(table(options.commits, found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
