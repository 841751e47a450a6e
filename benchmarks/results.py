"""Writes RESULTS.md: one section per benchmark, replaced as a whole."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def write_section(heading: str, lines: Sequence[str], path: Path = RESULTS) -> None:
    """Write section `heading` ("## W1") to the results file, replacing an older one."""
    old = path.read_text(encoding="utf-8").splitlines() if path.exists() else ["# Results", ""]
    start = next((i for i, line in enumerate(old) if line.strip() == heading), len(old))
    end = next((i for i in range(start + 1, len(old)) if old[i].startswith("## ")), len(old))
    section = [heading, "", *lines, ""]
    before = old[:start] if start < len(old) or not old or not old[-1] else [*old, ""]
    path.write_text("\n".join([*before, *section, *old[end:]]).rstrip() + "\n", encoding="utf-8")


def machine() -> str:
    """Return a description of the machine."""
    model = platform.processor() or platform.machine()
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = next(line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}"
