"""What a pipeline needs of `checkpoint_mode` (S3.3, S7.3). Pure."""

from __future__ import annotations

from tidegate.contract.errors import PipelineError
from tidegate.contract.options import JobOptions
from tidegate.plan.graph import JobGraph


def check_checkpoint_mode(graph: JobGraph, options: JobOptions) -> None:
    """A job without snapshots cannot commit in two phases: nothing would ever permit it.

    Raises:
        PipelineError: names the sinks.
    """
    if options.checkpoint_mode != "off":
        return
    sinks = [node.uid for node in graph.nodes if node.sink is not None and node.sink.two_phase]
    if sinks:
        raise PipelineError(
            "checkpoint_mode is off, but the pipeline has sinks that commit with a snapshot",
            where=f"sinks {', '.join(sinks)}",
            cause="what they write would never become visible",
            remedy="Use checkpoint_mode exactly_once or at_least_once, or sinks that write at once",
        )
