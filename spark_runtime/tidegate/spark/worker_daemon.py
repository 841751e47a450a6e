"""PySpark's worker daemon with a slot's imports and kernels already loaded: workers are forked from it.

Set as `spark.python.daemon.module`. Every slot after an executor's first, and every restart, then saves the seconds for
importing numba and loading the compiled kernels. PySpark's own daemon imports no libraries, because they may start
threads before the fork. Here, numpy's threads are turned off, and pyarrow's one thread belongs to its allocator, which
handles forks itself.
"""

from __future__ import annotations

import gc
import importlib
import os


def main() -> None:
    """Load imports and kernels, then serve PySpark's requests for workers."""
    # Threads do not survive the fork of a worker.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # Arrow's own allocator, mimalloc, returns memory that one thread has allocated and another has freed to the system
    # in huge pages. With 32 slots, the kernel spent half of the CPU on clearing pages of received batches.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Imports create no garbage, and a collection would write to pages that workers could share.
    gc.disable()
    from pyspark.daemon import manager

    from tidegate.spark.kernel_preload import preload_kernels

    importlib.import_module("tidegate.spark.slot_entry")
    importlib.import_module("tidegate.spark.batch.worker_task")
    preload_kernels()
    gc.freeze()
    gc.enable()
    manager()


if __name__ == "__main__":
    main()
