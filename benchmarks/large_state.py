"""Runs a job whose state is several times larger than the memory of its slot, on `rocksdb`. See README.md.

    python benchmarks/large_state.py [--write] [--keys 20000000] [--slot-memory "1 GiB"] [--folder FOLDER]

A driver with master local[1] and one slot fills the state, and is killed with its slot. It is restored from its last
checkpoint, reads every key, and compares the values. The slot fails by itself if it exceeds its memory. The last line
is `large state: keys=<n> state_gb=<x> peak_mib=<x> cap_mib=<x> wrong=0`.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "spark_runtime")]

import pyarrow.compute as pc  # noqa: E402
import pyarrow.dataset as ds  # noqa: E402
from pipelines.large_state import BATCH_ROWS, RESULT, VALUE_BYTES  # noqa: E402
from results import RESULTS, machine, write_section  # noqa: E402

from tidegate.jobs.client.job_client import JobClient  # noqa: E402
from tidegate.jobs.launch.local import launch_local  # noqa: E402
from tidegate.jobs.launches import find_local_driver  # noqa: E402
from tidegate.jobs.records import Spec  # noqa: E402
from tidegate.units import parse_size  # noqa: E402

HEADING = "## State larger than memory"
PIPELINE = str(HERE / "pipelines" / "large_state.py") + ":build"
KEY_BYTES = 8
TIMEOUT = timedelta(hours=4)
POLL_S = 0.5
SAMPLE_S = 0.1


class SlotMemory:
    """Samples the resident memory of a job's slot during the block. `peak_bytes`: the largest sample."""

    def __init__(self, client: JobClient) -> None:
        self.peak_bytes = 0
        self._client = client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> SlotMemory:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        pid, asked_s = None, 0.0
        while not self._over.wait(SAMPLE_S):
            if time.monotonic() - asked_s > 1:
                pid, asked_s = slot_pid(self._client), time.monotonic()
            if pid is not None:
                self.peak_bytes = max(self.peak_bytes, resident_bytes(pid))


def slot_pid(client: JobClient) -> int | None:
    """Return the pid of the newest driver's only slot, from its status hint."""
    try:
        hint = client.hint(client.view().generation)
    except Exception:  # between two drivers there is no hint
        return None
    slots: list[dict[str, Any]] = [] if hint is None else hint.data.get("slots", [])
    return next((int(slot["pid"]) for slot in slots if slot.get("pid")), None)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def counted(out: str) -> dict[str, int]:
    """Return the sums of the committed results."""
    if not os.path.isdir(out):
        return dict.fromkeys(("rows", "written", "right", "wrong"), 0)
    table = ds.dataset(out, RESULT, format="parquet").to_table()
    return {name: int(pc.sum(table[name]).as_py() or 0) for name in ("rows", "written", "right", "wrong")}


def submitted(client: JobClient, given: argparse.Namespace, out: str) -> Spec:
    """Write the job's only submission."""
    return client.submit(
        pipeline=PIPELINE,
        arguments={"keys": given.keys, "out": out, "rate": given.rate},
        options={
            "parallelism": 1,
            "state_backend": given.back_end,
            "slot_memory": given.slot_memory,
            "checkpoint_interval": given.interval,
            "checkpoint_timeout": "2 min",  # retired files stay on the disk for this time plus 30 s
        },
        master="local[1]",
        submitted_by="benchmark",
    )


def launch(client: JobClient, spec: Spec) -> None:
    """Launch a driver; the second one resumes from the latest checkpoint."""
    launch_local(client, spec, env={"PYSPARK_PYTHON": sys.executable})


def end(client: JobClient, spec: Spec) -> None:
    """Kill the driver if it still runs, and the slot with it."""
    pid = slot_pid(client)
    left = find_local_driver(client.store, client.layout, spec.number)
    if left is not None:
        os.kill(left.pid, signal.SIGKILL)
        while left.is_running():
            time.sleep(POLL_S)
        if pid is not None and resident_bytes(pid):
            os.kill(pid, signal.SIGKILL)


def until_written(client: JobClient, out: str, keys: int) -> None:
    """Wait until every key is in a committed checkpoint. Raises SystemExit if the job ends before."""
    deadline_s = time.monotonic() + TIMEOUT.total_seconds()
    while counted(out)["written"] < keys:
        view = client.view()
        if view.is_terminal or time.monotonic() > deadline_s:
            raise SystemExit(f"the job is {view.status.value}: {view.failure}")
        time.sleep(POLL_S)


def run(given: argparse.Namespace, folder: str) -> tuple[list[str], str]:
    """Fill, kill, restore, read. Returns the lines of the section and the last line."""
    out = os.path.join(folder, "out")
    client = JobClient(os.path.join(folder, "jobs"), f"large-{secrets.token_hex(4)}")
    started = time.monotonic()
    with SlotMemory(client) as memory:
        spec = submitted(client, given, out)
        launch(client, spec)
        try:
            until_written(client, out, given.keys)
            filled_s = time.monotonic() - started
        finally:
            end(client, spec)
        begun, before = time.monotonic(), counted(out)["rows"]
        launch(client, spec)
        try:
            while counted(out)["rows"] <= before and not client.view().is_terminal:
                time.sleep(POLL_S)
            restored_s = time.monotonic() - begun
            view = client.wait_status({"FINISHED"}, TIMEOUT, POLL_S)
        finally:
            end(client, spec)
    totals = counted(out)
    if totals != {"rows": 2 * given.keys, "written": given.keys, "right": given.keys, "wrong": 0}:
        raise SystemExit(f"wrong results: {totals}")
    assert view.status.value == "FINISHED"
    state_bytes = given.keys * (KEY_BYTES + VALUE_BYTES)
    cap = int(parse_size(given.slot_memory))
    durations = sorted(c.duration_ms or 0 for c in client.view().completed)
    lines = [
        "| keys | state, GB | cap of the slot, MiB | times the cap | peak resident, MiB | filled, s "
        "| until it commits again, s | all, s | checkpoints | median, s |",
        "|" + " ---: |" * 10,
        f"| {given.keys:,} | {state_bytes / 1e9:.2f} | {cap / 2**20:.0f} | {state_bytes / cap:.1f} "
        f"| {memory.peak_bytes / 2**20:.0f} | {filled_s:.0f} | {restored_s:.0f} | {time.monotonic() - started:.0f} "
        f"| {len(durations)} | {durations[len(durations) // 2] / 1000:.1f} |",
        "",
        f"Keys of {KEY_BYTES} bytes, values of {VALUE_BYTES}, on `{given.back_end}`, real Spark, local[1], one slot.",
        "The driver and the slot were killed when every key had been written, restored from the last checkpoint, and",
        "each key was read and compared: none was wrong. Resident memory: of the slot's Python process, sampled every",
        f"{SAMPLE_S:g} s; the slot itself fails when it passes the cap.",
    ]
    last = (
        f"large state: keys={given.keys} state_gb={state_bytes / 1e9:.2f} peak_mib={memory.peak_bytes / 2**20:.0f} "
        f"cap_mib={cap / 2**20:.0f} wrong={totals['wrong']}"
    )
    return lines, last


def main(arguments: Sequence[str]) -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"put the figures into {RESULTS.name}")
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--slot-memory", default="1 GiB")
    parser.add_argument("--back-end", default="rocksdb")
    parser.add_argument("--interval", default="20 s", help="of checkpoints")
    parser.add_argument("--rate", type=float, default=0.0, help="rows a second; 0: no limit")
    parser.add_argument("--folder", default=str(HERE.parent / ".work"), help="with room for three times the state")
    given = parser.parse_args(arguments)
    given.keys = -(-given.keys // BATCH_ROWS) * BATCH_ROWS  # no batch both writes and reads
    os.makedirs(given.folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="large-state-", dir=given.folder) as folder:
        lines, last = run(given, folder)
    print("\n".join(lines))
    if given.write:
        write_section(HEADING, [*lines, "", f"{machine()}. `make bench-large-state`."])
    print(last)


if __name__ == "__main__":
    main(sys.argv[1:])
