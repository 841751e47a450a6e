"""A JobGraph as text for people (`explain`) and as a document for snapshots (`graph_document`)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.operators.specs import KeyedProcessSpec
from tidegate.plan.graph import Edge, JobGraph, Node
from tidegate.state.contract import StateDescriptor

GRAPH_DOCUMENT_VERSION = 2
"""Newest version of the document that `graph_document` makes; 1 where no operator declares states."""


def schema_text(schema: pa.Schema) -> str:
    """One line: names and types; metadata is left out, so that it is equal wherever the columns are."""
    return ", ".join(f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in schema)


def describe_node(node: Node) -> str:
    """What the node does, one line, without secrets."""
    described = node.source or node.sink or node.spec
    assert described is not None, f"node {node.uid!r} has neither source, spec nor sink"
    return described.describe()


def explain_graph(graph: JobGraph) -> str:
    """A tree for each sink: the sink first, its inputs below it, indented.

    A node that several others read is described once and referred to by its uid from then on.
    """
    read = {edge.upstream for node in graph.nodes for edge in node.inputs}
    lines: list[str] = []
    seen: set[int] = set()
    for node in graph.nodes:
        if node.node_id not in read:
            _explain(graph, node, None, "", "", seen, lines)
    return "\n".join(lines)


def _explain(
    graph: JobGraph, node: Node, edge: Edge | None, first: str, rest: str, seen: set[int], lines: list[str]
) -> None:
    """Append the node's lines: `first` leads its own, `rest` those below it."""
    arrow = "" if edge is None or edge.exchange == "forward" else f" <{_exchange_text(edge)}>"
    if node.node_id in seen:
        lines.append(f"{first}[{node.uid}] as above{arrow}")
        return
    seen.add(node.node_id)
    lines.append(f"{first}[{node.uid}] {describe_node(node)}{arrow}")
    below = rest + ("|  " if node.inputs else "   ")
    lines.append(f"{below}{schema_text(node.schema)}  ({node.location})")
    for index, given in enumerate(node.inputs):
        last = index == len(node.inputs) - 1
        upstream = graph.nodes[given.upstream]
        _explain(graph, upstream, given, rest + "+- ", rest + ("   " if last else "|  "), seen, lines)


def _exchange_text(edge: Edge) -> str:
    return f"{edge.exchange} by {', '.join(edge.keys)}" if edge.keys else edge.exchange


def graph_document(graph: JobGraph) -> dict[str, Any]:
    """The graph as a JSON document: pinned in snapshots, compared by a preflight without any runtime (S5.5, S6.4).

    Per operator, in topological order: uid, kind, stateful, schema (text), inputs (uids) and their exchanges; of a
    keyed process also its keys and states.
    """
    declares = any(isinstance(node.spec, KeyedProcessSpec) for node in graph.nodes)
    return {
        "version": GRAPH_DOCUMENT_VERSION if declares else 1,
        "operators": [
            {
                "uid": node.uid,
                "kind": node.kind,
                "stateful": node.stateful,
                "schema": schema_text(node.schema),
                "inputs": [graph.nodes[edge.upstream].uid for edge in node.inputs],
                "exchanges": [edge.exchange for edge in node.inputs],
                **_declared(node),
            }
            for node in graph.nodes
        ],
    }


def _declared(node: Node) -> dict[str, Any]:
    if not isinstance(node.spec, KeyedProcessSpec):
        return {}
    spec = node.spec
    return {
        "keys": _columns(pa.schema([spec.input_schema.field(key) for key in spec.keys])),
        "states": [_state_document(state) for state in spec.states],
    }


def _state_document(state: StateDescriptor) -> dict[str, Any]:
    return {
        "name": state.name,
        "kind": state.kind,
        "columns": _columns(state.columns),
        "map_key": _columns(state.map_key),
        "reductions": list(state.reductions),
        "ttl_ms": None if state.ttl is None else state.ttl.duration_ms,
        "ttl_on_read": state.ttl is not None and state.ttl.on_read,
    }


def _columns(schema: pa.Schema) -> list[dict[str, Any]]:
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
