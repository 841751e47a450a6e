"""Computes which module imports which; imports inside functions and under TYPE_CHECKING count, too."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

Graph = Mapping[str, Set[str]]
"""Module -> the modules that it imports."""

LAZY = frozenset({"tidegate", "tidegate.testing"})
"""Packages whose `__init__` imports public names at their first use, and lists them for type checkers."""


def modules_of(roots: Iterable[Path]) -> dict[str, Path]:
    """Return dotted name -> file of every module below folders on the import path."""
    found = {}
    for root in roots:
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Yield the absolute names that a file imports: `a.b` and `a.b.c` for `from a.b import c`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_graph(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return the edges between these modules. An import of a module through its package counts only for that module."""
    graph = {}
    for name, path in modules.items():
        names = {one for one in imported(path) if one in modules and one != name}
        parents = {one for one in names if any(other.startswith(f"{one}.") for other in names)}
        graph[name] = names - parents if name not in LAZY else set()
    return graph


def cycles(graph: Graph) -> list[list[str]]:
    """Return groups of modules that import each other, directly or indirectly (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            group = sorted(stack[at:])
            del stack[at:]
            if len(group) > 1:
                found.append(group)

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


def package_graphs(graph: Graph) -> Iterator[tuple[str, dict[str, set[str]]]]:
    """Yield for each package the edges between its direct children, modules or packages."""
    packages = {name[:at] for name in graph for at, sign in enumerate(name) if sign == "."}
    for package in sorted(packages):
        depth = package.count(".") + 1
        edges: dict[str, set[str]] = {}
        inside = {name: others for name, others in graph.items() if name.startswith(f"{package}.")}
        for name, others in inside.items():
            child = name.split(".")[depth]
            seen = edges.setdefault(child, set())
            seen |= {other.split(".")[depth] for other in others if other in inside} - {child}
        yield package, edges


def all_cycles(graph: Graph) -> list[str]:
    """Return every cycle, between modules and between the children of each package, as text."""
    found = [" <-> ".join(group) for group in cycles(graph)]
    for package, edges in package_graphs(graph):
        found += [f"in {package}: {' <-> '.join(group)}" for group in cycles(edges)]
    return found
