"""What a pipeline declares of an operator state; apart from the states themselves, which need numba."""

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
        name: unique among all states of the operator, keyed ones too; letters, digits, "_", "-", ".".
        kind: see `tidegate.state.operator_state`.
        columns: of its rows; at least one, none named as those that the runtime adds to states.
        key: of a broadcast state: columns of the key that its rows go by; empty: they go by none.
        renamed: column in older snapshots -> its name now (S5.5).
    """

    name: str
    kind: OperatorKind
    columns: pa.Schema
    key: pa.Schema = field(default_factory=lambda: pa.schema([]))
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def schema(self) -> pa.Schema:
        """Of its part."""
        if not len(self.key):
            return operator_schema(self.kind, self.columns)
        return marked_schema(
            f"operator {self.kind} by {', '.join(self.key.names)}", pa.schema([*self.key, *self.columns])
        )

    def __post_init__(self) -> None:
        taken = [n for n in (*self.key.names, *self.columns.names) if n in (KEY_GROUP_COLUMN, OWNER_COLUMN)]
        if taken or not len(self.columns):
            raise PipelineError(
                f"an operator state has a column {taken[0]!r}" if taken else "an operator state has no columns",
                where=f"state {self.name!r}",
                cause="the runtime says by columns of this name where rows belong" if taken else "",
                remedy="Give the column another name" if taken else "Name at least one column and its type",
            )
