"""The measurement of idle jobs: which process is which part, and what a job used between two samples."""

from __future__ import annotations

import subprocess
import sys

import idle
import pytest

CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
PARENT = f"""
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True) as child:
    child.stdout.readline()
    print(child.pid, flush=True)
"""


def test_a_job_is_measured_by_the_depth_of_its_processes() -> None:
    """The driver starts Java, Java starts the daemon, and the daemon starts workers."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        child_pid = int(parent.stdout.readline())
        found = idle.used_by_part([parent.pid, child_pid])
        parent.stdin.write("\n")
    parents, childs = found[parent.pid], found[child_pid]
    assert parents["driver"].pss_bytes > 2**20 and parents["driver"].threads == 1
    assert parents["JVM"] == idle.Use(), "a process belongs to the nearest driver above it"
    assert childs["driver"].threads == childs["JVM"].threads == 1
    assert childs["JVM"].pss_bytes > 2**20
    assert childs["daemon"] == childs["workers"] == idle.Use()


def job(pss_mib: int, ticks: int) -> dict[str, idle.Use]:
    return {part: idle.Use(pss_mib * 2**20, ticks, 3) for part in idle.PARTS}


def test_memory_is_that_of_the_last_sample_and_cpu_the_difference() -> None:
    found = idle.idle_job(job(10, 100), job(12, 100 + idle.TICKS_PER_S), minutes=0.5)
    assert found.pss_mib == dict.fromkeys(idle.PARTS, 12.0)
    assert found.cpu_s_per_min == dict.fromkeys(idle.PARTS, 2.0)
    lines = idle.table([found, idle.idle_job(job(10, 0), job(20, 0), 1.0), found])
    assert lines[-3:] == [
        "| memory, MiB | 48 | 12 | 12 | 12 | 12 |",
        "| CPU seconds per minute | 8.00 | 2.00 | 2.00 | 2.00 | 2.00 |",
        "| threads | 12 | 3 | 3 | 3 | 3 |",
    ]


def test_a_job_whose_worker_has_ended_is_not_measured() -> None:
    with pytest.raises(SystemExit, match="no workers"):
        idle.idle_job(job(10, 1), {**job(10, 2), "workers": idle.Use()}, 1.0)
