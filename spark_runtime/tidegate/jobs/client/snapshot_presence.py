"""Which completed snapshots still exist. The decision log records no deletions: retention, `tidegate gc` and users
delete the files of snapshots, so the folders are the facts (S2.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidegate.errors import TidegateError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder, snapshot_exists
from tidegate.jobs.status import CheckpointView, JobView


def with_deletions(job: JobDirectory, view: JobView) -> JobView:
    """Return a view of the job in which `deleted` is set for every completed snapshot that does not exist any more.

    Costs a listing for each folder with snapshots, and a request for each snapshot that exists. If the store of a
    snapshot does not answer, the snapshot counts as existing.

    Args:
        view: read before the call. A snapshot that completes during the call is not in it, so it is not missed.
    """
    restored = (view.latest_recovery_point, view.restored)
    paths = {one.path for one in (*view.completed, *(one for one in restored if one is not None))}
    return _marked(view, frozenset(paths - existing_snapshots(job, paths)))


def with_latest_checked(job: JobDirectory, view: JobView) -> JobView:
    """Return a view of the job in which `deleted` is set for the latest recovery point if it does not exist any more.

    Costs one request. A job whose driver runs keeps its latest recovery point, so nothing is read for it.
    """
    point = view.latest_recovery_point
    if point is None or not view.is_terminal or snapshot_exists(job.store, job.storage_options, point.path):
        return view
    return _marked(view, frozenset([point.path]))


def existing_snapshots(job: JobDirectory, paths: Iterable[str]) -> set[str]:
    """Return the snapshots that have their `_metadata`, or whose store does not answer. Blocks on the store."""
    by_parent: dict[str, list[str]] = {}
    for path in paths:
        by_parent.setdefault(path.rstrip("/").rpartition("/")[0], []).append(path)
    found: set[str] = set()
    for here in by_parent.values():
        try:
            store, folder = open_snapshot_folder(job.store, job.storage_options, here[0])
            names = set(store.list(folder.rstrip("/").rpartition("/")[0]))
        except TidegateError:  # also a secret that this process cannot resolve
            found |= set(here)
            continue
        listed = [path for path in here if path.rstrip("/").rpartition("/")[2] in names]
        found |= {path for path in listed if snapshot_exists(job.store, job.storage_options, path)}
    return found


def _marked(view: JobView, gone: frozenset[str]) -> JobView:
    def marked(snapshot: CheckpointView) -> CheckpointView:
        return replace(snapshot, deleted=True) if snapshot.status == "completed" and snapshot.path in gone else snapshot

    before, point, restored = view.before_refusal, view.latest_recovery_point, view.restored
    return replace(
        view,
        checkpoints=tuple(marked(snapshot) for snapshot in view.checkpoints),
        latest_recovery_point=None if point is None else marked(point),
        restored=None if restored is None else marked(restored),
        before_refusal=None if before is None else _marked(before, gone),
    )
