"""Avro records as another library writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro


def written(schema: Any, rows: Sequence[Any]) -> list[bytes]:
    """The records as fastavro writes them."""
    parsed, found = fastavro.parse_schema(json.loads(json.dumps(schema))), []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        found.append(out.getvalue())
    return found
