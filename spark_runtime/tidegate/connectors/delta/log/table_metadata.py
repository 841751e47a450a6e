"""Metadata of a Delta table, from its log: columns, partitioning, properties, and the features it requires.

Source: PROTOCOL.md of delta-io/delta, "Change Metadata", "Protocol Evolution", "Column Mapping", "Schema Serialization
Format".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from tidegate.errors import PipelineError

Names = Mapping[str, Any]
"""Names in the data files, for a table with column mapping: column -> [name in the files, `Names` of its type or None].
The elements of a list are named "element", keys and values of a map "key" and "value"."""

READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that the protocol demands of readers, and that this reader has."""
MOST_READER_VERSION = 3
DEFAULT_FILE_RETENTION_MS = 7 * 86_400_000
"""The protocol's default of `delta.deletedFileRetentionDuration`."""
DEFAULT_LOG_RETENTION_MS = 30 * 86_400_000
"""The protocol's default of `delta.logRetentionDuration`."""

_MAPPING_MODE = "delta.columnMapping.mode"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_COORDINATED = "delta.coordinatedCommits."
_UNIT_MS = {
    "week": 604_800_000,
    "day": 86_400_000,
    "hour": 3_600_000,
    "minute": 60_000,
    "second": 1_000,
    "millisecond": 1,
}
_TERM = re.compile(r"(\d+)\s+([a-z]+?)s?\b")
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_PRIMITIVES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


class UnknownTypeError(Exception):
    """A type of Delta that this reader lacks; the text is its name."""


@dataclass(frozen=True)
class TableMetadata:
    """Metadata of one version of a table.

    Attributes:
        table_id: unique id of the table: a table that is dropped and created again has another one.
        fields: its columns, as the log describes them.
        partition_columns: names of the columns whose values are in the log.
        properties: its properties, such as `delta.appendOnly`.
        protocol: fields of the protocol action.
    """

    table_id: str
    fields: tuple[Mapping[str, Any], ...]
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    protocol: Mapping[str, Any]

    @classmethod
    def of(cls, metadata: Mapping[str, Any], protocol: Mapping[str, Any]) -> TableMetadata:
        """Return the metadata of a `metaData` and a `protocol` action."""
        return cls(
            str(metadata["id"]),
            tuple(json.loads(metadata["schemaString"])["fields"]),
            tuple(metadata.get("partitionColumns") or ()),
            {name: str(value) for name, value in dict(metadata.get("configuration") or {}).items()},
            protocol,
        )

    def check_readable(self, where: str) -> None:
        """Check that this reader has all that the table requires of readers.

        Raises:
            PipelineError: with the names of the missing features.
        """
        version = int(self.protocol.get("minReaderVersion") or 1)
        lacking = sorted(set(self.protocol.get("readerFeatures") or ()) - READER_FEATURES)
        if version > MOST_READER_VERSION:
            lacking.append(f"reader version {version}")
        mode = self.properties.get(_MAPPING_MODE, "none")
        if mode not in ("none", "name"):
            lacking.append(f"{_MAPPING_MODE}={mode}")
        lacking += sorted(name for name in self.properties if name.startswith(_COORDINATED))
        if lacking:
            raise PipelineError(
                "the Delta table requires features that this source does not support",
                where=where,
                cause=", ".join(lacking),
                remedy="Read a table without these features, such as a copy; or read it with SparkTable in batch mode",
            )

    @property
    def writes_changes(self) -> bool:
        """True if the table records the rows that its versions change (`delta.enableChangeDataFeed`)."""
        return self.properties.get("delta.enableChangeDataFeed", "").lower() == "true"

    @property
    def is_append_only(self) -> bool:
        """True if rows of the table must not be removed (`delta.appendOnly`)."""
        return self.properties.get("delta.appendOnly", "").lower() == "true"

    @property
    def has_commit_times(self) -> bool:
        """True if log entries hold the time of their commit (`delta.enableInCommitTimestamps`)."""
        return self.properties.get("delta.enableInCommitTimestamps", "").lower() == "true"

    @property
    def file_retention_ms(self) -> int | None:
        """Time for which removed data files stay, milliseconds; None: unknown."""
        return _duration_ms(self.properties.get("delta.deletedFileRetentionDuration"), DEFAULT_FILE_RETENTION_MS)

    @property
    def log_retention_ms(self) -> int | None:
        """Time for which log entries stay, milliseconds; None: unknown."""
        return _duration_ms(self.properties.get("delta.logRetentionDuration"), DEFAULT_LOG_RETENTION_MS)

    @cached_property
    def names(self) -> Names | None:
        """The names of the columns in the data files; None: they are the names of the table."""
        if self.properties.get(_MAPPING_MODE, "none") == "none":
            return None
        return _names_of(self.fields)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns whose types this reader has."""
        found = []
        for field in self.fields:
            try:
                found.append(pa.field(field["name"], arrow_type(field["type"]), bool(field["nullable"])))
            except UnknownTypeError:
                continue
        return pa.schema(found)

    @property
    def unknown_types(self) -> Mapping[str, str]:
        """Column -> its type, for types that this reader lacks."""
        found = {}
        for field in self.fields:
            try:
                arrow_type(field["type"])
            except UnknownTypeError as e:
                found[str(field["name"])] = str(e)
        return found


def arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type of a type in the log. Raises UnknownTypeError."""
    if isinstance(kind, str):
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        if match := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(match[1]), int(match[2]))
        raise UnknownTypeError(kind)
    if kind["type"] == "struct":
        fields = [pa.field(f["name"], arrow_type(f["type"]), bool(f["nullable"])) for f in kind["fields"]]
        return pa.struct(fields)
    if kind["type"] == "array":
        return pa.list_(pa.field("element", arrow_type(kind["elementType"]), bool(kind["containsNull"])))
    if kind["type"] == "map":
        item = pa.field("value", arrow_type(kind["valueType"]), bool(kind["valueContainsNull"]))
        return pa.map_(pa.field("key", arrow_type(kind["keyType"]), False), item)
    raise UnknownTypeError(str(kind["type"]))


def _names_of(fields: Any) -> Names:
    return {
        field["name"]: [
            str((field.get("metadata") or {}).get(_PHYSICAL_NAME, field["name"])),
            _names_in(field["type"]),
        ]
        for field in fields
    }


def _names_in(kind: Any) -> Names | None:
    if isinstance(kind, str):
        return None
    if kind["type"] == "struct":
        return _names_of(kind["fields"])
    if kind["type"] == "array":
        return {"element": ["element", _names_in(kind["elementType"])]}
    return {"key": ["key", _names_in(kind["keyType"])], "value": ["value", _names_in(kind["valueType"])]}


def _duration_ms(text: str | None, default_ms: int) -> int | None:
    """Return the length of an interval such as "interval 7 days"; None: it cannot be parsed."""
    if text is None:
        return default_ms
    lowered = text.lower().removeprefix("interval").strip()
    terms = _TERM.findall(lowered)
    if not terms or _TERM.sub("", lowered).strip() or any(unit not in _UNIT_MS for _, unit in terms):
        return None
    return sum(int(number) * _UNIT_MS[unit] for number, unit in terms)
