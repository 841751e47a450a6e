"""What checkpoints and more slots cost: tidegate alone, over generated rows (W1)."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
from engine_runs import WINDOWS, EngineRun, digest_of, run_tidegate
from generated_runs import Generated


def checkpoint_pairs(folder: Path, given: Generated, pairs: int) -> dict[bool, list[EngineRun]]:
    """Return runs with a checkpoint every second (True) and without checkpoints (False). The order alternates."""
    found: dict[bool, list[EngineRun]] = {True: [], False: []}
    for pair in range(pairs):
        for on in (True, False) if pair % 2 else (False, True):
            interval = "1 s" if on else "none"
            found[on].append(_run(folder, given, {"checkpoint_interval": interval}, 2, f"checkpoints: {interval}"))
    _require_equal([run for runs in found.values() for run in runs])
    return found


def by_slots(folder: Path, given: Generated, counts: Sequence[int], repeat: int) -> dict[int, list[EngineRun]]:
    """Return `repeat` runs for each number of slots, in turn. Results are compared with DuckDB's."""
    found: dict[int, list[EngineRun]] = {count: [] for count in counts}
    right = {count: expected_digest(folder, given, count) for count in counts}
    for _ in range(repeat):
        for count in counts:
            run = _run(folder, given, {"checkpoint_interval": "1 s"}, count, f"{count} slots")
            if run.digest != right[count]:
                raise SystemExit(f"{count} slots: the results differ from DuckDB's: {run.digest}, {right[count]}")
            found[count].append(run)
    return found


def expected_digest(folder: Path, given: Generated, slots: int) -> str:
    """Return the digest of the results that DuckDB computes from the numbers of the rows."""
    target = folder / f"expected-{slots}"
    target.mkdir()
    # As `pipelines/generated.py`.
    rows = f"""
        SELECT (i * 2654435761) % {given.keys} AS k, i % 1000 AS v,
            (i % {given.rows // slots}) * {slots} // 500 AS ts_ms
        FROM range({given.rows}) t(i)
    """
    windows = f"""
        SELECT k, make_timestamp(ts_ms // 10000 * 10000000) AS window_start,
            count(*) AS n, CAST(sum(v) AS BIGINT) AS total
        FROM ({rows}) GROUP BY ALL
    """
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({windows}) TO '{target}/part.parquet'")
    return digest_of(WINDOWS.results, target, given.newest_window_us)


def _run(folder: Path, given: Generated, options: Mapping[str, object], slots: int, label: str) -> EngineRun:
    target = folder / f"out-{time.time_ns()}"
    arguments = {"rows": given.rows, "keys": given.keys, "output": str(target), "source_only": False, "slots": slots}
    arguments["skewed"] = given.skewed
    found = run_tidegate("generated.py", arguments, options, folder / "jobs", slots)
    run = EngineRun(label, *found, digest_of(WINDOWS.results, target, given.newest_window_us))
    shutil.rmtree(target)
    print(f"{given.keys:,} keys: {label}: {run.warm_cpu_s:.1f} CPU s", file=sys.stderr, flush=True)
    return run


def _require_equal(runs: Sequence[EngineRun]) -> None:
    digests = {run.digest for run in runs}
    if len(digests) != 1:
        raise SystemExit(f"the results differ: {digests}")
