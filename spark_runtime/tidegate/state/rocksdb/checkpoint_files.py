"""RocksDB's files in a snapshot: files that never change are blobs (S5.2).

Format "rocksdb", versions 1 and 2: one part `rocksdb` of kind "keyed" for all states and timers of a subtask. Its table
has a row for each file, except the log, which is empty, and RocksDB's options, which each opener sets itself::

    __key_group    uint16, lowest in the file, 0 if unknown; not recorded for files of timers by time
    last_group     uint16, highest in the file, 65535 if unknown
    name           string, in the database's directory
    bytes          int64
    blob           string, the id of the blob with the content; null for small files
    content        binary, for small files

Its schema's metadata has JSON under `tidegate.rocksdb`: `version`, `key_groups` [first, end] of the subtask, and for
each state `name` and `schema`, base64 of the Arrow schema of its rows in format "rows" (`state_layout`). Version 2 has
a state whose rows are sorted runs (`run_chunks`); version 1 has none.
"""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, Blob, StatePart
from tidegate.state.keys.key_hash import MAX_KEY_GROUPS
from tidegate.state.rocksdb.database import RocksDatabase, failures
from tidegate.state.rocksdb.database_keys import GROUP_BYTES
from tidegate.state.state_layout import RUNS, form_of

PART_NAME = "rocksdb"
FORMAT_VERSION = 2
FIRST_VERSION = 1
"""Still written without sorted runs, so that the versions of tidegate before them can restore the files."""
_METADATA = b"tidegate.rocksdb"
_FILE_SCHEMA = pa.schema(
    [
        (KEY_GROUP_COLUMN, pa.uint16()),
        ("last_group", pa.uint16()),
        ("name", pa.string()),
        ("bytes", pa.int64()),
        ("blob", pa.string()),
        ("content", pa.binary()),
    ]
)
_LAST_GROUP = 2**16 - 1
_TABLE_SUFFIX = ".sst"
_LOG_SUFFIX = ".log"
_OPTIONS_PREFIX = "OPTIONS-"

Write = Callable[[], None]
"""Writes something to the database. After an error it is called again."""


class CheckpointFolder:
    """A folder of hard links, which is deleted when this object is no longer referenced."""

    def __init__(self, path: Path) -> None:
        """Create without I/O. Args: path: folder, which need not exist yet."""
        self.path = path

    def __del__(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class UnwrittenCheckpoint:
    """State at a barrier: the rows that were only in memory then and, once settled, a folder of all files.

    The first caller settles it: the snapshot writer thread, or the slot's loop before it writes to the database.
    """

    def __init__(self, database: RocksDatabase, writes: Sequence[Write], path: Path) -> None:
        """Create an unsettled checkpoint.

        Args:
            database: database to write to.
            writes: write the frozen rows that are not written yet.
            path: path for the folder.
        """
        self._database = database
        self._writes = list(writes)
        self._lock = threading.Lock()
        self._path = path
        self._folder: CheckpointFolder | None = None
        self._failure: Exception | None = None
        self._wanted = True

    def give_up(self) -> None:
        """Record that the folder is not needed."""
        self._wanted = False

    def written(self) -> None:
        """Write the rows to the database, and create the folder before anything later is written.

        Raises the error of a failed write; may be called twice.
        """
        with self._lock:
            self._settle()

    def folder(self) -> CheckpointFolder:
        """Return the folder. Raises SnapshotError or EnvironmentProblemError if it could not be created."""
        with self._lock:
            self._settle()
            if self._failure is not None:
                raise self._failure
            assert self._folder is not None, "the folder is made at the first call"
            # The caller holds the only reference, so that the folder is deleted with the last blob that reads it.
            folder, self._folder = self._folder, None
            return folder

    def _settle(self) -> None:
        while self._writes:
            self._writes[-1]()
            # Removed after the write, so that a failed write leaves the rows for the next call.
            self._writes.pop()
        if self._folder is not None or self._failure is not None or not self._wanted:
            return
        folder = CheckpointFolder(self._path)
        try:
            self._database.checkpoint(folder.path)
        except Exception as error:
            self._failure = error
        else:
            self._folder = folder
        self._wanted = False


def file_part(
    folder: CheckpointFolder,
    database_files: Sequence[Mapping[str, Any]],
    id_of: Callable[[str, int], str],
    states: Mapping[str, pa.Schema],
    key_groups: range,
) -> StatePart:
    """Return the part of format "rocksdb" with the files of `folder`, which exists as long as the blobs.

    Args:
        folder: folder of a checkpoint.
        database_files: RocksDB's descriptions of its files, for their key groups; may be incomplete.
        id_of: returns the blob id for a file's name and size.
        states: name -> schema of its rows.
        key_groups: key groups of the subtask.
    """
    described = {str(one["name"]).lstrip("/"): one for one in database_files}
    rows: list[dict[str, Any]] = []
    blobs = []
    for path in sorted(folder.path.iterdir()):
        if path.suffix == _LOG_SUFFIX or path.name.startswith(_OPTIONS_PREFIX):
            continue
        size = path.stat().st_size
        row: dict[str, Any] = {"name": path.name, "bytes": size, KEY_GROUP_COLUMN: 0, "last_group": _LAST_GROUP}
        if path.suffix == _TABLE_SUFFIX:
            row |= _range_of(described.get(path.name)) | {"blob": id_of(path.name, size)}
            blobs.append(Blob(row["blob"], _reader(folder, path), size))
        else:
            row["content"] = path.read_bytes()
        rows.append(row)
    rows.sort(key=lambda row: int(row[KEY_GROUP_COLUMN]))
    has_runs = any(form_of(schema) == RUNS for schema in states.values())
    document = {
        "version": FORMAT_VERSION if has_runs else FIRST_VERSION,
        "key_groups": [key_groups.start, key_groups.stop],
        "states": [{"name": name, "schema": _schema_text(schema)} for name, schema in states.items()],
    }
    schema = _FILE_SCHEMA.with_metadata({_METADATA: json.dumps(document).encode()})
    table = pa.Table.from_pylist(rows, schema=schema)
    return StatePart(PART_NAME, "keyed", table, blobs=tuple(blobs), format="rocksdb")


@dataclass(frozen=True)
class FilesOfPart:
    """Content of a part of format "rocksdb".

    Attributes:
        key_groups: key groups of the subtask that wrote it.
        states: name -> schema of its rows.
    """

    part: StatePart
    key_groups: range
    states: Mapping[str, pa.Schema]

    @classmethod
    def of(cls, part: StatePart, uid: str) -> FilesOfPart:
        """Read the part's metadata. Raises SnapshotError for another version."""
        document = json.loads((part.table.schema.metadata or {}).get(_METADATA, b"{}"))
        if document.get("version") not in (FIRST_VERSION, FORMAT_VERSION):
            raise SnapshotError(
                f"the RocksDB files of the snapshot have format version {document.get('version')}",
                where=f"operator {uid!r}",
                cause=f"this version of tidegate reads versions {FIRST_VERSION} and {FORMAT_VERSION}",
                remedy="Restore with the tidegate version that wrote the files, take a savepoint, and restore it with "
                "this version",
            )
        states = {one["name"]: _schema_of(one["schema"]) for one in document["states"]}
        return cls(part, range(*document["key_groups"]), states)

    def write_to(self, directory: Path, uid: str) -> dict[str, str]:
        """Write the database's files to `directory`; one file in memory at a time.

        Returns file name -> blob id as in the snapshot, by which later snapshots recognise an unchanged file.

        Raises:
            SnapshotError: a file is missing, or its size differs from the recorded size.
        """
        directory.mkdir(parents=True, exist_ok=True)
        blobs = self._by_own_id()
        ids = {}
        for row in self.part.table.drop_columns([KEY_GROUP_COLUMN, "last_group"]).to_pylist():
            blob = blobs.get(row["blob"]) if row["blob"] is not None else None
            content = row["content"] if blob is None else blob.read()
            if content is None or len(content) != row["bytes"]:
                found = (
                    "the file is missing"
                    if content is None
                    else f"the file has {len(content)} bytes, not {row['bytes']}"
                )
                raise SnapshotError(
                    f"RocksDB file {row['name']} of the snapshot is damaged",
                    where=f"operator {uid!r}",
                    cause=found,
                    remedy="Restore another snapshot",
                )
            (directory / row["name"]).write_bytes(content)
            if blob is not None:
                ids[row["name"]] = blob.id
        return ids

    def _by_own_id(self) -> dict[str, Blob]:
        """Return the blobs by the ids in the part's rows.

        The writer of a snapshot may add a prefix and "-" to an id, to make it unique over subtasks and runs.
        """
        own = {row for row in self.part.table.column("blob").to_pylist() if row is not None}
        found: dict[str, Blob] = {}
        for blob in self.part.blobs:
            pieces = blob.id.split("-")
            ids = ("-".join(pieces[n:]) for n in range(len(pieces)))
            known = next((an_id for an_id in ids if an_id in own), None)
            if known is not None:
                found[known] = blob
        return found


def _reader(folder: CheckpointFolder, path: Path) -> Callable[[], memoryview]:
    def read() -> memoryview:
        assert folder.path == path.parent  # keeps the folder alive
        # Mapped, because a copy of the file costs as much CPU as writing it to the store.
        with failures(path), path.open("rb") as file:
            return memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))

    return read


def _range_of(described: Mapping[str, Any] | None) -> dict[str, int]:
    keys: list[Any] = [described["start_key"], described["end_key"]] if described is not None else [None]
    if any(key is None or len(key) < GROUP_BYTES for key in keys):
        return {}
    low, high = (int.from_bytes(bytes(key[:GROUP_BYTES]), "big") for key in keys)
    return {KEY_GROUP_COLUMN: low, "last_group": high} if high < MAX_KEY_GROUPS else {}


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
