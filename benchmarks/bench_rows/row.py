"""One row of the harness: its section, its figures and its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MILLION = 1_000_000


@dataclass
class Row:
    """One row of the harness.

    Attributes:
        name: for `--only`, and of the result's file.
        title: heading of its section.
        lines: the section, Markdown.
        figures: name -> value, for the last line and `bench_compare.py`.
        charts: title with unit -> (label, value) of each bar.
        runs: every single run, as measured.
    """

    name: str
    title: str
    lines: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    charts: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    runs: list[Mapping[str, object]] = field(default_factory=list)
