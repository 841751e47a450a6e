"""Formats of records that are bytes: `formats.Json(schema)`, `formats.Avro(registry=..., subject=...)` and others.

Names are imported when they are first used, so that a missing extra is named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tidegate.extras import extra_required_by

_HOMES = {
    "Avro": "avro_format",
    "Debezium": "debezium_format",
    "DecodedRecords": "interface",
    "Format": "interface",
    "Json": "json_format",
    "Protobuf": "protobuf_format",
    "Raw": "raw_format",
    "RecordDecoder": "interface",
    "RecordEncoder": "interface",
    "SchemaRegistry": "schema_registry",
    "UndecodableRecord": "interface",
}
"""Every public name, and the module below `tidegate.connectors.formats` that it is imported from."""

if TYPE_CHECKING:  # the same names for type checkers; `as` exports them; a test compares
    from tidegate.connectors.formats.avro_format import Avro as Avro
    from tidegate.connectors.formats.debezium_format import Debezium as Debezium
    from tidegate.connectors.formats.interface import DecodedRecords as DecodedRecords
    from tidegate.connectors.formats.interface import Format as Format
    from tidegate.connectors.formats.interface import RecordDecoder as RecordDecoder
    from tidegate.connectors.formats.interface import RecordEncoder as RecordEncoder
    from tidegate.connectors.formats.interface import UndecodableRecord as UndecodableRecord
    from tidegate.connectors.formats.json_format import Json as Json
    from tidegate.connectors.formats.protobuf_format import Protobuf as Protobuf
    from tidegate.connectors.formats.raw_format import Raw as Raw
    from tidegate.connectors.formats.schema_registry import SchemaRegistry as SchemaRegistry
else:
    __all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name from its home. Raises MissingExtraError when the extra that it needs is not installed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra_required_by(f"tidegate.formats.{name}"):
        home = importlib.import_module(f"tidegate.connectors.formats.{_HOMES[name]}")
        value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
