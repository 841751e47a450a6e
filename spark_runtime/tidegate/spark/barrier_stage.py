"""One barrier stage: a Spark task per slot; all start together, and fail together."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark import InheritableThread

from tidegate.spark.application import SparkApplication
from tidegate.spark.slot_parameters import SlotParameters
from tidegate.spark.slot_task import run_slot

_groups = itertools.count(1)


class BarrierStage:
    """Runs a slot in each of `slots` Spark tasks.

    `on_end` is called once, from the stage's thread, with the error or None.
    """

    def __init__(
        self,
        application: SparkApplication,
        slots: int,
        parameters: SlotParameters,
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self._context: Any = application.context
        self._slots = slots
        self._parameters = parameters
        self._on_end = on_end
        self._group = f"tidegate-{parameters.run_id}-{next(_groups)}"
        # Spark keeps job groups per thread of the JVM. This class connects the Python thread with one JVM thread.
        self._thread: Any = InheritableThread(target=self._run, name=self._group)

    def start(self) -> None:
        """Submit the stage."""
        self._thread.start()

    def cancel(self) -> None:
        """Cancel the stage. Python workers may live on for some seconds: they are fenced by generation and run id."""
        self._context.cancelJobGroup(self._group)

    def join(self, timeout_s: float) -> bool:
        """Wait for the stage's end. Returns False if it has not ended within `timeout_s` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, f"tidegate run {self._parameters.run_id}", interruptOnCancel=True)
            tasks = self._context.parallelize(range(self._slots), self._slots)
            tasks.barrier().mapPartitions(partial(run_slot, self._parameters)).collect()
        except BaseException as error:
            self._on_end(error)
        else:
            self._on_end(None)


def first_line(error: BaseException) -> str:
    """Return the root cause in a Spark error, without the JVM's stack: if possible, the Python worker's own error."""
    text = str(error)
    of_python = re.findall(r"^(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*Error: .*$", text, flags=re.MULTILINE)
    if of_python:
        return str(of_python[-1]).strip()
    if "Could not recover from a failed barrier ResultStage" in text:
        python = os.environ.get("PYSPARK_PYTHON", "python3")
        return (
            "a Python worker ended before it could report an error. See the worker's output in the driver's log, and "
            f"check that tidegate is installed for {python} on every worker machine"
        )
    for line in text.splitlines():
        if "Caused by" in line or "SparkException" in line or "Exception:" in line:
            return line.strip()
    return text.splitlines()[0] if text else type(error).__name__
