"""`tidegate snapshot check`: check that a pipeline can be restored from a snapshot, before a job is stopped."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tidegate.cli.environment import CliEnvironment
from tidegate.cli.pipeline_arguments import parse_arguments, parse_options
from tidegate.cli.pipeline_validation import build_plan
from tidegate.cli.snapshots.snapshot_path import current_splits, reader_of
from tidegate.clock import now_iso
from tidegate.connectors.found_schema import found_schemas
from tidegate.connectors.interface import Source
from tidegate.coordinator.recovery.restore import restore_target
from tidegate.coordinator.recovery.source_positions import judge_source
from tidegate.errors import OptionError, OutageError, SnapshotError, StoreError
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph
from tidegate.jobs.codec import encode
from tidegate.jobs.options import JobOptions
from tidegate.jobs.restore.compatibility import (
    RestoreFinding,
    RestoreTarget,
    check_compatibility,
    restrict_to_row_formats,
    verdict_of_findings,
)
from tidegate.plan.graph_document import graph_document
from tidegate.plan.job_graph import JobGraph
from tidegate.snapshot.reader import SnapshotReader


def run(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Print whether the snapshot fits the pipeline, and why not. Returns 0, or 10 when it does not fit."""
    reader = reader_of(args, around)
    given = parse_options(args) or {}
    options = JobOptions.from_mapping(given)
    schemas = found_schemas(reader.metadata.graph)
    with build_plan(args.pipeline, args.code_root, parse_arguments(args) or {}, options, schemas=schemas) as (graph, _):
        document = graph_document(graph)
        target = RestoreTarget(
            document,
            options.parallelism,
            options.max_parallelism,
            allow_non_restored_state=args.allow_non_restored_state,
            allow_drained=args.allow_drained,
            state_backend=options.state_backend if "state_backend" in given else None,
        )
        found = check_compatibility(restore_target(reader.metadata), target).findings
        findings = [*(_as_stored(reader, finding) for finding in found), *_sources(reader, graph)]
    verdict = verdict_of_findings(findings)
    if args.write_graph is not None:
        pinned = PinnedGraph(0, options.parallelism, options.max_parallelism, document, now_iso())
        _write(args.write_graph, encode(pinned))
    output = around.output
    output.print(f"{reader.path}: {'fits' if verdict.fits else 'does not fit'} {args.pipeline}")
    for finding in verdict.findings:
        more = "".join(f"; {text}" for text in (finding.cause, finding.remedy) if text)
        output.print(f"  {finding.verdict}: {finding.what}{more}")
    output.document({"path": reader.path, "pipeline": args.pipeline, **verdict.to_json()})
    return 0 if verdict.fits else SnapshotError.exit_code


def _as_stored(reader: SnapshotReader, finding: RestoreFinding) -> RestoreFinding:
    """Check the row formats in the state files. Metadata before version 3 do not contain them."""
    if finding.uid is None or reader.metadata.operator(finding.uid) is None:
        return finding
    return restrict_to_row_formats(finding, reader.native_formats(finding.uid))


def _sources(reader: SnapshotReader, graph: JobGraph) -> Iterator[RestoreFinding]:
    """Check that each source can resume from its position."""
    for node in graph.nodes:
        known = reader.metadata.operator(node.uid)
        if node.source is not None and known is not None and known.status != "finished":
            yield from _of_source(reader, node.uid, node.source)


def _of_source(reader: SnapshotReader, uid: str, source: Source) -> Iterator[RestoreFinding]:
    try:
        enumerator = reader.metadata.enumerators.get(uid)
        finding = judge_source(uid, source, current_splits(reader, uid) or (), enumerator)
    except (OSError, StoreError, OutageError) as error:
        yield RestoreFinding(
            "source", "refused", f"source {uid!r} cannot be reached now", str(error), "Repeat the check later", uid
        )
        return
    if finding is not None:
        yield finding


def _write(path: str, data: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise OptionError(
            "the file of the pipeline's graph cannot be written",
            where=f"--write-graph {path}",
            cause=str(error),
            remedy="Name another file",
        ) from error
