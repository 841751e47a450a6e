"""The hand-over from the copy of a table to the stream of its changes. Pure.

The copy reads keys in order, in a transaction that sees one state of the table. If it is interrupted, it continues
after its last row in a later state. So each *piece* of the keys has a state of its own. The stream begins before all
these states. A change is left out if its transaction is visible in the state in which its key was copied, and else
emitted. So each row's changes follow its copy, without a gap and without a repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.postgres.source.table_definition import TableDefinition

_XIDS_OF_AN_EPOCH = 2**32


def lsn_of(text: str) -> int:
    """Return the number of an LSN such as `0/16B3748`."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Inverse of `lsn_of`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True)
class DatabaseState:
    """The transactions that a snapshot of the database sees: `pg_current_snapshot()`.

    Attributes:
        lowest: every transaction before it is visible, if it was committed.
        next: no transaction from it on is visible.
        running: transactions between both that are not visible.
    """

    lowest: int
    next: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> DatabaseState:
        """Parse `xmin:xmax:xip,xip`."""
        lowest, following, running = text.split(":")
        return cls(int(lowest), int(following), frozenset(int(xid) for xid in running.split(",") if xid))

    def __str__(self) -> str:
        return f"{self.lowest}:{self.next}:{','.join(map(str, sorted(self.running)))}"

    def sees(self, xid: int) -> bool:
        """Return whether a committed transaction is visible. Args: xid: the lower 32 bits of its id."""
        # Ids of the stream have 32 bits. The whole id is the one nearest to this state.
        distance = (xid - self.next) % _XIDS_OF_AN_EPOCH
        if distance >= _XIDS_OF_AN_EPOCH // 2:
            distance -= _XIDS_OF_AN_EPOCH
        whole = self.next + distance
        return whole < self.next and whole not in self.running

    def contains(self, earlier: DatabaseState) -> bool:
        """Return whether every transaction that `earlier` sees is visible here.

        A transaction that waits for a synchronous standby is in the WAL, but not yet visible.
        """
        hidden = (xid for xid in self.running if xid < earlier.next)
        return self.next >= earlier.next and all(xid in earlier.running for xid in hidden)


@dataclass(frozen=True)
class Piece:
    """Keys that were copied in one state.

    Attributes:
        up_to: texts of the last key; the next piece begins after it. None: all further keys.
        end_lsn: transactions with a later commit record are not visible in the state.
    """

    up_to: tuple[str, ...] | None
    state: DatabaseState
    end_lsn: int

    def to_json(self) -> dict[str, Any]:
        """Return the document for a position."""
        up_to = None if self.up_to is None else list(self.up_to)
        return {"up_to": up_to, "state": str(self.state), "end_lsn": lsn_text(self.end_lsn)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Piece:
        """Inverse of `to_json`."""
        up_to = None if document["up_to"] is None else tuple(document["up_to"])
        return cls(up_to, DatabaseState.of(document["state"]), lsn_of(document["end_lsn"]))


@dataclass(frozen=True)
class ChangePosition:
    """Where a reader of changes is (S4.2).

    Attributes:
        slot: name of the replication slot.
        lsn: end of the last transaction that was read as a whole, or a later place without a further transaction.
        commit_lsn, index: the transaction that is being read, and how many of its changes of the table were read; 0: no
            transaction.
        begun: state of the database at the begin of the stream; None: nothing is copied.
        copied: pieces that were copied, in the order of their keys; empty when the hand-over is over.
        copying: the copy continues after the last piece.
        rows: rows emitted over all runs.
        table_oid: the table: another one of the same name is not continued.
        definition: of the table, as it was when it was last compared with the catalog, or copied. None: the position is
            from an earlier version of tidegate.
    """

    slot: str
    lsn: int
    commit_lsn: int = 0
    index: int = 0
    begun: DatabaseState | None = None
    copied: tuple[Piece, ...] = ()
    copying: bool = False
    rows: int = 0
    table_oid: int = 0
    definition: TableDefinition | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the position in a split."""
        return {
            "slot": self.slot,
            "lsn": lsn_text(self.lsn),
            "commit_lsn": lsn_text(self.commit_lsn),
            "index": self.index,
            "begun": None if self.begun is None else str(self.begun),
            "copied": [piece.to_json() for piece in self.copied],
            "copying": self.copying,
            "rows": self.rows,
            "table_oid": self.table_oid,
            "definition": None if self.definition is None else self.definition.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ChangePosition:
        """Inverse of `to_json`."""
        return cls(
            document["slot"],
            lsn_of(document["lsn"]),
            lsn_of(document["commit_lsn"]),
            document["index"],
            None if document["begun"] is None else DatabaseState.of(document["begun"]),
            tuple(Piece.from_json(piece) for piece in document["copied"]),
            document["copying"],
            document["rows"],
            document["table_oid"],
            None if document.get("definition") is None else TableDefinition.from_json(document["definition"]),
        )

    @property
    def after(self) -> tuple[str, ...] | None:
        """Key of the last row that was copied; None: none was."""
        return self.copied[-1].up_to if self.copied else None

    @property
    def handover_end(self) -> int:
        """LSN from which on no change can be part of the copy; 0: the hand-over is over."""
        return max((piece.end_lsn for piece in self.copied), default=0)
