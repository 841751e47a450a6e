"""`tidegate gc --sinks`: delete data at a job's sinks that nobody needs, without a driver (S2.3, ADR 0018)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.connectors.found_schema import found_schemas
from tidegate.connectors.interface import CollectsLeftovers, Sink
from tidegate.connectors.transactions import SinkContext, job_storage
from tidegate.coordinator.garbage.abandoned_checkpoints import claimed_savepoints
from tidegate.coordinator.garbage.sink_leftovers import (
    SinkLeftovers,
    collect_leftovers,
    lineages_of,
    referenced_transactions,
    stable_referenced_transactions,
)
from tidegate.errors import TidegateError
from tidegate.jobs.artifacts.artifact import unpack_artifact
from tidegate.jobs.artifacts.pinned_graph import read_pinned_graph
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.history.submissions import entries_by_submission, may_have_run, next_submission_that_ran
from tidegate.jobs.records import Spec


def collect_sinks(
    client: JobDirectory,
    *,
    now: datetime,
    older_than: timedelta,
    dry_run: bool = False,
    deleted: Collection[str] = (),
) -> SinkLeftovers:
    """Collect the leftovers at all targets of the job's sinks.

    Runs the user's code in this process, from the artifacts of submissions: the newest submission that may have run,
    and older submissions that wrote to other targets.

    Args:
        now: a time before anything was read.
        older_than: only older leftovers are deleted.
        dry_run: list leftovers, and delete nothing.
        deleted: folders of checkpoints that this collection has deleted, or would delete in a dry run.

    Raises:
        PipelineError, RecordError: the newest submission's pipeline cannot be built; nothing has changed.
        TidegateError: a sink failed with any exception. Call again; finished work is not repeated.
    """
    decisions, specs = client.decisions(), client.specs()
    lineages = lineages_of(decisions, specs)
    if not lineages:
        return SinkLeftovers()
    ran = may_have_run(entries_by_submission(decisions))
    newest = next_submission_that_ran(len(specs) + 1, ran)
    owned = claimed_savepoints(decisions, specs)
    kept: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tidegate-gc-") as scratch:
        sinks = list(_sinks(client, [s for s in reversed(specs) if s.number in {*ran, newest}], scratch, kept))
        unsupported = [
            f"sink {ctx.uid!r} ({type(sink).__name__} does not support the collection of leftovers)"
            for sink, ctx in sinks
            if not isinstance(sink, CollectsLeftovers)
        ]
        try:
            found = collect_leftovers(
                sinks,
                lineages,
                lambda lineage: stable_referenced_transactions(
                    lineage,
                    lambda: lineages_of(client.decisions(), client.specs()),
                    lambda as_it_is: referenced_transactions(as_it_is, client.store, client.specs(), owned, deleted),
                ),
                now - older_than,
                dry_run=dry_run,
            )
        except TidegateError:
            raise
        except Exception as error:
            raise TidegateError(
                "data that failed runs left at the targets of sinks cannot be deleted",
                where=f"job {client.job_id}",
                cause=f"{type(error).__name__}: {error}",
                remedy="Fix the cause, and run `tidegate gc --sinks` again, which continues",
            ) from error
    return SinkLeftovers(found.found, found.too_young, (*found.kept, *unsupported, *kept))


def _sinks(
    client: JobDirectory, newest_first: Sequence[Spec], scratch: str, kept: list[str]
) -> Iterator[tuple[Sink, SinkContext]]:
    """Yield every two-phase-commit sink of the submissions, once for each uid and target, with a writer's context."""
    seen: set[tuple[str, str]] = set()
    for at, spec in enumerate(newest_first):
        pinned = read_pinned_graph(client.store, client.layout, spec.number)
        others = {(uid, place) for uid, place in pinned.sinks.items()} - seen if pinned is not None else set()
        if at and not others:
            continue
        code = os.path.join(scratch, str(spec.number))
        try:
            unpack_artifact(client.store, client.layout, spec.artifact, code)
            graph = load_pipeline(
                code,
                spec.pipeline,
                dict(spec.arguments),
                check_sinks=False,
                paths=spec.relative_paths,
                schemas=found_schemas(pinned.graph) if pinned is not None else None,
            )
        except TidegateError as error:
            if not at:
                raise
            places = ", ".join(f"{uid!r} ({place})" for uid, place in sorted(others))
            kept.append(f"sinks {places} of submission {spec.number}, whose pipeline cannot be built: {error}")
            seen |= others
            continue
        for node in graph.nodes:
            if node.sink is None or not node.sink.two_phase or (node.uid, node.sink.describe()) in seen:
                continue
            seen.add((node.uid, node.sink.describe()))
            yield (
                node.sink,
                SinkContext(
                    job_id=client.job_id,
                    lineage=spec.lineage,
                    uid=node.uid,
                    subtask=0,
                    parallelism=1,
                    generation=0,
                    run_id="gc",
                    schema=graph.edge_schema(node.inputs[0]),
                    storage=job_storage(client.store, spec),
                ),
            )
