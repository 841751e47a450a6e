"""The document of a JobGraph: what snapshots pin of it, and what a preflight compares (S5.5, S6.4). Durable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.connectors.found_schema import FOUND_SCHEMA
from tidegate.connectors.interface import Sink, Source
from tidegate.connectors.push import PushSource
from tidegate.connectors.sink_operator import COMMITTABLES
from tidegate.connectors.split_documents import SPLITS
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.plan.job_graph import JobGraph, Node

GRAPH_DOCUMENT_VERSION = 5
"""Of the document that `graph_document` makes. Version 1 has no `states`; neither it nor version 2 has `outputs`; none
of them has `connector`; version 4 has no `found_schema`."""


_NOT_CONNECTOR_CLASSES = ("ABC", "Generic", "Protocol", "object")


def schema_text(schema: pa.Schema) -> str:
    """One line: names and types; metadata is left out, so that it is equal wherever the columns are."""
    return ", ".join(f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in schema)


def graph_document(graph: JobGraph) -> dict[str, Any]:
    """The graph as a JSON document: pinned in snapshots, compared by a preflight without any runtime (S5.5, S6.4).

    Per operator, in topological order: uid, kind, stateful, schema (text), inputs (uids), their exchanges and which
    outputs of those operators they read, `states` as `jobs.restore.state_shapes.StateSummary` documents; null: it does
    not tell; and `connector`: of a source or sink the names of its class, of those it is derived from, and former ones;
    and `found_schema`: of a source the schema that it found in its input, which later builds use; null: it found none.
    """
    return {
        "version": GRAPH_DOCUMENT_VERSION,
        "operators": [
            {
                "uid": node.uid,
                "kind": node.kind,
                "stateful": node.stateful,
                "schema": schema_text(node.schema),
                "inputs": [graph.nodes[edge.upstream].uid for edge in node.inputs],
                "exchanges": [edge.exchange for edge in node.inputs],
                "outputs": [edge.output for edge in node.inputs],
                "states": _states(node),
                "connector": _connector(node),
                FOUND_SCHEMA: _found_schema(node),
            }
            for node in graph.nodes
        ],
    }


def _connector(node: Node) -> list[str] | None:
    """Whose snapshots it restores: names without modules, which may move; the first is its own."""
    connector = node.source or node.sink
    if connector is None:
        return None
    classes = [cls.__name__ for cls in type(connector).__mro__ if cls not in (Source, PushSource, Sink)]
    return [*(name for name in classes if name not in _NOT_CONNECTOR_CLASSES), *getattr(connector, "former_names", ())]


def _found_schema(node: Node) -> dict[str, Any] | None:
    found = None if node.source is None else node.source.found_schema()
    return None if found is None else found.to_json()


def _states(node: Node) -> list[dict[str, Any]] | None:
    """What the node keeps; None: it does not tell."""
    if node.source is not None:
        shapes: Sequence[StateShape] = (StateShape(SPLITS, "list"),)
    elif node.sink is not None:
        shapes = (StateShape(COMMITTABLES, "list"),)
    else:
        declared = None if node.spec is None else node.spec.states()
        if declared is None:
            return None if node.stateful else []
        shapes = declared
    return [shape.to_json() for shape in shapes]
