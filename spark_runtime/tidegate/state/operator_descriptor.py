"""Descriptor of operator state in a pipeline. It is separate from the states themselves, which need numba."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, OWNER_COLUMN
from tidegate.state.state_layout import marked_schema, operator_schema

OperatorKind = Literal["list", "union", "broadcast"]


@dataclass(frozen=True)
class OperatorDescriptor:
    """One operator state.

    Attributes:
        name: unique among all states of the operator, including keyed ones; letters, digits, "_", "-", ".".
        kind: see `tidegate.state.operator_state`.
        columns: columns of its rows; at least one; names that the runtime adds to states are reserved.
        key: for a broadcast state: columns of the key of its rows; empty: rows have no key.
        renamed: column in older snapshots -> its name now (S5.5).
    """

    name: str
    kind: OperatorKind
    columns: pa.Schema
    key: pa.Schema = field(default_factory=lambda: pa.schema([]))
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of its part in a snapshot."""
        if not len(self.key):
            return operator_schema(self.kind, self.columns)
        return marked_schema(
            f"operator {self.kind} by {', '.join(self.key.names)}", pa.schema([*self.key, *self.columns])
        )

    def __post_init__(self) -> None:
        reserved = [n for n in (*self.key.names, *self.columns.names) if n in (KEY_GROUP_COLUMN, OWNER_COLUMN)]
        if reserved or not len(self.columns):
            raise PipelineError(
                f"an operator state has a column {reserved[0]!r}" if reserved else "an operator state has no columns",
                where=f"state {self.name!r}",
                cause="the runtime uses columns of this name to assign rows to subtasks" if reserved else "",
                remedy="Rename the column" if reserved else "Declare at least one column with its type",
            )
