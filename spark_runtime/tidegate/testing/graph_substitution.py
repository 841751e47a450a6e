"""Replaces the sources of a graph by fed ones, and its sinks by collecting ones, for a test."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tidegate.api.draft.column_checks import nearest
from tidegate.api.draft.graph_draft import call_place
from tidegate.errors import PipelineError
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.plan.job_graph import Edge, JobGraph, Node
from tidegate.testing.collect_sink import CollectSink
from tidegate.testing.fed_source import FedSource, Feed, PassMarksSpec

MARKS = ".fed-watermarks"
"""Suffix to the uid of a source: uid of the node that forwards its watermarks."""


def check_fed(graph: JobGraph, uids: Collection[str]) -> None:
    """Raise PipelineError if one of `uids` is not a source of the graph, or an unbounded source is not among them."""
    sources = {node.uid: node.source for node in graph.nodes if node.source is not None}
    for uid in uids:
        if uid not in sources:
            near = nearest(uid, sources)
            raise PipelineError(
                f"the pipeline has no source {uid!r}" + (f", did you mean {near!r}?" if near else ""),
                where="inputs",
                cause=f"the sources are {', '.join(sources)}",
                remedy="Name each source in inputs by its uid",
            )
    for uid, source in sources.items():
        if uid not in uids and source.boundedness == "unbounded":
            raise PipelineError(
                f"source {uid!r} is unbounded, and inputs has no rows for it",
                where=call_place("source", uid, graph.by_uid(uid).location),
                cause="the test run would never end",
                remedy=f'Pass its rows: inputs={{"{uid}": [...]}}; the list may be empty',
            )


def ends_early(graph: JobGraph, uid: str) -> bool:
    """Return whether the source is bounded and the broadcast side of a join, which waits for its end."""
    source = graph.by_uid(uid)
    if source.source is None or source.source.boundedness != "bounded":
        return False
    below = {source.node_id}
    for node in graph.nodes:
        for edge in node.inputs:
            if edge.upstream in below:
                if edge.exchange == "broadcast":
                    return True
                below.add(node.node_id)
    return False


def substituted(graph: JobGraph, feeds: Mapping[str, Feed], marked: Collection[str], sinks: str) -> JobGraph:
    """Return the graph with fed sources, and with sinks that collect under `sinks` + uid.

    Args:
        marked: the fed sources with watermarks of their own.

    Raises:
        PipelineError: a `with_watermark` reads one source with fed watermarks and one without.
    """
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    says: dict[int, frozenset[bool]] = {}
    """Old id of a node -> whether the sources that it reads, without a `with_watermark` in between, have fed
    watermarks."""
    for node in graph.nodes:
        inputs = tuple(replace(edge, upstream=moved[edge.upstream]) for edge in node.inputs)
        made = replace(node, node_id=len(nodes), inputs=inputs)
        said = frozenset().union(*(says[e.upstream] for e in node.inputs if e.exchange != "broadcast"))
        if node.source is not None and node.uid in feeds:
            made = replace(made, source=FedSource(feeds[node.uid]))
            said = frozenset({node.uid in marked})
        elif node.sink is not None:
            made = replace(made, sink=CollectSink(f"{sinks}{node.uid}", two_phase=node.sink.two_phase))
        elif isinstance(node.spec, WatermarkSpec):
            if len(said) > 1:
                raise _mixed(node)
            if True in said:
                made = replace(made, spec=PassMarksSpec(), stateful=False)
            said = frozenset()
        nodes.append(made)
        if node.source is not None and True in said:
            nodes.append(_marks_of(made, len(nodes)))
        moved[node.node_id] = len(nodes) - 1
        says[node.node_id] = said
    return JobGraph(tuple(nodes))


def _mixed(node: Node) -> PipelineError:
    return PipelineError(
        "with_watermark reads a source that has Watermark(...) in inputs, and a source without it",
        where=call_place(node.kind, node.uid, node.location),
        remedy="Add Watermark(...) to the inputs of all these sources, or of none",
    )


def _marks_of(source: Node, node_id: int) -> Node:
    edges = (Edge(source.node_id, "forward"),)
    return Node(node_id, source.uid + MARKS, "watermark", edges, source.schema, source.location, spec=PassMarksSpec())
