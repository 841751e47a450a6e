"""The schemas that several formats of a source found, such as of keys and values, in the source's one `FoundSchema`."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from tidegate.connectors.formats.interface import Format
from tidegate.connectors.found_schema import FoundSchema

_FORMATS = b"tidegate.formats"
"""Key in the metadata of a found schema: a JSON object, part of the record -> document of the format's found schema."""


def found_by_formats(schema: pa.Schema, formats: Mapping[str, Format]) -> FoundSchema | None:
    """Return what a source returns as its `found_schema`; None: the pipeline declares the schemas of all formats.

    Args:
        schema: schema of the source's records.
        formats: part of the record, such as `key` and `value` -> its format. `schema` of each was called before.
    """
    found = {part: one for part, format_ in formats.items() if (one := format_.found_schema()) is not None}
    if not found:
        return None
    documents = json.dumps({part: one.to_json() for part, one in found.items()}, sort_keys=True)
    where = ", ".join(dict.fromkeys(one.where for one in found.values()))
    return FoundSchema(schema.with_metadata({_FORMATS: documents.encode()}), where)


def formats_with_found(formats: Mapping[str, Format], found: FoundSchema) -> dict[str, Format]:
    """Return the formats as they were when `found_by_formats` returned `found`. Use it in `with_found_schema`.

    Raises:
        SnapshotError: the recorded schema is damaged.
    """
    documents = json.loads((found.schema.metadata or {}).get(_FORMATS, b"{}"))
    return {
        part: format_.with_found_schema(FoundSchema.from_json(documents[part], where=f"the format of the {part}"))
        if part in documents
        else format_
        for part, format_ in formats.items()
    }
