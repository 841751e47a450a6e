"""Finds the snapshot that a submission names, before anything is started (S9.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tidegate.clock import parse_iso
from tidegate.errors import NotFoundError, OptionError, SnapshotError, TidegateError
from tidegate.jobs.artifacts.materialised_rows import submissions_read
from tidegate.jobs.json_documents import read_metadata_document
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import RestoreFrom, Spec
from tidegate.jobs.status import CheckpointView, JobStatus, JobView
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.units import format_duration

MAX_NAMED = 10
"""Most snapshots that an error names. Each costs a request."""


def refuse_older_than(name: str, completed_at: str | None, limit: timedelta, now: datetime, *, where: str) -> None:
    """Raise SnapshotError when a snapshot is older than `limit`.

    Args:
        name: name of the snapshot, for readers.
        completed_at: recorded completion time. If it is None or not a time, the age is unknown, and the snapshot is
            refused too.
        limit: greatest age.
        now: current time, with time zone.
        where: the job, for the error.
    """
    remedy = (
        "Nothing was submitted. Name a newer snapshot (`tidegate checkpoints`), allow a greater age, or start the "
        "job without a snapshot"
    )
    try:
        age = now - parse_iso(completed_at or "")
    except ValueError:
        raise SnapshotError(
            f"the age of {name} is unknown, but must be at most {format_duration(limit)}",
            where=where,
            cause=f"the recorded time of its completion is {completed_at!r}",
            remedy=remedy,
        ) from None
    if age > limit:
        whole_s = timedelta(seconds=round(age.total_seconds()))
        raise SnapshotError(
            f"{name} is {format_duration(whole_s)} old, but must be at most {format_duration(limit)} old",
            where=where,
            cause=f"the snapshot completed at {completed_at}",
            remedy=remedy,
        )


@dataclass(frozen=True, slots=True)
class ResolvedRestore:
    """A snapshot that exists, with the settings to restore it.

    Attributes:
        restore: the restore for the spec, with paths relative to the root if possible. "latest" is not resolved: the
            driver chooses the snapshot after its fence, so that a later one of the old driver is not lost.
        lineage: lineage that the submission continues; None: a fork, which gets a new one (S7.4).
        name: name of the snapshot, for readers; for "latest", the snapshot that is the latest now.
        completed_at: recorded completion time; None: not recorded.
    """

    restore: RestoreFrom
    lineage: str | None
    name: str
    completed_at: str | None


def resolve_restore(
    store: Store,
    storage_options: Mapping[str, Any],
    job_id: str,
    restore: RestoreFrom,
    specs: Sequence[Spec],
    view: JobView | None,
) -> ResolvedRestore:
    """Check that the snapshot that `restore` names exists and is complete.

    Args:
        specs: earlier submissions of the job.
        view: current view of the job; None: the job was never submitted.

    Raises:
        SnapshotError: there is no snapshot to restore, or it is not complete.
        OptionError: the job does not own the snapshot that it would claim.
    """
    where = f"job {job_id}"
    if restore.kind == "latest":
        point = view.latest_recovery_point if view is not None else None
        if point is None:
            raise SnapshotError(
                "there is no snapshot to restore",
                where=where,
                cause="the job did not start from a snapshot, and has no completed checkpoint that was not rejected",
                remedy="Start the job without a restore, or name a savepoint",
            )
        document = _metadata(store, storage_options, point.path, where, specs, view)
        latest = replace(restore, path=None, checkpoint_id=None)
        assert view is not None, "the latest recovery point is part of the view"
        lineage = _lineage_of(specs, point.spec or view.followed)
        return ResolvedRestore(latest, lineage, _name(point, point.path), _completed_at(point, document))
    if restore.path is None:
        return _by_id(store, storage_options, restore, specs, view, where)
    path = relative_path(store, restore.path)
    known = next((c for c in (view.completed if view is not None else ()) if c.path == path), None)
    document = _metadata(store, storage_options, path, where, specs, view)
    restore = replace(
        restore, path=path, checkpoint_id=known.checkpoint_id if known is not None else restore.checkpoint_id
    )
    if known is not None:
        _refuse_missing(known, where)
        lineage = _lineage_of(specs, known.spec)
        return ResolvedRestore(restore, lineage, _name(known, path), _completed_at(known, document))
    if restore.claim_mode == "claim":
        raise OptionError(
            f"the job cannot take over snapshot {path} (claim_mode='claim')",
            where=where,
            cause="the job's decision log does not contain the snapshot: it was moved, or another job wrote it",
            remedy="Restore the snapshot without claim_mode, and delete it yourself when it is no longer needed",
        )
    _refuse_foreign_rows(document, job_id, path, where)
    own = document.get("job_id") == job_id and any(spec.lineage == document.get("lineage") for spec in specs)
    lineage = str(document["lineage"]) if own else None
    return ResolvedRestore(restore, lineage, _name(None, path), _completed_at(None, document))


def open_snapshot_folder(store: Store, storage_options: Mapping[str, Any], path: str) -> tuple[Store, str]:
    """Return the store and the folder of a snapshot. `path` is relative to the root, absolute, or a URL."""
    if "://" not in path and not path.startswith("/"):
        return store, path
    parent, _, folder = path.rstrip("/").rpartition("/")
    return open_store(parent or "/", storage_options), folder


def _by_id(
    store: Store,
    storage_options: Mapping[str, Any],
    restore: RestoreFrom,
    specs: Sequence[Spec],
    view: JobView | None,
    where: str,
) -> ResolvedRestore:
    wanted = restore.checkpoint_id
    known = view.checkpoint(wanted) if view is not None and wanted is not None else None
    if known is None or known.status != "completed":
        raise SnapshotError(
            f"checkpoint {wanted} never completed" if known is not None else f"there is no checkpoint {wanted}",
            where=where,
            cause=_existing_text(store, storage_options, view),
            remedy="Name a snapshot that `tidegate checkpoints` lists as completed",
        )
    _refuse_missing(known, where)
    document = _metadata(store, storage_options, known.path, where, specs, view)
    named = replace(restore, path=known.path)
    lineage = _lineage_of(specs, known.spec)
    return ResolvedRestore(named, lineage, _name(known, known.path), _completed_at(known, document))


def _existing_text(store: Store, storage_options: Mapping[str, Any], view: JobView | None) -> str:
    """Return the newest completed snapshots that still exist, for an error."""
    newest = view.completed[-MAX_NAMED:] if view is not None else ()
    there = [str(one.checkpoint_id) for one in newest if snapshot_exists(store, storage_options, one.path)]
    if there:
        return f"completed checkpoints are {', '.join(there)}"
    return "the completed checkpoints were deleted" if newest else "no checkpoint has completed"


def snapshot_exists(store: Store, storage_options: Mapping[str, Any], path: str) -> bool:
    """Return whether a snapshot has its `_metadata`, which is written last and deleted first. Costs one request.

    True also if its store does not answer, or a secret of the store cannot be resolved in this process.
    """
    try:
        holder, folder = open_snapshot_folder(store, storage_options, path)
        return holder.exists(JobLayout.metadata(folder.rstrip("/")))
    except TidegateError:
        return True


def _name(known: CheckpointView | None, path: str) -> str:
    """Return the name of a snapshot for readers. An external snapshot has no id in this job's log."""
    if known is None or not known.checkpoint_id:
        return f"snapshot {path}"
    return f"{known.kind} {known.checkpoint_id}"


def _completed_at(known: CheckpointView | None, document: Mapping[str, Any]) -> str | None:
    """Return the completion time in the log, or else in the metadata, which is written last."""
    time = known.completed_at if known is not None and known.completed_at else document.get("created_at")
    return time if isinstance(time, str) else None


def _refuse_missing(known: CheckpointView, where: str) -> None:
    """Raise SnapshotError for a snapshot that may not be restored.

    Rejected output must never be committed (S7.8). After a rewind, the state counts rows that were deleted (S9.3).
    """
    if known.taken_back:
        raise SnapshotError(
            f"sinks have deleted the output that {known.kind} {known.checkpoint_id} had committed",
            where=where,
            cause="the job was restored from an earlier snapshot with on_committed_after=rewind, which deleted later "
            "output",
            remedy="Restore the latest snapshot, or another one from `tidegate checkpoints`",
        )
    if known.verdict == "rejected":
        raise SnapshotError(
            f"{known.kind} {known.checkpoint_id} was rejected, or was taken after a rejected checkpoint",
            where=where,
            remedy="Restore the latest snapshot (`--from latest`), which was not rejected, or another one from "
            "`tidegate checkpoints`",
        )


def _refuse_foreign_rows(document: Mapping[str, Any], job_id: str, path: str, where: str) -> None:
    """Refuse a checkpoint of another job that reads stored rows of a DataFrame. The other job deletes these rows with
    its checkpoints, but keeps them for its savepoints (S4.2)."""
    other = str(document.get("job_id") or "")
    if other in ("", job_id) or document.get("kind") in ("savepoint", "stop-savepoint"):
        return
    finished = [operator["uid"] for operator in document.get("operators", ()) if operator["status"] == "finished"]
    if submissions_read(document.get("splits", {}), finished, other):
        raise SnapshotError(
            f"checkpoint {path} needs stored rows of a DataFrame, which job {other} may delete at any time",
            where=where,
            cause=f"job {other} keeps the rows only for its own checkpoints and for savepoints",
            remedy=f"Take a savepoint of job {other}, and start from that savepoint",
        )


def _lineage_of(specs: Sequence[Spec], number: int) -> str | None:
    return next((spec.lineage for spec in specs if spec.number == number), None)


def relative_path(store: Store, path: str) -> str:
    """Return a path below the root in the form of the log."""
    path = path.rstrip("/") or path
    for root in (store.url, f"file://{store.url}"):
        if path.startswith(f"{root.rstrip('/')}/"):
            return path[len(root.rstrip("/")) + 1 :]
    return path


def _metadata(
    store: Store,
    storage_options: Mapping[str, Any],
    path: str,
    where: str,
    specs: Sequence[Spec],
    view: JobView | None,
) -> Mapping[str, Any]:
    """Return the body of a snapshot's metadata. Only its job and lineage are used here; the driver checks the rest."""
    try:
        holder, folder = open_snapshot_folder(store, storage_options, path)
        body = read_metadata_document(holder, JobLayout.metadata(folder)).get("body", {})
    except NotFoundError as error:
        if view is not None and path.startswith(f"{JobLayout(view.job_id).checkpoints}/"):
            _refuse_deleted(path, where, specs[-1], view)
        raise SnapshotError(
            f"{path} is not a complete snapshot",
            where=where,
            cause="the folder has no _metadata: the snapshot never completed, or was deleted",
            remedy="Name a snapshot that `tidegate checkpoints` lists as completed",
        ) from error
    except (ValueError, AttributeError) as error:
        raise SnapshotError(
            f"the metadata of snapshot {path} is damaged", where=where, remedy="Restore another snapshot"
        ) from error
    return body if isinstance(body, Mapping) else {}


def has_deleted_checkpoints(last: Spec, view: JobView) -> bool:
    """Return whether a job has ended and has deleted its checkpoints (S2.3). `last` is its newest submission."""
    ended = view.settled.status in (JobStatus.FINISHED, JobStatus.CANCELED)
    return ended and last.options.get("retention") == "delete"


def _refuse_deleted(path: str, where: str, last: Spec, view: JobView) -> None:
    """Raise SnapshotError if the job deleted its checkpoints when it ended (S2.3)."""
    if has_deleted_checkpoints(last, view):
        raise SnapshotError(
            f"checkpoint {path} was deleted when the job ended",
            where=where,
            cause=f"the job is {view.settled.status}, and its option retention is 'delete'",
            remedy="Restore a savepoint, or start the job without a snapshot. With retention=keep, checkpoints would "
            "stay",
        )
