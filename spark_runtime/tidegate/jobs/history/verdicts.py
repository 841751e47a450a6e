"""Which checkpoints wait for a verdict of the commit gate, which may be committed, and which are: derived from the
decision log, so that a driver, a later committer and whoever looks see the same (S7.8). Pure."""

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
    """What a rejection with `then=quarantine` keeps from ever being published: the transactions of barriers > `after`
    and <= the last of `checkpoints`, and of aborted ones between. Ids of barriers are unique in the life of a job, so
    that this holds wherever their handles turn up.

    Attributes:
        checkpoints: rejected ones, ascending.
        by, reason: who said it, and why; for people.
    """

    after: int
    checkpoints: tuple[int, ...]
    by: str = ""
    reason: str = ""

    @property
    def through(self) -> int:
        """The last barrier."""
        return self.checkpoints[-1]

    def covers(self, checkpoint_id: int) -> bool:
        """Whether a transaction of this barrier is withheld."""
        return self.after < checkpoint_id <= self.through

    def checkpoint_of(self, checkpoint_id: int) -> int:
        """The rejected checkpoint that a transaction of this barrier was part of."""
        return next(n for n in self.checkpoints if n >= checkpoint_id)

    def to_json(self) -> dict[str, Any]:
        """As in messages, and in the `reject` entry."""
        return {"after": self.after, "rejected": list(self.checkpoints), "by": self.by, "reason": self.reason}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WithheldRange:
        """Inverse of `to_json`."""
        by, reason = str(document.get("by") or ""), str(document.get("reason") or "")
        return cls(document["after"], tuple(document["rejected"]), by, reason)


@dataclass(frozen=True, slots=True)
class PendingQuarantineMove:
    """Something withheld whose data may not lie in quarantine yet: no run has begun behind the verdict, which would
    have moved it before it took a snapshot.

    Attributes:
        held_by: ids of completed snapshots that hold it as far as it has not moved: of each submission the newest that
            may, savepoints included, with older ones behind it for the case that somebody has deleted it.
        pinned: ids of those that the job owns and that must stay: of each submission the newest.
    """

    withheld: WithheldRange
    held_by: tuple[tuple[int, ...], ...]
    pinned: tuple[int, ...]


@dataclass(frozen=True)
class Verdicts:
    """The line of one submission: what its state comes from (S9.3), and the verdicts on it.

    Attributes:
        spec: number of the submission.
        gated: its option `commit` is "on_request".
        views: every snapshot of the job by id.
        line: ids of the completed recovery points of the line, oldest first.
        begins_after: no snapshot of the line has this id or a lower one: they were claimed before its first submission.
        held: those of them, oldest first, that a gate holds until the log says that they are committed: all, or of a
            submission without a gate those of gated ones, while it has completed none itself.
        approved: what is <= this on the line may be committed; 0: nothing.
        approved_at: log entry that says so: an approval, or the completion where that permits; 0: none.
        committed: the newest of the line of which the log says that it is committed; 0: none.
        waiting: those of the line that wait for a verdict, oldest first.
        rejected: of the whole job (`RecoveryPoints.rejected`); not those in quarantine, which are restore points.
        withheld: of the whole job, what rejections put into quarantine, oldest first.
        unmoved: those of the withheld that the next run has to move, when what it restores does not hold them.
        unapproved: of the whole job: completed behind a gate, and never approved, or in quarantine.
        carried_out: id of a command -> the checkpoint that it approved or rejected.
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
        """Checkpoints whose output is in quarantine."""
        return frozenset(n for withheld in self.withheld for n in withheld.checkpoints)

    @property
    def uncommitted(self) -> tuple[int, ...]:
        """Those of the line that are not committed: they wait, or are approved and were not committed yet. What a
        committer that works without the job has to do is `<= approved`."""
        gone = self.quarantined
        return tuple(n for n in self.held if n > self.committed and n not in gone)

    @property
    def pinned(self) -> tuple[int, ...]:
        """Those that must stay: they wait, or a rejection of the oldest that waits goes back to them (S2.3); or it
        holds what is approved and not committed yet, or goes to quarantine and may not have moved yet."""
        unmoved = [n for one in self.unmoved for n in one.pinned]
        if not self.waiting:
            return (*self.uncommitted[-1:], *unmoved)
        before = [n for n in self.line if n < self.waiting[0]]
        return (*before[-1:], *self.waiting, *unmoved)


def is_gated(spec: Spec) -> bool:
    """Whether submission `spec` commits nothing without an approval."""
    return bool(spec.options.get("commit") == "on_request")


def find_verdicts(specs: Sequence[Spec], decisions: Sequence[Decision], spec_number: int) -> Verdicts:
    """The verdicts on the line of submission `spec_number`. Args: decisions: the whole log."""
    entries = entries_by_submission(decisions)
    return verdicts_from_entries(specs, entries, checkpoint_views(entries, ended=False), spec_number)


def verdicts_from_entries(
    specs: Sequence[Spec], entries: Sequence[LogEntry], views: Sequence[CheckpointView], spec_number: int
) -> Verdicts:
    """As `find_verdicts`, for whoever has the views."""
    by_id = {view.checkpoint_id: view for view in views}
    gated = {spec.number: is_gated(spec) for spec in specs}
    if not any(gated.values()):
        return Verdicts(spec_number, False, by_id)
    points = RecoveryPoints(specs, entries, views)
    line = points.lineage(spec_number)
    first = min(line)
    reached = {v.checkpoint_id: v for v in views if v.is_recovery_point and v.checkpoint_id not in points.rejected}
    of_line = tuple(n for n, view in reached.items() if n <= line.get(view.spec, 0))
    has_gate = gated.get(spec_number, False)
    held = takewhile(lambda n: has_gate or gated.get(reached[n].spec, False), reversed(of_line))
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
    """`views`, each with what the verdicts say of it."""
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
    """A run that began behind the verdict has claimed a snapshot: in front of that, all is moved."""
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
    """Of the snapshots that `entries` name, the newest of each submission: number of the entry, and the line up to it.
    What it says of older ones of its submission follows."""
    newest: dict[int, tuple[int, int]] = {}
    for entry in entries:
        view = views.get(entry.data["checkpoint_id"])
        if view is not None and view.is_recovery_point:
            newest[view.spec] = max((view.checkpoint_id, entry.decision.number), newest.get(view.spec, (0, 0)))
    return [(number, points.lineage(spec, checkpoint_id)) for spec, (checkpoint_id, number) in newest.items()]


def _common_ancestor(line: Mapping[int, int], lines: Iterable[tuple[int, Mapping[int, int]]]) -> tuple[int, int]:
    """The newest id up to which `line` and one of `lines` are the same, and the entry of that one."""
    shared = [(max((min(line[s], other[s]) for s in other if s in line), default=0), number) for number, other in lines]
    return max(shared, default=(0, 0))
