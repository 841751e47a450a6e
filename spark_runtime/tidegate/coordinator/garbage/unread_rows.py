"""Find rows of DataFrames in the job directory that no submission reads any more (S4.2).

The rows were written for a streaming submission. `garbage_collection` deletes them from outside a driver, if no kept
snapshot has positions in them, and no submission may still begin to read them. Files that a driver wrote without
recording them are not read by any submission.

A savepoint that is not in its location counts as moved, and forks start from savepoints. Such a savepoint therefore
keeps the rows of all submissions that it descends from, because there is no other copy of these rows. A savepoint that
its user has deleted with `tidegate delete-savepoint` keeps none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tidegate.channel.elements import SAVEPOINT_KINDS
from tidegate.coordinator.recovery.restore_point import end_status
from tidegate.errors import SnapshotError, StoreError
from tidegate.jobs.artifacts.materialised_rows import Materialised, submissions_read
from tidegate.jobs.codec import read_record
from tidegate.jobs.deleted_savepoints import deleted_savepoints
from tidegate.jobs.history.checkpoints import CheckpointView, RecoveryPoints, checkpoint_views
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision, Spec
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder
from tidegate.jobs.stores.store import Store
from tidegate.snapshot.metadata import read_metadata


@dataclass(frozen=True)
class UnreadRows:
    """Rows that may be deleted.

    Attributes:
        paths: whole folders of submissions, and single files of other submissions.
        files: the members of `paths` that are files.
        kept: why folders are kept although no existing snapshot has positions in them; "": none are.
    """

    paths: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()
    kept: str = ""


def find_unread_rows(
    store: Store, layout: JobLayout, decisions: Sequence[Decision], specs: Sequence[Spec], gone: Collection[str]
) -> UnreadRows:
    """Return the rows that may be deleted.

    Args:
        decisions, specs: read shortly before, to be compared with their state afterwards.
        gone: folders of checkpoints that this collection deletes.

    Raises StoreError.
    """
    there = {int(name) for name in store.list(layout.all_materialised) if name.isdecimal()}
    fence = next((d for d in reversed(decisions) if d.kind == "fence"), None)
    if not there or fence is None:
        return UnreadRows()
    running_spec = fence.data["spec"]
    entries = entries_by_submission(decisions)
    views = checkpoint_views(entries, ended=False)
    points = RecoveryPoints(specs, entries, views)
    needed = {n for n in there if n > running_spec}
    if end_status(decisions, running_spec) is None:  # it runs, or may be started again
        needed |= points.lineage(running_spec).keys()
    deleted = deleted_savepoints(store, layout)
    moved: dict[int, int] = {}  # submission -> a savepoint that may have been moved, and reads its rows
    for view in views:
        # Once all rows are known to be needed, no further snapshot is read: each one costs a read of its `_metadata`.
        if view.status != "completed" or view.path in gone or needed >= there:
            continue
        try:
            read = _read_by(store, layout, specs, view)
        except (SnapshotError, StoreError) as error:
            return UnreadRows(kept=f"{view.kind} {view.checkpoint_id} cannot be read: {error}")
        if read is None and view.kind in SAVEPOINT_KINDS and view.path not in deleted:
            moved.update(dict.fromkeys(points.lineage(view.spec, view.checkpoint_id), view.checkpoint_id))
        needed |= read or set()
    stay = sorted(there & moved.keys() - needed)
    kept = ", ".join(f"{layout.materialised(n)} for savepoint {moved[n]}" for n in stay)
    kept += (
        ", which was moved or deleted. Delete the folder yourself when no copy of the savepoint is left" if stay else ""
    )
    unread = [layout.materialised(n) for n in sorted(there - needed - moved.keys())]
    strays = [path for n in sorted(needed - {running_spec} | {*stay}) for path in _unrecorded_files(store, layout, n)]
    return UnreadRows((*unread, *strays), frozenset(strays), kept)


def _read_by(store: Store, layout: JobLayout, specs: Sequence[Spec], view: CheckpointView) -> frozenset[int] | None:
    """Return the submissions in whose rows the snapshot has positions, or None if the snapshot does not exist."""
    options = next((spec.storage_options for spec in specs if spec.number == view.spec), {})
    holder, folder = open_snapshot_folder(store, options, view.path)
    if not holder.exists(layout.metadata(folder)):
        return None
    metadata = read_metadata(holder, folder)
    finished = [operator.uid for operator in metadata.operators if operator.status == "finished"]
    return submissions_read(metadata.splits, finished, layout.job_id)


def _unrecorded_files(store: Store, layout: JobLayout, number: int) -> list[str]:
    """Return files of the submission that no record names, of sources that have a record."""
    found = store.walk(layout.materialised(number))
    records = [path for path in found if path.endswith(".json")]
    counted = {str(file["path"]) for path in records for file in read_record(store, path, Materialised).files}
    sources = tuple(f"{path.removesuffix('.json')}.g" for path in records)
    return [path for path in found if path.startswith(sources) and path not in counted and path not in records]
