"""`pyspark.TaskContext` for the writers of data sources, which name their files by the number of their partition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_here = threading.local()
_install = threading.Lock()
_original: Callable[[], Any] | None = None


class WritingTask:
    """The part of `TaskContext` that a `write` may use."""

    def __init__(self, partition: int, spark: Any) -> None:
        """Args: spark: Spark's own context of this process; None: a driver, or a process without Spark."""
        self._partition, self._spark = partition, spark

    def partitionId(self) -> int:
        """Return the number of the partition, from 0."""
        return self._partition

    def attemptNumber(self) -> int:
        """Return 0: a repeated write looks like the first one."""
        return 0

    def stageId(self) -> int:
        """Return the stage of the slot; 0 without Spark."""
        return int(self._spark.stageId()) if self._spark is not None else 0

    def taskAttemptId(self) -> int:
        """Return the Spark task of the slot; without Spark the partition."""
        return int(self._spark.taskAttemptId()) if self._spark is not None else self._partition

    def getLocalProperty(self, key: str) -> str | None:
        """Return a property that Spark knows."""
        return self._spark.getLocalProperty(key) if self._spark is not None else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)


@contextmanager
def writing_task(partition: int) -> Iterator[None]:
    """Let `TaskContext.get()` return the task of a partition, in this thread while the context is active.

    A slot is one Spark task for as long as it runs, and its number is no partition of a sink: a driver may write a
    partition, too. Other threads see Spark's own context.
    """
    original = _installed()
    outer = getattr(_here, "task", None)
    _here.task = WritingTask(partition, original())
    try:
        yield
    finally:
        _here.task = outer


def _installed() -> Callable[[], Any]:
    global _original
    from pyspark import TaskContext

    with _install:
        if _original is None:
            _original = TaskContext.get

            # Spark keeps one context in each process, but threads of a slot write different partitions.
            def get(cls: Any) -> Any:
                task = getattr(_here, "task", None)
                return task if task is not None else cls._taskContext

            TaskContext.get = classmethod(get)  # type: ignore[assignment]
        return _original
