"""Decide which completed snapshots must be kept (S2.3). Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tidegate.channel.elements import SAVEPOINT_KINDS, CheckpointKind, StopMode

MAX_OVERDUE_DELETIONS = 32
"""Number of retired checkpoint folders, past their grace period and not deleted, from which no new checkpoint starts.

A store that deletes more slowly than the job completes checkpoints would never catch up without this limit. A burst of
aborted checkpoints or one slow call stays below it.
"""


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A completed snapshot.

    Attributes:
        checkpoint_id, kind, path: its id, kind and folder.
        stop: the mode of the stop, for a stop-savepoint.
        taken_back: sinks have deleted the output that it committed, so that it is not a recovery point any more (S9.3).
        claimed: it is a savepoint that the job owns, because a restore claimed it (S7.4).
    """

    checkpoint_id: int
    kind: CheckpointKind
    path: str
    stop: StopMode | None = None
    taken_back: bool = False
    claimed: bool = False


def find_retired(
    completed: Sequence[CompletedCheckpoint],
    *,
    retained: int,
    last_committed: int | None,
    restored: int | None = None,
    pinned: Collection[int] = (),
    rejected: Collection[int] = (),
) -> list[CompletedCheckpoint]:
    """Return the checkpoints that may be deleted, oldest first.

    Args:
        completed: all completed snapshots, oldest first.
        retained: the option `retained_checkpoints`: this many of the newest recovery points are kept. Savepoints count.
        last_committed: newest checkpoint whose commit is known; it is kept.
        restored: the snapshot that the submission started from, until the submission completes a recovery point of its
            own; it is kept.
        pinned: checkpoints that the commit gate needs: those that wait for a verdict, and the one before them, which a
            rejection restores (S7.8). While there are any, claimed savepoints are kept too. One of them may not be in
            the line of recovery points, and still be the snapshot that a rejection restores.
        rejected: rejected checkpoints. They are not recovery points and may be deleted.

    Unclaimed savepoints are never returned. The newest checkpoint that the runtime owns is kept even if savepoints fill
    the list. After a stop-savepoint nothing older is needed, with one exception: a drain fires windows early, so that a
    restore from its savepoint needs consent. For users who do not consent, the newest checkpoint before it is kept
    (S7.5).
    """
    points = (c for c in completed if c.kind != "savepoint" and not c.taken_back)
    recovery = [c for c in points if c.checkpoint_id not in rejected]
    own = [c for c in recovery if c.kind != "stop-savepoint"]
    keep: set[int | None] = {restored, *pinned}
    if recovery and recovery[-1].kind == "stop-savepoint":
        if recovery[-1].stop == "drain" and own:
            keep.add(own[-1].checkpoint_id)
    else:
        keep |= {c.checkpoint_id for c in recovery[-retained:]}
        keep |= {c.checkpoint_id for c in own[-1:]}
        keep.add(last_committed)
    owned = (c for c in completed if (c.claimed and not pinned) or c.kind not in SAVEPOINT_KINDS)
    return [c for c in owned if c.checkpoint_id not in keep]
