"""Deletion of a savepoint that its user no longer needs. The runtime itself never deletes an unclaimed savepoint
(S2.3).

A deletion and a restore may meet. This is why the order of the steps is safe, without a lock:

1. Nothing is deleted while a submission of any job of the root may still start from the savepoint, or a verdict needs
it.
2. `_metadata` is deleted first. From then on the folder is no snapshot: a submission that names it is refused, and a
driver that finds it missing refuses its submission before anything runs.
3. The submissions are read again. If one that names the savepoint was created in the meantime, `_metadata` is written
back, and the deletion is refused.
4. A record of the deletion is created, and the other files are deleted. So no driver ever reads a part of a savepoint.

By the record, `tidegate gc` knows that the savepoint was not moved, and deletes what only the savepoint needed: staged
data of sinks, rows of DataFrames, and what sources own.

A savepoint is self-contained: no other snapshot uses its files (ADR 0007). Its folder may be among a user's own
folders, so only files that the savepoint's run wrote are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tidegate.clock import iso
from tidegate.errors import (
    AlreadyExistsError,
    CommandRefusedError,
    NotFoundError,
    OptionError,
    SnapshotError,
    StoreError,
)
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.history.checkpoints import named_snapshots
from tidegate.jobs.history.verdicts import find_verdicts
from tidegate.jobs.json_documents import MAX_METADATA_BYTES, JsonDocumentError, parse_json, read_bounded
from tidegate.jobs.layout import JobLayout, job_ids
from tidegate.jobs.records import Decision, DeletedSavepoint, encode
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder, relative_path
from tidegate.jobs.status import CheckpointView, JobStatus, JobView
from tidegate.jobs.stores.store import Store

SAVEPOINT_KINDS = ("savepoint", "stop-savepoint")
STATE_SUFFIXES = (".state", ".blobs")
"""Suffixes of the files that subtasks write into the folder of a snapshot."""
MAX_NAMED = 10
"""Most savepoints that an error names."""


@dataclass(frozen=True, slots=True)
class SavepointDeletion:
    """Result of a deletion, or of a dry run.

    Attributes:
        checkpoint_id: id of the savepoint.
        path: its folder, as in the decision log.
        deleted: False: it was gone already, or it is a dry run.
        existed: whether any of its files existed.
        size_bytes: size of its files.
        left: files in its folder that its run did not write. They stay, and so does the folder.
    """

    checkpoint_id: int
    path: str
    deleted: bool
    existed: bool
    size_bytes: int
    left: tuple[str, ...] = ()


def delete_savepoint(
    job: JobDirectory, savepoint: int | str, *, by: str, also_latest: bool = False, dry_run: bool = False
) -> SavepointDeletion:
    """Delete a savepoint of the job. Idempotent: a savepoint that is gone already is a success. Blocks on the store.

    If its user has deleted the folder without this function, the call only records the deletion.

    Args:
        savepoint: its number, or its path: relative to the root, absolute, or a URL.
        by: name of the caller, for readers.
        also_latest: delete it also if the job has ended and would be restored from it. The job then cannot be restored
            from its latest recovery point, and output of the savepoint that is not committed is lost.
        dry_run: check everything, and delete nothing.

    Raises:
        JobNotFoundError: there is no such job.
        SnapshotError: the job has no such savepoint, it never completed, or its folder holds another snapshot.
        OptionError: the snapshot is not a savepoint.
        CommandRefusedError: a job may still start from it, or its output waits for a verdict.
        StoreError: some files may be left; repeat the call.
    """
    snapshot = _find(job, job.view(), savepoint)
    claim = next(d for d in job.decisions() if d.kind == "claim" and d.data["checkpoint_id"] == snapshot.checkpoint_id)
    store, folder = open_snapshot_folder(job.store, job.storage_options, snapshot.path)
    folder = folder.rstrip("/")
    metadata = _own_metadata(store, folder, claim, f"job {job.job_id}, {snapshot.path}")
    files = [path for path in store.walk(folder) if _is_own(path, folder, claim)]
    size_bytes = sum(_sizes(store, files)) + len(metadata or b"")
    if metadata is None and not files:
        with suppress(CommandRefusedError):  # a moved copy may still be needed: then the deletion is not recorded
            _refuse_if_needed(job, snapshot, also_latest=also_latest)
            if not dry_run:
                _record(job, snapshot, by)
        return SavepointDeletion(snapshot.checkpoint_id, snapshot.path, False, False, 0)
    _refuse_if_needed(job, snapshot, also_latest=also_latest)
    if dry_run:
        return SavepointDeletion(snapshot.checkpoint_id, snapshot.path, False, True, size_bytes)
    if metadata is not None:
        store.delete(JobLayout.metadata(folder))
        try:
            _refuse_if_needed(job, snapshot, also_latest=also_latest)
        except (CommandRefusedError, StoreError):
            with suppress(AlreadyExistsError):
                store.create(JobLayout.metadata(folder), metadata)
            raise
    _record(job, snapshot, by)
    for path in files:
        store.delete(path)
    left = tuple(store.walk(folder))
    if not left:
        store.delete_folder(folder)
    return SavepointDeletion(snapshot.checkpoint_id, snapshot.path, True, True, size_bytes, left)


def _record(job: JobDirectory, snapshot: CheckpointView, by: str) -> None:
    record = DeletedSavepoint(snapshot.checkpoint_id, snapshot.path, iso(job.now()), by)
    with suppress(AlreadyExistsError):
        job.store.create(job.layout.deletion(snapshot.checkpoint_id), encode(record))


def _find(job: JobDirectory, view: JobView, savepoint: int | str) -> CheckpointView:
    where = f"job {job.job_id}"
    named = relative_path(job.store, savepoint) if isinstance(savepoint, str) else savepoint
    found = next((c for c in reversed(view.checkpoints) if named in (c.checkpoint_id, c.path)), None)
    if found is None:
        known = ", ".join(str(c.checkpoint_id) for c in view.completed if c.kind in SAVEPOINT_KINDS)
        raise SnapshotError(
            f"the job has no savepoint {savepoint}",
            where=where,
            cause=f"its savepoints are {known}" if known else "the job has taken none",
            remedy="Name a savepoint that `tidegate checkpoints` lists. Delete a savepoint that was moved or copied "
            "yourself: the job directory does not know it",
        )
    if found.kind not in SAVEPOINT_KINDS:
        raise OptionError(
            f"{found.kind} {found.checkpoint_id} is not a savepoint",
            where=where,
            cause="checkpoints belong to the job, which deletes them itself",
            remedy="Name a savepoint. `tidegate gc` deletes checkpoints that are not needed any more",
        )
    if found.status != "completed":
        raise SnapshotError(
            f"{found.kind} {found.checkpoint_id} is {found.status}, not completed",
            where=where,
            remedy="`tidegate gc` deletes the files of savepoints that never completed",
        )
    return found


def _own_metadata(store: Store, folder: str, claim: Decision, where: str) -> bytes | None:
    """Return the `_metadata` that the savepoint's run wrote; None: there is none. Raises SnapshotError if it belongs to
    another snapshot."""
    try:
        data = read_bounded(store, JobLayout.metadata(folder), max_bytes=MAX_METADATA_BYTES)
    except NotFoundError:
        return None
    try:
        body: Mapping[str, Any] = parse_json(data, max_bytes=MAX_METADATA_BYTES)["body"]
        own = (body["job_id"], body["generation"], body["run_id"], body["checkpoint_id"])
    except (JsonDocumentError, KeyError, TypeError) as error:
        raise SnapshotError(
            "the savepoint is not deleted, because its metadata is damaged and does not show who wrote it",
            where=where,
            cause=repr(error),
            remedy="Check the folder, and delete it yourself",
        ) from error
    if own[1:] != (claim.generation, claim.run_id, claim.data["checkpoint_id"]):
        raise SnapshotError(
            "the savepoint is not deleted, because its folder holds another snapshot",
            where=where,
            cause=f"snapshot {own[3]} of job {own[0]} was written there later",
            remedy="Check the folder, and delete it yourself",
        )
    return data


def _is_own(path: str, folder: str, claim: Decision) -> bool:
    """Return whether the savepoint's run wrote the file. Subtasks write directly into the folder."""
    inside = path.removeprefix(f"{folder}/")
    written = f"-g{claim.generation}-{claim.run_id}-"
    return bool(claim.run_id) and "/" not in inside and written in inside and inside.endswith(STATE_SUFFIXES)


def _sizes(store: Store, paths: list[str]) -> Iterator[int]:
    for path in paths:
        with suppress(NotFoundError):
            yield store.stat(path).size_bytes


def _refuse_if_needed(job: JobDirectory, snapshot: CheckpointView, *, also_latest: bool) -> None:
    """Raise CommandRefusedError if a submission of a job of the root may start from the savepoint, or a verdict needs
    it (S7.8, S9.3)."""
    view = job.view()
    what = f"{snapshot.kind} {snapshot.checkpoint_id} cannot be deleted"
    where = f"job {job.job_id}, {snapshot.path}"
    _refuse_pinned(job, view, snapshot, what, where)
    latest = view.latest_recovery_point
    if not view.is_terminal and snapshot.path in _started_from(job, latest):
        raise CommandRefusedError(
            f"{what}: the job starts from it",
            where=where,
            cause=f"submission {view.spec_number} is {view.status}, and has not completed a newer checkpoint",
            remedy="Wait for its next checkpoint, or end the job first",
        )
    if latest is not None and latest.path == snapshot.path and not also_latest:
        lost = ", and its output is not committed" if snapshot.sinks and not snapshot.committed else ""
        raise CommandRefusedError(
            f"{what}: it is the latest recovery point of the job",
            where=where,
            cause=f"the job is {view.settled.status} and would be restored from it{lost}",
            remedy="If the job will not be restored, pass --also-latest (also_latest=True)",
        )
    for job_id in job_ids(job.store.list("")):
        if job_id != job.job_id and _starts_from(JobDirectory(job.store, job_id), snapshot.path):
            raise CommandRefusedError(
                f"{what}: job {job_id!r} starts from it",
                where=where,
                cause=f"job {job_id!r} has not ended, or failed, and has not completed a checkpoint of its own",
                remedy=f"Wait for its next checkpoint, or cancel job {job_id!r} first",
            )


def _refuse_pinned(job: JobDirectory, view: JobView, snapshot: CheckpointView, what: str, where: str) -> None:
    specs, decisions = job.specs(), job.decisions()
    for number in {view.followed, view.spec_number} - {0}:
        if snapshot.checkpoint_id in find_verdicts(specs, decisions, number).pinned:
            raise CommandRefusedError(
                f"{what}: its output, or output before it, waits for a verdict or for its commit",
                where=where,
                remedy="Approve or reject the output first (`tidegate approve`, `tidegate reject`, `tidegate "
                "commit-pending`)",
            )


def _started_from(job: JobDirectory, latest: CheckpointView | None) -> frozenset[str]:
    """Return the snapshots that the running submission of a job, and newer submissions, start from."""
    decisions, specs = job.decisions(), job.specs()
    running = next((d.data["spec"] for d in reversed(decisions) if d.kind == "fence"), 1)
    return named_snapshots(decisions, specs, running) | ({latest.path} if latest is not None else frozenset())


def _starts_from(other: JobDirectory, path: str) -> bool:
    """Return whether another job may still start from the snapshot. Raises StoreError, also for an unreadable job."""
    restores = [spec.restore for spec in other.specs() if spec.restore is not None]
    if path not in {relative_path(other.store, restore.path) for restore in restores if restore.path is not None}:
        return False
    view = other.view()
    # A failed fork may be restored, a finished or cancelled one is over, and so is every refused start of it.
    if view.settled.status in (JobStatus.FINISHED, JobStatus.CANCELED):
        return False
    return path in _started_from(other, view.latest_recovery_point)
