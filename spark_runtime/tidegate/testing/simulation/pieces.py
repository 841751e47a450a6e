"""A state in pieces, as back ends for large ones hand it to snapshots: what has not changed keeps its id (S5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from tidegate.snapshot.parts import Blob, StatePart


def keyed_in_pieces(name: str, schema: pa.Schema, pieces: Mapping[str, Callable[[], pa.Table]]) -> StatePart:
    """A keyed part. Args: pieces: id, which is new whenever the content is -> rows of `schema`."""
    blobs = tuple(Blob(piece, lambda make=make: _stream(make())) for piece, make in pieces.items())  # type: ignore[misc]
    return StatePart(name, "keyed", schema.empty_table(), (), blobs)


def _stream(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()
