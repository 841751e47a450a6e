"""Finish moves to quarantine that earlier runs left undone (S7.8).

The subtask that holds a transaction handle moves the data, and a run that restores the handle repeats the move. A run
that starts from a snapshot before the verdict restores no such handle, and would delete the data as output of failed
runs. So before its slots start, the driver reads the handles from the newest snapshot that may hold them, and moves the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.connectors.interface import Sink, SupportsQuarantine
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, SinkContext, parse_transaction_id
from tidegate.coordinator.recovery.sink_rewind import sink_handles
from tidegate.errors import SnapshotError, StoreError, TidegateError
from tidegate.jobs.history.checkpoints import CheckpointView
from tidegate.jobs.history.verdicts import PendingQuarantineMove, WithheldRange
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.stores.store import Store
from tidegate.plan.job_graph import JobGraph
from tidegate.snapshot.handles import SnapshotStreams
from tidegate.snapshot.metadata import read_metadata

OpenLocation = Callable[[str], tuple[Store, str]]
"""Opens store and folder of a snapshot's location."""
SinksOf = Callable[[str], Mapping[str, tuple[Sink, SinkContext]]]
"""Lineage -> the pipeline's two-phase-commit sinks by uid, each with the context of a writer."""


def finish_quarantine_moves(
    unmoved: PendingQuarantineMove,
    views: Mapping[int, CheckpointView],
    restored: str | None,
    open_location: OpenLocation,
    sinks_of: SinksOf,
    into: Quarantine,
) -> tuple[str, ...]:
    """Move the output that `unmoved` names and that is still staged. Blocks; idempotent.

    Args:
        views: snapshots of the job by id.
        restored: location of the snapshot that the run restores, whose handles the run's own subtasks move; None: a
            fresh start.

    Returns:
        Messages for the driver's log: what was not moved, because users deleted the snapshots that hold the handles, or
        changed the pipeline.

    Raises:
        SnapshotError: none of the snapshots that hold the handles can be read; names them.
        StoreError: a store or a sink failed, and may succeed later.
    """
    through, covered = unmoved.withheld.through, 0
    remarks: list[str] = []
    for newest_first in unmoved.held_by:
        if any(n >= through and views[n].path == restored for n in newest_first):
            covered = through
            continue  # it holds all of the output: newer snapshots, wherever they are, need not be read
        held = _find_handles(unmoved.withheld, newest_first, views, restored, open_location)
        if held is not None:
            covered = max(covered, held.checkpoint_id)
            sinks = sinks_of(held.lineage)
            _move(unmoved, held.by_uid, sinks, into)
            remarks += _sinks_removed_error(unmoved.withheld, held.by_uid, sinks)
    lost = [n for n in unmoved.withheld.checkpoints if n > covered]
    return (*remarks, _abandoned_error(lost)) if lost else tuple(remarks)


@dataclass(frozen=True, slots=True)
class _SinkHandles:
    """The transaction handles of a snapshot, by sink uid."""

    checkpoint_id: int
    lineage: str
    by_uid: Mapping[str, Sequence[Committable]]


def _find_handles(
    withheld: WithheldRange,
    newest_first: Sequence[int],
    views: Mapping[int, CheckpointView],
    restored: str | None,
    open_location: OpenLocation,
) -> _SinkHandles | None:
    """Return the handles of the newest readable snapshot of a submission, or None if none exists.

    Any snapshot after the last barrier holds all handles. Older ones hold the rest if users have deleted the newer
    ones.
    """
    unreadable: dict[str, SnapshotError | StoreError] = {}
    for checkpoint_id in newest_first:
        location = views[checkpoint_id].path
        if unreadable and checkpoint_id < withheld.through:
            break  # it holds less than the newer snapshot that exists but cannot be read
        if location == restored:
            return _SinkHandles(checkpoint_id, "", {})
        try:
            store, folder = open_location(location)
            if not store.exists(JobLayout.metadata(folder)):
                continue
            metadata = read_metadata(store, folder)
            by_uid = sink_handles(location, metadata, SnapshotStreams(store, folder))
        except (SnapshotError, StoreError) as error:
            unreadable[location] = error
        else:
            return _SinkHandles(checkpoint_id, metadata.lineage, by_uid)
    if unreadable:
        raise _unknown_error(withheld, unreadable)
    return None


def _unknown_error(
    withheld: WithheldRange, unreadable: Mapping[str, SnapshotError | StoreError]
) -> SnapshotError | StoreError:
    """Return the error for unreadable snapshots. Errors that may be transient take precedence."""
    first = next((e for e in unreadable.values() if not isinstance(e, SnapshotError)), next(iter(unreadable.values())))
    kind = SnapshotError if isinstance(first, SnapshotError) else StoreError
    why = TidegateError(first.what, where=first.where, cause=first.cause)  # without its remedy, which is for a restore
    again = "" if kind is SnapshotError else "The next run tries again. "
    return kind(
        f"the staged output of checkpoints {list(withheld.checkpoints)} cannot be moved to quarantine/",
        where=f"snapshot {', '.join(unreadable)}",
        cause=f"these checkpoints were rejected with then=quarantine, and the snapshot that holds the output is not "
        f"readable: {why}",
        remedy=f"{again}Put the snapshot's files back, or delete the snapshot, which discards the output; then start "
        "the job again",
    )


def _abandoned_error(lost: Sequence[int]) -> str:
    return (
        f"checkpoints {list(lost)} were rejected with then=quarantine, but every snapshot that records their staged "
        "output has been deleted; the part of the output that is not in quarantine/ yet is discarded"
    )


def _sinks_removed_error(
    withheld: WithheldRange, held: Mapping[str, Sequence[Committable]], sinks: Mapping[str, tuple[Sink, SinkContext]]
) -> list[str]:
    """Return messages about sinks that the pipeline has removed or replaced."""
    able = {uid for uid, (sink, _) in sinks.items() if isinstance(sink, SupportsQuarantine)}
    return [
        f"sink {uid!r} staged output for checkpoints {list(withheld.checkpoints)}, which were rejected with "
        "then=quarantine. The output stays staged and uncommitted: the pipeline has no sink with this uid that can "
        "move output to quarantine/"
        for uid, handles in held.items()
        if uid not in able and _withheld_of(withheld, handles)
    ]


def _withheld_of(withheld: WithheldRange, handles: Sequence[Committable]) -> list[Committable]:
    return [h for h in handles if withheld.covers(parse_transaction_id(h.transaction_id).checkpoint_id)]


def cannot_quarantine(graph: JobGraph) -> tuple[str, ...]:
    """Return the uids of two-phase-commit sinks that cannot move staged output to quarantine (S7.8)."""
    sinks = [(node.uid, node.sink) for node in graph.nodes if node.sink is not None]
    return tuple(uid for uid, sink in sinks if sink.two_phase and not isinstance(sink, SupportsQuarantine))


def _move(
    unmoved: PendingQuarantineMove,
    held: Mapping[str, Sequence[Committable]],
    sinks: Mapping[str, tuple[Sink, SinkContext]],
    into: Quarantine,
) -> None:
    for uid, (sink, ctx) in sinks.items():
        gone = _withheld_of(unmoved.withheld, held.get(uid, ()))
        if not gone or not isinstance(sink, SupportsQuarantine):
            continue
        try:
            sink.quarantine(ctx, gone, into)
        except SnapshotError:
            # A SnapshotError fails the job and a StoreError causes another
            # run, so that only errors that may pass become StoreErrors.
            raise
        except Exception as error:
            raise StoreError(
                f"sink {uid!r} could not move staged output of checkpoints {list(unmoved.withheld.checkpoints)} to "
                "quarantine",
                cause=str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}",
                remedy="Check that the sink's target is reachable and writable. The next run tries again",
            ) from error
