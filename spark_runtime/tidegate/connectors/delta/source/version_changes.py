"""The changes of one later version of a Delta table, by its log entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tidegate.change_rows import DELETE
from tidegate.connectors.delta.log.log_files import LogEntry
from tidegate.connectors.delta.log.table_metadata import Names, TableMetadata
from tidegate.connectors.delta.log.table_state import DataFile, commit_time_ms
from tidegate.connectors.delta.source.file_rows import ADDED, REMOVED, FilePart
from tidegate.connectors.delta.source.table_selection import PartitionFilter
from tidegate.errors import PipelineError


@dataclass(frozen=True)
class TableFacts:
    """Facts of a version's metadata that an enumerator needs to read later versions. Part of its state.

    Attributes:
        table_id, partition_columns, protocol: as in `TableMetadata`.
        names: names in the data files; None: the same as in the table.
        file_retention_ms, log_retention_ms: times for which removed files, and log entries, stay; None: unknown.
    """

    table_id: str
    protocol: Mapping[str, Any]
    partition_columns: tuple[str, ...] = ()
    names: Names | None = None
    file_retention_ms: int | None = None
    log_retention_ms: int | None = None

    @classmethod
    def of(cls, metadata: TableMetadata) -> Self:
        """Return the facts of a version's metadata."""
        protocol = {name: value for name, value in metadata.protocol.items() if value}
        return cls(
            metadata.table_id,
            protocol,
            metadata.partition_columns,
            metadata.names,
            metadata.file_retention_ms,
            metadata.log_retention_ms,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the document for the state of the enumerator."""
        return {
            "table_id": self.table_id,
            "protocol": dict(self.protocol),
            "partition_columns": list(self.partition_columns),
            "names": self.names,
            "file_retention_ms": self.file_retention_ms,
            "log_retention_ms": self.log_retention_ms,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(**{**document, "partition_columns": tuple(document["partition_columns"])})


@dataclass(frozen=True)
class VersionChanges:
    """One later version.

    Attributes:
        entry: its log entry.
        time_ms: time of its commit, milliseconds since the epoch.
        operation: name of the operation that made it, such as "MERGE".
        metadata: metadata that it sets; None: it sets none.
        protocol: protocol that it sets; None: it sets none.
        added, removed: data files with changed rows that it adds and removes, of the partitions that are read.
        has_change_files: it has files that name the changed rows.
    """

    entry: LogEntry
    time_ms: int
    operation: str
    metadata: TableMetadata | None
    protocol: Mapping[str, Any] | None
    added: int
    removed: int
    has_change_files: bool

    @classmethod
    def of(cls, entry: LogEntry, before: TableFacts, chosen: PartitionFilter) -> Self:
        """Read the entry once, without keeping its files."""
        metadata: Mapping[str, Any] | None = None
        protocol: Mapping[str, Any] | None = None
        operation, time_ms, has_change_files = "an unknown operation", entry.written_ms, False
        counts = {"add": 0, "remove": 0}
        for kind, body in entry.actions(("commitInfo", "metaData", "protocol", "add", "remove", "cdc")):
            if kind == "commitInfo":
                operation = str(body.get("operation") or operation)
                time_ms = commit_time_ms(iter([(kind, body)]), time_ms)
            elif kind == "metaData":
                metadata = body
            elif kind == "protocol":
                protocol = body
            elif kind == "cdc":
                has_change_files = True
            elif _changes_rows(body) and (body.get("partitionValues") is None or chosen.has(DataFile.of(body))):
                counts[kind] += 1
        made = None if metadata is None else TableMetadata.of(metadata, protocol or before.protocol)
        return cls(entry, time_ms, operation, made, protocol, counts["add"], counts["remove"], has_change_files)

    def facts(self, before: TableFacts) -> TableFacts:
        """Return the facts after this version."""
        if self.metadata is not None:
            return TableFacts.of(self.metadata)
        return before if self.protocol is None else replace(before, protocol=self.protocol)

    def appended(self, chosen: PartitionFilter) -> Iterator[FilePart]:
        """Yield the files that it adds, in the order of the log."""
        for _, body in self.entry.actions(("add",)):
            if _changes_rows(body) and chosen.has(file := DataFile.of(body)):
                yield FilePart(self.entry.version, self.time_ms, file)

    def changed(self, chosen: PartitionFilter, facts: TableFacts, where: str) -> Iterator[FilePart]:
        """Yield the rows that it changes: rows as they were before, then rows as they are after it.

        They are in its change files if it has some, or else in the files that it removes and adds.
        """
        version, time_ms = self.entry.version, self.time_ms
        if self.has_change_files:
            for kind in (REMOVED, ADDED):
                for _, body in self.entry.actions(("cdc",)):
                    if chosen.has(file := DataFile.of(body)):
                        yield FilePart(version, time_ms, file, kind)
            return
        files: dict[str, dict[str, DataFile]] = {"add": {}, "remove": {}}
        for kind, body in self.entry.actions(("add", "remove")):
            if not _changes_rows(body):
                continue
            if body.get("partitionValues") is None and facts.partition_columns:
                raise PipelineError(
                    f"the rows that version {version} of the Delta table removes cannot be read",
                    where=f"{where}, {body['path']}",
                    cause="its log entry does not say to which partition the removed file belongs",
                    remedy="Start the job at a later version",
                )
            if chosen.has(file := DataFile.of(body)):
                files[kind][file.path] = file
        yield from self._differences(files["remove"], files["add"])

    def _differences(self, removed: Mapping[str, DataFile], added: Mapping[str, DataFile]) -> Iterator[FilePart]:
        """Yield the rows that were visible before and are not now, then the other way round.

        A file that is removed and added again has another deletion vector.
        """
        version, time_ms = self.entry.version, self.time_ms
        for path, file in removed.items():
            if path not in added:
                yield FilePart(version, time_ms, file, DELETE)
            elif added[path].vector is not None:
                yield FilePart(version, time_ms, file, DELETE, added[path].vector)
        for path, file in added.items():
            if path not in removed:
                yield FilePart(version, time_ms, file)
            elif removed[path].vector is not None:
                yield FilePart(version, time_ms, file, only=removed[path].vector)


def _changes_rows(body: Mapping[str, Any]) -> bool:
    """Return whether a file action changes rows. A compaction only moves them to other files."""
    return bool(body.get("dataChange", True))
