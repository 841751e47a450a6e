"""Read a snapshot without a job: from the path of its folder to its states, as Arrow (S5.3). Runs no job code."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from tidegate.errors import OptionError, SnapshotError
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.snapshot.handles import SnapshotStreams, StateHandle
from tidegate.snapshot.metadata import OperatorState, read_metadata
from tidegate.snapshot.parts import StateFormat, StateKind, StatePart


@dataclass(frozen=True)
class StateSummary:
    """One state of an operator, over all its subtasks.

    Attributes:
        name: name of the state, unique within the operator.
        kind: how a restore distributes it (S5.1).
        columns: (name, Arrow type as text), in order; empty: the format's files do not contain them.
        rows: number of rows. For broadcast state the rows of one subtask, because all have the same. None: unknown.
        size_bytes: size in memory, of all subtasks; None: unknown.
        subtasks: number of subtasks that hold it.
        format: format of its pieces.
    """

    name: str
    kind: StateKind
    columns: tuple[tuple[str, str], ...]
    rows: int | None
    size_bytes: int | None
    subtasks: int
    format: StateFormat


class BackendFiles(Protocol):
    """Reads parts in a backend's own format."""

    def schemas(self, part: StatePart) -> Mapping[str, pa.Schema]:
        """Return the states in a part: name -> columns of its rows."""

    def tables(self, part: StatePart, state: str, max_parallelism: int) -> Iterator[pa.Table]:
        """Yield the rows of one state, a piece at a time.

        Raises MissingExtraError if a required package is not installed.
        """


class SnapshotReader:
    """One snapshot. Apart from the constructor's checks, every method reads from the store at each call."""

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        root: Store | None = None,
        native: Mapping[str, BackendFiles] | None = None,
    ) -> None:
        """Open a snapshot.

        Args:
            path: path of the folder, or a URL. A relative path is below `root`, or without `root` below the working
                directory.
            native: readers by format. Parts in other formats are listed, but cannot be read.

        Raises:
            SnapshotError: there is no complete snapshot, or it is damaged or of a newer version.
            StoreError: the store cannot read.
        """
        self.path = path.rstrip("/") or path
        if root is None and "://" not in path:
            self.path = os.path.abspath(os.path.expanduser(self.path))
        open_location = partial(open_snapshot_folder, root or open_store("/"), storage_options or {})
        self._native = dict(native or {})
        self.metadata = read_metadata(*open_location(self.path))
        self._streams = SnapshotStreams.at(self.path, open_location)

    def operator(self, uid: str) -> OperatorState:
        """Return operator `uid`. Raises OptionError, which names the most similar uid, if there is none."""
        found = self.metadata.operator(uid)
        if found is None:
            known = [operator.uid for operator in self.metadata.operators if _handles(operator)]
            raise _unknown("operator", uid, known, f"snapshot {self.path}")
        return found

    def states(self, uid: str) -> tuple[StateSummary, ...]:
        """Return the states of operator `uid`, in the order in which it wrote them."""
        by_name: dict[str, list[StateSummary]] = {}
        for handle in _handles(self.operator(uid)).values():
            for part in self._parts(uid, handle):
                for shape in self._shapes(part):
                    by_name.setdefault(shape.name, []).append(shape)
        return tuple(_together(shapes) for shapes in by_name.values())

    def native_formats(self, uid: str) -> tuple[str, ...]:
        """Return formats of an operator's parts other than rows. Only their backend can restore them."""
        parts = [part for handle in _handles(self.operator(uid)).values() for part in self._parts(uid, handle)]
        return tuple(sorted({part.format for part in parts} - {"rows"}))

    def subtasks(self, uid: str, state: str) -> tuple[int, ...]:
        """Return the subtasks whose rows make up the state.

        For broadcast state this is one subtask, because all hold the same rows. A running one is preferred to a
        finished one (S6.3). Raises OptionError, which names the most similar state, if there is no such state.
        """
        operator = self.operator(uid)
        holders: list[int] = []
        names: dict[str, None] = {}
        for index, handle in _handles(operator).items():
            for part in self._parts(uid, handle):
                held = self._names(part)
                names.update(dict.fromkeys(held))
                if state in held:
                    holders.append(index)
                    if part.kind == "broadcast":
                        return (index,)
        if not holders:
            raise _unknown("state", state, list(names), f"snapshot {self.path}, operator {uid!r}")
        return tuple(holders)

    def tables(self, uid: str, state: str, subtasks: Sequence[int] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a state, a piece of one subtask at a time, so that only one piece must fit into memory.

        Yields at least one table, which may be empty.

        Args:
            subtasks: the subtasks to read; None: the result of the method `subtasks`.

        Raises:
            OptionError: there is no such operator or state; names the most similar one.
            SnapshotError: a file is missing or damaged, or belongs to a backend whose files cannot be read here.
        """
        chosen = self.subtasks(uid, state) if subtasks is None else subtasks
        handles = _handles(self.operator(uid))
        for index in chosen:
            for part in self._parts(uid, handles[index]):
                if state in self._names(part):
                    yield from self._rows(part, state, f"snapshot {self.path}, operator {uid!r}, subtask {index}")

    def _parts(self, uid: str, handle: StateHandle) -> list[StatePart]:
        return self._streams.parts(handle, where=f"snapshot {self.path}, operator {uid!r}")

    def _names(self, part: StatePart) -> list[str]:
        native = self._native.get(part.format)
        return [part.name] if native is None else list(native.schemas(part))

    def _shapes(self, part: StatePart) -> Iterator[StateSummary]:
        """Yield summaries of the states in a part of one subtask."""
        native = self._native.get(part.format)
        if native is not None:
            for name, schema in native.schemas(part).items():
                yield StateSummary(name, part.kind, _columns(schema), None, None, 1, part.format)
        elif part.format != "rows":
            yield StateSummary(part.name, part.kind, (), None, None, 1, part.format)
        else:
            rows = size_bytes = 0
            for table in part.tables():
                rows, size_bytes = rows + table.num_rows, size_bytes + table.nbytes
            yield StateSummary(part.name, part.kind, _columns(part.table.schema), rows, size_bytes, 1, part.format)

    def _rows(self, part: StatePart, state: str, where: str) -> Iterator[pa.Table]:
        if part.format == "rows":
            yield from part.tables()
            return
        native = self._native.get(part.format)
        if native is None:
            raise SnapshotError(
                f"state {part.name!r} is stored in {part.format} files, which are not readable here",
                where=where,
                cause="a checkpoint stores state in the format of the option state_backend of its run",
                remedy="Read a savepoint instead: a savepoint stores states as rows with every back end",
            )
        yield from native.tables(part, state, self.metadata.max_parallelism)


def _handles(operator: OperatorState) -> dict[int, StateHandle]:
    """Return subtask -> state stream. Running subtasks come first, so that broadcast state comes from one of them."""
    held = [state for state in operator.subtasks if state.handle is not None]
    return {s.index: s.handle for s in sorted(held, key=lambda s: s.finished) if s.handle is not None}


def _together(shapes: Sequence[StateSummary]) -> StateSummary:
    """Summarise a state over its subtasks. For broadcast state, which all hold alike, count the rows of one."""
    counted = shapes[:1] if shapes[0].kind == "broadcast" else shapes
    return replace(
        shapes[0],
        rows=_sum([s.rows for s in counted]),
        size_bytes=_sum([s.size_bytes for s in shapes]),
        subtasks=len(shapes),
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _columns(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, str(field.type)) for field in schema)


def _unknown(what: str, name: str, known: Sequence[str], where: str) -> OptionError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    there = ", ".join(known) or "none"
    return OptionError(
        f"the snapshot has no {what} {name!r} with state"
        if what == "operator"
        else f"the operator has no {what} {name!r}",
        where=where,
        cause=f"the known names are: {there}",
        remedy=f"Did you mean {near[0]!r}?" if near else "List them with `tidegate snapshot inspect`",
    )
