"""Reading a source of files to its end, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.connectors.interface import Source, SourceContext, Split


@dataclass
class Found:
    """What came out: records, bad ones, and what was counted."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    bad: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    splits: list[Split] = field(default_factory=list)


def read_all(source: Source, splits: Sequence[Split] | None = None) -> Found:
    """All records of a source, or of some of its splits."""
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits(source.discover(1) if splits is None else splits)
    found = Found()
    while (polled := reader.poll(0)).state != "end" and not polled.idle:
        if polled.batch is not None:
            found.rows += polled.batch.to_pylist()
        for rows in getattr(polled, "sides", {}).values():
            found.bad += rows.to_pylist()
    found.splits = list(reader.snapshot())
    found.counters = dict(reader.counters()) if hasattr(reader, "counters") else {}
    return found


def write(path: Path, text: str | bytes) -> Path:
    """A file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
