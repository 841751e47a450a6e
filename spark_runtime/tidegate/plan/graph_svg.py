"""Draws a JobGraph for notebooks: one SVG inside HTML, sources on top, without scripts or external resources."""

from __future__ import annotations

from html import escape

from tidegate.plan.graph_document import schema_text
from tidegate.plan.graph_text import describe_node, exchange_text
from tidegate.plan.job_graph import Edge, JobGraph, Node

BOX_WIDTH, BOX_HEIGHT = 230, 52
GAP_X, GAP_Y = 24, 46
MARGIN = 12
MAX_TEXT_CHARACTERS = 34
"""Most characters of a line in a box; the tooltip has the whole text."""
_FILLS = {"source": "#e3f0fb", "sink": "#e7f5e4", "stateful": "#fdf1d8", "": "#f4f4f4"}
"""Fixed colours, independent of the page, so that text is also readable on a dark page."""
_ARROW = (
    '<defs><marker id="tidegate-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#888"/></marker></defs>'
)


def graph_html(graph: JobGraph) -> str:
    """Return the picture as HTML. All texts are escaped."""
    places = _places(graph)
    columns = max((x for x, _ in places), default=0) + 1
    rows = max((y for _, y in places), default=0) + 1
    width = 2 * MARGIN + columns * (BOX_WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + rows * (BOX_HEIGHT + GAP_Y) - GAP_Y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{len(graph.nodes)} operators" font-family="sans-serif">',
        _ARROW,
    ]
    for node in graph.nodes:
        parts += [_line(places[edge.upstream], places[node.node_id], edge) for edge in node.inputs]
    parts += [_box(node, *places[node.node_id]) for node in graph.nodes]
    return f'<div style="overflow-x:auto">{"".join(parts)}</svg></div>'


def _places(graph: JobGraph) -> list[tuple[int, int]]:
    """Return (column, row) of each node: below all its inputs, in the column of its first input if that is free."""
    taken: set[tuple[int, int]] = set()
    places: list[tuple[int, int]] = []
    for node in graph.nodes:
        row = max((places[edge.upstream][1] + 1 for edge in node.inputs), default=0)
        column = places[node.inputs[0].upstream][0] if node.inputs else 0
        while (column, row) in taken:
            column += 1
        taken.add((column, row))
        places.append((column, row))
    return places


def _corner(column: int, row: int) -> tuple[int, int]:
    return MARGIN + column * (BOX_WIDTH + GAP_X), MARGIN + row * (BOX_HEIGHT + GAP_Y)


def _box(node: Node, column: int, row: int) -> str:
    x, y = _corner(column, row)
    kind = node.kind if node.kind in _FILLS else "stateful" if node.stateful else ""
    title = f"{describe_node(node)}\n{schema_text(node.schema)}\n{node.location}"
    return (
        f'<g><title>{escape(title)}</title><rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" '
        f'fill="{_FILLS[kind]}" stroke="#888"/>'
        f'<text x="{x + 10}" y="{y + 21}" font-size="13" font-weight="bold" fill="#222">{_cut(node.uid)}</text>'
        f'<text x="{x + 10}" y="{y + 39}" font-size="12" fill="#444">{_cut(describe_node(node))}</text></g>'
    )


def _line(start: tuple[int, int], end: tuple[int, int], edge: Edge) -> str:
    (x1, y1), (x2, y2) = _corner(*start), _corner(*end)
    x1, y1, x2 = x1 + BOX_WIDTH // 2, y1 + BOX_HEIGHT, x2 + BOX_WIDTH // 2
    bend = GAP_Y // 2
    path = (
        f'<path d="M{x1},{y1} C{x1},{y1 + bend} {x2},{y2 - bend} {x2},{y2}" fill="none" stroke="#888" '
        'marker-end="url(#tidegate-arrow)"/>'
    )
    if edge.exchange == "forward":
        return path
    return f'{path}<text x="{x2 + 8}" y="{y2 - 10}" font-size="11" fill="#888">{_cut(exchange_text(edge))}</text>'


def _cut(text: str) -> str:
    return escape(text if len(text) <= MAX_TEXT_CHARACTERS else text[: MAX_TEXT_CHARACTERS - 1] + "…")
