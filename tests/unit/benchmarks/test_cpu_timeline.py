"""The CPU meter of the benchmarks: nobody is forgotten, nobody is counted twice, and the total never falls."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import cpu_timeline
import pytest


def process(pid: int, parent: int, own: int, reaped: int = 0, started: int = 0) -> cpu_timeline.Process:
    return cpu_timeline.Process(pid, started, parent, own, reaped)


def test_the_cpu_of_a_tree_is_that_of_the_root_and_all_its_descendants() -> None:
    table = [
        process(12, 11, 9),
        process(1, 0, 1000),
        process(10, 1, 5),
        process(11, 10, 7),
        process(20, 1, 500),
    ]
    assert cpu_timeline.ProcessTree(10).sample(table) == 21
    assert cpu_timeline.ProcessTree(99).sample(table) == 0


def test_a_worker_that_nobody_waited_for_stays_counted() -> None:
    """PySpark's daemon ignores SIGCHLD: its ended workers are in nobody's `cutime`."""
    tree = cpu_timeline.ProcessTree(10)
    assert tree.sample([process(10, 1, 5), process(11, 10, 0), process(12, 11, 800)]) == 805
    assert tree.sample([process(10, 1, 6), process(11, 10, 0)]) == 806


def test_a_child_that_was_waited_for_is_counted_once() -> None:
    tree = cpu_timeline.ProcessTree(10)
    assert tree.sample([process(10, 1, 5), process(11, 10, 80)]) == 85
    assert tree.sample([process(10, 1, 5, reaped=82)]) == 87, "and what it used after its last sample is not lost"


def test_a_child_that_lived_between_two_samples_counts_with_what_its_parent_was_credited() -> None:
    tree = cpu_timeline.ProcessTree(10)
    assert tree.sample([process(10, 1, 5)]) == 5
    assert tree.sample([process(10, 1, 5, reaped=30)]) == 35


def test_a_process_whose_parent_has_ended_stays_in_the_tree() -> None:
    tree = cpu_timeline.ProcessTree(10)
    tree.sample([process(10, 1, 5), process(11, 10, 7), process(12, 11, 9)])
    assert tree.sample([process(10, 1, 5), process(12, 1, 90)]) == 102


def test_a_pid_that_the_system_uses_again_is_another_process() -> None:
    tree = cpu_timeline.ProcessTree(10)
    tree.sample([process(10, 1, 5), process(11, 10, 70, started=1)])
    assert tree.sample([process(10, 1, 5), process(11, 10, 3, started=2)]) == 78


WORKER = "import time; [0 for _ in iter(lambda: time.process_time() < 0.6, False)]; print(time.process_time())"
PARENT = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as PySpark's daemon does
command = [sys.executable, "-c", "{WORKER}"]
workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
used = sum(float(worker.stdout.read()) for worker in workers)
for worker in workers:
    worker.wait()
print(used + sum(os.times()[:2]), sum(os.times()[2:4]), flush=True)
sys.stdin.read()
"""


def test_ended_workers_count_as_they_say_themselves_that_they_used() -> None:
    """A second method: each worker reports its own clock of the processor."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert parent.stdin is not None and parent.stdout is not None
    with cpu_timeline.CpuTimeline(parent.pid) as timeline:
        used_s, credited_s = (float(figure) for figure in parent.stdout.readline().split())
        ended_at_s = time.time()
        deadline_s = time.monotonic() + 60
        while True:
            try:
                measured_s = timeline.cpu_at(ended_at_s)
                break
            except ValueError:
                assert time.monotonic() < deadline_s, "no sample came after the workers had ended"
                time.sleep(0.02)
    parent.stdin.close()
    assert parent.wait(60) == 0
    assert credited_s < 0.1, "the parent was to be credited nothing"
    assert used_s > 1.2
    assert measured_s == pytest.approx(used_s, abs=0.35), "three processes, one sample and some ticks each"
