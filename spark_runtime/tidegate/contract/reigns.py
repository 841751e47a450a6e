"""Which submission each entry of the decision log belongs to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.contract.records import Decision, DecisionKind


@dataclass(frozen=True, slots=True)
class Entry:
    """A log entry and the submission of the reign that wrote it; 0 before the first fence."""

    decision: Decision
    spec: int

    @property
    def kind(self) -> DecisionKind:
        """Of the decision."""
        return self.decision.kind

    @property
    def data(self) -> Mapping[str, Any]:
        """Of the decision."""
        return self.decision.data


def submissions_of(decisions: Sequence[Decision]) -> tuple[Entry, ...]:
    """Every entry with its submission, oldest first."""
    entries: list[Entry] = []
    spec = 0
    for decision in decisions:
        if decision.kind == "fence":
            spec = decision.data["spec"]
        entries.append(Entry(decision, spec))
    return tuple(entries)
