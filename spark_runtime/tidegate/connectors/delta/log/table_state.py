"""One version of a Delta table: its metadata, its data files, and the transactions that applications have recorded.

A version is the newest checkpoint before it, with the entries of the log since. Source: PROTOCOL.md of delta-io/delta,
"Action Reconciliation".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.delta.log.log_files import LogFiles, LogListing, adds_table
from tidegate.connectors.delta.log.table_metadata import TableMetadata
from tidegate.errors import PipelineError

FILES_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("partition", pa.map_(pa.string(), pa.string())),
        pa.field("vector", pa.string()),
    ]
)
"""Columns of `TableState.files`: the file's key in the log, its path there, its size in bytes, the partition's values
as text, and its deletion vector as JSON text."""

_REPLAYED = ("protocol", "metaData", "txn", "add", "remove")


@dataclass(frozen=True)
class DataFile:
    """A data file in a version of a table.

    Attributes:
        path: relative to the table's folder, or absolute.
        size_bytes: its size, as the log says.
        partition: values of the partition columns by their names in the files, as text; None: null.
        vector: its deletion vector, as the log describes it; None: it has none.
    """

    path: str
    size_bytes: int
    partition: Mapping[str, str | None]
    vector: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> DataFile:
        """Return the file of an "add", "remove" or "cdc" action."""
        partition = dict(action.get("partitionValues") or {})
        return cls(unquote(action["path"]), int(action.get("size") or 0), partition, action.get("deletionVector"))


@dataclass(frozen=True)
class TableState:
    """One version of a table.

    Attributes:
        version: its number.
        metadata: its metadata.
        files: its data files, sorted by key, as a table of `FILES_SCHEMA`; empty if they were not requested.
        transactions: application id -> the last version that the application has recorded.
    """

    version: int
    metadata: TableMetadata
    files: pa.Table
    transactions: Mapping[str, int]

    def data_files(self, first: int = 0) -> Iterator[DataFile]:
        """Yield the data files in their order, from number `first` on."""
        for batch in self.files.slice(first).to_batches(max_chunksize=1_024):
            for row in batch.to_pylist():
                vector = None if row["vector"] is None else json.loads(row["vector"])
                yield DataFile(unquote(row["path"]), row["size"], dict(row["partition"] or ()), vector)


def state_of(
    log: LogFiles, version: int | None = None, *, files: bool = True, listing: LogListing | None = None
) -> TableState:
    """Return a version of a table. Blocks.

    Args:
        version: its number; None: the newest.
        files: also build the list of data files.
        listing: files of the log; None: list them now.

    Raises:
        PipelineError: there is no table, the version does not exist or is cleaned up, or the log is damaged.
        OutageError: the storage does not answer.
    """
    listing = listing or log.listed()
    try:
        return _built(log, version, files, listing)
    except FileNotFoundError:
        # The log was cleaned up since it was listed: a newer checkpoint exists now.
        listing = log.listed()
    try:
        return _built(log, version, files, listing)
    except FileNotFoundError as e:
        raise no_version(log.url, listing.latest if version is None else version, listing, str(e)) from e


def _built(log: LogFiles, version: int | None, files: bool, listing: LogListing) -> TableState:
    """Build a version. Raises FileNotFoundError if a listed file is missing."""
    latest = listing.latest
    if latest is None:
        raise PipelineError(
            "there is no Delta table", where=log.url, remedy="Check the path; a table has a folder _delta_log"
        )
    wanted = latest if version is None else version
    checkpoint = listing.checkpoint_for(wanted)
    first = 0 if checkpoint is None else checkpoint.version + 1
    missing = [n for n in range(first, min(wanted, latest) + 1) if n not in listing.entries]
    if wanted > latest or missing:
        raise no_version(log.url, wanted, listing)
    replay = _Replay(files)
    with log.answering():
        for part in log.checkpoint(checkpoint) if checkpoint is not None else ():
            replay.add_part(part)
        for n in range(first, wanted + 1):
            entry = log.entry(n)
            if entry is None:
                raise FileNotFoundError(f"{n:020}.json")
            replay.add_entry(entry.actions(_REPLAYED if files else ("protocol", "metaData", "txn")))
    return replay.state(wanted, log.url)


def no_version(where: str, version: int | None, listing: LogListing, cause: str = "") -> PipelineError:
    """Return the error for a version that cannot be built."""
    oldest = [one.version for one in listing.checkpoints] + ([0] if 0 in listing.entries else [])
    there = f"its versions are {min(oldest)} to {listing.latest}" if oldest else "no version of it is complete"
    return PipelineError(
        f"version {version} of the Delta table does not exist or is cleaned up",
        where=where,
        cause=f"{there}{f'; missing: {cause}' if cause else ''}",
        remedy="Choose a version that exists. Keep log entries longer than a job may be late or stopped: set "
        "delta.logRetentionDuration",
    )


def version_at(log: LogFiles, moment: datetime) -> int:
    """Return the newest version that was committed at a time or before it.

    The time of a version is the one in its log entry, if the table records it, or else the time when the entry was
    written. A version is never older than the version before it.

    Raises:
        PipelineError: every version that exists is newer.
    """
    listing = log.listed()
    limit_ms = int(moment.timestamp() * 1000)
    latest = listing.latest
    commits = latest is not None and state_of(log, files=False, listing=listing).metadata.has_commit_times
    found: int | None = None
    newest_ms = 0
    for version in sorted(listing.entries):
        time_ms = listing.entries[version]
        if commits and (entry := log.entry(version)) is not None:
            time_ms = commit_time_ms(entry.actions(("commitInfo",)), time_ms)
        newest_ms = max(newest_ms, time_ms)
        if newest_ms > limit_ms:
            break
        found = version
    if found is None:
        raise PipelineError(
            f"the Delta table has no version as of {moment.isoformat()}",
            where=log.url,
            cause="its versions are newer, or older ones are cleaned up",
            remedy="Choose a later time, or a version",
        )
    return found


def commit_time_ms(commits: Iterator[tuple[str, dict[str, Any]]], written_ms: int) -> int:
    """Return the time of a commit, milliseconds since the epoch: from its `commitInfo`, or else when it was written."""
    for _, body in commits:
        if body.get("inCommitTimestamp") is not None:
            return int(body["inCommitTimestamp"])
    return written_ms


def file_key(path: str, vector: Mapping[str, Any] | None) -> str:
    """Return the key of a file in the log: a file with another deletion vector is another entry."""
    if not vector:
        return path
    offset = "" if vector.get("offset") is None else f"@{vector['offset']}"
    return f"{path}\0{vector['storageType']}{vector['pathOrInlineDv']}{offset}"


class _Replay:
    """Actions of a table, the oldest first."""

    def __init__(self, files: bool) -> None:
        self._files = files
        self._protocol: Mapping[str, Any] | None = None
        self._metadata: Mapping[str, Any] | None = None
        self._transactions: dict[str, int] = {}
        self._checkpointed: list[pa.Table] = []
        self._added: dict[str, dict[str, Any]] = {}
        self._removed: set[str] = set()

    def add_part(self, part: tuple[str, dict[str, Any]] | pa.Table) -> None:
        if isinstance(part, tuple):
            self._note(*part)
        elif self._files:
            self._checkpointed.append(_files_table(part))

    def add_entry(self, actions: Iterator[tuple[str, dict[str, Any]]]) -> None:
        for kind, body in actions:
            if kind not in ("add", "remove"):
                self._note(kind, body)
                continue
            key = file_key(body["path"], body.get("deletionVector"))
            self._added.pop(key, None)
            self._removed.add(key)  # also an add: it replaces what an older checkpoint says about the file
            if kind == "add":
                self._added[key] = body

    def _note(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "protocol":
            self._protocol = body
        elif kind == "metaData":
            self._metadata = body
        elif kind == "txn":
            self._transactions[str(body["appId"])] = int(body["version"])

    def state(self, version: int, where: str) -> TableState:
        if self._metadata is None or self._protocol is None:
            raise PipelineError(
                f"version {version} of the Delta table has no metadata",
                where=where,
                cause="its log holds no metaData or no protocol action",
                remedy="Repair the table, or restore it from a backup",
            )
        metadata = TableMetadata.of(self._metadata, self._protocol)
        old = pa.concat_tables([FILES_SCHEMA.empty_table(), *self._checkpointed])
        if self._removed:
            gone = pa.array(self._removed, pa.string())
            old = old.filter(pc.invert(pc.is_in(old["key"], value_set=gone)))
        new = [_files_table(adds_table(list(self._added.values())))] if self._added else []
        files = pa.concat_tables([old, *new]).sort_by("key")
        return TableState(version, metadata, files, self._transactions)


def _files_table(adds: pa.Table) -> pa.Table:
    """Return files as a table of `FILES_SCHEMA`, from the columns of "add" actions."""
    paths = adds["path"].cast(pa.string())
    keys, vectors = paths, pa.chunked_array([pa.nulls(adds.num_rows, pa.string())])
    if "deletionVector" in adds.column_names and adds["deletionVector"].null_count < adds.num_rows:
        # Some writers store a structure of nulls for a file without one.
        described = [v if v and v.get("storageType") else None for v in adds["deletionVector"].to_pylist()]
        keys = pa.array([file_key(p, v) for p, v in zip(paths.to_pylist(), described, strict=True)], pa.string())
        vectors = pa.array([None if not v else json.dumps(v) for v in described], pa.string())
    partition = adds["partitionValues"].cast(pa.map_(pa.string(), pa.string()))
    size = adds["size"].cast(pa.int64())
    return pa.table([keys, paths, size, partition, vectors], schema=FILES_SCHEMA)
