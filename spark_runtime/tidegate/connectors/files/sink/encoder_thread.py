"""The one thread on which the sinks of a process end their files."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_threads: list[ThreadPoolExecutor] = []


def begin_on_encoder_thread(work: Callable[[], None]) -> Future[None]:
    """Do `work` there, behind what was begun before; the future raises what it raises. From any thread, does not block.

    Encoding is CPU work and a slot has one core, while writer threads are many, so that they can wait for disk or
    network side by side. Arrow's allocator sets up memory of its own for every thread that encodes: ending the files of
    six sinks on eight fresh threads took three times as long as on one (benchmarks/end_of_job.py).
    """
    return _threads[0].submit(work)


def _renew() -> None:
    """Threads do not survive a fork."""
    _threads[:] = [ThreadPoolExecutor(1, thread_name_prefix="file-encoder")]


_renew()
os.register_at_fork(after_in_child=_renew)
