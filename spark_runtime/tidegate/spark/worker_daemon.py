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
import sys
import zipimport


def settle_archives() -> None:
    """Remove Spark's jar from the path of imports, and keep the directories of archives on the path as they are.

    Spark puts `pyspark.zip` and a jar of 10,000 classes, without modules, at the beginning of the path. Each worker
    would read both directories again, because PySpark invalidates the caches of imports: 13 MiB of memory that no other
    process shares. Archives that a job adds to the path are not affected: a worker adds them later.
    """
    jars = [entry for entry in sys.path if entry.endswith(".jar")]
    sys.path[:] = [entry for entry in sys.path if entry not in jars]
    for jar in jars:
        sys.path_importer_cache.pop(jar, None)
        getattr(zipimport, "_zip_directory_cache", {}).pop(jar, None)
    for finder in sys.path_importer_cache.values():
        if isinstance(finder, zipimport.zipimporter):
            # The archives belong to Spark's installation, and do not change.
            finder.invalidate_caches = _keep  # type: ignore[method-assign]


def _keep() -> None:
    """Keep the directory of an archive."""


def main() -> None:
    """Load imports and kernels, then serve PySpark's requests for workers."""
    # Threads do not survive the fork of a worker.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # Arrow's own allocator, mimalloc, returns memory that one thread has allocated and another has freed to the system
    # in huge pages. With 32 slots, the kernel spent half of the CPU on clearing pages of received batches.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Imports create no garbage, and a collection would write to pages that workers could share.
    gc.disable()
    settle_archives()
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
