"""Leftovers of sinks: data that no snapshot needs, listed and deleted with or without a running job (S2.3, S7.4)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tidegate.connectors.transactions import Committable

ALL_CHECKPOINTS = sys.maxsize
"""Value of `NeededTransactions.markers_from`: no commit marker is needed."""


@dataclass(frozen=True)
class NeededTransactions:
    """Transactions of one lineage of a job that a sink must keep.

    Attributes:
        handles: uncommitted transactions in snapshots: their staged data stays. None: all staged data stays, because a
            running job may own it, or an unreadable snapshot may name it.
        markers_from: oldest checkpoint whose commit markers a restore may still read; older ones are not needed. 0: all
            may be read.
        before: only data last written before this time is deleted; younger data may be in use.
    """

    handles: Sequence[Committable] | None
    markers_from: int
    before: datetime


@dataclass(frozen=True)
class Leftover:
    """Data that a collection deleted, or would delete.

    Attributes:
        path: a staged file, or a folder of commit markers; or a table with one of them. A thing of a source has a name.
        why: "staged": no existing snapshot names it; "markers": a pack replaces the markers, or nothing reads them any
            more; "rewind": no rewind to an existing snapshot needs it; "ended": a source owned it in a lineage that is
            over.
        files: number of files; in a table, of transactions.
        size_bytes: total size of the files or rows, or of the data that other systems kept for it.
    """

    path: str
    why: Literal["staged", "markers", "rewind", "ended"]
    files: int
    size_bytes: int


@dataclass(frozen=True)
class LeftoverReport:
    """Result of a collection, or of its dry run, in one sink and lineage.

    `too_young`: number of files that nothing needs and that are not old enough to delete.
    """

    found: tuple[Leftover, ...] = ()
    too_young: int = 0
