"""What a broadcast join needs of its two sides."""

from __future__ import annotations

from typing import get_args

import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.operators.specs import BroadcastJoinSpec, JoinKind
from tidegate.api.draft.column_checks import checked_renames
from tidegate.api.draft.expression_checks import require_boolean, require_expression
from tidegate.api.joining import BroadcastStream
from tidegate.api.joins import JoinCall, join_keys, output_names
from tidegate.snapshot.parts import OWNER_COLUMN


def broadcast_join(left: pa.Schema, other: BroadcastStream, call: JoinCall, where: str) -> BroadcastJoinSpec:
    """The operator of a join; PipelineError for anything that does not fit."""
    how = _kind(call, where)
    if not other.bounded:
        raise PipelineError(
            "the broadcast side is unbounded",
            where=where,
            cause="records wait until the broadcast side has come to its end, which it never would",
            remedy="Read it with a bounded source, such as Files; or leave out .broadcast() for a join of two streams",
        )
    if OWNER_COLUMN in left.names:
        raise PipelineError(
            f"a column is named {OWNER_COLUMN!r}",
            where=where,
            cause="the state of the join has a column of this name",
            remedy="Give it another name first: .select(...)",
        )
    keys = join_keys(left, other.schema, call.on, call.left_on, call.right_on, where)
    mine, theirs = (tuple(pair[side] for pair in keys) for side in (0, 1))
    alone = how in ("semi", "anti")
    names: tuple[tuple[str, str], ...] = ()
    if not alone or call.where is not None:
        names = output_names(left, other.schema, keys, call.suffix, where)
    added = [other.schema.field(column).with_name(name).remove_metadata() for column, name in names]
    own = [field.remove_metadata() for field in left]
    pairs = pa.schema([*own, *(field.with_nullable(True) if how == "left" else field for field in added)])
    condition = None
    if call.where is not None:
        condition = require_expression(call.where, where)
        require_boolean(condition, pairs, where)
    known = [*left.names, *(name for name in other.schema.names if name not in left.names)]
    return BroadcastJoinSpec(
        mine,
        how,
        left,
        other.schema,
        pa.schema(own) if alone else pairs,
        checked_renames(call.renamed, known, where),
        theirs,
        names,
        condition,
    )


def _kind(call: JoinCall, where: str) -> JoinKind:
    for name, value in {"between": call.between, "window": call.window, "ttl": call.ttl}.items():
        if value is not None:
            raise PipelineError(
                f"a broadcast join has no {name}",
                where=where,
                cause="every record is joined with a complete side, at any time",
                remedy="Leave out .broadcast() for a join of two streams",
            )
    for known in get_args(JoinKind):
        if call.how == known:
            kind: JoinKind = known
            return kind
    raise PipelineError(
        f"how={call.how!r} is not offered of a broadcast join",
        where=where,
        cause="every subtask holds the broadcast side whole, and none knows what the others have matched"
        if call.how in ("right", "full")
        else "",
        remedy=f"Use one of {', '.join(get_args(JoinKind))}; or leave out .broadcast() for a join of two streams",
    )
