"""`tidegate snapshot check`: whether a pipeline can go on from a snapshot, before anything is stopped or started."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tidegate.cli.environment import Surroundings
from tidegate.cli.pipeline_arguments import given_arguments, given_options
from tidegate.cli.pipeline_validation import built
from tidegate.cli.snapshots.snapshot_path import current_splits, reader_of
from tidegate.clock import now_iso
from tidegate.connectors.found_schema import found_schemas
from tidegate.connectors.interface import Source
from tidegate.coordinator.recovery.restore import facts_of
from tidegate.coordinator.recovery.source_positions import judge_source
from tidegate.errors import OptionError, OutageError, SnapshotError, StoreError
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph
from tidegate.jobs.codec import encode
from tidegate.jobs.options import JobOptions
from tidegate.jobs.restore.compatibility import Finding, Target, as_stored, judge_restore, judged
from tidegate.plan.graph_document import graph_document
from tidegate.plan.job_graph import JobGraph
from tidegate.snapshot.reader import SnapshotReader


def run(args: argparse.Namespace, around: Surroundings) -> int:
    """Say whether it fits, and why not; exit code 0 or that of a snapshot that does not fit."""
    reader = reader_of(args, around)
    given = given_options(args) or {}
    options = JobOptions.from_mapping(given)
    schemas = found_schemas(reader.metadata.graph)
    with built(args.pipeline, args.code_root, given_arguments(args) or {}, options, schemas=schemas) as (graph, _):
        document = graph_document(graph)
        target = Target(
            document,
            options.parallelism,
            options.max_parallelism,
            allow_non_restored_state=args.allow_non_restored_state,
            allow_drained=args.allow_drained,
            state_backend=options.state_backend if "state_backend" in given else None,
        )
        found = judge_restore(facts_of(reader.metadata), target).findings
        findings = [*(_as_stored(reader, finding) for finding in found), *_sources(reader, graph)]
    verdict = judged(findings)
    if args.write_graph is not None:
        pinned = PinnedGraph(0, options.parallelism, options.max_parallelism, document, now_iso())
        _write(args.write_graph, encode(pinned))
    output = around.output
    output.say(f"{reader.path}: {'fits' if verdict.fits else 'does not fit'} {args.pipeline}")
    for finding in verdict.findings:
        more = "".join(f"; {text}" for text in (finding.cause, finding.remedy) if text)
        output.say(f"  {finding.verdict}: {finding.what}{more}")
    output.document({"path": reader.path, "pipeline": args.pipeline, **verdict.to_json()})
    return 0 if verdict.fits else SnapshotError.exit_code


def _as_stored(reader: SnapshotReader, finding: Finding) -> Finding:
    """Metadata before version 3 do not tell formats; the streams do."""
    if finding.uid is None or reader.metadata.operator(finding.uid) is None:
        return finding
    return as_stored(finding, reader.native_formats(finding.uid))


def _sources(reader: SnapshotReader, graph: JobGraph) -> Iterator[Finding]:
    """Whether each source can go on from its position."""
    for node in graph.nodes:
        known = reader.metadata.operator(node.uid)
        if node.source is not None and known is not None and known.status != "finished":
            yield from _of_source(reader, node.uid, node.source)


def _of_source(reader: SnapshotReader, uid: str, source: Source) -> Iterator[Finding]:
    try:
        finding = judge_source(uid, source, current_splits(reader, uid) or ())
    except (OSError, StoreError, OutageError) as error:
        yield Finding("source", "refused", f"source {uid!r} cannot be asked now", str(error), "Check again later", uid)
        return
    if finding is not None:
        yield finding


def _write(path: str, data: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise OptionError("the file cannot be written", where=f"--write-graph {path}", cause=str(error)) from error
