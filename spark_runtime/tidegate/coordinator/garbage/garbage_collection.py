"""Collecting what nobody needs from outside of a driver: `tidegate gc` (S2.3).

Works with no job running, and beside a running one, without a fence. Why that is safe:

- A folder goes only when the log, read afterwards, says that its checkpoint is over: aborted, of an earlier reign, or
  completed and given up by the same rule as the drivers' own. No later entry can make it a restore point again, and
  what a submission names is looked up again right before. What the reigning driver has claimed is left to it.
- A shared file goes only when no completed checkpoint that is there uses it, and none is on its way that might
  (`shared_files.judge`); one that cannot be read keeps all of them.
- Of a savepoint that was never completed, wherever it lies, the files go that its run wrote
  (`unfinished_savepoints`).
- Rows of a DataFrame go by rules of their own (`unread_rows`).
- Pinned code goes only when no submission names it. What a submission that is being made has found there was written
  anew a moment ago (`artifact.upload`).
- Only what is older than a grace goes. It covers what the log cannot tell: zombies that still write, listings that lag,
  and a driver that deletes at the same time.

Order of reading matters: first what is there, then the log. What comes into being in between is not on the list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from tidegate.coordinator.garbage.abandoned_checkpoints import find_abandoned_folders, named_snapshots
from tidegate.coordinator.garbage.shared_files import OWNED_KINDS, pending_checkpoint_ids, split_deletable
from tidegate.coordinator.garbage.unfinished_savepoints import delete_unfinished, existing_files, unfinished_savepoints
from tidegate.coordinator.garbage.unread_rows import UnreadRows, find_unread_rows
from tidegate.errors import NotFoundError, SnapshotError
from tidegate.jobs.layout import SHA256_PATTERN, JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Decision, Spec
from tidegate.jobs.status import JobStatus
from tidegate.jobs.stores.store import ObjectStat, Store
from tidegate.snapshot.location import open_location
from tidegate.snapshot.metadata import read_metadata

Why = Literal["unfinished", "retired", "unused", "unnamed", "unread"]

DEFAULT_GRACE = timedelta(hours=1)
"""Longer than any checkpoint timeout and the life of a zombie."""


@dataclass(frozen=True)
class CollectedItem:
    """Something that went, or would go.

    Attributes:
        path: a checkpoint's folder, a shared file, rows of a DataFrame, or the folder of pinned code, below the root;
            or the location of a savepoint.
        why: "unfinished": the checkpoint or savepoint was never completed; "retired": it is not needed any more;
            "unused": no checkpoint uses the file; "unnamed": no submission names the code; "unread": no snapshot has
            positions in the rows.
        size_bytes: of all its files.
    """

    path: str
    why: Why
    size_bytes: int


@dataclass(frozen=True)
class CollectionReport:
    """What a collection did, or would do.

    Attributes:
        collected: folders of checkpoints, shared files, code.
        too_young: of these those that nobody needs and that are not older than the grace.
        kept_back: why shared files were left alone; "": they were not.
        rows_kept: why rows of DataFrames were, that no snapshot which is there has positions in; "": none were.
        savepoints_kept: why unfinished savepoints in some places were.
    """

    collected: tuple[CollectedItem, ...]
    too_young: int
    kept_back: str
    rows_kept: str = ""
    savepoints_kept: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """That are free now."""
        return sum(one.size_bytes for one in self.collected)


@dataclass(frozen=True)
class CollectionPlan:
    """What nobody needs.

    Attributes:
        folders: of checkpoints, and unfinished savepoints -> why.
        too_young: such folders, but that they are not old enough.
        files: shared ones, by name.
        kept_back: why no shared file is among them; "": they were judged.
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
    """Decide by reachability from log, submissions, `_metadata` and claims that are on their way. Reads by `used_by`
    and `is_old` alone.

    Args:
        folders: of checkpoints and unfinished savepoints that are there; `files`: names in the shared folder. Both were
            listed before the log was read.
        used_by: folder of a completed checkpoint -> names of the shared files it uses. Raises SnapshotError.
        is_old: of a folder. One that stays for its youth still uses its files.
        keep: newest recovery points that stay; None: `retained_checkpoints` of the newest submission that has run.
    """
    fence = next((d for d in reversed(decisions) if d.kind == "fence"), None)
    if fence is None:
        return CollectionPlan({}, 0, (), "no driver has ever run" if files else "")
    spec = next(spec for spec in specs if spec.number == fence.data["spec"])
    is_over = has_ended(decisions)
    generation = fence.generation + 1 if is_over else fence.generation
    garbage = find_abandoned_folders(
        decisions,
        folders,
        specs,
        spec_number=spec.number,
        generation=generation,
        retained=keep or JobOptions.from_mapping(spec.options).retained_checkpoints,
        commits=True,
    )
    completed = completed_folders(decisions)
    why: dict[str, Why] = {g.path: "retired" if g.path in completed else "unfinished" for g in garbage}
    found = {path: reason for path, reason in why.items() if is_old(path)}
    too_young = len(why) - len(found)
    pending = frozenset[int]() if is_over else pending_checkpoint_ids(decisions, generation)
    needed = completed & (set(folders) | named_snapshots(decisions, specs, spec.number)) - found.keys()
    try:
        used = {name for folder in sorted(needed) for name in used_by(folder)}
    except SnapshotError as error:
        return CollectionPlan(found, too_young, (), f"a checkpoint that stays cannot be read: {error}")
    unused, held = split_deletable(files, used, {}, pending)
    waits = f"checkpoints {sorted(pending)} are on their way and may use {len(held)} of them" if held else ""
    return CollectionPlan(found, too_young, tuple(unused), waits)


def completed_folders(decisions: Sequence[Decision]) -> set[str]:
    """Of checkpoints that were completed, whether or not they are there."""
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
    """Delete what nobody needs and is older than `older_than` by the store's own times. Blocks; may be repeated, and
    broken off anywhere.

    Args: keep: see `plan_collection`. dry_run: delete nothing, but tell.

    Raises:
        StoreError: the store cannot; some of it may be gone.
        RecordError: the log cannot be read; nothing was deleted.
    """
    files = store.list(layout.shared)
    folders = [f"{layout.checkpoints}/{name}" for name in store.list(layout.checkpoints)]
    savepoints = unfinished_savepoints(read_log())
    submitted = read_specs() if savepoints else ()
    left, savepoints_kept = existing_files(store, submitted[-1], [*savepoints]) if submitted else (set[str](), [])

    def used_by(folder: str) -> frozenset[str]:
        return read_metadata(store, folder).shared_files()

    def is_old(paths: Sequence[str], where: Store = store) -> bool:
        times = [stat.modified for stat in _stats(where, paths)]
        return all(time is not None and now - time > older_than for time in times)

    def opened(folder: str) -> tuple[Store, str]:
        return open_location(store, submitted[-1], folder) if folder in savepoints else (store, folder)

    def is_old_folder(folder: str) -> bool:
        where, inside = opened(folder)
        return is_old(where.walk(inside), where)

    plan = plan_collection(
        read_log(), read_specs(), [*folders, *sorted(left)], files, used_by, is_old_folder, keep=keep
    )
    collected: list[CollectedItem] = []
    too_young, unused, kept_back = plan.too_young, plan.files, plan.kept_back
    for folder, why in plan.folders.items():
        if folder in _referenced_now(read_log(), read_specs()):
            unused, kept_back = (), f"a submission starts from {folder} since a moment ago, and may use them"
            continue
        where, inside = opened(folder)
        collected.append(CollectedItem(folder, why, _size_bytes(where, where.walk(inside))))
        if not dry_run and folder in savepoints:
            delete_unfinished(where, inside, savepoints[folder])
        elif not dry_run:
            store.delete_folder(folder)
    for path in map(layout.shared_file, unused):
        if not is_old([path]):
            too_young += 1
            continue
        collected.append(CollectedItem(path, "unused", _size_bytes(store, [path])))
        if not dry_run:
            store.delete(path)
    specs = read_specs()
    rows = find_unread_rows(store, layout, read_log(), specs, frozenset(one.path for one in collected))
    if len(read_specs()) > len(specs):
        rows = UnreadRows(kept="the job was submitted anew a moment ago")
    for path in rows.paths:
        held = [path] if path in rows.files else store.walk(path)
        if not held:
            continue
        if not is_old(held):
            too_young += 1
            continue
        collected.append(CollectedItem(path, "unread", _size_bytes(store, held)))
        if not dry_run:
            for one in held:
                store.delete(one)
    for name in filter(SHA256_PATTERN.fullmatch, store.list(layout.artifacts)):
        path = layout.artifact(name)
        held = store.walk(path)
        size_bytes, young = _size_bytes(store, held), not is_old(held)
        if name in {spec.artifact for spec in read_specs()}:  # last: a submission may have come meanwhile
            continue
        if young:
            too_young += 1
            continue
        collected.append(CollectedItem(path, "unnamed", size_bytes))
        if not dry_run:
            store.delete_folder(path)
    return CollectionReport(tuple(collected), too_young, kept_back, rows.kept, tuple(savepoints_kept))


def has_ended(decisions: Sequence[Decision]) -> bool:
    """The newest reign's driver has said that the job is over."""
    last = next((d for d in reversed(decisions) if d.kind in ("status", "fence")), None)
    return last is not None and last.kind == "status" and JobStatus(last.data["status"]).is_terminal


def _referenced_now(decisions: Sequence[Decision], specs: Sequence[Spec]) -> frozenset[str]:
    """What submissions start from, the newest ones included."""
    fence = next(d for d in reversed(decisions) if d.kind == "fence")
    return named_snapshots(decisions, specs, fence.data["spec"])


def _stats(store: Store, paths: Sequence[str]) -> list[ObjectStat]:
    """Of those that are still there: a driver may delete at the same time."""
    found: list[ObjectStat] = []
    for path in paths:
        with suppress(NotFoundError):
            found.append(store.stat(path))
    return found


def _size_bytes(store: Store, paths: Sequence[str]) -> int:
    return sum(stat.size_bytes for stat in _stats(store, paths))
