"""Removal of files that a file sink published after a snapshot (S9.3)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

import pyarrow.compute as pc
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.growing_files import Growth, cut_off, growths_of
from tidegate.connectors.files.sink.marker_packs import MarkerPacks
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.storage import is_local, list_folder, sync_to_disk
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import TidegateError

NAMED_FILES = 3
"""Most file names in an error."""


class FileRewind:
    """Published transactions of one sink between snapshot `checkpoint_id` and checkpoint `before`, both excluded.

    It covers all subtasks of the sink in `ctx`'s job and lineage, and no other job, lineage or sink in the same folder.

    Extended files (`growing_files`) are cut off first. Markers are removed next, then files. So a transaction that
    still has its marker has all its files, unless a reader removed some. Files that a crash leaves have no marker and
    are found by name, as are the files of an unfinished commit. For packed markers, a record states that they are no
    longer valid.
    """

    def __init__(
        self, filesystem: AbstractFileSystem, layout: FileLayout, ctx: SinkContext, checkpoint_id: int, before: int
    ) -> None:
        self._fs = filesystem
        self._layout = layout
        self._ctx = ctx
        self._checkpoint_id = checkpoint_id
        self._before = before
        self._packs = MarkerPacks(filesystem, layout.committed)

    def check(self) -> None:
        """Check that all these transactions can be removed.

        Raises:
            TidegateError: published files are missing: a reader that moved or copied them keeps their rows. Or the
                sizes of extended files are not known any more.
        """
        self._check_known()
        there = set(self.files())
        gone = [path for marker in self.markers() for path in self._files_of(marker) if path not in there]
        gone += self._gone_of_packed(there)
        gone += self._gone_of_grown(there)
        if gone:
            raise TidegateError(
                f"the sink cannot rewind to checkpoint {self._checkpoint_id}",
                where=f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, {self._layout.root}",
                cause=f"{len(gone)} files that were published after this checkpoint were moved or removed: "
                f"{gone[:NAMED_FILES]}",
                remedy="Put the files back; or restore with on_committed_after=accept_duplicates, and remove "
                "duplicate rows yourself",
            )

    def _check_known(self) -> None:
        for first, last in self._packs.listed().forgotten:
            if first <= self._checkpoint_id < last:
                raise TidegateError(
                    f"the sink cannot rewind to checkpoint {self._checkpoint_id}",
                    where=f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, {self._layout.root}",
                    cause="`tidegate gc --sinks` has deleted the markers that say where files ended before later "
                    f"commits extended them (compact_below), up to checkpoint {last}: no kept snapshot needed them",
                    remedy=f"Restore a snapshot from checkpoint {last} on; or restore with "
                    "on_committed_after=accept_duplicates, and remove duplicate rows yourself",
                )

    def take_back(self) -> None:
        """Remove markers, then files. Idempotent; the caller repeats it after a failure."""
        markers = self.markers()
        # Recorded before any removal: a crash in between must not leave packed markers of removed files valid.
        if (newest := self._newest(markers, self.files())) is not None:
            # Not up to `before`, which may be unbounded: the record would also invalidate commits of checkpoints that
            # follow.
            self._packs.rewind(self._checkpoint_id, newest + 1)
        # Before their markers are removed, which name the sizes.
        for path, growths in self._grown(set(self.files())).items():
            if not os.path.exists(path):
                continue  # an interrupted rewind has removed it as a whole
            name = path.rsplit("/", 1)[-1]
            cut_off(path, min(growth.before for growth in growths), f"{self._layout.growing}/{name}")
        self.remove_markers(markers)
        files = list(self.files())
        for path in files:
            self._remove(path)
        if is_local(self._fs):
            for folder in {os.path.dirname(path) for path in files}:
                sync_to_disk(folder)

    def remove_markers(self, markers: Iterable[str]) -> None:
        """Remove markers durably."""
        for marker in markers:
            self._remove(marker)
        # Without a durable removal of the markers, a crash could leave a marker whose files are removed.
        if is_local(self._fs) and os.path.isdir(self._layout.commits):
            sync_to_disk(self._layout.commits)

    def markers(self) -> list[str]:
        """Return the paths of the markers of transactions to remove.

        The newest come first: if the removal is interrupted, the remaining ones name the size to which files are cut.
        """
        found = list_folder(self._fs, self._layout.commits)[0]
        marked = [(self._layout.marked_by(path.rsplit("/", 1)[-1]), path) for path in found]
        between = [(made[1], path) for made, path in marked if made is not None and self._is_between(made)]
        return [path for _, path in sorted(between, reverse=True)]

    def _is_between(self, made: tuple[int, int] | None) -> bool:
        return made is not None and self._checkpoint_id < made[1] < self._before

    def _newest(self, markers: Iterable[str], files: Iterable[str]) -> int | None:
        """Return the checkpoint of the newest transaction to remove; None: there is none."""
        packed = pc.max(self._packs.between(self._checkpoint_id, self._before)["checkpoint_id"]).as_py()
        marked = [self._layout.marked_by(path.rsplit("/", 1)[-1]) for path in markers]
        published = [self._layout.published_by(path.rsplit("/", 1)[-1]) for path in files]
        ids = [made[1] for made in (*marked, *published) if made is not None]
        return max([*ids, *([] if packed is None else [packed])], default=None)

    def _gone_of_packed(self, there: Iterable[str]) -> list[str]:
        """Return descriptions of missing files of packed transactions. Packs hold only the number of files, not their
        names.
        """
        counted = Counter(self._layout.published_by(path.rsplit("/", 1)[-1]) for path in there)
        marked = {self._layout.marked_by(path.rsplit("/", 1)[-1]) for path in self.markers()}
        lacking = []
        for row in self._packs.between(self._checkpoint_id, self._before).to_pylist():
            made = row["subtask"], row["checkpoint_id"]
            # A transaction that still has its marker was checked by the file names in the marker.
            missing = 0 if made in marked else row["files"] - counted[made]
            lacking += [f"of subtask {made[0]}, checkpoint {made[1]}"] * max(0, missing)
        return lacking

    def _files_of(self, marker: str) -> list[str]:
        record = json.loads(self._fs.cat_file(marker))
        return [self._layout.target(file["path"]) for file in record["files"] if "before" not in file]

    def _grown(self, there: Collection[str]) -> dict[str, list[Growth]]:
        """Return path -> extensions to remove, of files that stay."""
        found: dict[str, list[Growth]] = {}
        for marker in self.markers():
            for growth in growths_of(json.loads(self._fs.cat_file(marker)).get("files", ())):
                path = self._layout.target(growth.target)
                if path not in there:
                    found.setdefault(path, []).append(growth)
        return found

    def _gone_of_grown(self, there: Collection[str]) -> list[str]:
        gone = []
        for path, growths in self._grown(there).items():
            made = self._layout.published_by(path.rsplit("/", 1)[-1])
            # The file itself is removed as a whole, by this or an interrupted rewind.
            if self._is_between(made):
                continue
            size = os.stat(path).st_size if os.path.exists(path) else -1
            # An interrupted rewind may have cut it off already.
            if size != min(g.before for g in growths) and size < max(g.after for g in growths):
                gone.append(path)
        return gone

    def files(self) -> Iterator[str]:
        """Yield the paths of the published files to remove, found by their names."""
        right_here, folders = list_folder(self._fs, self._layout.root)
        yield from filter(self._is_behind, right_here)
        for folder in folders:
            # A partition's folder, under the present or an earlier partitioning.
            if "=" in folder.rsplit("/", 1)[-1]:
                yield from filter(self._is_behind, self._fs.find(folder))

    def _is_behind(self, path: str) -> bool:
        return self._is_between(self._layout.published_by(path.rsplit("/", 1)[-1]))

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(path)
