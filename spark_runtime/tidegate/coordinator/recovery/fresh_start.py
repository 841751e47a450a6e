"""Check the inputs of sources and the targets of sinks before a job starts without a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tidegate.connectors.interface import ReportsExistingOutput
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import OutageError, StoreError
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.records import Decision, Spec
from tidegate.plan.job_graph import JobGraph

OnOutage = Callable[[str, Exception], None]
"""Called with the uid of a source and the error of a system that does not answer."""


def check_first_run(
    graph: JobGraph,
    spec: Spec,
    specs: Sequence[Spec],
    decisions: Sequence[Decision],
    generation: int,
    on_outage: OnOutage,
) -> None:
    """Run `check_fresh_start` for a submission that restores nothing, or is a fork, until it has run.

    If it restores nothing, check the inputs, too: a fork has positions. After the first run, the targets may hold its
    own output or the output of a parallel job. Raises as `check_fresh_start` and `check_inputs` do.
    """
    own = (entry for entry in entries_by_submission(decisions) if entry.spec == spec.number)
    is_fork = spec.restore is not None and spec.restore.fork_of is not None
    continues = any(one.lineage == spec.lineage and one.number < spec.number for one in specs)
    begins = spec.restore is None or (is_fork and not continues)
    if begins and not any(e.kind == "status" and e.data["status"] == "RUNNING" for e in own):
        if spec.restore is None:
            check_inputs(graph, on_outage)
        check_fresh_start(graph, spec.job_id, spec.lineage, generation)


def existing_output(graph: JobGraph) -> Iterator[tuple[str, str]]:
    """Yield (uid, effect of a fresh start on existing output) for every sink that reports it."""
    for node in graph.nodes:
        if node.sink is not None and isinstance(node.sink, ReportsExistingOutput):
            yield node.uid, f"{node.sink.describe()} {node.sink.existing_output()}"


def check_fresh_start(graph: JobGraph, job_id: str, lineage: str = "", generation: int = 0) -> None:
    """Check with every sink whether it may write to its target. Blocks on the targets, changes nothing.

    Args:
        lineage: lineage of the submission; empty: it has none yet, so that no output can be its own.
        generation: generation of the driver; 0: there is none yet.

    Raises:
        PipelineError: a sink refuses.
        OutageError, StoreError: a target is not reachable.
    """
    for node in graph.nodes:
        if node.sink is None:
            continue
        try:
            node.sink.check_fresh_start(SinkContext(job_id, lineage, node.uid, 0, 1, generation, "", node.schema))
        except OSError as error:
            raise StoreError(
                "the target of a sink is not reachable",
                where=f"sink {node.uid!r}, {node.sink.describe()}",
                cause=f"{type(error).__name__}: {error}",
                remedy="Check the path of the sink's target, and the access rights of this process",
            ) from error


def check_inputs(graph: JobGraph, on_outage: OnOutage | None = None) -> None:
    """Check with every source whether its input can be read. Blocks on the inputs, changes nothing.

    Args:
        on_outage: called for each source whose system does not answer; the check then continues. A driver discovers the
            splits again and again. None: the error is raised.

    Raises:
        PipelineError: a source refuses.
        OutageError, StoreError: an input is not reachable, and `on_outage` is None.
    """
    for node in graph.nodes:
        if node.source is None:
            continue
        try:
            node.source.check_fresh_start()
        except (OSError, StoreError, OutageError) as error:
            if on_outage is not None:
                on_outage(node.uid, error)
            elif not isinstance(error, OSError):
                raise
            else:
                raise StoreError(
                    "the input of a source is not reachable",
                    where=f"source {node.uid!r}, {node.source.describe()}",
                    cause=f"{type(error).__name__}: {error}",
                    remedy="Check the address of the input, and the access rights of this process",
                ) from error
