"""Find savepoints that were started and will never complete, and delete their files (S2.3).

The folder of a savepoint may be among a user's own folders, and a job with the same id below another root may have used
the same folder name. So only files are deleted that the run of the claim wrote; the run's id is in their names. All
other files are kept, and then the folder is kept, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.channel.elements import SAVEPOINT_KINDS
from tidegate.errors import SnapshotError, StoreError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision, Spec
from tidegate.jobs.stores.store import Store
from tidegate.snapshot.location import open_location
from tidegate.snapshot.metadata import read_metadata

SUFFIXES = (".state", ".blobs")
"""Suffixes of files that subtasks write."""


@dataclass(frozen=True, slots=True)
class UnfinishedSavepoint:
    """A savepoint that is claimed, and not completed so far.

    Attributes:
        path: its location.
        generation, run_id: the run that claimed it.
    """

    path: str
    generation: int
    run_id: str


def unfinished_savepoints(decisions: Sequence[Decision]) -> Mapping[str, UnfinishedSavepoint]:
    """Return unfinished savepoints by location. Pure. Pending savepoints of the current driver are included."""
    done = {d.data["checkpoint_id"] for d in decisions if d.kind == "complete"}
    return {
        d.data["path"]: UnfinishedSavepoint(d.data["path"], d.generation, d.run_id)
        for d in decisions
        if d.kind == "claim" and d.data["kind"] in SAVEPOINT_KINDS and d.data["checkpoint_id"] not in done and d.run_id
    }


def existing_files(root: Store, spec: Spec, locations: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the locations whose folder exists, and why some parent folders could not be listed.

    Lists each parent folder once.

    Args:
        root: store of the job root.
        spec: submission whose storage options are used for locations outside the root.
    """
    found: set[str] = set()
    problems: list[str] = []
    by_place: dict[str, list[str]] = {}
    for location in locations:
        by_place.setdefault(location.rpartition("/")[0], []).append(location)
    for place, here in sorted(by_place.items()):
        try:
            store, folder = open_location(root, spec, here[0])
            names = set(store.list(folder.rpartition("/")[0]))
        except StoreError as error:
            problems.append(f"unfinished savepoints in {place} are kept because the folder cannot be listed: {error}")
            continue
        found |= {location for location in here if location.rpartition("/")[2] in names}
    return found, problems


def delete_unfinished(store: Store, folder: str, savepoint: UnfinishedSavepoint) -> None:
    """Delete the files that the run of `savepoint` wrote into `folder`, and the folder if it is empty then.

    Blocks; may be repeated. Raises StoreError.
    """
    # First, because a folder without `_metadata` is no snapshot. So
    # an interrupted deletion leaves nothing that looks complete.
    if _has_own_metadata(store, folder, savepoint):
        store.delete(JobLayout.metadata(folder))
    written = f"-g{savepoint.generation}-{savepoint.run_id}-"
    for path in store.walk(folder):
        inside = path.removeprefix(f"{folder}/")
        # Subtasks write directly into the folder, so that files in subfolders belong to the user.
        if "/" not in inside and written in inside and inside.endswith(SUFFIXES):
            store.delete(path)
    if not store.walk(folder):
        store.delete_folder(folder)


def _has_own_metadata(store: Store, folder: str, savepoint: UnfinishedSavepoint) -> bool:
    """Return whether the run wrote `_metadata`. It may have, although "complete" is not in the log."""
    try:
        metadata = read_metadata(store, folder)
    except SnapshotError:
        return False
    return (metadata.generation, metadata.run_id) == (savepoint.generation, savepoint.run_id)
