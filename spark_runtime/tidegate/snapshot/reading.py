"""Reading a snapshot without a job: from the path of its folder to its states, as Arrow (S5.3). Runs no code of it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from tidegate.contract.errors import OptionError, SnapshotError
from tidegate.contract.snapshots import open_snapshot
from tidegate.contract.store import Store, open_store
from tidegate.snapshot.handles import StateHandle, StreamFactory
from tidegate.snapshot.metadata import OperatorState, read_metadata
from tidegate.snapshot.parts import StateFormat, StateKind, StatePart


@dataclass(frozen=True)
class StateShape:
    """One state of an operator, over all its subtasks.

    Attributes:
        name: of the state, unique within the operator.
        kind: how a restore shares it out (S5.1).
        columns: (name, Arrow type as text), in order; empty: of a format whose files do not tell.
        rows: how many; of a broadcast state those of one subtask, as all hold the same; None: not told.
        size_bytes: of all subtasks: in memory, or of the files of a format of its own.
        subtasks: how many hold it.
        format: of its pieces.
    """

    name: str
    kind: StateKind
    columns: tuple[tuple[str, str], ...]
    rows: int | None
    size_bytes: int
    subtasks: int
    format: StateFormat


class SnapshotReader:
    """One snapshot. Every method but the constructor's checks reads from the store, anew at each call."""

    def __init__(
        self, path: str, storage_options: Mapping[str, Any] | None = None, *, root: Store | None = None
    ) -> None:
        """Args: path: of the folder, or a URL; a relative one is below `root`, without one below the working directory.

        Raises:
            SnapshotError: there is no complete snapshot, or it is damaged or of a newer version.
            StoreError: the store cannot read.
        """
        self.path = path.rstrip("/") or path
        if root is None and "://" not in path:
            self.path = os.path.abspath(os.path.expanduser(self.path))
        open_location = partial(open_snapshot, root or open_store("/"), storage_options or {})
        self.metadata = read_metadata(*open_location(self.path))
        self._streams = StreamFactory.at(self.path, open_location)

    def operator(self, uid: str) -> OperatorState:
        """Operator `uid`; OptionError naming the nearest when there is none."""
        found = self.metadata.operator(uid)
        if found is None:
            known = [operator.uid for operator in self.metadata.operators if _handles(operator)]
            raise _unknown("operator", uid, known, f"snapshot {self.path}")
        return found

    def states(self, uid: str) -> tuple[StateShape, ...]:
        """The states of operator `uid`, in the order it wrote them."""
        by_name: dict[str, list[tuple[StatePart, StateHandle]]] = {}
        for handle in _handles(self.operator(uid)).values():
            for part in self._parts(uid, handle):
                by_name.setdefault(part.name, []).append((part, handle))
        return tuple(_shape(parts) for parts in by_name.values())

    def subtasks(self, uid: str, state: str) -> tuple[int, ...]:
        """The subtasks whose rows make up the state: of broadcast state one, since all hold the same; running ones
        before finished ones (S6.3). OptionError naming the nearest when there is no such state."""
        operator = self.operator(uid)
        holders: list[int] = []
        names: dict[str, None] = {}
        for index, handle in _handles(operator).items():
            for part in self._parts(uid, handle):
                names[part.name] = None
                if part.name == state:
                    holders.append(index)
                    if part.kind == "broadcast":
                        return (index,)
        if not holders:
            raise _unknown("state", state, list(names), f"snapshot {self.path}, operator {uid!r}")
        return tuple(holders)

    def tables(self, uid: str, state: str, subtasks: Sequence[int] | None = None) -> Iterator[pa.Table]:
        """The rows of a state, a piece of one subtask at a time, so that only one need fit into memory; at least one
        table, perhaps empty.

        Args:
            subtasks: whose; None: those that `subtasks` gives.

        Raises:
            OptionError: there is no such operator or state; names the nearest.
            SnapshotError: a file is missing or damaged, or of a back end whose files cannot be read here.
        """
        chosen = self.subtasks(uid, state) if subtasks is None else subtasks
        handles = _handles(self.operator(uid))
        for index in chosen:
            for part in self._parts(uid, handles[index]):
                if part.name == state:
                    yield from rows_of(part, where=f"snapshot {self.path}, operator {uid!r}, subtask {index}")

    def _parts(self, uid: str, handle: StateHandle) -> list[StatePart]:
        return self._streams.parts(handle, where=f"snapshot {self.path}, operator {uid!r}")


def rows_of(part: StatePart, *, where: str) -> Iterator[pa.Table]:
    """All rows of a part, whatever back end wrote it. Raises SnapshotError for files that only that can read."""
    if part.format == "rows":
        yield from part.tables()
        return
    raise SnapshotError(
        f"state {part.name!r} is in files of {part.format}",
        where=where,
        cause="the job keeps its state in RocksDB, and this is a checkpoint, which only a restore reads",
        remedy="Read a savepoint: its states are rows whatever the back end",
    )


def _handles(operator: OperatorState) -> dict[int, StateHandle]:
    """Subtask -> state stream; running ones first, so that broadcast state comes from one of them."""
    held = [state for state in operator.subtasks if state.handle is not None]
    return {s.index: s.handle for s in sorted(held, key=lambda s: s.finished) if s.handle is not None}


def _shape(held: Sequence[tuple[StatePart, StateHandle]]) -> StateShape:
    first = held[0][0]
    columns = tuple((field.name, str(field.type)) for field in first.table.schema)
    if first.format != "rows":
        sizes = [_blob_bytes(part, handle) for part, handle in held]
        return StateShape(first.name, first.kind, (), None, sum(sizes), len(held), first.format)
    rows, size_bytes = 0, 0
    for number, (part, _) in enumerate(held):
        for table in part.tables():
            rows += table.num_rows if number == 0 or first.kind != "broadcast" else 0
            size_bytes += table.nbytes
    return StateShape(first.name, first.kind, columns, rows, size_bytes, len(held), first.format)


def _blob_bytes(part: StatePart, handle: StateHandle) -> int:
    stored = {blob.id: blob.size_bytes for file in handle.files for blob in file.blobs}
    return sum(stored[blob.id] for blob in part.blobs)


def _unknown(what: str, name: str, known: Sequence[str], where: str) -> OptionError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    there = ", ".join(known) or "none"
    return OptionError(
        f"there is no {what} {name!r} with state" if what == "operator" else f"there is no {what} {name!r}",
        where=where,
        cause=f"there are: {there}",
        remedy=f"Did you mean {near[0]!r}?" if near else "`tidegate snapshot inspect` lists them",
    )
