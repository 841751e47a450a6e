"""Having sinks take back what they committed behind a snapshot: asked, decided in the log, done (S9.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidegate.connectors.interface import Sink, SupportsRewind
from tidegate.connectors.sink_operator import COMMITTABLES, handles_in_snapshot
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import SnapshotError, StoreError, TidegateError
from tidegate.snapshot.handles import SnapshotStreams
from tidegate.snapshot.metadata import SnapshotMetadata


def sink_handles(location: str, metadata: SnapshotMetadata, factory: SnapshotStreams) -> dict[str, list[Committable]]:
    """Operator uid -> the handles of uncommitted transactions that the snapshot holds for it, of all subtasks. Raises
    SnapshotError, naming what is damaged."""
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
    """Ask every sink, record the decision, then have it done. To be repeated, from the first, until it returns.

    Args:
        sinks: by uid, each with the context of the run to come.
        held: handles of the snapshot by uid.
        checkpoint_id, before: what was committed for ids between them, both excluded, is taken back.
        record: makes the decision durable; from then on nothing between them may be restored.

    Raises:
        SnapshotError: a sink says that it cannot; nothing has been changed.
        StoreError: it did not come off this time.
    """
    functions: dict[str, Callable[[], None]] = {}
    for uid, (sink, ctx) in sinks.items():
        if not isinstance(sink, SupportsRewind):
            raise SnapshotError(
                f"{type(sink).__name__} cannot take back what it published",
                where=f"sink {uid!r}",
                remedy="Restore the latest snapshot, or set on_committed_after=accept_duplicates",
            )
        try:
            functions[uid] = sink.rewind_to(ctx, checkpoint_id, held.get(uid, ()), before=before)
        except StoreError:
            raise
        except TidegateError as error:
            raise SnapshotError(error.what, where=error.where, cause=error.cause, remedy=error.remedy) from error
        except Exception as error:
            raise _failed(uid, checkpoint_id, error) from error
    record()
    for uid, function in functions.items():
        try:
            function()
        except Exception as error:
            raise _failed(uid, checkpoint_id, error) from error


def _failed(uid: str, checkpoint_id: int, error: Exception) -> StoreError:
    return StoreError(
        f"sink {uid!r} has not been taken back to snapshot {checkpoint_id}",
        cause=str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}",
        remedy="It is tried again with the next run; see whether its target can be reached and changed",
    )
