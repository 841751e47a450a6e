"""A state in pieces, as back ends for large ones hand it to snapshots: what has not changed keeps its id (S5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from tidegate.snapshot.parts import Blob, StatePart


def keyed_in_pieces(name: str, schema: pa.Schema, pieces: Mapping[str, Callable[[], pa.Table]]) -> StatePart:
    """A keyed part. Args: pieces: id, which is new whenever the content is -> rows of `schema`."""
    blobs = tuple(Blob(piece, make) for piece, make in pieces.items())
    return StatePart(name, "keyed", schema.empty_table(), (), blobs)
