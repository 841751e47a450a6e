"""The states that an operator declares, as documents. They are pinned with a job's graph and stored in snapshots, so
that a preflight compares them without the runtime (S5.5). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.jobs.restore.state_evolution import StateColumn, evolution

OWNER_COLUMN = "__owner"
"""The runtime's own column of list states. Not every version wrote it."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """A state of an operator.

    Attributes:
        name: name, unique within the operator.
        kind: kind of state, which decides how a rescale distributes it (S5.1).
        columns: columns in order; empty: the operator's own format, which is not compared.
        form: another property that must stay the same: "value", "map", "tumbling of 10 us"; "": none.
        renamed: old column -> new column, as users write them.
        fills: a new nullable column is filled with null.
        drops: a value column that is no longer declared is dropped.
    """

    name: str
    kind: str
    columns: tuple[StateColumn, ...] = ()
    form: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    fills: bool = True
    drops: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the form of a graph's document."""
        columns = [[column.name, column.type, column.nullable] for column in self.columns]
        document = {"name": self.name, "kind": self.kind, "columns": columns, "form": self.form}
        return {**document, "renamed": dict(self.renamed), "fills": self.fills, "drops": self.drops}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StateShape:
        """Parse the result of `to_json`."""
        columns = tuple(StateColumn(name, type_, nullable) for name, type_, nullable in document["columns"])
        name, kind, form = document["name"], document["kind"], document["form"]
        return cls(name, kind, columns, form, document["renamed"], document["fills"], document.get("drops", False))


@dataclass(frozen=True, slots=True)
class StateVerdict:
    """Result of a comparison of one operator's states.

    Attributes:
        refused: (state, reason) for each refusal.
        undeclared: states of the snapshot that the operator no longer declares.
        changes: (state, change) for each accepted change.
    """

    refused: tuple[tuple[str, str], ...]
    undeclared: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]


def compare_states(old: Sequence[StateShape], new: Sequence[StateShape]) -> StateVerdict:
    """Compare the states in a snapshot with the states that the pipeline declares. A new state starts empty."""
    declared = {shape.name: shape for shape in new}
    refused: list[tuple[str, str]] = []
    changes: list[tuple[str, str]] = []
    undeclared: list[str] = []
    for was in old:
        now = declared.get(was.name)
        if now is None:
            undeclared.append(was.name)
        elif was.kind != now.kind:
            refused.append((was.name, f"the state's kind was {was.kind}, now {now.kind}"))
        elif was.form and now.form and was.form != now.form:
            refused.append((was.name, f"the state was {was.form}, now {now.form}"))
        elif was.columns and now.columns:
            found = evolution(_compared(was), _compared(now), now.renamed, fills=now.fills, drops=now.drops)
            refused += [(was.name, why) for why in found.refused]
            changes += [(was.name, what) for what in found.changes]
    return StateVerdict(tuple(refused), tuple(undeclared), tuple(changes))


def _compared(shape: StateShape) -> list[StateColumn]:
    return [column for column in shape.columns if column.name != OWNER_COLUMN]
