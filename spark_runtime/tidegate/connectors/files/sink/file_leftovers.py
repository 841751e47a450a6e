"""Deletion of files that no snapshot needs: staged files of ended lineages, and commit markers (S2.3, ADR 0018).

Markers are combined into packs. With a pack, a commit is as idempotent as with the marker, and a rewind still finds
missing files. The collection may be interrupted anywhere, repeated, run twice at once and run in parallel with a job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.growing_files import growths_of
from tidegate.connectors.files.sink.marker_packs import PACK_SCHEMA, MarkerPacks
from tidegate.connectors.files.sink.sink_layout import MARKER_SUFFIX, FileLayout, parse_staged_name, staged_names
from tidegate.connectors.leftovers import Leftover, LeftoverReport, NeededTransactions
from tidegate.connectors.storage import is_local, list_folder
from tidegate.connectors.transactions import parse_transaction_id

MARKERS_AT_ONCE = 20_000
"""Most markers in one step of packing; limits the work that a crash makes necessary again."""
REQUESTS_AT_ONCE = 16
UNFINISHED_SUFFIX = ".tmp"
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")
"""Keys under which file systems list the time when a file was written."""
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class StoredFile:
    """A listed file. written: None if the file system does not report it."""

    path: str
    size_bytes: int
    written: datetime | None

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


class FileLeftovers:
    """Leftovers of one file sink in one job and lineage."""

    def __init__(self, filesystem: AbstractFileSystem, layout: FileLayout, needed: NeededTransactions) -> None:
        self._fs = filesystem
        self._layout = layout
        self._needed = needed
        self._packs = MarkerPacks(filesystem, layout.committed)

    def collect(self, *, dry_run: bool) -> LeftoverReport:
        """Remove the leftovers; with `dry_run`, only report them. Blocks."""
        staged, young = self._staged()
        markers, unfinished = self._markers()
        if not dry_run:
            self._give_up([one.path for one in staged])
            self._remove(one.path for one in staged)
            self._remove(one.path for one in unfinished)
            removed = self._pack(markers)
            markers = [one for one in markers if one.path in removed]
        found = [Leftover(one.path, "staged", 1, one.size_bytes) for one in staged]
        old = [*markers, *unfinished]
        if old:
            found.append(Leftover(self._layout.commits, "markers", len(old), sum(one.size_bytes for one in old)))
        return LeftoverReport(tuple(found), young)

    def _give_up(self, paths: Sequence[str]) -> None:
        """Called with the paths of staged files before they are removed."""

    def _staged(self) -> tuple[list[StoredFile], int]:
        """Return the staged files that nothing needs and that are old enough, and the number of those that are too
        young.
        """
        if self._needed.handles is None:
            return [], 0
        kept = {
            (parse_transaction_id(handle.transaction_id).subtask, name)
            for handle in self._needed.handles
            for name in staged_names(handle)
        }
        found: list[StoredFile] = []
        for folder in list_folder(self._fs, self._layout.staging_of_all)[1]:
            subtask = folder.rsplit("/", 1)[-1]
            if subtask.isdecimal():
                ours = (one for one in self.files_in(folder) if parse_staged_name(one.name) is not None)
                found += [one for one in ours if (int(subtask), one.name) not in kept]
        # Copies that a crash left. Plans stay: a later rewind may need them, and they are small.
        for folder in list_folder(self._fs, self._layout.growing_of_all)[1]:
            for run in list_folder(self._fs, folder)[1]:
                found += [one for one in self.files_in(run) if not one.name.endswith(MARKER_SUFFIX)]
        old = [one for one in found if self.is_old(one)]
        return old, len(found) - len(old)

    def _markers(self) -> tuple[list[StoredFile], list[StoredFile]]:
        """Return the commit markers that are old enough, and unfinished markers that crashes left."""
        ours = (one for one in self.files_in(self._layout.commits) if one.name.startswith(self._layout.markers_begin))
        old = [one for one in ours if self.is_old(one)]
        return (
            [one for one in old if one.name.endswith(MARKER_SUFFIX)],
            [one for one in old if one.name.endswith(UNFINISHED_SUFFIX)],
        )

    def _pack(self, markers: Sequence[StoredFile]) -> set[str]:
        """Remove markers that are packed, or that no restore can need. Returns the paths of the removed markers."""
        gone: set[str] = set()
        for first in range(0, len(markers), MARKERS_AT_ONCE):
            wanted: list[tuple[str, tuple[int, int]]] = []
            unasked: list[tuple[str, tuple[int, int]]] = []
            for one in markers[first : first + MARKERS_AT_ONCE]:
                made = self._layout.marked_by(one.name)
                assert made is not None, "the name is a marker of this sink"
                (wanted if made[1] >= self._needed.markers_from else unasked).append((one.path, made))
            read = list(self._at_once(self._files_of, [path for path, _ in wanted]))
            kept = [(path, made, files) for (path, made), files in zip(wanted, read, strict=True) if files is not None]
            if kept:
                columns: list[list[Any]] = [[made[0] for _, made, _ in kept], [made[1] for _, made, _ in kept]]
                # The pack is durable before the markers are removed, so that no commit is forgotten.
                self._packs.add(pa.Table.from_arrays([*columns, [files for *_, files in kept]], schema=PACK_SCHEMA))
            self._forget_growth(unasked)
            removed = [path for path, *_ in kept] + [path for path, _ in unasked]
            self._remove(removed)
            gone.update(removed)
        self._packs.compact(self._needed.markers_from)
        return gone

    def _forget_growth(self, markers: Sequence[tuple[str, tuple[int, int]]]) -> None:
        """Record which of these markers have extended files: a rewind that needs their sizes is refused from now on."""
        if not is_local(self._fs):  # files grow on local file systems only
            return
        bases = self._at_once(self._first_extended, [path for path, _ in markers])
        grown = [(base, made[1]) for (_, made), base in zip(markers, bases, strict=True) if base is not None]
        if grown:
            self._packs.forget_growth(min(base for base, _ in grown), max(at for _, at in grown))

    def _first_extended(self, marker: str) -> int | None:
        """Return the oldest checkpoint that published a file which this marker's transaction extended; None: it
        extended none. A marker or a name that cannot be read counts as extending the oldest file.
        """
        try:
            growths = growths_of(json.loads(self._fs.cat_file(marker)).get("files", ()))
        except FileNotFoundError:  # another collection has removed it
            return None
        except (ValueError, AttributeError, TypeError):
            return 0
        made = [self._layout.published_by(growth.target.rsplit("/", 1)[-1]) for growth in growths]
        return min((0 if one is None else one[1] for one in made), default=None)

    def _files_of(self, marker: str) -> int | None:
        """Return how many files the marker's transaction published; None: unknown, so the marker stays.

        So does a marker with extended files: a pack does not hold their sizes, which a rewind needs.
        """
        try:
            files = json.loads(self._fs.cat_file(marker)).get("files", ())
            return None if growths_of(files) else len(files)
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            return None

    def files_in(self, folder: str) -> Iterator[StoredFile]:
        """Yield the files directly in a folder; none if it is missing."""
        with suppress(FileNotFoundError):
            for entry in self._fs.ls(folder, detail=True):
                if entry["type"] == "file":
                    yield StoredFile(entry["name"], int(entry.get("size") or 0), _written(self._fs, entry))

    def is_old(self, one: StoredFile) -> bool:
        """Return whether the file is old enough to be removed."""
        # A file of unknown age stays, because a running job may be staging it.
        return one.written is not None and one.written < self._needed.before

    def _remove(self, paths: Iterable[str]) -> None:
        # `list` runs the generator: without it, nothing would be removed.
        list(self._at_once(self._remove_one, paths))

    def _remove_one(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def _at_once(self, do: Callable[[str], _Made], of: Iterable[str]) -> Iterator[_Made]:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            yield from threads.map(do, of)


def _written(filesystem: AbstractFileSystem, entry: dict[str, Any]) -> datetime | None:
    """Return when a listed file was written; None: the file system does not report it."""
    stamp = next((entry[name] for name in _TIMES if entry.get(name) is not None), None)
    if isinstance(stamp, int | float):
        return datetime.fromtimestamp(stamp, UTC)
    if isinstance(stamp, str):
        with suppress(ValueError):
            stamp = datetime.fromisoformat(stamp)
    if not isinstance(stamp, datetime):
        with suppress(NotImplementedError, FileNotFoundError):
            stamp = filesystem.modified(entry["name"])
    if not isinstance(stamp, datetime):
        return None
    return stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=UTC)
