"""Folder layout of file sinks: every path below a sink's folder is built here.

    <path>/[<column>=<value>/...]part-<job>--<lineage>--<uid>--<subtask>--<checkpoint>--<n>.<suffix>  published
    <path>/[<column>=<value>/...]rest-<job>--<lineage>--<uid>--<subtask>--<name>.<suffix>  rows of replaced files
    <path>/_tidegate/staging/<job>/<lineage>/<uid>/<subtask>/<name>.<suffix>.staged   pre-committed or being written
    <path>/_tidegate/growing/<job>/<lineage>/<uid>/<subtask>/g<generation>--<run>/     see `growing_files`
    <path>/_tidegate/commits/<transaction id>.json                                    commit markers
    <path>/_tidegate/committed/<job>/<lineage>/<uid>/...                              packed commit markers
    <path>/_tidegate/replaced/<job>--<lineage>--<uid>.begun.json      a fresh start will remove existing files
    <path>/_tidegate/replaced/<job>--<lineage>--<uid>.json            it has removed them

Readers (Spark, pandas, pyarrow datasets, DuckDB on `<path>/*.parquet`) skip `_tidegate`. A staged name contains
generation, run, transaction number and file number, so that a zombie never writes to its successor's file (S9.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from tidegate.connectors.transactions import (
    TOKEN_SEPARATOR,
    Committable,
    SinkContext,
    TransactionId,
    file_name_token,
)
from tidegate.errors import SinkConflictError

PRIVATE_FOLDER = "_tidegate"
STAGED_SUFFIX = ".staged"
MARKER_SUFFIX = ".json"
FENCED_SUFFIX = ".fenced"

_STAGED_NAME = re.compile(r"g(\d+)--(.+)--(\d+)--(\d+)((?:\.[a-z0-9]+)+)\.staged")
_GROWING_NAME = re.compile(r"g(\d+)--(.+)")
_PUBLISHED_NAME = re.compile(r"part-(.+)--(\d+)--(\d+)--(\d+)(?:\.[a-z0-9]+)+")


@dataclass(frozen=True)
class StagedName:
    """Writer of a staged file: generation, run, transaction number, file number in it, and the file's suffix."""

    generation: int
    run: str
    transaction: int
    file: int
    suffix: str

    def __str__(self) -> str:
        parts = [f"g{self.generation}", self.run, str(self.transaction), str(self.file)]
        return TOKEN_SEPARATOR.join(parts) + self.suffix + STAGED_SUFFIX


def parse_staged_name(name: str) -> StagedName | None:
    """Inverse of `str(StagedName)`; None for a file that no sink staged."""
    match = _STAGED_NAME.fullmatch(name)
    return StagedName(int(match[1]), match[2], int(match[3]), int(match[4]), match[5]) if match else None


def staged_names(handle: Committable) -> Iterator[str]:
    """Yield the names of all files that a transaction has in the staging folder.

    These are its data files (`files`), and files that a sink stages beside them and never publishes (`beside`).
    """
    yield from (file["staged"] for file in handle.data.get("files", ()))
    yield from handle.data.get("beside", ())


class FileLayout:
    """Paths of one subtask's writer below `root`, without a trailing slash.

    Attributes:
        staging: folder of this subtask's staged files.
        staging_of_all: its parent: one folder for each subtask of this sink, named by index.
        growing: folder in which this run extends files of this subtask.
        growing_of_all: its grandparent: a folder for each subtask, with a folder for each run.
        commits: folder of the markers.
        committed: folder of the sink's packed markers.
        markers_begin: prefix of the names of the sink's markers.
        own_files_begin: prefix of the names of published files of this job and lineage, of all sinks.
        replaces: path of the record that the lineage will remove the files that existed before it.
        replaced: path of the record that these files have been removed.
    """

    def __init__(self, root: str, ctx: SinkContext) -> None:
        self.root = root.rstrip("/")
        self._run = file_name_token(ctx.run_id)
        self._generation = ctx.generation
        self._subtask = ctx.subtask
        names = [file_name_token(ctx.job_id), file_name_token(ctx.lineage), file_name_token(ctx.uid)]
        self._writers = TOKEN_SEPARATOR.join(names)
        self.staging_of_all = "/".join([self.root, PRIVATE_FOLDER, "staging", *names])
        self.staging = f"{self.staging_of_all}/{ctx.subtask}"
        self.growing_of_all = "/".join([self.root, PRIVATE_FOLDER, "growing", *names])
        self.growing = f"{self.growing_of_all}/{ctx.subtask}/g{ctx.generation}{TOKEN_SEPARATOR}{self._run}"
        self.commits = f"{self.root}/{PRIVATE_FOLDER}/commits"
        self.committed = "/".join([self.root, PRIVATE_FOLDER, "committed", *names])
        self.own_files_begin = f"part-{TOKEN_SEPARATOR.join(names[:2])}{TOKEN_SEPARATOR}"
        self.replaces = f"{self.root}/{PRIVATE_FOLDER}/replaced/{self._writers}.begun{MARKER_SUFFIX}"
        self.replaced = f"{self.root}/{PRIVATE_FOLDER}/replaced/{self._writers}{MARKER_SUFFIX}"
        self.markers_begin = "".join(f"{quote(name, safe='')}," for name in (ctx.job_id, ctx.lineage, ctx.uid))

    def was_left_by_earlier_run(self, name: StagedName) -> bool:
        """Return whether an earlier run wrote the staged file."""
        return (name.generation, name.run) < (self._generation, self._run)

    def is_of_earlier_run(self, growing: str) -> bool:
        """Return whether the folder of this name, in which files are extended, belongs to an earlier run."""
        match = _GROWING_NAME.fullmatch(growing)
        if match is None or growing.endswith(FENCED_SUFFIX):
            return False
        return (int(match[1]), match[2]) < (self._generation, self._run)

    def staged_name(self, transaction: int, file: int, suffix: str) -> str:
        """Return the name, within `staging`, of a file that this run writes."""
        return str(StagedName(self._generation, self._run, transaction, file, suffix))

    def staged(self, name: str, subtask: int | None = None) -> str:
        """Return the path of a file staged by `subtask`; None: by this subtask."""
        return f"{self.staging if subtask is None else f'{self.staging_of_all}/{subtask}'}/{name}"

    def target(self, name: str) -> str:
        """Return the path of a published file."""
        return f"{self.root}/{name}"

    def folders_of(self, targets: Sequence[str]) -> list[str]:
        """Return the folders of published files and their parents up to the sink's own folder; the deepest first."""
        found = {self.root}
        for target in targets:
            parts = target.split("/")[:-1]
            found.update(self.target("/".join(parts[:depth])) for depth in range(1, len(parts) + 1))
        # A folder's path is a prefix of its children's paths, so the reverse order puts children before their parent.
        return sorted(found, reverse=True)

    def rest(self, staged: str) -> str:
        """Return the name of a published file with rows that stay when other rows of their file are replaced.

        It is unique, because the name of the staged file is. `published_by` does not know it: no checkpoint owns rows
        that were there before.
        """
        return f"rest-{TOKEN_SEPARATOR.join([self._writers, str(self._subtask), staged.removesuffix(STAGED_SUFFIX)])}"

    def published_by(self, name: str) -> tuple[int, int] | None:
        """Return subtask and checkpoint of the published file; None: another sink, lineage or job published it."""
        match = _PUBLISHED_NAME.fullmatch(name)
        return (int(match[2]), int(match[3])) if match and match[1] == self._writers else None

    def marked_by(self, name: str) -> tuple[int, int] | None:
        """Return subtask and checkpoint of the transaction whose marker has this name; None: it is no marker of this
        sink.
        """
        if not (name.startswith(self.markers_begin) and name.endswith(MARKER_SUFFIX)):
            return None
        parts = name[len(self.markers_begin) :].removesuffix(MARKER_SUFFIX).split(",")
        return int(parts[0]), int(parts[1])

    def marker(self, transaction_id: str) -> str:
        """Return the path of a transaction's commit marker."""
        return f"{self.commits}/{transaction_id}{MARKER_SUFFIX}"

    def unfinished_marker(self, marker: str) -> str:
        """Return the path under which this run's subtask writes a marker before it renames it."""
        return f"{marker}.g{self._generation}-{self._run}-{self._subtask}.tmp"


def target_name(made: TransactionId, file: int, staged: str) -> str:
    """Return the name of the published file; unique, because each checkpoint id is used once in a lineage.

    It keeps the suffix of the staged file, because the sink's format or compression may have changed since.
    """
    name = parse_staged_name(staged)
    if name is None:
        raise SinkConflictError(
            "the sink's state names a file that is not a staged file",
            where=staged,
            cause="the state of the sink is damaged, or another sink wrote it",
            remedy="Restore an earlier snapshot, or give the sink a new uid",
        )
    parts = [
        file_name_token(made.job_id),
        file_name_token(made.lineage),
        file_name_token(made.uid),
        str(made.subtask),
        str(made.checkpoint_id),
    ]
    return f"part-{TOKEN_SEPARATOR.join([*parts, str(file)])}{name.suffix}"
