"""Which completed snapshots must stay (S2.3). Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tidegate.channel.elements import SAVEPOINT_KINDS, CheckpointKind, StopMode

MAX_OVERDUE_DELETIONS = 32
"""Retired checkpoints, in folders, whose grace is over and that are not deleted: from so many on no new checkpoint
starts. A store that deletes more slowly than the job completes checkpoints never catches up by itself; a burst of
aborted ones, or a slow call, stays below it."""


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A completed snapshot: id, kind, folder; `stop` of a stop-savepoint; `taken_back`: it is no restore point any
    more, because sinks took back what it committed (S9.3); `claimed`: a savepoint that the job owns since a restore
    claimed it (S7.4)."""

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
    """The checkpoints that may go, oldest first.

    Args:
        completed: oldest first.
        retained: `retained_checkpoints`; the newest so many recovery points stay, savepoints among them counted.
        last_committed: newest id whose commit is known; it stays.
        restored: what the current submission starts from, while it has completed no recovery point itself; it stays.
        pinned: ids that stay for the sake of the commit gate: those that wait for a verdict, and the one in front of
            them, which a rejection goes back to (S7.8). While there are any, claimed savepoints stay too: one that is
            no recovery point is in front of nothing here, and a rejection may go back to it.
        rejected: ids that were rejected: no restore points any more, they go.

    Savepoints are never in the answer unless they are claimed; the newest runtime-owned checkpoint stays even when
    savepoints fill the list. After a stop-savepoint nothing older is needed; but a drain fires windows early, so that
    going on from it needs consent, and the newest checkpoint in front of one stays for those who do not give it (S7.5).
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
