"""Checkpoints that wait for a verdict of the commit gate, may be committed, or are committed (S7.8). Pure.

Derived from the decision log, so that a driver, a later committer and all readers get the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from tidegate.jobs.history.checkpoints import CheckpointView, RecoveryPoints, checkpoint_views
from tidegate.jobs.history.submissions import LogEntry, entries_by_submission
from tidegate.jobs.records import Decision, Spec


@dataclass(frozen=True, slots=True)
class WithheldRange:
    """A range of transactions that a rejection with `then=quarantine` keeps unpublished.

    It contains the transactions of barriers > `after` and <= the last of `checkpoints`, also of aborted barriers in
    between. Barrier ids are unique in the life of a job, so the range is valid wherever a transaction's handle appears.

    Attributes:
        checkpoints: rejected checkpoints, ascending.
        by, reason: who rejected them, and why; for readers.
    """

    after: int
    checkpoints: tuple[int, ...]
    by: str = ""
    reason: str = ""

    @property
    def through(self) -> int:
        """Id of the last barrier of the range."""
        return self.checkpoints[-1]

    def covers(self, checkpoint_id: int) -> bool:
        """Return whether a transaction of this barrier is withheld."""
        return self.after < checkpoint_id <= self.through

    def checkpoint_of(self, checkpoint_id: int) -> int:
        """Return the rejected checkpoint that a transaction of this barrier belonged to."""
        return next(n for n in self.checkpoints if n >= checkpoint_id)

    def to_json(self) -> dict[str, Any]:
        """Return the form of messages and of the `reject` entry."""
        return {"after": self.after, "rejected": list(self.checkpoints), "by": self.by, "reason": self.reason}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WithheldRange:
        """Parse the result of `to_json`."""
        by, reason = str(document.get("by") or ""), str(document.get("reason") or "")
        return cls(document["after"], tuple(document["rejected"]), by, reason)


@dataclass(frozen=True, slots=True)
class PendingQuarantineMove:
    """A withheld range whose data may not be in quarantine yet. The next run moves the data before it takes a snapshot,
    but no run has begun since the verdict.

    Attributes:
        held_by: ids of completed snapshots that contain the data until it has moved. For each submission the newest
            that may contain it, savepoints included, then older ones in case the newer ones have been deleted.
        pinned: ids of such snapshots that the job owns and must keep: for each submission the newest.
    """

    withheld: WithheldRange
    held_by: tuple[tuple[int, ...], ...]
    pinned: tuple[int, ...]


@dataclass(frozen=True)
class Verdicts:
    """The line of one submission, from which its state comes (S9.3), and the verdicts on it.

    Attributes:
        spec: number of the submission.
        gated: the submission's option `commit` is "on_request".
        views: every snapshot of the job, by id.
        line: ids of the completed recovery points of the line, oldest first.
        begins_after: all snapshots of the line have a higher id: this id was claimed before its first submission.
        held: points of the line, oldest first, that a gate holds until the log records their commit. With a gate: all
            points. Without a gate: the newest points that gated submissions completed, if the submission has not
            completed one itself.
        approved: points of the line with this id or a lower one may be committed; 0: none.
        approved_at: log entry that permits it: an approval, or without a gate the completion; 0: none.
        committed: newest point of the line for which the log records a commit; 0: none.
        waiting: points of the line that wait for a verdict, oldest first.
        rejected: rejected snapshots of the whole job (`RecoveryPoints.rejected`), without quarantined ones, which can
            be restored.
        withheld: ranges of the whole job that rejections put into quarantine, oldest first.
        unmoved: withheld ranges that the next run must move, if the snapshot that it restores does not contain them.
        unapproved: snapshots of the whole job that completed with a gate and were never approved, or are in quarantine.
        carried_out: id of a command -> checkpoint that it approved or rejected.
    """

    spec: int
    gated: bool
    views: Mapping[int, CheckpointView]
    line: tuple[int, ...] = ()
    begins_after: int = 0
    held: tuple[int, ...] = ()
    approved: int = 0
    approved_at: int = 0
    committed: int = 0
    waiting: tuple[int, ...] = ()
    rejected: frozenset[int] = frozenset()
    withheld: tuple[WithheldRange, ...] = ()
    unmoved: tuple[PendingQuarantineMove, ...] = ()
    unapproved: Set[int] = frozenset()
    carried_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def quarantined(self) -> frozenset[int]:
        """Ids of checkpoints whose output is in quarantine."""
        return frozenset(n for withheld in self.withheld for n in withheld.checkpoints)

    @property
    def uncommitted(self) -> tuple[int, ...]:
        """Points of the line that are not committed: they wait for a verdict, or are approved and not committed yet. A
        committer that works without the job must commit those that are <= `approved`."""
        gone = self.quarantined
        return tuple(n for n in self.held if n > self.committed and n not in gone)

    @property
    def pinned(self) -> tuple[int, ...]:
        """Snapshots that must be kept (S2.3): those that wait, the one that a rejection of the oldest would restore,
        the newest uncommitted one, and those with quarantined data that may not have moved yet."""
        unmoved = [n for one in self.unmoved for n in one.pinned]
        if not self.waiting:
            return (*self.uncommitted[-1:], *unmoved)
        before = [n for n in self.line if n < self.waiting[0]]
        return (*before[-1:], *self.waiting, *unmoved)


def is_gated(spec: Spec) -> bool:
    """Return whether submission `spec` commits only after an approval."""
    return bool(spec.options.get("commit") == "on_request")


def find_verdicts(specs: Sequence[Spec], decisions: Sequence[Decision], spec_number: int) -> Verdicts:
    """Return the verdicts on the line of submission `spec_number`. `decisions` is the whole log."""
    entries = entries_by_submission(decisions)
    return verdicts_from_entries(specs, entries, checkpoint_views(entries, ended=False), spec_number)


def verdicts_from_entries(
    specs: Sequence[Spec], entries: Sequence[LogEntry], views: Sequence[CheckpointView], spec_number: int
) -> Verdicts:
    """Return the same as `find_verdicts`, for callers that have the views."""
    by_id = {view.checkpoint_id: view for view in views}
    gated = {spec.number: is_gated(spec) for spec in specs}
    # Most jobs have no gate. They need none of the work below, which grows with the log.
    if not any(gated.values()):
        return Verdicts(spec_number, False, by_id)
    points = RecoveryPoints(specs, entries, views)
    line = points.lineage(spec_number)
    first = min(line)
    reached = {v.checkpoint_id: v for v in views if v.is_recovery_point and v.checkpoint_id not in points.rejected}
    of_line = tuple(n for n, view in reached.items() if n <= line.get(view.spec, 0))
    has_gate = gated.get(spec_number, False)
    held = takewhile(lambda n: has_gate or gated.get(reached[n].spec, False), reversed(of_line))
    # Without a gate, the completion itself permits the commit (S7.4).
    permits = [e for e in entries if e.kind == "approve" or (e.kind == "complete" and not gated.get(e.spec, False))]
    lines = _newest_lineages(points, by_id, permits)
    approved, approved_at = _common_ancestor(line, lines)
    committed, _ = _common_ancestor(
        line, _newest_lineages(points, by_id, (e for e in entries if e.kind == "committed"))
    )
    to_quarantine = [e for e in entries if e.kind == "reject" and e.data.get("then") == "quarantine"]
    withheld = tuple(WithheldRange.from_json(e.data) for e in to_quarantine)
    gone = {n for one in withheld for n in one.checkpoints}
    covered: dict[int, int] = {}
    for _, permitted in lines:
        for number, newest in permitted.items():
            covered[number] = max(newest, covered.get(number, 0))
    return Verdicts(
        spec=spec_number,
        gated=has_gate,
        views=by_id,
        line=of_line,
        begins_after=min((n for n, view in by_id.items() if view.spec == first), default=1) - 1,
        held=tuple(held)[::-1],
        approved=approved,
        approved_at=approved_at,
        committed=committed,
        waiting=tuple(n for n in of_line if n > approved and n not in gone and gated.get(reached[n].spec, False)),
        rejected=points.rejected,
        withheld=withheld,
        unmoved=tuple(_unmoved(e, views) for e in to_quarantine if not _has_moved(e, entries)),
        unapproved=gone.union(n for n, v in by_id.items() if gated.get(v.spec) and n > covered.get(v.spec, 0)),
        carried_out={
            str(e.data["command"]): e.data["checkpoint_id"]
            for e in entries
            if e.kind in ("approve", "reject") and e.data.get("command") is not None
        },
    )


def mark_verdicts(views: Sequence[CheckpointView], verdicts: Verdicts) -> tuple[CheckpointView, ...]:
    """Return the views with the verdicts on them."""
    out: list[CheckpointView] = []
    for view in views:
        n = view.checkpoint_id
        if n in verdicts.rejected:
            out.append(replace(view, verdict="rejected", committed=False))
        elif n in verdicts.quarantined:
            out.append(replace(view, verdict="quarantined", committed=False))
        elif n in verdicts.waiting:
            out.append(replace(view, verdict="waiting", committed=False))
        elif n in verdicts.line and verdicts.gated and n <= verdicts.approved:
            out.append(replace(view, verdict="approved", committed=n <= verdicts.committed))
        else:
            out.append(view)
    return tuple(out)


def _has_moved(verdict: LogEntry, entries: Sequence[LogEntry]) -> bool:
    """Return whether a run that began after the verdict has claimed a snapshot. Before that, it has moved the data."""
    run_id, number = verdict.decision.run_id, verdict.decision.number
    return any(e.kind == "claim" and e.decision.number > number and e.decision.run_id != run_id for e in entries)


def _unmoved(verdict: LogEntry, views: Sequence[CheckpointView]) -> PendingQuarantineMove:
    withheld = WithheldRange.from_json(verdict.data)
    of_spec: dict[int, list[CheckpointView]] = {}
    for view in views:
        if view.status == "completed" and view.checkpoint_id > withheld.after:
            of_spec.setdefault(view.spec, []).append(view)
    owned = [[v.checkpoint_id for v in of_one if v.kind in ("checkpoint", "final")] for of_one in of_spec.values()]
    return PendingQuarantineMove(
        withheld,
        tuple(tuple(v.checkpoint_id for v in reversed(of_one)) for of_one in of_spec.values()),
        tuple(ids[-1] for ids in owned if ids),
    )


def _newest_lineages(
    points: RecoveryPoints, views: Mapping[int, CheckpointView], entries: Iterable[LogEntry]
) -> list[tuple[int, dict[int, int]]]:
    """Return the line of the newest snapshot of each submission that `entries` name, with the number of its entry.

    The line of the newest also contains the older ones of the same submission.
    """
    newest: dict[int, tuple[int, int]] = {}
    for entry in entries:
        view = views.get(entry.data["checkpoint_id"])
        if view is not None and view.is_recovery_point:
            newest[view.spec] = max((view.checkpoint_id, entry.decision.number), newest.get(view.spec, (0, 0)))
    return [(number, points.lineage(spec, checkpoint_id)) for spec, (checkpoint_id, number) in newest.items()]


def _common_ancestor(line: Mapping[int, int], lines: Iterable[tuple[int, Mapping[int, int]]]) -> tuple[int, int]:
    """Return the newest id that `line` shares with one of `lines`, and the entry number of that line."""
    # Two lines share the snapshots of a common submission up to the lower of their two ids for it.
    shared = [(max((min(line[s], other[s]) for s in other if s in line), default=0), number) for number, other in lines]
    return max(shared, default=(0, 0))
