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
    # Imports create no garbage, and a collection would write to pages that workers could share.
    gc.disable()
    from pyspark.daemon import manager

    from tidegate.spark.kernel_preload import preload_kernels

    importlib.import_module("tidegate.spark.slot_entry")
    importlib.import_module("tidegate.spark.batch.worker_task")
    # Runs expressions. It also imports pandas if it is installed, which pyarrow would import for the first list of
    # Python values: here, once for all workers.
    importlib.import_module("pyarrow.acero")
    preload_kernels()
    gc.freeze()
    gc.enable()
    manager()


if __name__ == "__main__":
    main()
