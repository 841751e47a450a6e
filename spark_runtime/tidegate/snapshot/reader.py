"""Reading a snapshot without a job: from the path of its folder to its states, as Arrow (S5.3). Runs no code of it."""

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
        name: of the state, unique within the operator.
        kind: how a restore shares it out (S5.1).
        columns: (name, Arrow type as text), in order; empty: of a format whose files do not tell.
        rows: how many; of a broadcast state those of one subtask, as all hold the same; None: not told.
        size_bytes: in memory, of all subtasks; None: not told.
        subtasks: how many hold it.
        format: of its pieces.
    """

    name: str
    kind: StateKind
    columns: tuple[tuple[str, str], ...]
    rows: int | None
    size_bytes: int | None
    subtasks: int
    format: StateFormat


class BackendFiles(Protocol):
    """What looks into parts of a back end's own format."""

    def schemas(self, part: StatePart) -> Mapping[str, pa.Schema]:
        """The states in a part: name -> columns of its rows."""

    def tables(self, part: StatePart, state: str, max_parallelism: int) -> Iterator[pa.Table]:
        """The rows of one of them, a piece at a time. Raises PipelineError when what it needs is not installed."""


class SnapshotReader:
    """One snapshot. Every method but the constructor's checks reads from the store, anew at each call."""

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        root: Store | None = None,
        native: Mapping[str, BackendFiles] | None = None,
    ) -> None:
        """Args: path: of the folder, or a URL; a relative one is below `root`, without one below the working directory.
        native: by format; parts of another one are told, but not read.

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
        """Operator `uid`; OptionError naming the nearest when there is none."""
        found = self.metadata.operator(uid)
        if found is None:
            known = [operator.uid for operator in self.metadata.operators if _handles(operator)]
            raise _unknown("operator", uid, known, f"snapshot {self.path}")
        return found

    def states(self, uid: str) -> tuple[StateSummary, ...]:
        """The states of operator `uid`, in the order it wrote them."""
        by_name: dict[str, list[StateSummary]] = {}
        for handle in _handles(self.operator(uid)).values():
            for part in self._parts(uid, handle):
                for shape in self._shapes(part):
                    by_name.setdefault(shape.name, []).append(shape)
        return tuple(_together(shapes) for shapes in by_name.values())

    def native_formats(self, uid: str) -> tuple[str, ...]:
        """Formats of an operator's parts other than rows, which only their back end restores."""
        parts = [part for handle in _handles(self.operator(uid)).values() for part in self._parts(uid, handle)]
        return tuple(sorted({part.format for part in parts} - {"rows"}))

    def subtasks(self, uid: str, state: str) -> tuple[int, ...]:
        """The subtasks whose rows make up the state: of broadcast state one, since all hold the same; running ones
        before finished ones (S6.3). OptionError naming the nearest when there is no such state."""
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
                if state in self._names(part):
                    yield from self._rows(part, state, f"snapshot {self.path}, operator {uid!r}, subtask {index}")

    def _parts(self, uid: str, handle: StateHandle) -> list[StatePart]:
        return self._streams.parts(handle, where=f"snapshot {self.path}, operator {uid!r}")

    def _names(self, part: StatePart) -> list[str]:
        native = self._native.get(part.format)
        return [part.name] if native is None else list(native.schemas(part))

    def _shapes(self, part: StatePart) -> Iterator[StateSummary]:
        """The states in a part of one subtask."""
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
                f"state {part.name!r} is in files of {part.format}",
                where=where,
                cause="a checkpoint holds them as the back end has them",
                remedy="Read a savepoint: its states are rows whatever the back end",
            )
        yield from native.tables(part, state, self.metadata.max_parallelism)


def _handles(operator: OperatorState) -> dict[int, StateHandle]:
    """Subtask -> state stream; running ones first, so that broadcast state comes from one of them."""
    held = [state for state in operator.subtasks if state.handle is not None]
    return {s.index: s.handle for s in sorted(held, key=lambda s: s.finished) if s.handle is not None}


def _together(shapes: Sequence[StateSummary]) -> StateSummary:
    """A state over its subtasks. Of broadcast state, which all hold alike, the rows of one."""
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
        f"there is no {what} {name!r} with state" if what == "operator" else f"there is no {what} {name!r}",
        where=where,
        cause=f"there are: {there}",
        remedy=f"Did you mean {near[0]!r}?" if near else "`tidegate snapshot inspect` lists them",
    )
