"""Savepoints that were begun and will never complete: which they are, and how their files are deleted (S2.3).

The folder of a savepoint may lie among folders of users, and a job of the same id below another root may have chosen
the same name for one of its own. So only files are deleted that the run of the claim wrote, which its id in their names
shows. Anything else in the folder stays, and the folder with it.
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
"""Of files that subtasks write."""


@dataclass(frozen=True, slots=True)
class UnfinishedSavepoint:
    """A savepoint that was claimed and not completed, at least so far.

    Attributes:
        path: its location.
        generation, run_id: of the run that claimed it.
    """

    path: str
    generation: int
    run_id: str


def unfinished_savepoints(decisions: Sequence[Decision]) -> Mapping[str, UnfinishedSavepoint]:
    """By location. Pure. What the reigning driver has on its way is among them."""
    done = {d.data["checkpoint_id"] for d in decisions if d.kind == "complete"}
    return {
        d.data["path"]: UnfinishedSavepoint(d.data["path"], d.generation, d.run_id)
        for d in decisions
        if d.kind == "claim" and d.data["kind"] in SAVEPOINT_KINDS and d.data["checkpoint_id"] not in done and d.run_id
    }


def existing_files(root: Store, spec: Spec, locations: Sequence[str]) -> tuple[set[str], list[str]]:
    """Those of which there is a folder, by one listing for each place; and why some places could not be listed.

    Args: root: store of the job root. spec: its storage options are those of locations elsewhere.
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
            problems.append(f"unfinished savepoints in {place} stay, they cannot be looked for: {error}")
            continue
        found |= {location for location in here if location.rpartition("/")[2] in names}
    return found, problems


def delete_unfinished(store: Store, folder: str, savepoint: UnfinishedSavepoint) -> None:
    """Delete what the run of `savepoint` wrote into `folder`, and the folder when nothing else is there. Blocks; may be
    repeated. Raises StoreError."""
    if _has_own_metadata(store, folder, savepoint):
        store.delete(JobLayout.metadata(folder))
    written = f"-g{savepoint.generation}-{savepoint.run_id}-"
    for path in store.walk(folder):
        inside = path.removeprefix(f"{folder}/")
        if "/" not in inside and written in inside and inside.endswith(SUFFIXES):
            store.delete(path)
    if not store.walk(folder):
        store.delete_folder(folder)


def _has_own_metadata(store: Store, folder: str, savepoint: UnfinishedSavepoint) -> bool:
    """Written, though "complete" never came into the log."""
    try:
        metadata = read_metadata(store, folder)
    except SnapshotError:
        return False
    return (metadata.generation, metadata.run_id) == (savepoint.generation, savepoint.run_id)
