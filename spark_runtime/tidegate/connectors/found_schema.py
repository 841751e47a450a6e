"""The schema that a source found in its input, as a document.

The schema belongs to the job: it does not change with the files that are listed today.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import SnapshotError

FOUND_SCHEMA = "found_schema"
"""Key of an operator in a graph document: the `FoundSchema` of a source; null or absent when the source has none."""

FoundSchemas = Mapping[str, Mapping[str, Any]]
"""Source uid -> document of the source's `FoundSchema`."""

_in_effect: ContextVar[FoundSchemas] = ContextVar("found schemas")


@dataclass(frozen=True)
class FoundSchema:
    """Schema that a source without a declared schema found when its job was first built.

    Attributes:
        schema: all columns of the input, without metadata.
        where: file in which the schema was found.
    """

    schema: pa.Schema
    where: str

    def to_json(self) -> dict[str, Any]:
        """Return the document: the schema in Arrow's own serialization, because type names alone cannot be parsed."""
        return {"arrow": base64.b64encode(self.schema.serialize().to_pybytes()).decode(), "where": self.where}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], *, where: str) -> FoundSchema:
        """Inverse of `to_json`. Raises SnapshotError when the document is damaged."""
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["arrow"], validate=True)))
            return cls(schema, str(document["where"]))
        except (LookupError, TypeError, ValueError, pa.ArrowException, OSError) as error:
            raise SnapshotError(
                "the recorded schema of a source is damaged",
                where=where,
                cause=f"{type(error).__name__}: {error}",
                remedy="Declare schema= in the source, or restore another snapshot",
            ) from error


def found_schemas(graph: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the found schemas in a graph document. Documents before version 5 hold none."""
    operators = graph.get("operators", ())
    return {operator["uid"]: operator[FOUND_SCHEMA] for operator in operators if operator.get(FOUND_SCHEMA)}


@contextmanager
def using_found_schemas(schemas: FoundSchemas) -> Iterator[None]:
    """Build pipelines with these schemas while the context is active. A source without one finds it in its input."""
    token = _in_effect.set(schemas)
    try:
        yield
    finally:
        _in_effect.reset(token)


def recorded_schema(uid: str) -> FoundSchema | None:
    """Return the recorded schema of a source of the pipeline that is being built; None: no schema is recorded."""
    document = _in_effect.get({}).get(uid)
    return None if document is None else FoundSchema.from_json(document, where=f"source {uid!r}")
