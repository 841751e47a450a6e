"""Messages of logical replication, assembled to batches of change rows with their positions. No I/O of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidegate.connectors.postgres.source import change_batches as cb
from tidegate.connectors.postgres.source.change_check import ChangeOptions
from tidegate.connectors.postgres.source.handover import ChangePosition, Piece, lsn_text
from tidegate.connectors.postgres.source.pgoutput import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    RELATION,
    TRUNCATE,
    UPDATE,
    Begin,
    Commit,
    Relation,
    RelationColumn,
    RowMessages,
    row_messages,
    truncated,
)
from tidegate.connectors.postgres.source.source_table import TableName
from tidegate.connectors.postgres.source.table_definition import TableDefinition
from tidegate.errors import PipelineError, SnapshotError

MOST_MESSAGES = 16_384
"""Changes of a batch; an update may be two rows."""
MOST_BYTES = 8 * 2**20
"""Bytes from which on a batch is complete. A batch has whole changes, however large."""
AFTER_HANDOVER = -1
"""Stands for the id of a transaction that no copy can contain."""


@dataclass(frozen=True)
class Arrived:
    """Rows, or None, with the position after them."""

    batch: pa.RecordBatch | None
    position: ChangePosition


@dataclass(frozen=True)
class _Layout:
    """How messages of a table or partition are decoded: messages with equal layouts are decoded together.

    Attributes:
        places: column -> its place in the messages.
    """

    columns: tuple[RelationColumn, ...]
    replica_identity: str
    places: Mapping[str, int]


class TableAccess(Protocol):
    """Requests of the assembler to the server. Calls block."""

    def is_part(self, relation: Relation) -> bool:
        """Return whether the relation is the table or one of its partitions.

        Raises PipelineError if it may have been a partition, and is none now.
        """

    def places(self, relation: Relation) -> Mapping[str, int]:
        """Return column -> its place in the changes. Raises PipelineError if the table has changed too much."""

    def pieces(self, keys: Sequence[Sequence[str | None]], pieces: Sequence[Piece]) -> Sequence[int]:
        """Return for each key the piece that it is in. Args: keys: texts by key column."""

    def fetch(
        self, keys: Sequence[Sequence[str | None]], columns: Sequence[str]
    ) -> Sequence[tuple[int, Sequence[str | None]]]:
        """Return (place in `keys`, texts of the columns) of the rows that exist now."""


class ChangeAssembler:
    """Collects the changes of one table. A transaction may be spread over several batches.

    Attributes:
        position: after the changes that were returned.
    """

    def __init__(
        self,
        position: ChangePosition,
        table: TableName,
        key: Sequence[str],
        schema: pa.Schema,
        options: ChangeOptions,
        access: TableAccess,
        where: str,
        log: Callable[..., None],
    ) -> None:
        """Args:
        key: columns that identify a row; () if there are none.
        log: logs a warning.
        """
        self.position = position
        self._table, self._key, self._schema, self._options = table, tuple(key), schema, options
        self._access, self._where, self._log = access, where, log
        # A transaction that was read in part is sent again from its begin.
        self._resume = (position.commit_lsn, position.index) if position.commit_lsn else None
        self._skip = 0
        self._lsn, self._transaction, self._index = position.lsn, 0, 0
        if self._resume is not None:
            self._transaction, self._index = self._resume
        self._handover_end = position.handover_end
        self._xid = AFTER_HANDOVER
        # By oid: the table itself, or its partitions.
        self._layouts: dict[int, _Layout] = {}
        self._layout: _Layout | None = None
        self._messages: list[bytes] = []
        self._xids: list[int] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """True if the changes make a batch."""
        return len(self._messages) >= MOST_MESSAGES or self._bytes >= MOST_BYTES

    @property
    def has_rows(self) -> bool:
        """True if changes wait."""
        return bool(self._messages)

    def reached(self, lsn: int) -> None:
        """Record that the server has sent all transactions before `lsn`. So a table without changes keeps no WAL."""
        if not self._transaction and self._resume is None and lsn > self._lsn:
            self._lsn = lsn

    def add(self, message: bytes) -> Arrived | None:
        """Process a message. Returns the changes before it if they must not be decoded together with later ones.

        Raises:
            PipelineError: the table was truncated or altered.
            SnapshotError: the stream does not continue at the position.
        """
        action = message[0]
        if action in (INSERT, UPDATE, DELETE):
            return self._row(message)
        if action == BEGIN:
            self._begin(Begin.of(message))
        elif action == COMMIT:
            self._commit(Commit.of(message))
        elif action == RELATION:
            self._described(Relation.of(message))
        elif action == TRUNCATE:
            self._truncate(truncated(message))
        return None

    def _begin(self, begin: Begin) -> None:
        self._transaction, self._index = begin.commit_lsn, 0
        self._xid = begin.xid if begin.commit_lsn <= self._handover_end else AFTER_HANDOVER
        if self._resume is None:
            return
        commit_lsn, index = self._resume
        if begin.commit_lsn > commit_lsn:
            raise self._broken(f"the transaction {lsn_text(commit_lsn)}, which was read in part, is not sent again")
        if begin.commit_lsn == commit_lsn:
            self._skip, self._resume = index, None

    def _commit(self, commit: Commit) -> None:
        if self._index < self._skip:
            raise self._broken(f"the transaction {lsn_text(commit.commit_lsn)} has fewer changes than were read")
        self._transaction = self._index = self._skip = 0
        self._lsn = max(self._lsn, commit.end_lsn)

    def _broken(self, cause: str) -> SnapshotError:
        return SnapshotError(
            "the stream of changes does not continue at the position",
            where=self._where,
            cause=cause,
            remedy="Start the job afresh, with a new copy of the table",
        )

    def _row(self, message: bytes) -> Arrived | None:
        layout = self._layouts.get(int.from_bytes(message[1:5], "big"))
        if layout is None:
            return None  # of another table in the publication
        arrived = None
        if layout is not self._layout:
            arrived = self.flush() if self._messages else None
            self._layout = layout
        self._index += 1
        if self._index > self._skip:
            self._messages.append(message)
            self._xids.append(self._xid)
            self._bytes += len(message)
        return arrived

    def _described(self, relation: Relation) -> None:
        # By oid and not by name, so that no change is passed over while the table has another name.
        if not self._access.is_part(relation):
            self._layouts.pop(relation.oid, None)
            return
        # Partitions share one object, so that changes of several of them make one batch.
        for known in self._layouts.values():
            if (known.columns, known.replica_identity) == (relation.columns, relation.replica_identity):
                self._layouts[relation.oid] = known
                return
        places = self._access.places(relation)
        self._layouts[relation.oid] = _Layout(relation.columns, relation.replica_identity, places)

    def _truncate(self, tables: Sequence[int]) -> None:
        # The relation is always sent before.
        if self._layouts.keys().isdisjoint(tables) or self._resume is not None:
            return
        if self._options.on_truncate == "fail":
            is_whole = self.position.table_oid in tables
            raise PipelineError(
                "the table was truncated" if is_whole else "a partition of the table was truncated",
                where=f"{self._where}, transaction {lsn_text(self._transaction)}",
                cause="a TRUNCATE names no rows, so that it cannot be emitted as change rows",
                remedy="Start the job afresh with an empty target, so that the table is copied again; or set "
                'on_truncate="ignore", restore the job, and delete the rows of the target yourself',
            )
        self._log("the table %s was truncated; its rows are not deleted downstream", self._table)

    def redefined(self, definition: TableDefinition) -> Arrived:
        """Return the last position with another definition of the table."""
        self.position = replace(self.position, definition=definition)
        return Arrived(None, self.position)

    # ------------------------------------------------------------ batches

    def flush(self) -> Arrived | None:
        """Return the changes that wait, with the position after them; None: nothing is new."""
        batch = self._batch() if self._messages else None
        self._messages, self._xids, self._bytes = [], [], 0
        # During a resumed transaction, the position stays where it was until its first new change.
        transaction, index = self._transaction, self._index
        if self._resume is not None:
            transaction, index = self._resume
        elif index < self._skip:
            index = self._skip
        if index == 0:
            transaction = 0
        is_over = max(self._lsn, self._transaction) > self._handover_end
        rows = self.position.rows + (batch.num_rows if batch is not None else 0)
        reached = replace(
            self.position,
            lsn=self._lsn,
            commit_lsn=transaction,
            index=index,
            copied=() if is_over else self.position.copied,
            begun=None if is_over else self.position.begun,
            rows=rows,
        )
        if reached == self.position:
            return None
        self.position = reached
        return Arrived(batch, reached)

    def _batch(self) -> pa.RecordBatch | None:
        layout = self._layout
        assert layout is not None, "a row follows its relation"
        changes = cb.with_old_values(row_messages(self._messages, len(layout.columns)))
        key = [layout.places[name] for name in self._key]
        rows = cb.rows_of(changes, key, self._seen(changes, key))
        rows, fetched = self._complete(changes, rows, key, layout.places)
        if not len(rows.kinds):
            return None
        kind_column = self._options.kind_column
        return cb.change_batch(changes, rows, layout.places, self._schema, kind_column, self._where, fetched)

    def _seen(self, changes: RowMessages, key: Sequence[int]) -> cb.Seen | None:
        """Return which changes the copy contains; None: none."""
        pieces = self.position.copied
        if not pieces or all(xid == AFTER_HANDOVER for xid in self._xids):
            return None
        masks = []
        for old in (True, False):
            places: Sequence[int] = [0] * len(self._xids)
            if len(pieces) > 1:
                places = self._access.pieces(cb.key_texts(changes, key, old=old), pieces)
            states = [pieces[place].state for place in places]
            seen = [xid != AFTER_HANDOVER and state.sees(xid) for xid, state in zip(self._xids, states, strict=True)]
            masks.append(np.array(seen))
        return cb.Seen(*masks)

    def _complete(
        self, changes: RowMessages, rows: cb.ChangeRows, key: Sequence[int], places: Mapping[str, int]
    ) -> tuple[cb.ChangeRows, Mapping[str, pa.Array] | None]:
        """Return the rows with the values that the server did not send, because an update has not changed them."""
        names = [name for name in self._schema.names if name != self._options.kind_column]
        missing = cb.missing_values(changes, rows, [places[name] for name in names])
        if not missing.any():
            return rows, None
        columns = [name for place, name in enumerate(names) if missing[:, place].any()]
        if self._options.missing_values == "fail" or not key:
            raise PipelineError(
                f"an update does not have the unchanged value of column {', '.join(map(repr, columns))}",
                where=self._where,
                cause="PostgreSQL stores the value outside of the row (TOAST), and the replica identity does not "
                "contain it",
                remedy='Set missing_values="fetch" to read the present values from the table. For later updates, run '
                f"ALTER TABLE {self._table} REPLICA IDENTITY FULL",
            )
        return self._fetched(changes, rows, key, np.any(missing, axis=1), columns)

    def _fetched(
        self,
        changes: RowMessages,
        rows: cb.ChangeRows,
        key: Sequence[int],
        incomplete: cb.Mask,
        columns: Sequence[str],
    ) -> tuple[cb.ChangeRows, Mapping[str, pa.Array]]:
        wanted = np.flatnonzero(incomplete)
        keys = cb.key_texts(changes, key, old=False)
        found = self._access.fetch([[texts[m] for m in rows.messages[wanted]] for texts in keys], columns)
        values: list[list[str | None]] = [[None] * len(rows.kinds) for _ in columns]
        there = np.zeros(len(wanted), bool)
        for place, texts in found:
            there[place] = True
            for column, text in zip(values, texts, strict=True):
                column[wanted[place]] = text
        kept = np.ones(len(rows.kinds), bool)
        kept[wanted[~there]] = False
        if not there.all():
            # With the row also its pair, the row before the update. An update of the key has the deletion of the old
            # key instead, which later changes do not repeat.
            lost = set(rows.messages[wanted[~there]].tolist())
            kept &= rows.are_deletions | np.array([message not in lost for message in rows.messages.tolist()])
            self._log("%d updates of table %s are left out: their rows were deleted later", len(lost), self._table)
        arrays = {
            name: pa.array(column, pa.string()).filter(pa.array(kept))
            for name, column in zip(columns, values, strict=True)
        }
        return cb.ChangeRows(rows.messages[kept], rows.is_new[kept], rows.kinds[kept]), arrays
