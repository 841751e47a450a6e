"""What driver and slots must have in common: they exchange Arrow data and run one pipeline's code."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pyarrow as pa

import tidegate
from tidegate.errors import EnvironmentProblemError


def own_versions() -> dict[str, str]:
    """Of this process: Python without its patch level, pyarrow, tidegate."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"python": python, "pyarrow": pa.__version__, "tidegate": tidegate.__version__}


def check_versions(driver: Mapping[str, str], slot: Mapping[str, str], where: str) -> None:
    """Raise EnvironmentProblemError naming every version in which a slot differs from its driver."""
    different = [name for name in driver if slot.get(name) != driver[name]]
    if different:
        raise EnvironmentProblemError(
            "this slot has other versions than the driver",
            where=where,
            cause=", ".join(f"{name} {slot.get(name, 'unknown')} here, {driver[name]} there" for name in different),
            remedy="Install the same ones where the driver and the executors run: one image, or one packed environment",
        )
