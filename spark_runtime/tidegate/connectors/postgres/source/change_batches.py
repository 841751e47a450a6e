"""Decoded changes as change rows. Pure.

insert                             -> insert
update                             -> update_after; with the old row also update_before, before it
update that changes the key        -> delete of the old key, insert of the new row
delete                             -> delete: the key, other columns null; with the old row all columns
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate import change_rows
from tidegate.connectors.postgres.source.column_values import column_of
from tidegate.connectors.postgres.source.pgoutput import (
    DELETE,
    INSERT,
    OLD_KEY,
    OLD_ROW,
    UNCHANGED,
    UPDATE,
    Numbers,
    RowMessages,
    Tuples,
    gathered,
)

_KINDS = pa.array(change_rows.CHANGE_KINDS)
_INSERT, _BEFORE, _AFTER, _DELETE = range(4)
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Seen:
    """For each message: whether the copy of the table contains its old and its new version already."""

    old: Mask
    new: Mask


@dataclass(frozen=True)
class ChangeRows:
    """Rows of messages, in their order.

    Attributes:
        messages: the message of each row.
        is_new: the row is the new version of its message.
        kinds: number of the kind in `CHANGE_KINDS`.
    """

    messages: Numbers
    is_new: Mask
    kinds: Numbers

    @property
    def are_deletions(self) -> Mask:
        """Return which rows are deletions."""
        return self.kinds == _DELETE


def with_old_values(changes: RowMessages) -> RowMessages:
    """Take values that an update has not changed and does not repeat from the old row, if the message has it."""
    chosen = (changes.new.kinds == UNCHANGED) & (changes.old_kinds == OLD_ROW)[:, None]
    if not chosen.any():
        return changes
    return RowMessages(changes.actions, changes.old_kinds, changes.old, changes.new.or_else(changes.old, chosen))


def rows_of(changes: RowMessages, key: Sequence[int], seen: Seen | None = None) -> ChangeRows:
    """Return which rows the messages are.

    Args:
        key: places of the key's columns.
        seen: leaves out what the copy of the table contains; None: nothing.
    """
    n = len(changes.actions)
    updates = changes.actions == UPDATE
    moved = (changes.old_kinds == OLD_KEY) & updates
    whole = (changes.old_kinds == OLD_ROW) & updates
    if whole.any():
        moved |= whole & _differs(changes, key)
    old = np.full(n, -1)
    old[changes.actions == DELETE] = _DELETE
    old[whole & ~moved] = _BEFORE
    old[moved] = _DELETE
    new = np.full(n, -1)
    new[changes.actions == INSERT] = _INSERT
    new[updates] = _AFTER
    new[moved] = _INSERT
    if seen is not None:
        half = updates & (seen.old != seen.new)
        old[half], new[half] = _DELETE, _INSERT
        # For an update without an old tuple, both versions have one key, so that both or none are seen.
        old[seen.old] = -1
        new[seen.new] = -1
    both = np.stack([old, new], axis=1).ravel()
    there = np.flatnonzero(both >= 0)
    return ChangeRows(there // 2, there % 2 == 1, both[there])


def _differs(changes: RowMessages, key: Sequence[int]) -> Mask:
    found = np.zeros(len(changes.actions), bool)
    for column in key:
        different = pc.not_equal(changes.old.texts(column), changes.new.texts(column))
        found |= np.asarray(pc.fill_null(different, False))
    return found


def missing_values(changes: RowMessages, rows: ChangeRows, columns: Sequence[int]) -> Mask:
    """Return, for each row and column, whether its value was neither sent nor is in the old row."""
    kinds = changes.new.kinds[rows.messages][:, list(columns)]
    return (kinds == UNCHANGED) & rows.is_new[:, None]


def change_batch(
    changes: RowMessages,
    rows: ChangeRows,
    places: Mapping[str, int],
    schema: pa.Schema,
    kind_column: str,
    where: str,
    fetched: Mapping[str, pa.Array] | None = None,
) -> pa.RecordBatch:
    """Return the rows as a batch.

    Args:
        places: column -> its place in the messages.
        kind_column: name of the column with the kind of change.
        fetched: column -> texts that replace missing values, null where none is missing.

    Raises:
        DataError: a value does not fit its column.
    """
    arrays = []
    for field in schema:
        if field.name == kind_column:
            arrays.append(_KINDS.take(pa.array(rows.kinds)))
            continue
        texts = _texts(changes.old, changes.new, rows, places[field.name])
        if fetched is not None and field.name in fetched:
            texts = pc.coalesce(texts, fetched[field.name])
        arrays.append(column_of(texts, field, where))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def key_texts(changes: RowMessages, key: Sequence[int], *, old: bool) -> list[list[str | None]]:
    """Return for each key column the texts of each message's old or new version. Without an old one it is the new."""
    is_new = np.full(len(changes.actions), not old)
    if old:
        is_new = changes.old_kinds == 0
    rows = ChangeRows(np.arange(len(changes.actions)), is_new, np.zeros(0, np.int64))
    return [_texts(changes.old, changes.new, rows, column).to_pylist() for column in key]


def _texts(old: Tuples, new: Tuples, rows: ChangeRows, column: int) -> pa.Array:
    if rows.is_new.all():
        return new.texts(column, rows.messages)
    parts = [
        np.where(rows.is_new, of_new[rows.messages, column], of_old[rows.messages, column])
        for of_old, of_new in ((old.kinds, new.kinds), (old.starts, new.starts), (old.lengths, new.lengths))
    ]
    return gathered(old.data, parts[1], parts[2], parts[0] == ord("t"))
