"""Commits that restores have made, derived from the decision log (S7.4). Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidegate.jobs.history.checkpoints import CheckpointView, RecoveryPoints
from tidegate.jobs.history.submissions import LogEntry
from tidegate.jobs.history.verdicts import is_gated
from tidegate.jobs.records import Spec


def mark_committed_by_restores(
    views: Sequence[CheckpointView], specs: Sequence[Spec], entries: Sequence[LogEntry]
) -> tuple[CheckpointView, ...]:
    """Mark the snapshots that restores have committed.

    Before a job is RUNNING, every sink commits the output in its restored snapshot. So a run without a commit gate has
    committed the snapshot that it started from, and the earlier ones of that snapshot's submission. For a run with a
    commit gate, only "committed" entries count.

    Args:
        views: snapshots with their verdicts. Rejected and quarantined ones stay uncommitted.
        entries: the whole log.
    """
    restores = _RestoreHistory(views, specs, entries)
    found: dict[int, _CommittedUpTo] = {}
    for entry in entries:
        view = restores.committed_by(entry)
        if view is not None:
            found.setdefault(view.spec, _CommittedUpTo()).add(view.checkpoint_id, entry.decision.number)
    if not found:
        return tuple(views)
    return tuple(_committed(view, found[view.spec]) if view.spec in found else view for view in views)


class _CommittedUpTo:
    """For one submission, up to which snapshot other runs have committed its output."""

    def __init__(self) -> None:
        self._newest: list[int] = []
        self._by: list[int] = []
        self._restored: dict[int, int] = {}

    def add(self, checkpoint_id: int, number: int) -> None:
        """Record that a run started from this snapshot, by entry `number`. Numbers must ascend."""
        self._restored.setdefault(checkpoint_id, number)
        # A lower id was already covered by an earlier entry. So both lists ascend, as `bisect_left` needs.
        if not self._newest or checkpoint_id > self._newest[-1]:
            self._newest.append(checkpoint_id)
            self._by.append(number)

    def by(self, view: CheckpointView) -> int:
        """Return the first entry by which `view` is committed; 0: none.

        An intermediate savepoint is committed only if it was restored itself: it is no recovery point, and the log has
        no other entry about its output.
        """
        if not view.is_recovery_point:
            return self._restored.get(view.checkpoint_id, 0)
        at = bisect_left(self._newest, view.checkpoint_id)
        return self._by[at] if at < len(self._by) else 0


class _RestoreHistory:
    """Finds out which runs have committed the snapshot that they started from."""

    def __init__(self, views: Sequence[CheckpointView], specs: Sequence[Spec], entries: Sequence[LogEntry]) -> None:
        self._views = views
        self._specs: Mapping[int, Spec] = {spec.number: spec for spec in specs}
        self._entries = entries
        self._by_path = {view.path: view for view in views if view.status == "completed" and view.sinks}

    def committed_by(self, entry: LogEntry) -> CheckpointView | None:
        """Return the snapshot that a run has committed when it recorded, by this entry, that the job runs.

        None: the entry records something else, or the commit is not certain. It is not certain for a snapshot of
        another lineage, or when a sink with output may have been left out.
        """
        if entry.kind != "status" or entry.data.get("status") != "RUNNING":
            return None
        view = self._by_path.get(entry.data.get("restored_from") or "")
        spec, taken_by = self._specs.get(entry.spec), self._specs.get(view.spec if view is not None else 0)
        if view is None or spec is None or taken_by is None:
            return None
        if spec.lineage != taken_by.lineage or is_gated(spec):
            return None
        may_drop = spec.restore is not None and spec.restore.allow_non_restored_state
        if may_drop and spec is not taken_by:
            return None
        return view if not is_gated(taken_by) or self._is_approved(view, entry) else None

    def _is_approved(self, view: CheckpointView, before: LogEntry) -> bool:
        """Return whether the snapshot, or a descendant, was approved before entry `before` was written (S7.8)."""
        points = RecoveryPoints(list(self._specs.values()), self._entries, self._views)
        of = {v.checkpoint_id: v.spec for v in self._views}
        for entry in self._entries:
            if entry.decision.number >= before.decision.number:
                return False
            n = entry.data.get("checkpoint_id", 0)
            if entry.kind == "approve" and points.lineage(of.get(n, 0), n).get(view.spec, 0) >= view.checkpoint_id:
                return True
        return False


def _committed(view: CheckpointView, reached: _CommittedUpTo) -> CheckpointView:
    number = reached.by(view)
    if not number or not view.sinks or view.status != "completed" or view.verdict not in ("", "approved"):
        return view
    return replace(view, committed=True, committed_by=min(number, view.committed_by or number))
