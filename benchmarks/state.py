"""Measures what keyed state costs: processing, snapshots and restore of each back end, by number of keys. See
README.md.

    python benchmarks/state.py [--write] [--keys 100000,1000000] [--back-ends heap,rocksdb] [--folder FOLDER]

Drives the back ends and the runtime's own snapshot writer, without Spark. Each case runs in a process of its own.
Prints a table and, last, `state: sync_ms=<x> raw_ratio=<x> incremental_ratio=<x>` of the most keys on `heap`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "spark_runtime")]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import pyarrow as pa  # noqa: E402
from results import RESULTS, machine, write_section  # noqa: E402

from tidegate.jobs.options import SnapshotCompression  # noqa: E402
from tidegate.jobs.stores.local_disk import LocalStore  # noqa: E402
from tidegate.snapshot.handles import SnapshotStreams  # noqa: E402
from tidegate.state.backend_registry import BACKENDS, new_backend  # noqa: E402
from tidegate.state.keyed_state import BackendContext, KeyedStateBackend, StateDescriptor, ValueState  # noqa: E402
from tidegate.subtask.snapshots.snapshot_writer import SnapshotPlace, SnapshotWriter, WrittenSnapshot  # noqa: E402

KEYS = (100_000, 1_000_000, 4_000_000)
HEADING = "## State"
BATCH_ROWS = 64 * 1024
CHANGED_KEYS = 3 * 64 * 1024
"""Number of keys that change between two checkpoints. They are adjacent in order of arrival, so only a few chunks
change."""
ROUNDS = 3
WRITERS = 8
"""Threads, as in a slot."""
UPDATES = 16
"""Number of timed batches of random keys."""
MOST_RATIO = 1.3
"""The goal: most time of a first checkpoint relative to a raw write of its bytes."""
SCHEMA = pa.schema([("k", pa.int64())])
TOTALS = StateDescriptor("totals", "value", pa.schema([("n", pa.int64()), ("total", pa.float64())]))
UID = "totals"


@dataclass(frozen=True)
class Cost:
    """One back end with one number of keys; medians of ROUNDS.

    Attributes:
        fill_rows_s, update_rows_s: rows a second, of new keys and of random known ones: read, add, write.
        full_bytes, full_sync_ms, full_async_ms: of a first checkpoint.
        raw_ms: the same bytes written to one file and synchronised.
        changed: share of the keys that change before each further checkpoint.
        part_bytes, part_sync_ms, part_async_ms, part_raw_ms: of such a checkpoint.
        restore_s: seconds until a new back end has restored the last one.
        pause_ms: longest pause of a thread that only counts, during the asynchronous parts: of a checkpoint of changes.
        idle_pause_ms: the same in as much time without a checkpoint: what the machine adds.
    """

    back_end: str
    keys: int
    fill_rows_s: float
    update_rows_s: float
    full_bytes: float
    full_sync_ms: float
    full_async_ms: float
    raw_ms: float
    changed: float
    part_bytes: float
    part_sync_ms: float
    part_async_ms: float
    part_raw_ms: float
    restore_s: float
    pause_ms: float
    idle_pause_ms: float

    @property
    def raw_ratio(self) -> float:
        """Return the time of a full checkpoint relative to the raw write of its bytes."""
        return (self.full_sync_ms + self.full_async_ms) / self.raw_ms

    @property
    def incremental_ratio(self) -> float:
        """Return the share of bytes that a further checkpoint writes, relative to the share of changed keys: 1 is
        proportional."""
        return self.part_bytes / self.full_bytes / self.changed


class Case:
    """A back end under test, with a plain array that stores every expected value."""

    def __init__(self, back_end: str, keys: int, folder: str) -> None:
        self.name, self.keys, self.folder = back_end, keys, folder
        self.rng = np.random.default_rng(1)
        self.in_order = self.rng.permutation(keys).astype(np.int64)
        self.counts, self.totals = np.zeros(keys, np.int64), np.zeros(keys, np.float64)
        self.store = LocalStore(os.path.join(folder, "job"))
        self.back_end, self.state = self.opened()

    def opened(self) -> tuple[KeyedStateBackend, ValueState]:
        """Open a new back end."""
        back_end = new_backend(self.name)
        scratch = tempfile.mkdtemp(dir=self.folder)
        back_end.open(BackendContext(UID, SCHEMA, ("k",), 128, range(128), lambda: 0, scratch))
        return back_end, back_end.value(TOTALS)

    def add(self, keys: npt.NDArray[np.int64]) -> None:
        """Add one row for each key, in one batch, as a process does."""
        found = self.back_end.keys(pa.record_batch([pa.array(keys)], schema=SCHEMA))
        held = self.state.get(found)
        values = self.rng.integers(0, 2**40, len(keys)).astype(np.float64)  # whole numbers, so that no sum is rounded
        more, added = (np.bincount(found.rows, weights, found.size) for weights in (None, values))
        n, total = (np.where(held.present, held.columns[i].fill_null(0).to_numpy(), 0) for i in range(2))
        columns = [pa.array(n + more), pa.array(total + added)]
        self.state.put(found, pa.record_batch(columns, schema=TOTALS.columns))
        np.add.at(self.counts, keys, 1)
        np.add.at(self.totals, keys, values)

    def rows_s(self, batches: Sequence[npt.NDArray[np.int64]]) -> float:
        """Return the rows per second of some batches."""
        rows, seconds = 0, 0.0
        for keys in batches:
            before = time.perf_counter()
            self.add(keys)
            seconds += time.perf_counter() - before
            rows += len(keys)
        return rows / seconds

    def random_batches(self) -> list[npt.NDArray[np.int64]]:
        """Return batches of known keys."""
        return [self.rng.integers(0, self.keys, BATCH_ROWS) for _ in range(UPDATES)]

    def checkpoint(self, writer: SnapshotWriter, number: int) -> tuple[float, float, WrittenSnapshot]:
        """Take a checkpoint. Returns milliseconds of its synchronous and asynchronous part, and the written
        snapshot."""
        started = time.perf_counter()
        write = self.back_end.snapshot(number)
        frozen = time.perf_counter()
        place = SnapshotPlace(number, f"jobs/state/checkpoints/chk-{number:09d}", False)
        made: list[WrittenSnapshot | Exception] = []
        over = threading.Event()

        def end(result: WrittenSnapshot | Exception) -> None:
            made.append(result)
            over.set()

        writer.write(0, place, [(UID, write)], end, end)
        over.wait()
        durable = time.perf_counter()
        if isinstance(made[0], Exception):
            raise made[0]
        writer.blobs.completed(number)
        return (frozen - started) * 1000, (durable - frozen) * 1000, made[0]

    def restored_s(self, written: WrittenSnapshot, number: int) -> float:
        """Return the seconds until a new back end has restored the checkpoint. Raises SystemExit if a value is
        wrong."""
        self.back_end.close()
        location = f"jobs/state/checkpoints/chk-{number:09d}"
        started = time.perf_counter()
        self.back_end, self.state = self.opened()
        self.back_end.restore(SnapshotStreams.at(location, self.located).parts(written.handles[UID]))
        seconds = time.perf_counter() - started
        for keys in (np.arange(min(self.keys, BATCH_ROWS)), np.unique(self.random_batches()[0])):
            found = self.back_end.keys(pa.record_batch([pa.array(keys)], schema=SCHEMA))
            n, total = (column.to_numpy() for column in self.state.get(found).columns.columns)
            if (n != self.counts[keys]).any() or (total != self.totals[keys]).any():
                raise SystemExit(f"{self.name}: wrong values after the restore of {self.keys} keys")
        return seconds

    def located(self, location: str) -> tuple[LocalStore, str]:
        """See `OpenLocation`."""
        return self.store, location


class BusyLoop:
    """A thread that counts all the time, as a slot's loop that has work, and records its longest pause."""

    def __init__(self) -> None:
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self._longest_s = 0.0

    def __enter__(self) -> BusyLoop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join()

    @property
    def longest_ms(self) -> float:
        """Return the milliseconds of the longest pause."""
        return self._longest_s * 1000

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._over:
            now = time.perf_counter()
            self._longest_s = max(self._longest_s, now - last)
            last = now


def idle_pause_ms(milliseconds: float) -> float:
    """Return the longest pause of a busy thread beside a thread that does nothing."""
    with BusyLoop() as loop:
        time.sleep(milliseconds / 1000)
    return loop.longest_ms


def raw_write_ms(folder: str, size_bytes: int) -> float:
    """Return the milliseconds to write incompressible bytes of this size to one file, synchronised."""
    data = memoryview(np.random.default_rng(0).bytes(min(size_bytes, 64 * 2**20)))  # sliced without a copy
    path = os.path.join(folder, "raw")
    started = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        left = size_bytes
        while left > 0:
            left -= file.write(data[:left])
        os.fsync(file.fileno())
    took = (time.perf_counter() - started) * 1000
    os.unlink(path)
    return took


def measure(back_end: str, keys: int, folder: str, compression: SnapshotCompression) -> Cost:
    """Fill, update, take a full checkpoint, take checkpoints of changes, and restore."""
    warm = Case(back_end, 1000, folder)  # so that kernels are compiled or loaded before the measurement
    warm.add(warm.in_order)
    warm.add(warm.in_order)
    warm.back_end.close()
    case = Case(back_end, keys, folder)
    fill = case.rows_s([case.in_order[at : at + BATCH_ROWS] for at in range(0, keys, BATCH_ROWS)])
    update = case.rows_s(case.random_batches())
    changed = min(CHANGED_KEYS, keys // BATCH_ROWS * BATCH_ROWS or keys)
    full, part, pauses = [], [], []
    number = 0
    with ThreadPoolExecutor(WRITERS) as writers:
        for _ in range(ROUNDS):
            number += 1
            fresh = SnapshotWriter(f"full{number}", 1, case.located, 20 * 1024, writers, compression=compression)
            sync_ms, async_ms, written = case.checkpoint(fresh, number)
            raw_ms = raw_write_ms(folder, int(written.metrics["persisted_bytes"]))
            full.append((sync_ms, async_ms, raw_ms, written.metrics["persisted_bytes"]))
        for _ in range(ROUNDS):
            number += 1
            first = int(case.rng.integers(0, (keys - changed) // BATCH_ROWS + 1)) * BATCH_ROWS
            case.add(case.in_order[first : first + changed])
            sync_ms, async_ms, written = case.checkpoint(fresh, number)
            raw_ms = raw_write_ms(folder, int(written.metrics["persisted_bytes"]))
            part.append((sync_ms, async_ms, raw_ms, written.metrics["persisted_bytes"]))
        for _ in range(ROUNDS):
            number += 1
            case.add(case.in_order[:changed])
            with BusyLoop() as loop:
                _, async_ms, written = case.checkpoint(fresh, number)
            pauses.append((loop.longest_ms, idle_pause_ms(async_ms)))
        restore_s = case.restored_s(written, number)
    case.back_end.close()
    full_sync, full_async, full_raw, full_bytes = map(statistics.median, zip(*full, strict=True))
    part_sync, part_async, part_raw, part_bytes = map(statistics.median, zip(*part, strict=True))
    pause, idle_pause = map(statistics.median, zip(*pauses, strict=True))
    return Cost(
        back_end, keys, fill, update, full_bytes, full_sync, full_async, full_raw, changed / keys,
        part_bytes, part_sync, part_async, part_raw, restore_s, pause, idle_pause,
    )  # fmt: skip


def of_case(back_end: str, keys: int, folder: str, compression: SnapshotCompression) -> Cost | str:
    """Run `measure` in a process of its own. Returns its message if the back end cannot hold this many keys."""
    with tempfile.TemporaryDirectory(prefix="bench-state-", dir=folder) as own:
        command = [sys.executable, __file__, "--case", back_end, str(keys), "--folder", own]
        command += ["--compression", compression]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return Cost(**json.loads(run.stdout.splitlines()[-1]))
    said = run.stderr.strip().splitlines()[-1]
    if back_end == "memory" and "holds at most" in said:
        return "over its limit for a snapshot"
    raise SystemExit(f"{back_end} with {keys} keys failed: {run.stderr[-3000:]}")


def table(costs: Sequence[tuple[str, int, Cost | str]]) -> list[str]:
    """Return the result as Markdown."""
    lines = [
        "| back end | keys | M rows/s: new, known | full: MB | sync ms | async ms | raw ms | ratio | changed "
        "| part: MB | sync ms | async ms | raw ms | ratio | pause ms | idle pause ms | restore s |",
        "| --- " + "| ---: " * 16 + "|",
    ]
    for back_end, keys, cost in costs:
        if isinstance(cost, str):
            lines.append(f"| {back_end} | {keys:,} | {cost} |" + " |" * 14)
            continue
        lines.append(
            f"| {back_end} | {keys:,} | {cost.fill_rows_s / 1e6:.2f}, {cost.update_rows_s / 1e6:.2f} "
            f"| {cost.full_bytes / 1e6:.1f} | {cost.full_sync_ms:.2f} | {cost.full_async_ms:.0f} | {cost.raw_ms:.0f} "
            f"| {cost.raw_ratio:.2f} | {100 * cost.changed:.1f} % | {cost.part_bytes / 1e6:.2f} "
            f"| {cost.part_sync_ms:.2f} | {cost.part_async_ms:.0f} | {cost.part_raw_ms:.0f} "
            f"| {cost.incremental_ratio:.2f} | {cost.pause_ms:.1f} | {cost.idle_pause_ms:.1f} | {cost.restore_s:.2f} |"
        )
    return lines


def slope(costs: Sequence[Cost]) -> str:
    """Return how much longer a checkpoint takes per additional byte, relative to the disk."""
    small, large = costs[0], costs[-1]
    more = large.full_sync_ms + large.full_async_ms - small.full_sync_ms - small.full_async_ms
    return f"{more / max(large.raw_ms - small.raw_ms, 0.001):.2f}"


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"put the table into {RESULTS.name}")
    parser.add_argument("--keys", default=",".join(map(str, KEYS)))
    parser.add_argument("--back-ends", default=",".join(sorted(BACKENDS)))
    parser.add_argument("--folder", default=str(HERE.parent / ".work"), help="on the disk to measure")
    parser.add_argument("--compression", choices=("none", "lz4", "zstd"), default="none", help="snapshot_compression")
    parser.add_argument("--case", nargs=2, metavar=("BACK_END", "KEYS"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    os.makedirs(given.folder, exist_ok=True)
    if given.case:
        print(json.dumps(asdict(measure(given.case[0], int(given.case[1]), given.folder, given.compression))))
        return
    costs: list[tuple[str, int, Cost | str]] = []
    for back_end in given.back_ends.split(","):
        for keys in map(int, given.keys.split(",")):
            costs.append((back_end, keys, of_case(back_end, keys, given.folder, given.compression)))
            print(table(costs[-1:])[-1], flush=True)
    lines = table(costs)
    lines += ["", *explanation([cost for _, _, cost in costs if isinstance(cost, Cost)])]
    print("\n".join(["", *lines]))
    if given.write:
        write_section(HEADING, [*lines, "", f"{machine()}. `python benchmarks/state.py`."])
    heap = [cost for name, _, cost in costs if name == "heap" and isinstance(cost, Cost)]
    if heap:
        print(
            f"state: sync_ms={heap[-1].part_sync_ms:.2f} raw_ratio={heap[-1].raw_ratio:.2f} "
            f"incremental_ratio={heap[-1].incremental_ratio:.2f}"
        )


def explanation(costs: Sequence[Cost]) -> list[str]:
    """Return the lines below the table."""
    lines = [
        "One value state (int64, float64) by an int64 key; a row reads, adds and writes, in batches of 64Ki. full: a",
        f"first checkpoint; part: one after up to {CHANGED_KEYS:,} keys have changed that are next to each other in",
        "order of first sight. raw: as many bytes into one file, synchronised, in the same run. The first ratio: sync",
        "and async beside raw; the second: share of the bytes that are written beside share of the keys that changed.",
        "pause: longest pause of a thread that only counts, during the asynchronous part of a checkpoint of changes;",
        "idle pause: the same in as much time without a checkpoint.",
        f"Medians of {ROUNDS}; restore is of the last checkpoint.",
        f"The goals: sync below 5 ms, a ratio of at most {MOST_RATIO}, bytes in proportion to what changed.",
    ]
    for name in dict.fromkeys(cost.back_end for cost in costs):
        own = [cost for cost in costs if cost.back_end == name]
        if len(own) > 1:
            verdict = "met" if own[-1].raw_ratio <= MOST_RATIO else "missed"
            lines.append(
                f"{name}: the ratio at {own[-1].keys:,} keys is {verdict};"
                f" from {own[0].keys:,} to {own[-1].keys:,} keys a byte more costs {slope(own)} times the disk's"
            )
    return lines


if __name__ == "__main__":
    main(sys.argv[1:])
