"""Distribute the state of a snapshot's subtasks to the subtasks of a restore, for any parallelism (S5.5, S6.2, S6.3).

Pure. Two steps: `restore_share` selects in the driver the state streams that a new subtask loads. `redistributed`
selects in the slot the rows of the loaded streams. By kind of part, with the new parallelism p:

- keyed: the rows whose key group the new subtask owns.
- list: without a rescale each subtask its own; else rows are split evenly in the order of the old subtasks, or by
`OWNER_COLUMN`.
- union: all rows to every subtask.
- broadcast: the rows of one old subtask that holds the state: the one with the new subtask's number modulo the old
parallelism, or the next one. Running subtasks are preferred.
- keyed in another format than rows: unchanged, one part for each old subtask. The backend selects its key groups.
- channel: without a rescale each subtask its own; else all rows to every subtask, which selects its own
(`channel_state.replay_elements`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.snapshot.handles import StateHandle
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.metadata import OperatorState
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, OWNER_COLUMN, Blob, StateKind, StatePart

KINDS_BEFORE_RESCALE: tuple[StateKind, ...] = ("keyed", "list", "broadcast")
"""Kinds that a stream may contain if its handle does not record kinds. `check_restore` refuses a rescale of these."""


@dataclass(frozen=True)
class Rescale:
    """The place of one new subtask.

    Attributes:
        former: parallelism of the snapshot.
        parallelism: parallelism of the restored job.
        max_parallelism: number of key groups of both.
        index: index of the new subtask.
    """

    former: int
    parallelism: int
    max_parallelism: int
    index: int

    @property
    def changes(self) -> bool:
        """True when the parallelism changes."""
        return self.former != self.parallelism

    @property
    def key_groups(self) -> range:
        """The key groups of the new subtask."""
        return key_group_range(self.index, self.parallelism, self.max_parallelism)

    def receives_from(self, kind: StateKind, former_index: int, broadcast_from: int | None) -> bool:
        """Return whether the new subtask may receive rows of this kind from old subtask `former_index`."""
        if kind == "keyed":
            theirs, mine = key_group_range(former_index, self.former, self.max_parallelism), self.key_groups
            return theirs.start < mine.stop and mine.start < theirs.stop
        if kind == "broadcast":
            return former_index == broadcast_from
        return kind == "union" or self.changes or former_index == self.index


@dataclass(frozen=True)
class RestoreShare:
    """The streams of one operator that a new subtask loads.

    Attributes:
        handles: (old subtask, state stream), by subtask.
        broadcast_from: the old subtask whose broadcast parts it takes; None: there are none.
    """

    handles: tuple[tuple[int, StateHandle], ...]
    broadcast_from: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, as in the deployment message."""
        return {"handles": [[i, h.to_json()] for i, h in self.handles], "broadcast_from": self.broadcast_from}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RestoreShare:
        """Inverse of `to_json`."""
        handles = tuple((int(i), StateHandle.from_json(h)) for i, h in document["handles"])
        return cls(handles, document["broadcast_from"])


def restore_share(operator: OperatorState, place: Rescale) -> RestoreShare | None:
    """Return the streams that the new subtask needs, or None if it needs no state of this operator."""
    held = {state.index: state.handle for state in operator.subtasks if state.handle is not None}
    replicas = [index for index, handle in held.items() if "broadcast" in (handle.kinds or KINDS_BEFORE_RESCALE)]
    running = [state.index for state in operator.subtasks if state.index in replicas and not state.finished]
    source = _broadcast_source(running or replicas, place)
    needed: list[tuple[int, StateHandle]] = []
    for former_index, handle in sorted(held.items()):
        if any(place.receives_from(kind, former_index, source) for kind in handle.kinds or KINDS_BEFORE_RESCALE):
            needed.append((former_index, handle))
    return RestoreShare(tuple(needed), source) if needed else None


def redistributed(
    former: Mapping[int, Sequence[StatePart]], broadcast_from: int | None, place: Rescale, *, where: str = ""
) -> list[StatePart]:
    """Return the parts of the new subtask, selected from the loaded parts.

    There is one part for each name; in formats other than "rows", one for each name and old subtask. Rows of blobs are
    selected when the blobs are read.

    Args:
        former: old subtask -> its parts, for every old subtask that `restore_share` named.
        broadcast_from: see RestoreShare.
        where: the place to name in errors.

    Raises:
        SnapshotError: a state differs in kind or type between subtasks.
    """
    replicas: dict[str, list[int]] = {}
    for former_index in sorted(former):
        for part in former[former_index]:
            if part.kind == "broadcast":
                replicas.setdefault(part.name, []).append(former_index)
    first = place.index if broadcast_from is None else broadcast_from
    # Every name has its own source, because not every old subtask needs to have each broadcast state.
    sources = {name: _next_from(first, holders, place) for name, holders in replicas.items()}
    by_name: dict[str, list[StatePart]] = {}
    for former_index in sorted(former):
        for part in former[former_index]:
            if place.receives_from(part.kind, former_index, sources.get(part.name)):
                by_name.setdefault(part.name, []).append(part)
    return [part for name, found in by_name.items() for part in _merged(name, found, place, where)]


def _broadcast_source(replicas: Sequence[int], place: Rescale) -> int | None:
    return _next_from(place.index, replicas, place) if replicas else None


def _next_from(first: int, replicas: Sequence[int], place: Rescale) -> int:
    """Return the old subtask with number `first`, or the next one that holds the state.

    New subtasks are thus spread over the old ones.
    """
    return min(replicas, key=lambda former_index: (former_index - first) % place.former)


def _merged(name: str, found: Sequence[StatePart], place: Rescale, where: str) -> list[StatePart]:
    kinds = {part.kind for part in found}
    if len(kinds) > 1:
        raise _mixed(name, f"the kinds are {', '.join(sorted(kinds))}", where)
    formats = {part.format for part in found}
    if len(formats) > 1:
        raise _mixed(name, f"the formats are {', '.join(sorted(formats))}", where)
    if formats != {"rows"}:
        return list(found)
    kind = kinds.pop()
    blobs = [blob for part in found for blob in part.blobs]
    tables = [part.table for part in found]
    if kind == "keyed":
        tables = [_in_range(table, place.key_groups) for table in tables]
        # Without a rescale the blobs keep their ids, so that checkpoints need not write them again.
        blobs = [_cut(blob, place.key_groups) for blob in blobs] if place.changes else blobs
    elif blobs and kind == "list" and place.changes:
        # An even split needs the number of all rows, which is known only when the blobs are read.
        tables, blobs = [table for part in found for table in part.tables()], []
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise _mixed(name, str(error), where) from error
    if kind == "list" and place.changes:
        table = _list_rows(table, place)
    return [StatePart(name, kind, table, (), tuple(blobs))]


def _cut(blob: Blob, groups: range) -> Blob:
    """Return the rows of `groups` as a blob with another id, because the content differs."""

    def read() -> pa.Table:
        table = blob.table()
        of_rows = table.column(KEY_GROUP_COLUMN).to_numpy()
        return table.filter(pa.array((of_rows >= groups.start) & (of_rows < groups.stop)))

    return Blob(f"{blob.id}.{groups.start}-{groups.stop}", read)


def _in_range(table: pa.Table, groups: range) -> pa.Table:
    """Return the rows of a range of key groups. The table must be sorted by key group, as in streams."""
    column = table.column(KEY_GROUP_COLUMN).to_numpy()
    first, end = np.searchsorted(column, [groups.start, groups.stop])
    return table.slice(int(first), int(end - first))


def _list_rows(table: pa.Table, place: Rescale) -> pa.Table:
    if OWNER_COLUMN not in table.column_names:
        first = table.num_rows * place.index // place.parallelism
        end = table.num_rows * (place.index + 1) // place.parallelism
        return table.slice(first, end - first)
    owners = table.column(OWNER_COLUMN).fill_null(place.index).to_numpy()
    return table.filter(pa.array(owners % place.parallelism == place.index))


def _mixed(name: str, cause: str, where: str) -> SnapshotError:
    return SnapshotError(
        f"state {name!r} differs between the subtasks of the snapshot",
        where=where,
        cause=cause,
        remedy="Restore another snapshot",
    )
