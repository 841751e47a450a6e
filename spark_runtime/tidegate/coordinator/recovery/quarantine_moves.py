"""Finishing moves to quarantine that runs which ended too early have left undone (S7.8).

The subtask that holds a handle moves its data, and a run that restores the handle does it again. A run that goes back
in front of the verdict restores no such handle, and would remove the data as what failed runs left staged. So before
its slots start, the driver reads the handles from the newest snapshot that may hold them, and moves what is left.
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
"""Store and folder of a snapshot's location."""
SinksOf = Callable[[str], Mapping[str, tuple[Sink, SinkContext]]]
"""Lineage -> the pipeline's two-phase sinks by uid, with the place of a writer."""


def finish_quarantine_moves(
    unmoved: PendingQuarantineMove,
    views: Mapping[int, CheckpointView],
    restored: str | None,
    open_location: OpenLocation,
    sinks_of: SinksOf,
    into: Quarantine,
) -> tuple[str, ...]:
    """Move what `unmoved` tells and is still staged. Blocks; idempotent.

    Args:
        views: snapshots of the job by id.
        restored: location of the snapshot that the run restores: what that holds its subtasks move. None: fresh.

    Returns:
        For the driver's log: what was not moved, since people have deleted the snapshots that tell it, or changed the
        pipeline.

    Raises:
        SnapshotError: of the snapshots that hold it none can be read; names them.
        StoreError: a store or a sink could not this time.
    """
    through, told = unmoved.withheld.through, 0
    remarks: list[str] = []
    for newest_first in unmoved.held_by:
        if any(n >= through and views[n].path == restored for n in newest_first):
            told = through
            continue  # that holds all of it: newer ones, which may lie anywhere, need not be read
        held = _find_handles(unmoved.withheld, newest_first, views, restored, open_location)
        if held is not None:
            told = max(told, held.checkpoint_id)
            sinks = sinks_of(held.lineage)
            _move(unmoved, held.by_uid, sinks, into)
            remarks += _sinks_removed_error(unmoved.withheld, held.by_uid, sinks)
    lost = [n for n in unmoved.withheld.checkpoints if n > told]
    return (*remarks, _abandoned_error(lost)) if lost else tuple(remarks)


@dataclass(frozen=True, slots=True)
class _SinkHandles:
    """The handles of a snapshot by the uid of their sink."""

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
    """What the newest snapshot of a submission holds, of those that can be read: any behind the last barrier tells all,
    older ones do where people have deleted those. None: none is there."""
    unreadable: dict[str, SnapshotError | StoreError] = {}
    for checkpoint_id in newest_first:
        location = views[checkpoint_id].path
        if unreadable and checkpoint_id < withheld.through:
            break  # it holds less than what is there and cannot be read
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
    """One that may be transient goes before one that is not."""
    first = next((e for e in unreadable.values() if not isinstance(e, SnapshotError)), next(iter(unreadable.values())))
    kind = SnapshotError if isinstance(first, SnapshotError) else StoreError
    why = TidegateError(first.what, where=first.where, cause=first.cause)  # its remedy is that of a restore
    again = "" if kind is SnapshotError else "It is tried again with the next run. "
    return kind(
        f"what sinks had staged for checkpoints {list(withheld.checkpoints)} cannot be moved to quarantine/",
        where=f"snapshot {', '.join(unreadable)}",
        cause=f"they were rejected with then=quarantine, no run moved it, and what holds it cannot be read: {why}",
        remedy=f"{again}Bring the snapshot back as it was; or delete it, which gives that data up, and start again",
    )


def _abandoned_error(lost: Sequence[int]) -> str:
    return (
        f"checkpoints {list(lost)} were rejected with then=quarantine, and no snapshot is there any more that tells "
        "what sinks had staged for them: what is not in quarantine/ yet is given up"
    )


def _sinks_removed_error(
    withheld: WithheldRange, held: Mapping[str, Sequence[Committable]], sinks: Mapping[str, tuple[Sink, SinkContext]]
) -> list[str]:
    """Of sinks that the pipeline has no more, or other ones in their place."""
    able = {uid for uid, (sink, _) in sinks.items() if isinstance(sink, SupportsQuarantine)}
    return [
        f"what sink {uid!r} had staged for {list(withheld.checkpoints)}, which were rejected with then=quarantine, "
        "stays where it is: the pipeline has no sink of this uid that can move it"
        for uid, handles in held.items()
        if uid not in able and _withheld_of(withheld, handles)
    ]


def _withheld_of(withheld: WithheldRange, handles: Sequence[Committable]) -> list[Committable]:
    return [h for h in handles if withheld.covers(parse_transaction_id(h.transaction_id).checkpoint_id)]


def cannot_quarantine(graph: JobGraph) -> tuple[str, ...]:
    """Uids of two-phase sinks that cannot move away what they staged (S7.8)."""
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
            raise
        except Exception as error:
            raise StoreError(
                f"what sink {uid!r} had staged for {list(unmoved.withheld.checkpoints)} is not in quarantine",
                cause=str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}",
                remedy="It is tried again with the next run; see whether the sink's target can be reached and changed",
            ) from error
