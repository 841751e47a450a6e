"""Rows of states in RocksDB's files, to inspect a checkpoint or restore it with other columns.

The files are put into a separate database, in a temporary folder, which returns rows as for a savepoint (S5.2).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from tidegate.snapshot.parts import KEY_GROUP_COLUMN, StatePart
from tidegate.snapshot.reader import BackendFiles
from tidegate.state.keyed_state import BackendContext, KeyedKind, KeyedStateBackend, StateDescriptor, TimeToLive
from tidegate.state.rocksdb.checkpoint_files import FilesOfPart
from tidegate.state.rocksdb.row_states import RunsBackend
from tidegate.state.state_layout import KEY_PREFIX, MAP_PREFIX, RUNS, TTL_COLUMN, VALUE_PREFIX, form_of, timer_part

READING_BYTES = 32 * 2**20
"""Memory of that database."""
READING = "snapshot"
"""Placeholder for the operator in errors; the caller knows the operator."""


NewBackend = Callable[[], KeyedStateBackend]
"""Creates a RocksDB back end, not opened. It is passed in, because the back end itself imports this module."""


class RocksFiles(BackendFiles):
    """Reader of format "rocksdb"."""

    def __init__(self, new_backend: NewBackend) -> None:
        self._new_backend = new_backend

    def schemas(self, part: StatePart) -> Mapping[str, pa.Schema]:
        """Return the schemas of states and timers by name. Needs no rocksdict."""
        return FilesOfPart.of(part, READING).states

    def tables(self, part: StatePart, state: str, max_parallelism: int) -> Iterator[pa.Table]:
        """Yield the rows of one state; writes the files to a temporary folder. Raises MissingExtraError if rocksdict is
        missing.
        """
        with rows_of_files(part, max_parallelism, self._new_backend) as parts:
            for rows in parts:
                if rows.name == state:
                    yield from rows.tables()


@contextmanager
def rows_of_files(
    part: StatePart, max_parallelism: int, new_backend: NewBackend, folder: str | None = None
) -> Iterator[Sequence[StatePart]]:
    """Yield the states and timers in a part of format "rocksdb" as parts of rows. Read them within the context.

    Args:
        folder: where the temporary folder is created; None: in the system's.

    Raises:
        MissingExtraError: `rocksdict` is not installed.
        SnapshotError: the files are damaged.
    """
    files = FilesOfPart.of(part, READING)
    keys = _columns(next(iter(files.states.values())), KEY_PREFIX)
    backend = new_backend()
    with tempfile.TemporaryDirectory(prefix="tidegate-read-", dir=folder) as scratch:
        place = (READING, keys, tuple(keys.names), max_parallelism, files.key_groups)
        backend.open(BackendContext(*place, now_ms=lambda: 0, scratch=scratch, memory_bytes=READING_BYTES))
        try:
            for name, schema in files.states.items():
                _declare(backend, name, schema)
            backend.restore([part])
            yield backend.snapshot(1, portable=True)()
        finally:
            backend.close()


def _declare(backend: KeyedStateBackend, name: str, schema: pa.Schema) -> None:
    """Declare the state as the operator did."""
    if name == timer_part("event"):
        backend.timers("event")
        return
    if name == timer_part("processing"):
        backend.timers("processing")
        return
    if form_of(schema) == RUNS:
        assert isinstance(backend, RunsBackend), "files with sorted runs are read by a back end that writes them"
        backend.runs(StateDescriptor(name, "value", _columns(schema, VALUE_PREFIX)), None)
        return
    kind, _, reductions = form_of(schema).partition(" by ")
    descriptor = StateDescriptor(
        name,
        _kind(kind),
        _columns(schema, VALUE_PREFIX),
        _columns(schema, MAP_PREFIX),
        tuple(reductions.split(", ")) if reductions else (),  # type: ignore[arg-type]
        ttl=TimeToLive(1) if TTL_COLUMN in schema.names else None,
    )
    ask = {"value": backend.value, "list": backend.list, "map": backend.map}
    ask.get(descriptor.kind, backend.merging)(descriptor)


def _kind(text: str) -> KeyedKind:
    kinds: dict[str, KeyedKind] = {k: k for k in ("value", "list", "map", "reducing", "aggregating")}
    return kinds[text]


def _columns(schema: pa.Schema, prefix: str) -> pa.Schema:
    found = [field for field in schema if field.name.startswith(prefix) and field.name != KEY_GROUP_COLUMN]
    return pa.schema([field.with_name(field.name.removeprefix(prefix)) for field in found])
