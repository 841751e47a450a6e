"""Opens the back end that holds the keyed state of an operator subtask (S5.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from tidegate.operators.stream_operator import OperatorContext
from tidegate.snapshot.key_groups import key_group_range
from tidegate.state.backend_registry import new_backend
from tidegate.state.keyed_state import BackendContext, KeyedStateBackend


def open_keyed_backend(
    ctx: OperatorContext,
    keys: pa.Schema,
    *,
    columns: Sequence[str] = (),
    namespace_columns: int = 0,
    forgotten: frozenset[str] = frozenset(),
    renamed: Iterable[tuple[str, str]] = (),
    fills: bool = True,
    drops: bool = False,
) -> KeyedStateBackend:
    """Open the back end of the job's option `state_backend` for the subtask's key groups.

    Args:
        keys: the key columns; the last `namespace_columns` of them are namespaces.
        columns: their names in batches; empty: the same names.
        forgotten: states that a restore drops.
        renamed: (key column in older snapshots, its name now); names that are not in the snapshot are ignored.
        fills: a restore may fill a new nullable column of a state with null.
        drops: a restore drops value columns that a state no longer declares.
    """
    back_end = new_backend(ctx.state_backend)
    back_end.open(
        BackendContext(
            uid=ctx.uid,
            key_schema=keys,
            key_columns=tuple(columns or keys.names),
            max_parallelism=ctx.max_parallelism,
            key_groups=key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism),
            now_ms=ctx.processing_time_ms,
            scratch=ctx.scratch,
            memory_bytes=ctx.state_memory_bytes,
            namespace_columns=namespace_columns,
            forgotten=forgotten,
            renamed_keys=dict(renamed),
            fills=fills,
            drops=drops,
        )
    )
    return back_end
