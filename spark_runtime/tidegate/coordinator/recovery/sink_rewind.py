"""Make sinks delete output that was committed after a snapshot: ask them, record the decision, carry it out (S9.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidegate.connectors.interface import Sink, SupportsRewind
from tidegate.connectors.sink_operator import COMMITTABLES, handles_in_snapshot
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import OutageError, SnapshotError, StoreError, TidegateError
from tidegate.snapshot.handles import SnapshotStreams
from tidegate.snapshot.metadata import SnapshotMetadata


def sink_handles(location: str, metadata: SnapshotMetadata, factory: SnapshotStreams) -> dict[str, list[Committable]]:
    """Return operator uid -> handles of the uncommitted transactions in the snapshot, over all subtasks.

    Raises SnapshotError, which names the damaged part.
    """
    held: dict[str, list[Committable]] = {}
    for operator in metadata.operators:
        for state in operator.subtasks:
            if state.handle is None:
                continue
            where = f"snapshot {location}, operator {operator.uid!r}, subtask {state.index}"
            parts = factory.parts(state.handle, where=where)
            held.setdefault(operator.uid, []).extend(handles_in_snapshot([p for p in parts if p.name == COMMITTABLES]))
    return held


def rewind_sinks(
    sinks: Mapping[str, tuple[Sink, SinkContext]],
    held: Mapping[str, Sequence[Committable]],
    checkpoint_id: int,
    before: int,
    record: Callable[[], None],
) -> None:
    """Ask every sink, record the decision, then carry it out. Repeat the whole call until it returns.

    Args:
        sinks: by uid, each with the context of the coming run.
        held: handles of the snapshot by uid.
        checkpoint_id, before: output committed for ids between these two, both excluded, is deleted.
        record: makes the decision durable. From then on no snapshot between the two ids may be restored.

    Raises:
        SnapshotError: a sink does not support the rewind; nothing was changed.
        StoreError: the operation failed this time.
    """
    functions: dict[str, Callable[[], None]] = {}
    for uid, (sink, ctx) in sinks.items():
        if not isinstance(sink, SupportsRewind):
            raise SnapshotError(
                f"a sink of the class {type(sink).__name__} cannot delete output that it has committed",
                where=f"sink {uid!r}",
                remedy="Restore the latest snapshot, or set on_committed_after=accept_duplicates",
            )
        try:
            functions[uid] = sink.rewind_to(ctx, checkpoint_id, held.get(uid, ()), before=before)
        except StoreError:
            raise
        except OutageError as error:
            raise _failed(uid, checkpoint_id, error) from error
        except TidegateError as error:
            # A refusal of the sink. As a SnapshotError it fails the job immediately, and not again in every restart.
            raise SnapshotError(error.what, where=error.where, cause=error.cause, remedy=error.remedy) from error
        except Exception as error:
            raise _failed(uid, checkpoint_id, error) from error
    # Before the first change: the next driver must finish the rewind, and not restore half-deleted output.
    record()
    for uid, function in functions.items():
        try:
            function()
        except Exception as error:
            raise _failed(uid, checkpoint_id, error) from error


def _failed(uid: str, checkpoint_id: int, error: Exception) -> StoreError:
    return StoreError(
        f"sink {uid!r} could not delete its output after snapshot {checkpoint_id} (rewind)",
        cause=str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}",
        remedy="Check that the sink's target is reachable and writable. The next run tries again",
    )
