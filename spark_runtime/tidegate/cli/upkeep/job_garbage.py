"""`tidegate gc`: delete files that no submission, snapshot or claim needs, with --sinks and --sources also in other
systems (S2.3)."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tidegate.cli import arguments
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.job_lookup import job_of
from tidegate.cli.job_output import size_text
from tidegate.cli.output import table
from tidegate.cli.upkeep.sink_collection import collect_connectors
from tidegate.clock import utc_now
from tidegate.connectors.leftovers import Leftover
from tidegate.coordinator.garbage.garbage_collection import CollectionReport, collect_garbage
from tidegate.coordinator.garbage.sink_leftovers import SinkLeftovers
from tidegate.errors import OptionError, TidegateError
from tidegate.jobs.client.job_directory import JobDirectory, root_problem
from tidegate.jobs.layout import JobLayout, job_ids
from tidegate.jobs.stores.store_registry import open_store


def run(args: argparse.Namespace, around: CliEnvironment) -> int:
    """List deleted files and the freed bytes, of one job or of every job of a root.

    A job that cannot be read is reported, and the others are still processed. The exit code is then the exit code of
    the first error.
    """
    if args.even_with_snapshots and not (args.sources and (args.job or args.job_id)):
        raise OptionError(
            "--even-with-snapshots makes snapshots useless, so it needs --sources and the name of one job",
            where="--even-with-snapshots",
            remedy="Run `tidegate gc JOB --sources --even-with-snapshots --dry-run` first, which names the snapshots",
        )
    if args.keep is not None and args.keep < 1:
        raise OptionError(
            f"--keep={args.keep} would delete all recovery points", where="--keep", remedy="Pass 1 or more"
        )
    older_than = arguments.duration(args.older_than, "--older-than") or timedelta()
    if args.job is not None or args.job_id is not None:
        client = job_of(JobDirectory, args, around)
        client.view()  # raises JobNotFoundError when there is no such job
        around.output.document(_of_job(client, older_than, args, around))
        return 0
    root = arguments.root(args, around.environment)
    storage_options = arguments.storage_options(args, around.environment)
    documents: list[Mapping[str, Any]] = []
    failures: dict[str, TidegateError] = {}
    store = open_store(root, storage_options)
    for job_id in job_ids(store.list("")):
        layout = JobLayout(job_id)
        # A submission that failed before its record was created leaves a folder with pinned code only.
        if not store.exists(layout.spec(1)) and not store.list(layout.artifacts):
            continue
        try:
            job = around.connect(JobDirectory, root, job_id, storage_options)
            documents.append(_of_job(job, older_than, args, around))
        except TidegateError as error:
            around.output.note(f"{job_id}: {error}")
            failures[job_id] = error
    freed_bytes = sum(document["freed_bytes"] for document in documents)
    problem = root_problem(store)
    around.output.print(
        f"{len(documents)} jobs: {size_text(freed_bytes)} {_verb(args)}" + (f"; {problem}" if problem else "")
    )
    failed = [{"job_id": job_id, "error": str(error)} for job_id, error in failures.items()]
    around.output.document({"dry_run": args.dry_run, "jobs": documents, "failed": failed, "freed_bytes": freed_bytes})
    return next((error.exit_code for error in failures.values()), 0)


def _verb(args: argparse.Namespace) -> str:
    return "would be freed" if args.dry_run else "freed"


def _of_job(
    client: JobDirectory, older_than: timedelta, args: argparse.Namespace, around: CliEnvironment
) -> Mapping[str, Any]:
    """Collect one job's garbage and report it. Returns the document."""
    # Before anything is read: files that are written from now on are too young to be deleted.
    started = utc_now()
    around.output.progress(f"{client.job_id}: searching for files that no job needs")
    found = collect_garbage(
        client.store,
        client.layout,
        client.decisions,
        client.specs,
        now=started,
        older_than=older_than,
        keep=args.keep,
        dry_run=args.dry_run,
    )
    sinks = _of_connectors(client, started, older_than, found, args) if args.sinks or args.sources else SinkLeftovers()
    rows: list[tuple[str, str, str]] = [(one.path, one.why, size_text(one.size_bytes)) for one in found.collected]
    rows += [(_count_text(one), one.why, size_text(one.size_bytes)) for _, one in sinks.found]
    if rows:
        for line in table(("path", "why", "size"), rows, right=frozenset({"size"})):
            around.output.print(line)
    too_young, freed_bytes = found.too_young + sinks.too_young, found.size_bytes + sinks.size_bytes
    young = f"; {too_young} more stay, because they were written within {args.older_than}" if too_young else ""
    around.output.print(f"{client.job_id}: {size_text(freed_bytes)} {_verb(args)}{young}")
    if found.kept_back:
        around.output.note(f"shared files stay: {found.kept_back}; run `tidegate gc` again later")
    if found.rows_kept:
        around.output.note(f"rows of DataFrames stay: {found.rows_kept}")
    for problem in found.savepoints_kept:
        around.output.note(problem)
    for kept in sinks.kept:
        around.output.note(f"data of connectors that stays: {kept}")
    if sinks.abandoned:
        when = "after this" if args.dry_run else "from now on"
        around.output.note(f"snapshots that cannot be restored {when}: {', '.join(sinks.abandoned)}")
    return {
        "job_id": client.job_id,
        "dry_run": args.dry_run,
        "collected": [dataclasses.asdict(one) for one in found.collected],
        "in_sinks": [{"sink": place, **dataclasses.asdict(one)} for place, one in sinks.found if one.why != "ended"],
        "in_sources": [
            {"source": place, **dataclasses.asdict(one)} for place, one in sinks.found if one.why == "ended"
        ],
        "freed_bytes": freed_bytes,
        "too_young": too_young,
        "kept_back": found.kept_back or None,
        "rows_kept": found.rows_kept or None,
        "savepoints_kept": list(found.savepoints_kept) or None,
        "sinks_kept": list(sinks.kept),
        "abandoned": list(sinks.abandoned) or None,
    }


def _of_connectors(
    client: JobDirectory, now: datetime, older_than: timedelta, found: CollectionReport, args: argparse.Namespace
) -> SinkLeftovers:
    deleted = {one.path for one in found.collected}
    return collect_connectors(
        client,
        now=now,
        older_than=older_than,
        sinks=args.sinks,
        sources=args.sources,
        even_with_snapshots=args.even_with_snapshots,
        dry_run=args.dry_run,
        deleted=deleted,
    )


def _count_text(one: Leftover) -> str:
    return one.path if one.files == 1 else f"{one.path} ({one.files} files)"
