"""`tidegate gc`: delete what no submission, snapshot or claim needs any more (S2.3)."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tidegate.cli import arguments
from tidegate.cli.output import table
from tidegate.cli.presenting import size
from tidegate.cli.reaching import client_of
from tidegate.cli.surroundings import Surroundings, Verbs
from tidegate.contract.client import JobClient
from tidegate.contract.clock import utc_now
from tidegate.contract.errors import OptionError, TidegateError
from tidegate.contract.layout import JobLayout, job_ids
from tidegate.contract.store import open_store

DEFAULT_AGE = "1 h"


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "gc",
        help="delete checkpoints and files that nobody needs",
        description="Deletes what dead drivers left: checkpoints that were never completed or are not needed any more, "
        "shared files that no checkpoint uses, rows of DataFrames that no snapshot has positions in, and code that no "
        "submission names; of one job, or without JOB of every "
        "job below the root. Savepoints, and whatever can be reached, stay. Jobs may run meanwhile.",
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
    from tidegate.coordinator.offline_garbage import collect

    around.output.progress(f"{client.job_id}: looking for what nobody needs")
    found = collect(
        client.store,
        client.layout,
        client.decisions,
        client.specs,
        now=utc_now(),
        older_than=older_than,
        keep=args.keep,
        dry_run=args.dry_run,
    )
    rows = [(one.path, one.why, size(one.size_bytes)) for one in found.collected]
    if rows:
        for line in table(("path", "why", "size"), rows, right=frozenset({"size"})):
            around.output.say(line)
    young = f"; {found.too_young} more are not older than {args.older_than}" if found.too_young else ""
    around.output.say(f"{client.job_id}: {size(found.size_bytes)} {_verb(args)}{young}")
    if found.kept_back:
        around.output.note(f"shared files stay: {found.kept_back}; call again later")
    if found.rows_kept:
        around.output.note(f"rows of DataFrames stay: {found.rows_kept}")
    return {
        "job_id": client.job_id,
        "dry_run": args.dry_run,
        "collected": [dataclasses.asdict(one) for one in found.collected],
        "freed_bytes": found.size_bytes,
        "too_young": found.too_young,
        "kept_back": found.kept_back or None,
        "rows_kept": found.rows_kept or None,
    }
