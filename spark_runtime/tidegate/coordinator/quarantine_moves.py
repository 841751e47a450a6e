"""Finishing moves to quarantine that runs which ended too early have left undone (S7.8).

The subtask that holds a handle moves its data, and a run that restores the handle does it again. A run that goes back
in front of the verdict restores no such handle, and would remove the data as what failed runs left staged. So before
its slots start, the driver reads the handles from the newest snapshot that may hold them, and moves what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidegate.connectors.contract import Committable, Sink, SinkContext
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import parse_transaction_id
from tidegate.contract.checkpoints import CheckpointView
from tidegate.contract.errors import SnapshotError, StoreError, TidegateError
from tidegate.contract.layout import JobLayout
from tidegate.contract.store import Store
from tidegate.contract.verdicts import Unmoved
from tidegate.coordinator.rewinding import held_by_sinks
from tidegate.plan.graph import JobGraph
from tidegate.snapshot.handles import StreamFactory
from tidegate.snapshot.metadata import read_metadata


def finish_moves(
    unmoved: Unmoved,
    views: Mapping[int, CheckpointView],
    restored: str | None,
    open_location: Callable[[str], tuple[Store, str]],
    sinks_of: Callable[[str], Mapping[str, tuple[Sink, SinkContext]]],
    into: Quarantine,
) -> None:
    """Move what `unmoved` tells and is still staged. Blocks; idempotent.

    Args:
        views: snapshots of the job by id.
        restored: location of the snapshot that the run restores: what that holds its subtasks move. None: fresh.
        open_location: store and folder of a snapshot's location.
        sinks_of: lineage -> the pipeline's two-phase sinks by uid, with the place of a writer.

    Raises:
        SnapshotError: a snapshot that holds it is damaged.
        StoreError: a store or a sink could not this time.
    """
    for newest_first in unmoved.held_by:
        if any(n >= unmoved.withheld.through and views[n].path == restored for n in newest_first):
            continue  # that holds all of it: newer ones, which may lie anywhere, need not be read
        for checkpoint_id in newest_first:
            location = views[checkpoint_id].path
            if location == restored:
                break
            store, folder = open_location(location)
            if not store.exists(JobLayout.metadata(folder)):
                continue  # deleted; an older one holds it, too
            metadata = read_metadata(store, folder)
            held = held_by_sinks(location, metadata, StreamFactory(store, folder))
            _move(unmoved, held, sinks_of(metadata.lineage), into)
            break


def cannot_quarantine(graph: JobGraph) -> tuple[str, ...]:
    """Uids of two-phase sinks that cannot move away what they staged (S7.8)."""
    sinks = [(node.uid, node.sink) for node in graph.nodes if node.sink is not None]
    return tuple(uid for uid, sink in sinks if sink.two_phase and not sink.can_quarantine)


def _move(
    unmoved: Unmoved,
    held: Mapping[str, Sequence[Committable]],
    sinks: Mapping[str, tuple[Sink, SinkContext]],
    into: Quarantine,
) -> None:
    for uid, (sink, ctx) in sinks.items():
        gone = [
            h
            for h in held.get(uid, ())
            if unmoved.withheld.covers(parse_transaction_id(h.transaction_id).checkpoint_id)
        ]
        if not gone or not sink.can_quarantine:
            continue
        try:
            writer = sink.create_writer(ctx)
            try:
                writer.quarantine(gone, into)
            finally:
                writer.close()
        except SnapshotError:
            raise
        except Exception as error:
            raise StoreError(
                f"what sink {uid!r} had staged for {list(unmoved.withheld.checkpoints)} is not in quarantine",
                cause=str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}",
                remedy="It is tried again with the next run; see whether the sink's target can be reached and changed",
            ) from error
