"""What a job that starts afresh finds where its sinks write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.connectors.interface import ReportsExistingOutput
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import StoreError
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.records import Decision, Spec
from tidegate.plan.job_graph import JobGraph


def check_first_run(
    graph: JobGraph, spec: Spec, specs: Sequence[Spec], decisions: Sequence[Decision], generation: int
) -> None:
    """`check_fresh_start` of a submission that restores nothing, or is a fork, until it has run: from then on what is
    there may be its own output, or that of a job beside it. Raises as that does."""
    own = (entry for entry in entries_by_submission(decisions) if entry.spec == spec.number)
    is_fork = spec.restore is not None and spec.restore.fork_of is not None
    continues = any(one.lineage == spec.lineage and one.number < spec.number for one in specs)
    begins = spec.restore is None or (is_fork and not continues)
    if begins and not any(e.kind == "status" and e.data["status"] == "RUNNING" for e in own):
        check_fresh_start(graph, spec.job_id, spec.lineage, generation)


def existing_output(graph: JobGraph) -> Iterator[tuple[str, str]]:
    """(uid, what a fresh start does with the output that is there) of every sink that reports it."""
    for node in graph.nodes:
        if node.sink is not None and isinstance(node.sink, ReportsExistingOutput):
            yield node.uid, f"{node.sink.describe()} {node.sink.existing_output()}"


def check_fresh_start(graph: JobGraph, job_id: str, lineage: str = "", generation: int = 0) -> None:
    """Ask every sink whether it may write to what its target holds. Blocks on the targets, changes nothing.

    Args:
        lineage: of the submission; empty: it has none yet, so that nothing in the targets can be its own.
        generation: of the driver; 0: there is none yet.

    Raises:
        PipelineError: a sink refuses.
        StoreError: a target does not answer.
    """
    for node in graph.nodes:
        if node.sink is None:
            continue
        try:
            node.sink.check_fresh_start(SinkContext(job_id, lineage, node.uid, 0, 1, generation, "", node.schema))
        except OSError as error:
            raise StoreError(
                "the target of a sink does not answer",
                where=f"sink {node.uid!r}, {node.sink.describe()}",
                cause=f"{type(error).__name__}: {error}",
                remedy="Check the path and its access rights",
            ) from error
