"""Reading the logs that a job's processes have written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from tidegate.errors import NotFoundError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Launch
from tidegate.jobs.stores.store import Store

LOG_TAIL_LINES = 20
"""Number of lines of a dead driver's output in its error message."""


def read_logs(store: Store, layout: JobLayout, launches: Sequence[Launch], generation: int) -> dict[str, str]:
    """Return texts by file name: the output of `launches`, if it is on this machine, and the logs of `generation`
    (0: none)."""
    found: dict[str, str] = {}
    for launch in launches:
        with suppress(OSError):
            found[os.path.basename(launch.log or "")] = _output(launch)
    if generation > 0:
        folder = layout.logs(generation)
        for path in store.walk(folder):
            with suppress(NotFoundError):
                found[path.removeprefix(f"{folder}/")] = store.read(path).decode(errors="replace")
    return found


def output_tail(launch: Launch) -> str:
    """Return the last lines of a launch's output; "" when the output is not on this machine."""
    try:
        return "\n".join(_output(launch).splitlines()[-LOG_TAIL_LINES:])
    except OSError:
        return ""


def _output(launch: Launch) -> str:
    with open(launch.log or "", encoding="utf-8", errors="replace") as file:
        return file.read()
