"""Finding the snapshot that a submission wants to start from, before anything is started (S9.3)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tidegate.clock import parse_iso
from tidegate.errors import NotFoundError, OptionError, SnapshotError
from tidegate.jobs.artifacts.materialised_rows import submissions_read
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import RestoreFrom, Spec
from tidegate.jobs.status import CheckpointView, JobStatus, JobView
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.units import format_duration


def refuse_older_than(name: str, completed_at: str | None, limit: timedelta, now: datetime, *, where: str) -> None:
    """Raise SnapshotError when a snapshot is older than it may be.

    Args:
        name: of the snapshot, for people.
        completed_at: recorded time of its completion; None or no time: its age is not known, which is refused, too.
        limit: greatest age.
        now: with zone.
        where: the job.
    """
    remedy = "Name a newer snapshot (`tidegate checkpoints`), allow a greater age, or start the job afresh"
    try:
        age = now - parse_iso(completed_at or "")
    except ValueError:
        raise SnapshotError(
            f"how old {name} is cannot be told, and it may be {format_duration(limit)} old at most",
            where=where,
            cause=f"its completion is recorded as {completed_at!r}",
            remedy=remedy,
        ) from None
    if age > limit:
        whole_s = timedelta(seconds=round(age.total_seconds()))
        raise SnapshotError(
            f"{name} is {format_duration(whole_s)} old, and may be {format_duration(limit)} old at most",
            where=where,
            cause=f"it completed at {completed_at}; nothing was submitted",
            remedy=remedy,
        )


@dataclass(frozen=True, slots=True)
class ResolvedRestore:
    """A snapshot that is there.

    Attributes:
        restore: as the spec records it: paths below the root relative to it. "latest" stays open: the driver chooses
            after its fence, so that what an older driver completes in between is not lost.
        lineage: that the submission continues; None: a fork, which gets its own (S7.4).
        name: of the snapshot, for people; of "latest" what that is now.
        completed_at: recorded time of its completion; None: not recorded.
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
    """Check that what `restore` names is there and complete.

    Args:
        specs: earlier submissions of the job.
        view: the job as it is; None when it has never been submitted.

    Raises:
        SnapshotError: nothing to restore, or not a complete snapshot.
        OptionError: a claim to a snapshot that is not the job's.
    """
    where = f"job {job_id}"
    if restore.kind == "latest":
        point = view.latest_recovery_point if view is not None else None
        if point is None:
            raise SnapshotError(
                "there is nothing to restore from",
                where=where,
                cause="the job was not started from a snapshot, and has completed no checkpoint that was not rejected",
                remedy="Start it anew, or name a savepoint",
            )
        document = _metadata(store, storage_options, point.path, where, specs, view)
        latest = replace(restore, path=None, checkpoint_id=None)
        assert view is not None, "a snapshot was found in it"
        lineage = _lineage_of(specs, point.spec or view.followed)
        return ResolvedRestore(latest, lineage, _name(point, point.path), _completed_at(point, document))
    if restore.path is None:
        return _by_id(store, storage_options, restore, specs, view, where)
    path = _relative(store, restore.path)
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
            f"{path} cannot be claimed",
            where=where,
            cause="the job's log does not hold it: it was moved here, or another job took it",
            remedy="Restore it without a claim, and delete it yourself when it is not needed any more",
        )
    _refuse_foreign_rows(document, job_id, path, where)
    own = document.get("job_id") == job_id and any(spec.lineage == document.get("lineage") for spec in specs)
    lineage = str(document["lineage"]) if own else None
    return ResolvedRestore(restore, lineage, _name(None, path), _completed_at(None, document))


def open_snapshot_folder(store: Store, storage_options: Mapping[str, Any], path: str) -> tuple[Store, str]:
    """Store and folder of a snapshot: `path` is relative to the root, absolute, or a URL."""
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
        there = ", ".join(str(c.checkpoint_id) for c in view.completed[-10:]) if view is not None else ""
        raise SnapshotError(
            f"checkpoint {wanted} was never completed" if known is not None else f"there is no checkpoint {wanted}",
            where=where,
            cause=f"completed are {there}" if there else "none has completed",
            remedy="`tidegate checkpoints` lists what can be restored",
        )
    _refuse_missing(known, where)
    document = _metadata(store, storage_options, known.path, where, specs, view)
    named = replace(restore, path=known.path)
    lineage = _lineage_of(specs, known.spec)
    return ResolvedRestore(named, lineage, _name(known, known.path), _completed_at(known, document))


def _name(known: CheckpointView | None, path: str) -> str:
    """A snapshot in words. One from outside has no id that this job's log knows."""
    if known is None or not known.checkpoint_id:
        return f"snapshot {path}"
    return f"{known.kind} {known.checkpoint_id}"


def _completed_at(known: CheckpointView | None, document: Mapping[str, Any]) -> str | None:
    """From the log, else from the metadata, which is written last."""
    told = known.completed_at if known is not None and known.completed_at else document.get("created_at")
    return told if isinstance(told, str) else None


def _refuse_missing(known: CheckpointView, where: str) -> None:
    """What a verdict rejected must never be committed (S7.8); the state of one whose rows were taken back counts them
    (S9.3)."""
    if known.taken_back:
        raise SnapshotError(
            f"sinks have taken back what {known.kind} {known.checkpoint_id} had committed",
            where=where,
            cause="a restore with on_committed_after=rewind went back past it; its state counts rows that are gone",
            remedy="Restore the latest, or another (`tidegate checkpoints`)",
        )
    if known.verdict == "rejected":
        raise SnapshotError(
            f"{known.kind} {known.checkpoint_id} was rejected, or came after one that was",
            where=where,
            remedy="Restore the latest, which is in front of it, or another (`tidegate checkpoints`)",
        )


def _refuse_foreign_rows(document: Mapping[str, Any], job_id: str, path: str, where: str) -> None:
    """The rows that a job wrote down of a DataFrame go with its checkpoints; its savepoints keep them (S4.2)."""
    other = str(document.get("job_id") or "")
    if other in ("", job_id) or document.get("kind") in ("savepoint", "stop-savepoint"):
        return
    finished = [operator["uid"] for operator in document.get("operators", ()) if operator["status"] == "finished"]
    if submissions_read(document.get("splits", {}), finished, other):
        raise SnapshotError(
            f"checkpoint {path} has positions in rows of a DataFrame, which job {other} may delete at any time",
            where=where,
            cause="they are kept for its own checkpoints, and for its savepoints",
            remedy=f"Take a savepoint of job {other}, and start from that",
        )


def _lineage_of(specs: Sequence[Spec], number: int) -> str | None:
    return next((spec.lineage for spec in specs if spec.number == number), None)


def _relative(store: Store, path: str) -> str:
    """A path below the root as the log writes it."""
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
    """Body of a snapshot's metadata as far as its job and lineage are concerned; the driver checks all of it."""
    try:
        holder, folder = open_snapshot_folder(store, storage_options, path)
        body = json.loads(holder.read(JobLayout.metadata(folder))).get("body", {})
    except NotFoundError as error:
        if view is not None and path.startswith(f"{JobLayout(view.job_id).checkpoints}/"):
            _refuse_deleted(path, where, specs[-1], view)
        raise SnapshotError(
            f"{path} is not a complete snapshot",
            where=where,
            cause="it has no _metadata: never completed, or deleted since",
            remedy="`tidegate checkpoints` lists what can be restored",
        ) from error
    except (ValueError, AttributeError) as error:
        raise SnapshotError(
            f"the metadata of {path} is damaged", where=where, remedy="Restore another snapshot"
        ) from error
    return body if isinstance(body, Mapping) else {}


def has_deleted_checkpoints(last: Spec, view: JobView) -> bool:
    """Whether a job has ended and deleted its checkpoints with it (S2.3). Args: last: its newest submission."""
    return view.status in (JobStatus.FINISHED, JobStatus.CANCELED) and last.options.get("retention") == "delete"


def _refuse_deleted(path: str, where: str, last: Spec, view: JobView) -> None:
    """Checkpoints go with the job that ended, when it says so (S2.3)."""
    if has_deleted_checkpoints(last, view):
        raise SnapshotError(
            f"{path} was deleted when the job ended",
            where=where,
            cause=f"submission {last.number} is {view.status}, and its option retention is 'delete'",
            remedy="Restore a savepoint, or start the job again; with retention=keep checkpoints stay",
        )
