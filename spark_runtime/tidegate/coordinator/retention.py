"""Which completed snapshots must stay (S2.3). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.channel.elements import CheckpointKind


@dataclass(frozen=True)
class Completed:
    """A completed snapshot: id, kind, folder."""

    checkpoint_id: int
    kind: CheckpointKind
    path: str


def retired(completed: Sequence[Completed], *, retained: int, last_committed: int | None) -> list[Completed]:
    """The checkpoints that may go, oldest first.

    Args:
        completed: oldest first.
        retained: `retained_checkpoints`; the newest so many recovery points stay, savepoints among them counted.
        last_committed: newest id whose commit is known; it stays.

    Savepoints are never in the answer; the newest runtime-owned checkpoint stays even when savepoints fill the list.
    """
    recovery = [c for c in completed if c.kind != "savepoint"]
    newest = recovery[-retained:]
    own = [c for c in completed if c.kind in ("checkpoint", "final")]
    keep = {c.checkpoint_id for c in newest}
    if own:
        keep.add(own[-1].checkpoint_id)
    if last_committed is not None:
        keep.add(last_committed)
    return [c for c in own if c.checkpoint_id not in keep]
