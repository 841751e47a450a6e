"""The submission of each entry of the decision log, and submissions that changed nothing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.errors import EnvironmentProblemError, OptionError, PipelineError, SlotsUnavailableError, SnapshotError
from tidegate.jobs.records import Decision, DecisionKind

REFUSALS = frozenset(
    error.code for error in (SnapshotError, PipelineError, OptionError, EnvironmentProblemError, SlotsUnavailableError)
)
"""Codes of failures that only drivers report, never slots."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A log entry, with the submission of the generation that wrote it; 0 before the first fence."""

    decision: Decision
    spec: int

    @property
    def kind(self) -> DecisionKind:
        """Kind of the decision."""
        return self.decision.kind

    @property
    def data(self) -> Mapping[str, Any]:
        """Data of the decision."""
        return self.decision.data


def entries_by_submission(decisions: Sequence[Decision]) -> tuple[LogEntry, ...]:
    """Return every entry with its submission, oldest first."""
    entries: list[LogEntry] = []
    spec = 0
    for decision in decisions:
        if decision.kind == "fence":
            spec = decision.data["spec"]
        entries.append(LogEntry(decision, spec))
    return tuple(entries)


def may_have_run(entries: Sequence[LogEntry]) -> frozenset[int]:
    """Return the submissions for which a slot may have started.

    Other submissions have changed nothing. They had no driver, or their drivers were cancelled before they waited for
    slots, or refused the submission for a reason that no slot reports (S9.3).
    """
    generations: dict[int, list[LogEntry]] = {}
    for entry in entries:
        if entry.kind == "fence" and not entry.data.get("only_commits"):
            generations[entry.decision.generation] = []
        elif entry.decision.generation in generations:
            generations[entry.decision.generation].append(entry)
    fences = {e.decision.generation: e.spec for e in entries if e.kind == "fence"}
    return frozenset(fences[generation] for generation, own in generations.items() if not _is_discarded_generation(own))


def is_discarded(entries: Sequence[LogEntry], submissions: int) -> bool:
    """Return whether none of the first `submissions` submissions has state or output. Each of them had no driver, or
    its drivers refused it before a slot ran, for a reason that no slot reports."""
    ran = may_have_run(entries)
    refused = {e.spec for e in entries if e.kind == "failure" and e.data.get("code") in REFUSALS}
    driven = {e.spec for e in entries if e.kind == "fence"}
    return all(n not in ran and (n in refused or n not in driven) for n in range(1, submissions + 1))


def next_submission_that_ran(number: int, ran: Collection[int]) -> int:
    """Return the submission that a restore, as submission `number`, continues: it gives "latest" and the settings.

    It is the newest earlier submission that may have run. If none has run, it is `number - 1`; 0 means none. `ran` is
    the result of `may_have_run`.
    """
    return max((n for n in ran if n < number), default=number - 1)


def _is_discarded_generation(entries: Sequence[LogEntry]) -> bool:
    if any(entry.kind == "rewind" for entry in entries):
        return False  # sinks may have deleted rows
    statuses = {str(entry.data["status"]) for entry in entries if entry.kind == "status"}
    failures = {entry.data.get("code") for entry in entries if entry.kind == "failure"}
    if failures:
        return failures <= REFUSALS and "FAILED" in statuses and statuses <= {"WAITING_FOR_SLOTS", "FAILED"}
    return statuses == {"CANCELED"}
