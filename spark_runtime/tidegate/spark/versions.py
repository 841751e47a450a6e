"""Versions that driver and slots must share, because they exchange Arrow data and run the same pipeline code."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pyarrow as pa

import tidegate
from tidegate.errors import EnvironmentProblemError


def own_versions() -> dict[str, str]:
    """Return the versions of this process: Python without its patch level, pyarrow, tidegate."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"python": python, "pyarrow": pa.__version__, "tidegate": tidegate.__version__}


def check_versions(driver: Mapping[str, str], slot: Mapping[str, str], where: str) -> None:
    """Raise EnvironmentProblemError with every version in which a slot differs from its driver."""
    different = [name for name in driver if slot.get(name) != driver[name]]
    if different:
        raise EnvironmentProblemError(
            "a slot has different package versions than the driver",
            where=where,
            cause=", ".join(
                f"{name} {slot.get(name, 'unknown')} in the slot, {driver[name]} in the driver" for name in different
            ),
            remedy="Install the same versions for the driver and the executors, with one image or one "
            "packed environment",
        )
