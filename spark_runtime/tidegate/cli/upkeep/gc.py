"""`tidegate gc`: delete what no submission, snapshot or claim needs any more, in sinks too when asked (S2.3)."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tidegate.cli import arguments
from tidegate.cli.environment import Surroundings, Verbs
from tidegate.cli.job_lookup import client_of
from tidegate.cli.output import table
from tidegate.cli.presentation import size
from tidegate.clock import utc_now
from tidegate.errors import OptionError, TidegateError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.layout import JobLayout, job_ids
from tidegate.jobs.stores.store_registry import open_store

if TYPE_CHECKING:
    from tidegate.connectors.leftovers import Leftover
    from tidegate.coordinator.garbage.garbage_collection import Freed
    from tidegate.coordinator.garbage.sink_leftovers import SinkLeftovers

DEFAULT_AGE = "1 h"


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "gc",
        help="delete checkpoints and files that nobody needs",
        description="Deletes what dead drivers left: checkpoints and savepoints that were never completed, checkpoints "
        "that are not needed any more, shared files that no checkpoint uses, rows of DataFrames that no snapshot has "
        "positions in, and code that no submission names; of one job, or without JOB of every "
        "job below the root. Completed savepoints, and whatever can be reached, stay. Jobs may run meanwhile.",
    )
    arguments.add_job(parser)
    parser.add_argument(
        "--older-than",
        default=DEFAULT_AGE,
        metavar="DURATION",
        help=f"only what was last written so long ago (default: {DEFAULT_AGE}); longer than checkpoint_timeout",
    )
    parser.add_argument(
        "--keep", type=int, metavar="N", help="newest recovery points that stay (default: retained_checkpoints)"
    )
    parser.add_argument(
        "--sinks",
        action="store_true",
        help="also what sinks keep for nobody: data that failed runs staged before a fresh start goes, commit markers "
        "are put together. Runs the pinned pipeline's code here, and needs the sinks' packages, network and secrets",
    )
    parser.add_argument("--dry-run", action="store_true", help="delete nothing, but tell what would go")
    parser.set_defaults(run=collect_garbage)


def collect_garbage(args: argparse.Namespace, around: Surroundings) -> int:
    """List what goes, and what is freed. Of a root, a job that cannot be read is told, and the others are gone
    through; then the exit code is that of the first such job."""
    if args.keep is not None and args.keep < 1:
        raise OptionError("at least one recovery point stays", where="--keep", remedy="Write a number from 1")
    older_than = arguments.duration(args.older_than, "--older-than") or timedelta()
    if args.job is not None or args.job_id is not None:
        client = client_of(args, around)
        client.view()  # names a job that is not there
        around.output.document(_of_job(client, older_than, args, around))
        return 0
    root = arguments.root(args, around.environment)
    storage_options = arguments.storage_options(args, around.environment)
    documents: list[Mapping[str, Any]] = []
    failures: dict[str, TidegateError] = {}
    store = open_store(root, storage_options)
    for job_id in job_ids(store.list("")):
        layout = JobLayout(job_id)
        if not store.exists(layout.spec(1)) and not store.list(layout.artifacts):
            continue
        try:
            documents.append(_of_job(around.connect(root, job_id, storage_options), older_than, args, around))
        except TidegateError as error:
            around.output.note(f"{job_id}: {error}")
            failures[job_id] = error
    freed_bytes = sum(document["freed_bytes"] for document in documents)
    around.output.say(f"{len(documents)} jobs: {size(freed_bytes)} {_verb(args)}")
    failed = [{"job_id": job_id, "error": str(error)} for job_id, error in failures.items()]
    around.output.document({"dry_run": args.dry_run, "jobs": documents, "failed": failed, "freed_bytes": freed_bytes})
    return next((error.exit_code for error in failures.values()), 0)


def _verb(args: argparse.Namespace) -> str:
    return "would be freed" if args.dry_run else "freed"


def _of_job(
    client: JobClient, older_than: timedelta, args: argparse.Namespace, around: Surroundings
) -> Mapping[str, Any]:
    """Collect one job's garbage and say so; gives the document."""
    from tidegate.coordinator.garbage.garbage_collection import collect
    from tidegate.coordinator.garbage.sink_leftovers import SinkLeftovers

    started = utc_now()
    around.output.progress(f"{client.job_id}: looking for what nobody needs")
    found = collect(
        client.store,
        client.layout,
        client.decisions,
        client.specs,
        now=started,
        older_than=older_than,
        keep=args.keep,
        dry_run=args.dry_run,
    )
    sinks = _of_sinks(client, started, older_than, found, args) if args.sinks else SinkLeftovers()
    rows: list[tuple[str, str, str]] = [(one.path, one.why, size(one.size_bytes)) for one in found.collected]
    rows += [(_many(one), one.why, size(one.size_bytes)) for _, one in sinks.found]
    if rows:
        for line in table(("path", "why", "size"), rows, right=frozenset({"size"})):
            around.output.say(line)
    too_young, freed_bytes = found.too_young + sinks.too_young, found.size_bytes + sinks.size_bytes
    young = f"; {too_young} more are not older than {args.older_than}" if too_young else ""
    around.output.say(f"{client.job_id}: {size(freed_bytes)} {_verb(args)}{young}")
    if found.kept_back:
        around.output.note(f"shared files stay: {found.kept_back}; call again later")
    if found.rows_kept:
        around.output.note(f"rows of DataFrames stay: {found.rows_kept}")
    for problem in found.savepoints_kept:
        around.output.note(problem)
    for kept in sinks.kept:
        around.output.note(f"what sinks keep stays: {kept}")
    return {
        "job_id": client.job_id,
        "dry_run": args.dry_run,
        "collected": [dataclasses.asdict(one) for one in found.collected],
        "in_sinks": [{"sink": sink, **dataclasses.asdict(one)} for sink, one in sinks.found],
        "freed_bytes": freed_bytes,
        "too_young": too_young,
        "kept_back": found.kept_back or None,
        "rows_kept": found.rows_kept or None,
        "savepoints_kept": list(found.savepoints_kept) or None,
        "sinks_kept": list(sinks.kept),
    }


def _of_sinks(
    client: JobClient, now: datetime, older_than: timedelta, found: Freed, args: argparse.Namespace
) -> SinkLeftovers:
    from tidegate.cli.upkeep.sink_collection import collect_sinks

    deleted = {one.path for one in found.collected}
    return collect_sinks(client, now=now, older_than=older_than, dry_run=args.dry_run, deleted=deleted)


def _many(one: Leftover) -> str:
    return one.path if one.files == 1 else f"{one.path} ({one.files} files)"
