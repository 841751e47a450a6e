"""Collect garbage of a job from outside a driver: `tidegate gc` (S2.3).

Works with no job running, and next to a running job, without a fence. Why this is safe:

- A folder is deleted only if the log, read after the listing, shows that its checkpoint is over: aborted, claimed by an
earlier generation and never completed, or completed and retired by the drivers' own rule. No later entry can make it a
recovery point again. The folders that submissions name are checked again right before a deletion. Claims of the current
driver are left to that driver.
- A shared file is deleted only if no existing completed checkpoint uses it, and no pending checkpoint might
(`shared_files.split_deletable`). A checkpoint that cannot be read keeps all shared files.
- If a savepoint was never completed, the files that its run wrote are deleted, wherever they are
(`unfinished_savepoints`).
- Rows of a DataFrame have rules of their own (`unread_rows`).
- Pinned code is deleted only if no submission names it. A submission that is just being made uploads code again that it
finds there, so that the files are young (`artifact.upload`).
- Only files older than a grace period are deleted. It covers what the log cannot show: zombies that still write, stale
listings, and a driver that deletes at the same time.

The order of reads matters: first the listing, then the log. Files that are created in between are not in the listing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from tidegate.coordinator.garbage.abandoned_checkpoints import find_abandoned_folders
from tidegate.coordinator.garbage.shared_files import OWNED_KINDS, pending_checkpoint_ids, split_deletable
from tidegate.coordinator.garbage.unfinished_savepoints import (
    UnfinishedSavepoint,
    delete_unfinished,
    existing_files,
    unfinished_savepoints,
)
from tidegate.coordinator.garbage.unread_rows import UnreadRows, find_unread_rows
from tidegate.errors import NotFoundError, SnapshotError
from tidegate.jobs.history.checkpoints import named_snapshots
from tidegate.jobs.layout import SHA256_PATTERN, JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Decision, Spec
from tidegate.jobs.status import JobStatus
from tidegate.jobs.stores.store import ObjectStat, Store
from tidegate.snapshot.location import open_location
from tidegate.snapshot.metadata import read_metadata

Why = Literal["unfinished", "retired", "unused", "unnamed", "unread"]

DEFAULT_GRACE = timedelta(hours=1)
"""Longer than any checkpoint timeout and than a zombie lives."""


@dataclass(frozen=True)
class CollectedItem:
    """An item that was deleted, or would be in a dry run.

    Attributes:
        path: a checkpoint's folder, a shared file, rows of a DataFrame, or the folder of pinned code, relative to the
            root; or the location of a savepoint.
        why: "unfinished": the checkpoint or savepoint was never completed; "retired": it is not needed any more;
            "unused": no checkpoint uses the file; "unnamed": no submission names the code; "unread": no snapshot has
            positions in the rows.
        size_bytes: total size of its files.
    """

    path: str
    why: Why
    size_bytes: int


@dataclass(frozen=True)
class CollectionReport:
    """Result of a collection, or of a dry run.

    Attributes:
        collected: deleted folders of checkpoints, shared files and code.
        too_young: number of items that are not needed, and not older than the grace period.
        kept_back: why no shared files were deleted; "": they were checked.
        rows_kept: why rows of DataFrames were kept although no existing snapshot has positions in them; "": none were.
        savepoints_kept: why unfinished savepoints in some locations were kept.
    """

    collected: tuple[CollectedItem, ...]
    too_young: int
    kept_back: str
    rows_kept: str = ""
    savepoints_kept: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes that the collection freed."""
        return sum(one.size_bytes for one in self.collected)


@dataclass(frozen=True)
class CollectionPlan:
    """The items that are not needed any more.

    Attributes:
        folders: folders of checkpoints, and unfinished savepoints -> why.
        too_young: number of such folders that are not old enough.
        files: names of shared files.
        kept_back: why `files` is empty; "": shared files were checked.
    """

    folders: Mapping[str, Why]
    too_young: int
    files: tuple[str, ...]
    kept_back: str


def plan_collection(
    decisions: Sequence[Decision],
    specs: Sequence[Spec],
    folders: Collection[str],
    files: Sequence[str],
    used_by: Callable[[str], frozenset[str]],
    is_old: Callable[[str], bool],
    *,
    keep: int | None = None,
) -> CollectionPlan:
    """Decide by reachability from the log, the submissions, `_metadata` files and pending claims.

    Reads only through `used_by` and `is_old`.

    Args:
        folders: existing folders of checkpoints and unfinished savepoints, listed before the log was read.
        files: names in the shared folder, listed before the log was read.
        used_by: folder of a completed checkpoint -> names of the shared files that it uses. Raises SnapshotError.
        is_old: whether a folder is old enough to be deleted. A folder that is too young still uses its files.
        keep: number of newest recovery points to keep; None: `retained_checkpoints` of the newest submission that ran.
    """
    fence = next((d for d in reversed(decisions) if d.kind == "fence"), None)
    if fence is None:
        return CollectionPlan({}, 0, (), "no driver of the job has ever run" if files else "")
    spec = next(spec for spec in specs if spec.number == fence.data["spec"])
    is_over = has_ended(decisions)
    # Claims of the newest generation are left to its driver. After
    # the end of the job that driver is gone, so they are garbage too.
    generation = fence.generation + 1 if is_over else fence.generation
    garbage = find_abandoned_folders(
        decisions,
        folders,
        specs,
        spec_number=spec.number,
        generation=generation,
        retained=keep or JobOptions.from_mapping(spec.options).retained_checkpoints,
        # The pipeline is not built here. Without its sinks, the safe
        # assumption is that the last committed checkpoint is needed.
        commits=True,
    )
    completed = completed_folders(decisions)
    why: dict[str, Why] = {g.path: "retired" if g.path in completed else "unfinished" for g in garbage}
    found = {path: reason for path, reason in why.items() if is_old(path)}
    too_young = len(why) - len(found)
    pending = frozenset[int]() if is_over else pending_checkpoint_ids(decisions, generation)
    # Named snapshots are needed even if the listing lacks them: a listing may be stale, and then all shared files are
    # kept. A job that deleted its checkpoints when it ended has none that could be missing.
    named = named_snapshots(decisions, specs, spec.number)
    has_deleted = spec.number == specs[-1].number and deletes_checkpoints_at_end(decisions, spec)
    if has_deleted:
        named = frozenset()
    needed = completed & (set(folders) | named) - found.keys()
    used: set[str] = set()
    try:
        for folder in sorted(needed):
            with _allowing_missing_metadata(has_deleted):
                used |= used_by(folder)
    except SnapshotError as error:
        return CollectionPlan(found, too_young, (), f"a checkpoint that is kept cannot be read: {error}")
    unused, held = split_deletable(files, used, {}, pending)
    waits = f"pending checkpoints {sorted(pending)} may use {len(held)} of these files" if held else ""
    return CollectionPlan(found, too_young, tuple(unused), waits)


@contextmanager
def _allowing_missing_metadata(allowed: bool) -> Iterator[None]:
    """Ignore a missing `_metadata`, if allowed: the folder of a deleted checkpoint may hold files that a slot of the
    dead driver wrote later."""
    try:
        yield
    except SnapshotError as error:
        if not allowed or not isinstance(error.__cause__, NotFoundError):
            raise


def deletes_checkpoints_at_end(decisions: Sequence[Decision], spec: Spec) -> bool:
    """Return whether the job has ended and its driver, or the process that cancelled it, deletes its checkpoints
    (S2.3).

    Args:
        spec: submission of the newest generation.
    """
    status = last_status(decisions)
    deletes = JobOptions.from_mapping(spec.options).retention == "delete"
    # A stop keeps the state: a job that was cancelled because a stop took too long has its data in the status.
    return deletes and status.get("status") in (JobStatus.FINISHED, JobStatus.CANCELED) and not status.get("stop")


def completed_folders(decisions: Sequence[Decision]) -> set[str]:
    """Return the folders of checkpoints that were completed, whether or not they still exist."""
    return {d.data["path"] for d in decisions if d.kind == "complete" and d.data["kind"] in OWNED_KINDS}


def collect_garbage(
    store: Store,
    layout: JobLayout,
    read_log: Callable[[], Sequence[Decision]],
    read_specs: Callable[[], Sequence[Spec]],
    *,
    now: datetime,
    older_than: timedelta = DEFAULT_GRACE,
    keep: int | None = None,
    dry_run: bool = False,
) -> CollectionReport:
    """Delete files that are not needed and older than `older_than`, by the store's own times.

    Blocks. May be repeated, and interrupted at any point.

    Args:
        keep: see `plan_collection`.
        dry_run: delete nothing, only report.

    Raises:
        StoreError: the store failed; some files may already be deleted.
        RecordError: the log cannot be read; nothing was deleted.
    """
    # Listed before the log is read: files of checkpoints that are claimed later are not in the lists.
    files = store.list(layout.shared)
    folders = [f"{layout.checkpoints}/{name}" for name in store.list(layout.checkpoints)]
    # This read of the log only finds the locations to list. The plan reads the log again, after all listings.
    savepoints = _Savepoints.of(store, read_log(), read_specs)

    def is_old(path: str) -> bool:
        where, folder = savepoints.opened(path)
        return sweep.is_old(where.walk(folder), where)

    def used_by(folder: str) -> frozenset[str]:
        return read_metadata(store, folder).shared_files()

    sweep = _Sweep(store, layout, read_log, read_specs, now, older_than, dry_run)
    present = [*folders, *sorted(savepoints.left)]
    plan = plan_collection(read_log(), read_specs(), present, files, used_by, is_old, keep=keep)
    sweep.too_young = plan.too_young
    kept_back = sweep.folders(plan.folders, savepoints)
    if not kept_back:
        sweep.shared_files(plan.files)
    rows_kept = sweep.unread_rows()
    sweep.artifacts()
    kept_back = kept_back or plan.kept_back
    return CollectionReport(tuple(sweep.collected), sweep.too_young, kept_back, rows_kept, tuple(savepoints.kept))


@dataclass(frozen=True)
class _Savepoints:
    """Unfinished savepoints. `left`: locations that have files; `kept`: why other locations are left alone."""

    store: Store
    spec: Spec | None
    by_location: Mapping[str, UnfinishedSavepoint]
    left: Collection[str]
    kept: Sequence[str]

    @classmethod
    def of(cls, store: Store, decisions: Sequence[Decision], read_specs: Callable[[], Sequence[Spec]]) -> _Savepoints:
        savepoints = unfinished_savepoints(decisions)
        submitted = read_specs() if savepoints else ()
        if not submitted:
            return cls(store, None, savepoints, (), ())
        return cls(store, submitted[-1], savepoints, *existing_files(store, submitted[-1], [*savepoints]))

    def opened(self, location: str) -> tuple[Store, str]:
        """Return store and folder of a savepoint's location, or of a checkpoint's folder."""
        if location not in self.by_location or self.spec is None:
            return self.store, location
        return open_location(self.store, self.spec, location)

    def delete(self, location: str) -> None:
        """Delete the files that the savepoint's run wrote, or the folder of a checkpoint."""
        where, folder = self.opened(location)
        if location in self.by_location:
            delete_unfinished(where, folder, self.by_location[location])
        else:
            where.delete_folder(folder)


class _Sweep:
    """Delete items, unless it is a dry run, and count them."""

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        read_log: Callable[[], Sequence[Decision]],
        read_specs: Callable[[], Sequence[Spec]],
        now: datetime,
        older_than: timedelta,
        dry_run: bool,
    ) -> None:
        self._store, self._layout = store, layout
        self._read_log, self._read_specs = read_log, read_specs
        self._now, self._older_than, self._dry_run = now, older_than, dry_run
        self.collected: list[CollectedItem] = []
        self.too_young = 0

    def is_old(self, paths: Sequence[str], where: Store) -> bool:
        """Return whether all these files are old enough, by the times of their store."""
        times = [stat.modified for stat in _stats(where, paths)]
        return all(time is not None and self._now - time > self._older_than for time in times)

    def folders(self, planned: Mapping[str, Why], savepoints: _Savepoints) -> str:
        """Delete folders of checkpoints and unfinished savepoints. Return why shared files must be kept, or ""."""
        kept_back = ""
        for location, why in planned.items():
            if location in _referenced_now(self._read_log(), self._read_specs()):
                kept_back = f"a new submission starts from {location}, and may use these files"
                continue
            where, folder = savepoints.opened(location)
            self.collected.append(CollectedItem(location, why, _size_bytes(where, where.walk(folder))))
            if not self._dry_run:
                savepoints.delete(location)
        return kept_back

    def shared_files(self, names: Sequence[str]) -> None:
        """Delete shared files by name."""
        for path in map(self._layout.shared_file, names):
            if self._takes(path, "unused", [path]):
                self._store.delete(path)

    def unread_rows(self) -> str:
        """Delete unread rows of DataFrames. Return why some are kept, or ""."""
        specs = self._read_specs()
        gone = frozenset(one.path for one in self.collected)
        rows = find_unread_rows(self._store, self._layout, self._read_log(), specs, gone)
        # A new submission may restore a snapshot, and so begin to read rows that no submission seemed to need.
        if len(self._read_specs()) > len(specs):
            rows = UnreadRows(kept="the job has been submitted again during the collection")
        for path in rows.paths:
            held = [path] if path in rows.files else self._store.walk(path)
            if held and self._takes(path, "unread", held):
                for one in held:
                    self._store.delete(one)
        return rows.kept

    def artifacts(self) -> None:
        """Delete pinned code that no submission names."""
        for name in filter(SHA256_PATTERN.fullmatch, self._store.list(self._layout.artifacts)):
            path = self._layout.artifact(name)
            held = self._store.walk(path)
            size_bytes, old = _size_bytes(self._store, held), self.is_old(held, self._store)
            if name in {spec.artifact for spec in self._read_specs()}:  # read last: a submission may have arrived
                continue
            if self._counts(CollectedItem(path, "unnamed", size_bytes), old):
                self._store.delete_folder(path)

    def _takes(self, path: str, why: Why, held: Sequence[str]) -> bool:
        """Record an item with these files. Return whether it is to be deleted."""
        if not self.is_old(held, self._store):
            return self._counts(CollectedItem(path, why, 0), False)
        return self._counts(CollectedItem(path, why, _size_bytes(self._store, held)), True)

    def _counts(self, found: CollectedItem, old: bool) -> bool:
        if not old:
            self.too_young += 1
            return False
        self.collected.append(found)
        return not self._dry_run


def has_ended(decisions: Sequence[Decision]) -> bool:
    """Return whether the driver of the newest generation has recorded the end of the job."""
    status = last_status(decisions).get("status")
    return status is not None and JobStatus(status).is_terminal


def last_status(decisions: Sequence[Decision]) -> Mapping[str, Any]:
    """Return the data of the newest status entry of the newest generation; empty: it has recorded none."""
    last = next((d for d in reversed(decisions) if d.kind in ("status", "fence")), None)
    return last.data if last is not None and last.kind == "status" else {}


def _referenced_now(decisions: Sequence[Decision], specs: Sequence[Spec]) -> frozenset[str]:
    """Return the folders that submissions start from, with submissions that arrived during the collection."""
    fence = next(d for d in reversed(decisions) if d.kind == "fence")
    return named_snapshots(decisions, specs, fence.data["spec"])


def _stats(store: Store, paths: Sequence[str]) -> list[ObjectStat]:
    """Return the stats of the files that still exist: a driver may delete files at the same time."""
    found: list[ObjectStat] = []
    for path in paths:
        with suppress(NotFoundError):
            found.append(store.stat(path))
    return found


def _size_bytes(store: Store, paths: Sequence[str]) -> int:
    return sum(stat.size_bytes for stat in _stats(store, paths))
