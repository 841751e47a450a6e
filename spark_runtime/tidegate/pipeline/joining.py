"""What a broadcast join needs of its two sides."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidegate.contract.errors import PipelineError
from tidegate.operators.specs import JoinKind
from tidegate.pipeline.columns import refuse_duplicates, require_column, require_key
from tidegate.pipeline.stream_base import StreamBase
from tidegate.snapshot.parts import OWNER_COLUMN


class BroadcastStream(StreamBase):
    """A stream marked by `Stream.broadcast()`: every subtask gets all of it. It has no calls."""


def check_broadcast_join(
    left: pa.Schema, other: BroadcastStream, on: str | Sequence[str], how: object, where: str
) -> tuple[tuple[str, ...], JoinKind, pa.Schema]:
    """Key columns, kind and output schema of a join; PipelineError for anything that does not fit."""
    if how not in ("inner", "left"):
        raise PipelineError(
            f"how={how!r} is not offered of a broadcast join",
            where=where,
            cause="what a broadcast side has is in every subtask: none knows what the others have matched",
            remedy='Use "inner" or "left", or leave out .broadcast() for a join of two streams',
        )
    if not other.bounded:
        raise PipelineError(
            "the broadcast side is unbounded",
            where=where,
            cause="records wait until the broadcast side has come to its end, which it never would",
            remedy="Read it with a bounded source, such as Files",
        )
    if OWNER_COLUMN in left.names:
        raise PipelineError(
            f"a column is named {OWNER_COLUMN!r}",
            where=where,
            cause="the state of the join has a column of this name",
            remedy="Give it another name first: .select(...)",
        )
    keys = (on,) if isinstance(on, str) else tuple(on)
    if not keys:
        raise PipelineError("a join needs a key column", where=where, remedy='Name it: on="carrier"')
    refuse_duplicates(keys, where, remedy="Name each key column once")
    for key in keys:
        mine = require_column(left, key, f"left side of {where}")
        theirs = require_column(other.schema, key, f"broadcast side of {where}")
        require_key(mine, where)
        if mine.type != theirs.type:
            raise PipelineError(
                f"key column {key!r} is {mine.type} on the left and {theirs.type} on the broadcast side",
                where=where,
                remedy=f"Cast one of them first: .with_columns({key}=pc.field({key!r}).cast(...))",
            )
    added = [f.remove_metadata() for f in other.schema if f.name not in keys]
    clash = [f.name for f in added if f.name in left.names]
    if clash:
        raise PipelineError(
            f"column {clash[0]!r} is on both sides of the join",
            where=where,
            remedy=f"Rename it on one side: .select(..., other_name=pc.field({clash[0]!r}))",
        )
    if how == "left":
        added = [f.with_nullable(True) for f in added]
    kind: JoinKind = "left" if how == "left" else "inner"
    return keys, kind, pa.schema([*(f.remove_metadata() for f in left), *added])
