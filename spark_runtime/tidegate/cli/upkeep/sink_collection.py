"""`tidegate gc --sinks` and `--sources`: delete data at a job's sinks that nobody needs, and what its sources own,
without a driver (S2.3, ADR 0018)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.connectors.found_schema import found_schemas
from tidegate.connectors.interface import CollectsLeftovers, Sink, Source, SourceContext
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
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph, read_pinned_graph
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.deleted_savepoints import deleted_savepoints
from tidegate.jobs.history.submissions import entries_by_submission, may_have_run, next_submission_that_ran
from tidegate.jobs.records import Spec
from tidegate.plan.job_graph import JobGraph


def collect_connectors(
    client: JobDirectory,
    *,
    now: datetime,
    older_than: timedelta,
    sinks: bool = True,
    sources: bool = False,
    even_with_snapshots: bool = False,
    dry_run: bool = False,
    deleted: Collection[str] = (),
) -> SinkLeftovers:
    """Collect the leftovers at all targets of the job's sinks, and release what its sources own.

    Runs the user's code in this process, from the artifacts of submissions: the newest submission that may have run,
    and older submissions that wrote to other targets. For sources: all submissions with other code or arguments.

    Args:
        now: a time before anything was read.
        older_than: only older leftovers are deleted.
        sinks, sources: the connectors to collect from.
        even_with_snapshots: also release what sources need to restore existing snapshots.
        dry_run: list leftovers, and delete nothing.
        deleted: folders of checkpoints that this collection has deleted, or would delete in a dry run.

    Raises:
        PipelineError, RecordError: the newest submission's pipeline cannot be built; nothing has changed.
        TidegateError: a connector failed with any exception. Call again; finished work is not repeated.
    """
    decisions, specs = client.decisions(), client.specs()
    lineages = lineages_of(decisions, specs)
    if not lineages:
        return SinkLeftovers()
    ran = may_have_run(entries_by_submission(decisions))
    newest = next_submission_that_ran(len(specs) + 1, ran)
    owned = claimed_savepoints(decisions, specs) | deleted_savepoints(client.store, client.layout)
    with tempfile.TemporaryDirectory(prefix="tidegate-gc-") as scratch:
        built = _Built(client, scratch, sinks, sources)
        built.build([spec for spec in reversed(specs) if spec.number in {*ran, newest}])
        unsupported = [
            f"sink {ctx.uid!r} ({type(sink).__name__} does not support the collection of leftovers)"
            for sink, ctx in built.sinks
            if not isinstance(sink, CollectsLeftovers)
        ]
        try:
            found = collect_leftovers(
                built.sinks,
                lineages,
                lambda lineage: stable_referenced_transactions(
                    lineage,
                    lambda: lineages_of(client.decisions(), client.specs()),
                    lambda as_it_is: referenced_transactions(as_it_is, client.store, client.specs(), owned, deleted),
                ),
                now - older_than,
                sources=built.sources,
                dry_run=dry_run,
                even_with_snapshots=even_with_snapshots,
            )
        except TidegateError:
            raise
        except Exception as error:
            raise TidegateError(
                "data that failed runs left at sinks and sources cannot be deleted",
                where=f"job {client.job_id}",
                cause=f"{type(error).__name__}: {error}",
                remedy="Fix the cause, and run the same `tidegate gc` again, which continues",
            ) from error
    return replace(found, kept=(*found.kept, *unsupported, *built.kept))


class _Built:
    """Connectors of the pipelines of several submissions.

    Attributes:
        sinks: every two-phase-commit sink, once for each uid and target, with a writer's context.
        sources: every source, once for each uid and description, with a reader's context.
        kept: what of older submissions is not in them, and why.
    """

    def __init__(self, client: JobDirectory, scratch: str, sinks: bool, sources: bool) -> None:
        self._client = client
        self._scratch = scratch
        self._wants_sinks, self._wants_sources = sinks, sources
        self._seen: set[tuple[str, str]] = set()
        self._read: set[tuple[str, str]] = set()
        self._pipelines: set[str] = set()
        self.sinks: list[tuple[Sink, SinkContext]] = []
        self.sources: list[tuple[Source, SourceContext]] = []
        self.kept: list[str] = []

    def build(self, newest_first: Sequence[Spec]) -> None:
        """Build the pipelines that have connectors of their own. Raises the error of the newest one."""
        for at, spec in enumerate(newest_first):
            pinned = read_pinned_graph(self._client.store, self._client.layout, spec.number)
            places = set(pinned.sinks.items()) - self._seen if pinned is not None and self._wants_sinks else set()
            # The graph does not record where sources read, so other code or arguments may read elsewhere.
            pipeline = json.dumps([spec.artifact, spec.pipeline, dict(spec.arguments)], sort_keys=True, default=str)
            is_other = self._wants_sources and pipeline not in self._pipelines
            if at and not places and not is_other:
                continue
            self._pipelines.add(pipeline)
            try:
                graph = self._graph(spec, pinned)
            except TidegateError as error:
                if not at:
                    raise
                self._note(spec, sorted(places), error)
                self._seen |= places
                continue
            self._add(spec, graph)

    def _graph(self, spec: Spec, pinned: PinnedGraph | None) -> JobGraph:
        code = os.path.join(self._scratch, str(spec.number))
        unpack_artifact(self._client.store, self._client.layout, spec.artifact, code)
        return load_pipeline(
            code,
            spec.pipeline,
            dict(spec.arguments),
            check_sinks=False,
            paths=spec.relative_paths,
            schemas=found_schemas(pinned.graph) if pinned is not None else None,
        )

    def _note(self, spec: Spec, places: Sequence[tuple[str, str]], error: TidegateError) -> None:
        reason = f"of submission {spec.number}, whose pipeline cannot be built: {error}"
        if places:
            self.kept.append(f"sinks {', '.join(f'{uid!r} ({place})' for uid, place in places)} {reason}")
        if self._wants_sources:
            self.kept.append(f"sources {reason}")

    def _add(self, spec: Spec, graph: JobGraph) -> None:
        job_id = self._client.job_id
        for node in graph.nodes:
            if self._wants_sources and node.source is not None:
                if (place := (node.uid, node.source.describe())) not in self._read:
                    self._read.add(place)
                    ctx = SourceContext(node.uid, 0, 1, job_id=job_id, lineage=spec.lineage, run_id="gc")
                    self.sources.append((node.source, ctx))
            elif self._wants_sinks and node.sink is not None and node.sink.two_phase:
                if (place := (node.uid, node.sink.describe())) not in self._seen:
                    self._seen.add(place)
                    schema, storage = graph.edge_schema(node.inputs[0]), job_storage(self._client.store, spec)
                    self.sinks.append(
                        (
                            node.sink,
                            SinkContext(job_id, spec.lineage, node.uid, 0, 1, 0, "gc", schema, "", None, storage),
                        )
                    )
