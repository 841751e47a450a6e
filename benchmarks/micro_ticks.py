"""CPU time of one tick of paced sources, over all operators of a slot, without sockets or Spark.

Run it as `python benchmarks/micro_ticks.py [total|window|join]`. A job of the latency benchmark gets 25 rows for each
source every 5 ms of a simulated clock. `hot`: microseconds per tick of one subtask, without a pause between ticks.
`cold`: a large array is read before each tick, which is not timed. So the tick's code and data come from memory, as
after a pause in which other processes ran. The second is close to what a job costs at a low rate.
"""

from __future__ import annotations

import cProfile
import sys
import tempfile
import time
from statistics import median

import numpy as np
from pipelines.latency import build

from tidegate.api.pipeline import Pipeline
from tidegate.spark.kernel_preload import preload_kernels
from tidegate.testing.in_process_job import InProcessJob

TICK_MS = 5
SUBTASKS = 2
RATE = 20_000
WARM_UP = 300
TICKS = 1_500
ROUNDS = 3
OTHER = np.ones(32 * 2**20 // 8)


def us_per_tick(work: str, report: str, *, cold: bool, profile: cProfile.Profile | None = None) -> float:
    """Return the median CPU microseconds of a tick, for each subtask."""

    def pipeline() -> Pipeline:
        given = {"rows": RATE * 3600, "rate": RATE, "keys": 1_000, "slots": SUBTASKS, "warm_up_s": 0}
        return build({**given, "work": work, "report": report})

    job = InProcessJob(pipeline, {"parallelism": SUBTASKS}, input_steps=64, gathered_part_bytes=256 * 1024)
    run = job.submit()
    times = []
    for tick in range(WARM_UP + TICKS):
        job.now_ms += TICK_MS
        if cold:
            OTHER.sum()
        if profile is not None and tick == WARM_UP:
            profile.enable()
        started = time.perf_counter()
        while run.slot.run_round():
            pass
        times.append(time.perf_counter() - started)
    if profile is not None:
        profile.disable()
    return median(times[WARM_UP:]) * 1e6 / SUBTASKS


def main(argv: list[str]) -> None:
    """Print the figures, or a profile (`--profile`)."""
    preload_kernels()
    names = [name for name in argv if not name.startswith("--")] or ["total", "window", "join"]
    with tempfile.TemporaryDirectory() as report:
        for work in names:
            if "--profile" in argv:
                profile = cProfile.Profile()
                us_per_tick(work, report, cold=False, profile=profile)
                profile.print_stats("tottime")
                continue
            hot, cold = (min(us_per_tick(work, report, cold=c) for _ in range(ROUNDS)) for c in (False, True))
            print(f"{work}: hot {hot:.0f} us, cold {cold:.0f} us")


if __name__ == "__main__":
    main(sys.argv[1:])
