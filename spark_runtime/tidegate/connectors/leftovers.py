"""What a sink keeps for nobody: asked for and removed with no job running, or beside one (S2.3, S7.4)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tidegate.connectors.transactions import Committable

ALL_CHECKPOINTS = sys.maxsize
"""As `NeededTransactions.markers_from`: no commit marker is needed."""


@dataclass(frozen=True)
class NeededTransactions:
    """What may still be asked of a sink in one lineage of a job.

    Attributes:
        handles: uncommitted transactions that snapshots hold: their staged data stays. None: all that is staged stays,
            since a run may own it, or a snapshot that cannot be read may name it.
        markers_from: no restore can ask whether a transaction of an older checkpoint is committed. 0: of each one may.
        before: only what was last written before this time goes; what is on its way is younger.
    """

    handles: Sequence[Committable] | None
    markers_from: int
    before: datetime


@dataclass(frozen=True)
class Leftover:
    """Something that went, or would go.

    Attributes:
        path: a staged file, or a folder of commit markers.
        why: "staged": no snapshot that is there names it; "markers": what they say is in a pack now, or nobody can ask.
        files: how many they are.
        size_bytes: of all of them.
    """

    path: str
    why: Literal["staged", "markers"]
    files: int
    size_bytes: int


@dataclass(frozen=True)
class LeftoverReport:
    """What a collection did in one sink and lineage, or would do. `too_young`: how many files nobody needs and are
    not old enough."""

    found: tuple[Leftover, ...] = ()
    too_young: int = 0
