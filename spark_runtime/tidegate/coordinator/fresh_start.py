"""What a job that starts afresh finds where its sinks write."""

from __future__ import annotations

from tidegate.connectors.contract import SinkContext
from tidegate.plan.graph import JobGraph


def check_fresh_start(graph: JobGraph, job_id: str, lineage: str = "", generation: int = 0) -> None:
    """Ask every sink whether it may write to what its target holds. Blocks on the targets, changes nothing.

    Args:
        lineage: of the submission; empty: it has none yet, so that nothing in the targets can be its own.
        generation: of the driver; 0: there is none yet.

    Raises:
        PipelineError: a sink refuses.
    """
    for node in graph.nodes:
        if node.sink is not None:
            node.sink.check_fresh_start(SinkContext(job_id, lineage, node.uid, 0, 1, generation, "", node.schema))
