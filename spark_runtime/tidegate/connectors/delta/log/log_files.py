"""Files of a Delta table's transaction log: which versions exist, and the actions of one version or checkpoint.

Source: PROTOCOL.md of delta-io/delta, "Delta Log Entries", "Checkpoints", "V2 Spec", "Sidecar Files".
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tidegate.connectors.storage import open_filesystem
from tidegate.errors import OutageError, PipelineError

LOG_FOLDER = "_delta_log"
ENTRY_IN_MEMORY_BYTES = 16 * 2**20
"""Largest log entry that is held in memory, bytes. A larger one, of some ten thousand files, is read twice."""
CHECKPOINT_ROWS = 65_536
"""Rows of a checkpoint that are read at a time: a checkpoint has a row for each file of the table."""

_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.([0-9A-Fa-f-]{36}))?\.(parquet|json)")
_KIND = re.compile(rb'\s*\{\s*"(\w+)"')
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
"""Keys under which file systems report when a file was written."""
_FILE_COLUMNS = ("add.path", "add.size", "add.partitionValues", "add.deletionVector")
"""Columns of a checkpoint about files. The statistics, by far the largest, are left out."""
_OTHER_COLUMNS = ("protocol", "metaData", "txn", "sidecar")

Action = tuple[str, dict[str, Any]]
"""Kind of an action of the log ("add", "remove", "metaData", ...), and its fields."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its version, and the paths of its parts."""

    version: int
    paths: tuple[str, ...]


@dataclass(frozen=True)
class LogListing:
    """Files in the log's folder.

    Attributes:
        entries: version -> when its entry was written, milliseconds since the epoch.
        checkpoints: complete checkpoints, the oldest first.
    """

    entries: Mapping[int, int]
    checkpoints: tuple[Checkpoint, ...]

    @property
    def latest(self) -> int | None:
        """The newest version; None: there is no table."""
        return max([*self.entries, *(one.version for one in self.checkpoints)], default=None)

    def checkpoint_for(self, version: int) -> Checkpoint | None:
        """Return the newest checkpoint from which a version can be built; None: from the first entry."""
        return next((one for one in reversed(self.checkpoints) if one.version <= version), None)


class LogEntry:
    """One version in the log.

    Attributes:
        version: its number.
        written_ms: when the file was written, milliseconds since the epoch.
        stamp: size and time of the file: if it differs later, another table is in the folder.
    """

    def __init__(self, filesystem: AbstractFileSystem, path: str, version: int, info: Mapping[str, Any]) -> None:
        self.version = version
        self.written_ms = modified_ms(info)
        self.stamp = (int(info["size"]), self.written_ms)
        self._fs = filesystem
        self._path = path
        self._content: bytes | None = None

    def actions(self, kinds: Collection[str]) -> Iterator[Action]:
        """Yield the actions of these kinds in their order. Lines of other kinds are not parsed.

        Raises:
            PipelineError: a line is no action.
        """
        for line in self._lines():
            found = _KIND.match(line)
            if found is not None and found[1].decode() not in kinds:
                continue
            if line.strip():
                yield self._parsed(line)

    def _lines(self) -> Iterator[bytes]:
        if self._content is None and self.stamp[0] > ENTRY_IN_MEMORY_BYTES:
            with self._fs.open(self._path, "rb") as file:
                yield from file
            return
        if self._content is None:
            self._content = self._fs.cat_file(self._path)
        yield from self._content.splitlines()

    def _parsed(self, line: bytes) -> Action:
        try:
            ((kind, body),) = json.loads(line).items()
        except (ValueError, AttributeError) as e:
            raise PipelineError(
                f"version {self.version} of the Delta table is damaged",
                where=self._path,
                cause=f"a line of its log entry is not an action: {e}",
                remedy="Restore the file, or the table, from a backup",
            ) from e
        return str(kind), body


class LogFiles:
    """The log of one table. Opens the file system at the first call; methods may block.

    Args:
        url: the table's folder, as the user wrote it.
        storage_options: fsspec options; references to secrets are resolved when the file system is opened.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self.url = url
        self._storage_options = storage_options
        self._opened: tuple[AbstractFileSystem, str] | None = None

    def opened(self) -> tuple[AbstractFileSystem, str]:
        """Return the file system, and the table's folder in it, without a trailing slash."""
        if self._opened is None:
            filesystem, root = open_filesystem(self.url, self._storage_options)
            self._opened = filesystem, root.rstrip("/")
        return self._opened

    def locate(self, path: str) -> tuple[AbstractFileSystem, str]:
        """Return file system and path of a file that the log names, relative to the table or absolute."""
        if "://" in path:
            return open_filesystem(path, self._storage_options)
        filesystem, root = self.opened()
        if path.startswith(("/", "file:/")):
            return filesystem, "/" + path.removeprefix("file:").lstrip("/")
        return filesystem, f"{root}/{path}"

    def listed(self) -> LogListing:
        """List the log.

        Raises:
            PipelineError: the folder may not be read.
            OutageError: the storage does not answer.
        """
        with self.answering():
            filesystem, root = self.opened()
            folder = f"{root}/{LOG_FOLDER}"
            try:
                details = {entry["name"].rstrip("/"): entry for entry in filesystem.ls(folder, detail=True)}
            except FileNotFoundError:
                details = {}
        entries: dict[int, int] = {}
        parts: dict[tuple[int, str], list[str]] = {}
        for path in sorted(details):
            name = path.rsplit("/", 1)[-1]
            if match := _ENTRY.fullmatch(name):
                entries[int(match[1])] = modified_ms(details[path])
            elif match := _CHECKPOINT.fullmatch(name):
                # Parts of one checkpoint share their number; a checkpoint of version 2 has a unique name.
                parts.setdefault((int(match[1]), match[3] or match[4] or ""), []).append(path)
        whole = [
            Checkpoint(version, tuple(sorted(paths)))
            for (version, of), paths in sorted(parts.items())
            if not of.isdecimal() or len(paths) == int(of)
        ]
        return LogListing(entries, tuple(whole))

    def entry(self, version: int) -> LogEntry | None:
        """Return the entry of a version; None: there is none. Raises as `listed`."""
        with self.answering():
            filesystem, root = self.opened()
            path = f"{root}/{LOG_FOLDER}/{version:020}.json"
            try:
                return LogEntry(filesystem, path, version, filesystem.info(path))
            except FileNotFoundError:
                return None

    def checkpoint(self, checkpoint: Checkpoint) -> Iterator[Action | pa.Table]:
        """Yield the content of a checkpoint: actions about the table, and tables with the columns of "add" actions.

        The tables have the columns `path`, `size`, `partitionValues`, and `deletionVector` if the checkpoint has it.
        """
        filesystem, root = self.opened()
        for path in checkpoint.paths:
            parts = _json_parts(filesystem, path) if path.endswith(".json") else _parquet_parts(filesystem, path)
            for part in parts:
                if isinstance(part, tuple) and part[0] == "sidecar":
                    name = str(part[1]["path"])
                    whole = name if "/" in name else f"{root}/{LOG_FOLDER}/_sidecars/{name}"
                    yield from _parquet_parts(*self.locate(whole) if "/" in name else (filesystem, whole))
                else:
                    yield part

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Convert errors of the storage: a retry may succeed, or the user has to act.

        A missing file stays a FileNotFoundError, which the caller explains.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except (PermissionError, NotADirectoryError) as e:
            raise PipelineError(
                "the Delta table cannot be read",
                where=self.url,
                cause=_one_line(e),
                remedy="Check that the user of the process may read the table's folder",
            ) from e
        except (pa.ArrowException, ValueError, KeyError) as e:
            raise PipelineError(
                "the log of the Delta table is damaged",
                where=self.url,
                cause=f"{type(e).__name__}: {_one_line(e)}",
                remedy="Restore the table from a backup",
            ) from e
        except OSError as e:
            raise OutageError("the Delta table cannot be read now", where=self.url, cause=_one_line(e)) from e


def modified_ms(info: Mapping[str, Any]) -> int:
    """Return when a file was written, as its file system describes it; 0: it reports no time."""
    stamp = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if isinstance(stamp, str):
        with suppress(ValueError):
            stamp = datetime.fromisoformat(stamp)
    if isinstance(stamp, datetime):
        return int((stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=UTC)).timestamp() * 1000)
    return int(stamp * 1000) if isinstance(stamp, int | float) else 0


def _json_parts(filesystem: AbstractFileSystem, path: str) -> Iterator[Action | pa.Table]:
    adds = []
    for line in filesystem.cat_file(path).splitlines():
        if line.strip():
            ((kind, body),) = json.loads(line).items()
            if kind == "add":
                adds.append(body)
            elif kind in _OTHER_COLUMNS:
                yield kind, body
    if adds:
        yield adds_table(adds)


def _parquet_parts(filesystem: AbstractFileSystem, path: str) -> Iterator[Action | pa.Table]:
    with filesystem.open(path, "rb") as opened, pq.ParquetFile(opened) as file:
        columns = [*_FILE_COLUMNS, *_OTHER_COLUMNS]
        for batch in file.iter_batches(CHECKPOINT_ROWS, columns=columns):
            for kind in (name for name in _OTHER_COLUMNS if name in batch.schema.names):
                for body in pc.drop_null(batch.column(kind)).to_pylist():
                    yield kind, {name: _plain(value) for name, value in body.items()}
            if "add" not in batch.schema.names:
                continue
            adds = pc.drop_null(batch.column("add"))
            if len(adds):
                yield pa.Table.from_batches([pa.RecordBatch.from_struct_array(adds)])


def _plain(value: Any) -> Any:
    """Return a map as a dictionary: Arrow has lists of pairs."""
    is_map = isinstance(value, list) and all(isinstance(pair, tuple) for pair in value)
    return dict(value) if is_map and value else value


def adds_table(adds: list[dict[str, Any]]) -> pa.Table:
    """Return "add" actions as a table such as `LogFiles.checkpoint` yields."""
    vectors = [add.get("deletionVector") for add in adds]
    columns = {
        "path": pa.array([add["path"] for add in adds], pa.string()),
        "size": pa.array([add.get("size") or 0 for add in adds], pa.int64()),
        "partitionValues": pa.array(
            [list((add.get("partitionValues") or {}).items()) for add in adds], pa.map_(pa.string(), pa.string())
        ),
    }
    if any(vectors):
        columns["deletionVector"] = pa.array(vectors)
    return pa.table(columns)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
