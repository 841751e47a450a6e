"""Bar charts as SVG, without a library: a label, a bar and its value on each line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, LABEL, BAR, LINE, TITLE = 720, 250, 390, 24, 40
"""Sizes in pixels: of the chart, its labels, the longest bar, a line, and the title."""
OWN, OTHER = "#0f766e", "#94a3b8"


def bar_chart(title: str, bars: Sequence[tuple[str, float]], own: str = "tidegate") -> str:
    """Return a chart.

    Args:
        title: with the unit.
        bars: label and value, not negative; in this order, from top to bottom.
        own: bars whose label contains this text have the first colour.
    """
    most = max((value for _, value in bars), default=0.0) or 1.0
    height = TITLE + LINE * len(bars) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"',
        '  font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (label, value) in enumerate(bars):
        y = TITLE + LINE * number
        width = max(1, round(BAR * value / most))
        colour = OWN if own in label else OTHER
        lines += [
            f'<text x="{LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LABEL}" y="{y + 3}" width="{width}" height="{LINE - 8}" fill="{colour}"/>',
            f'<text x="{LABEL + width + 6}" y="{y + 15}">{value:,.2f}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def write_chart(path: Path, title: str, bars: Sequence[tuple[str, float]]) -> None:
    """Write a chart, and create its folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(bar_chart(title, bars), encoding="utf-8")
