"""Which submission each entry of the decision log belongs to, and which of them came to nothing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.errors import EnvironmentProblemError, OptionError, PipelineError, SlotsUnavailableError, SnapshotError
from tidegate.jobs.records import Decision, DecisionKind

REFUSALS = frozenset(
    error.code for error in (SnapshotError, PipelineError, OptionError, EnvironmentProblemError, SlotsUnavailableError)
)
"""Codes of failures that only drivers tell, never slots."""


@dataclass(frozen=True, slots=True)
class LogEntry:
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


def entries_by_submission(decisions: Sequence[Decision]) -> tuple[LogEntry, ...]:
    """Every entry with its submission, oldest first."""
    entries: list[LogEntry] = []
    spec = 0
    for decision in decisions:
        if decision.kind == "fence":
            spec = decision.data["spec"]
        entries.append(LogEntry(decision, spec))
    return tuple(entries)


def may_have_run(entries: Sequence[LogEntry]) -> frozenset[int]:
    """Submissions of which a slot may have been started. The others have changed nothing: they had no driver, or only
    such as were cancelled before they waited for slots, or refused them for a reason that no slot tells (S9.3)."""
    reigns: dict[int, list[LogEntry]] = {}
    for entry in entries:
        if entry.kind == "fence" and not entry.data.get("only_commits"):
            reigns[entry.decision.generation] = []
        elif entry.decision.generation in reigns:
            reigns[entry.decision.generation].append(entry)
    fences = {e.decision.generation: e.spec for e in entries if e.kind == "fence"}
    return frozenset(fences[generation] for generation, own in reigns.items() if not _is_discarded_generation(own))


def is_discarded(entries: Sequence[LogEntry], submissions: int) -> bool:
    """Whether none of the first `submissions` submissions has state or output: each had no driver, or was refused by
    its drivers before a slot ran, for a reason that no slot reports."""
    ran = may_have_run(entries)
    refused = {e.spec for e in entries if e.kind == "failure" and e.data.get("code") in REFUSALS}
    driven = {e.spec for e in entries if e.kind == "fence"}
    return all(n not in ran and (n in refused or n not in driven) for n in range(1, submissions + 1))


def next_submission_that_ran(number: int, ran: Collection[int]) -> int:
    """The submission that a restore which is submission `number` goes on from, with its "latest" and its settings: the
    newest before it that may have run; the one before it when none has; 0: there is none. Args: ran: `may_have_run`."""
    return max((n for n in ran if n < number), default=number - 1)


def _is_discarded_generation(reign: Sequence[LogEntry]) -> bool:
    if any(entry.kind == "rewind" for entry in reign):
        return False  # sinks may have taken rows back
    told = {str(entry.data["status"]) for entry in reign if entry.kind == "status"}
    failures = {entry.data.get("code") for entry in reign if entry.kind == "failure"}
    if failures:
        return failures <= REFUSALS and "FAILED" in told and told <= {"WAITING_FOR_SLOTS", "FAILED"}
    return told == {"CANCELED"}
