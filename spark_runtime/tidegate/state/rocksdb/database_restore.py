"""Restore of snapshots into RocksDB: from its own files where possible, else from rows of any back end (S5.5).

The files of the subtask that covers most of this one's key groups become the database, and other key groups are
removed. Rows of further subtasks in these key groups are copied into it, one subtask after the other. If columns have
changed since, the files are read as rows, which are converted to the declared columns.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.errors import SnapshotError
from tidegate.snapshot.parts import StatePart
from tidegate.state.evolved_parts import evolved_parts
from tidegate.state.keyed_state import BackendContext
from tidegate.state.keys.key_hash import MAX_KEY_GROUPS
from tidegate.state.rocksdb.byte_rows import ByteRows, join_bytes
from tidegate.state.rocksdb.checkpoint_files import FilesOfPart
from tidegate.state.rocksdb.database import RocksDatabase
from tidegate.state.rocksdb.database_keys import group_key, read_keys
from tidegate.state.rocksdb.file_reader import NewBackend, rows_of_files
from tidegate.state.rocksdb.list_chunks import RocksList
from tidegate.state.rocksdb.portable_rows import TableRows, prefixed_columns, rows_in_key_groups
from tidegate.state.rocksdb.timer_tables import BY_TIME, TIME_BYTES
from tidegate.state.state_layout import form_of, require_same_columns, unknown_state


class DatabaseRestore:
    """One restore. Used once."""

    def __init__(
        self,
        ctx: BackendContext,
        database: RocksDatabase,
        stored: Mapping[str, TableRows],
        lists: Mapping[str, RocksList],
        scratch: Path,
        new_backend: NewBackend,
    ) -> None:
        """Create the restore.

        Args:
            ctx: context of the back end.
            database: database, not opened yet.
            stored: declared states and timers, by name.
            lists: list states of the operator.
            scratch: folder for databases that are copied from.
            new_backend: creates a back end to read files whose columns have changed.
        """
        self._ctx = ctx
        self._database = database
        self._stored = stored
        self._lists = lists
        self._scratch = scratch
        self._new_backend = new_backend

    def run(self, parts: Sequence[StatePart]) -> dict[str, str]:
        """Restore all parts. Returns blob ids of the files that became the database's, by file name.

        Raises:
            SnapshotError: see `KeyedStateBackend.restore`; or files are damaged.
        """
        files = [FilesOfPart.of(part, self._ctx.uid) for part in parts if part.format == "rocksdb"]
        inherited: dict[str, str] = {}
        if all(map(self._is_as_declared, files)):
            inherited = self._restore_files(files)
        else:
            for one in files:
                self._restore_changed(one)
        for part in parts:
            if part.format == "rows" and part.name not in self._ctx.forgotten:
                self._restore_rows(part)
        return inherited

    def _is_as_declared(self, files: FilesOfPart) -> bool:
        """Return whether the files have the declared columns. Raises SnapshotError for an undeclared state."""
        for name, schema in files.states.items():
            if name not in self._ctx.forgotten:
                declared = self._declared(name).schema
                if (form_of(schema), schema.names, schema.types) != (form_of(declared), declared.names, declared.types):
                    return False
        return True

    def _restore_changed(self, files: FilesOfPart) -> None:
        """Restore files whose columns have changed since, as rows (S5.5). Raises SnapshotError if they cannot be
        converted.
        """
        ctx = self._ctx
        for name, schema in files.states.items():
            if name not in ctx.forgotten:
                self._evolved(StatePart(name, "keyed", schema.empty_table()))
        if files.key_groups.stop <= ctx.key_groups.start or ctx.key_groups.stop <= files.key_groups.start:
            return
        with rows_of_files(files.part, ctx.max_parallelism, self._new_backend, str(self._scratch)) as parts:
            for part in parts:
                if part.name not in ctx.forgotten:
                    self._restore_rows(self._evolved(part))

    def _evolved(self, part: StatePart) -> StatePart:
        """Return a part of rows with the declared columns. Raises SnapshotError, with both schemas and the reason, if
        it cannot.
        """
        ctx = self._ctx
        descriptors = [stored.descriptor for stored in self._stored.values() if stored.descriptor is not None]
        how = {"fills": ctx.fills, "drops": ctx.drops}
        try:
            (changed,) = evolved_parts([part], descriptors, ctx.key_schema, ctx.uid, ctx.renamed_keys, **how)
        except SnapshotError as why:
            try:
                require_same_columns(part.name, part.table.schema, self._declared(part.name).schema, ctx.uid)
            except SnapshotError as both:
                cause = f"{both.cause}: {why.cause}"
                raise SnapshotError(both.what, where=both.where, cause=cause, remedy=why.remedy) from why
            raise
        return changed

    def _declared(self, name: str) -> TableRows:
        if name not in self._stored:
            raise unknown_state(name, self._ctx.uid)
        return self._stored[name]

    def _restore_files(self, files: Sequence[FilesOfPart]) -> dict[str, str]:
        """Restore files with the declared columns; see `run`."""
        mine = self._ctx.key_groups
        theirs = [one for one in files if one.key_groups.start < mine.stop and mine.start < one.key_groups.stop]
        if not theirs:
            return {}
        base = max(theirs, key=lambda one: _common(one.key_groups, mine))
        inherited = base.write_to(self._database.directory, self._ctx.uid)
        # Opened after the files are in place, because opening an empty directory creates a new database.
        self._database.opened()
        for name in self._ctx.forgotten.intersection(self._database.table_names()):
            self._database.drop(name)
        beyond = base.key_groups.start < mine.start or base.key_groups.stop > mine.stop
        if beyond:
            self._cut()
        for number, one in enumerate(theirs):
            if one is not base:
                self._copy(one, self._scratch / f"former-{number}")
        return inherited

    def _cut(self) -> None:
        """Remove all other key groups."""
        low, high = group_key(self._ctx.key_groups.start), group_key(self._ctx.key_groups.stop)
        names = self._database.table_names()
        for name in names:
            table = self._database.table(name)
            if not name.endswith(BY_TIME):
                table.delete_range(b"", low)
                table.delete_range(high, group_key(MAX_KEY_GROUPS))
                continue
            # Timers by time begin with the time and not with a key group, so that they are all written again.
            table.delete_range(b"", b"\xff" * (TIME_BYTES + 1))
            for keys, rows in self._database.table(name.removesuffix(BY_TIME)).scan(low, high):
                table.write(_by_time(keys), rows)

    def _copy(self, files: FilesOfPart, directory: Path) -> None:
        low, high = group_key(self._ctx.key_groups.start), group_key(self._ctx.key_groups.stop)
        files.write_to(directory, self._ctx.uid)
        former = RocksDatabase(directory, self._ctx.memory_bytes // 8)
        try:
            for name in former.table_names():
                if name.endswith(BY_TIME) or name in self._ctx.forgotten:
                    continue
                for keys, rows in former.table(name).scan(low, high):
                    self._database.table(name).write(keys, rows)
                    if name + BY_TIME in former.table_names():
                        self._database.table(name + BY_TIME).write(_by_time(keys), rows)
        finally:
            former.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _restore_rows(self, part: StatePart) -> None:
        stored = self._declared(part.name)
        require_same_columns(part.name, part.table.schema, stored.schema, self._ctx.uid)
        table = self._database.table(stored.table)
        for batch in rows_in_key_groups(part, self._ctx.key_groups):
            if part.name in self._lists:
                keys = read_keys(prefixed_columns(batch, stored.key_schema), self._ctx)
                self._lists[part.name].append_rows(keys, keys.rows, stored.rows(batch))
                continue
            keys_, rows = stored.cells(batch)
            table.write(keys_, rows)
            if stored.descriptor is None:
                self._database.table(stored.table + BY_TIME).write(_by_time(keys_), rows)


def _common(theirs: range, mine: range) -> int:
    return min(theirs.stop, mine.stop) - max(theirs.start, mine.start)


def _by_time(keys: ByteRows) -> ByteRows:
    """Return the keys of timers by time for keys of timers by key."""
    ids = ByteRows(keys.data, keys.starts, keys.lengths - TIME_BYTES)
    times = ByteRows(keys.data, keys.starts + ids.lengths, keys.lengths - ids.lengths)
    return join_bytes(times, ids)
