"""The durable document of a JobGraph, pinned in snapshots and compared by a preflight (S5.5, S6.4)."""

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
"""Version of the document that `graph_document` creates. Version 1 has no `states`. Versions 1 and 2 have no `outputs`.
Versions 1 to 3 have no `connector`. Versions 1 to 4 have no `found_schema`."""


_NOT_CONNECTOR_CLASSES = ("ABC", "Generic", "Protocol", "object")


def schema_text(schema: pa.Schema) -> str:
    """Return names and types on one line, without metadata, so that equal columns give equal texts."""
    return ", ".join(f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in schema)


def graph_document(graph: JobGraph) -> dict[str, Any]:
    """Return the graph as a JSON document, which a preflight compares without the runtime (S5.5, S6.4).

    Per operator, in topological order: uid, kind, stateful, schema (text), inputs (uids), their exchanges, and the
    outputs of those operators that they read. `states` are `jobs.restore.state_shapes.StateShape` documents; null:
    they are not declared. `connector` of a source or sink: the names of its class and base classes, and former names.
    `found_schema` of a source: the schema that it found in its input, which later builds use; null: it found none.
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
    """Return the names of the connectors whose snapshots it restores, its own first; without modules, which may
    move."""
    connector = node.source or node.sink
    if connector is None:
        return None
    classes = [cls.__name__ for cls in type(connector).__mro__ if cls not in (Source, PushSource, Sink)]
    return [*(name for name in classes if name not in _NOT_CONNECTOR_CLASSES), *getattr(connector, "former_names", ())]


def _found_schema(node: Node) -> dict[str, Any] | None:
    found = None if node.source is None else node.source.found_schema()
    return None if found is None else found.to_json()


def _states(node: Node) -> list[dict[str, Any]] | None:
    """Return the states of the node; None: they are not declared."""
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
