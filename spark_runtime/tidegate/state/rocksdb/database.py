"""One RocksDB on local disk, accessed by batch: a column family for each state, bounded memory, no write-ahead log
(S5.2).

Writes are durable only in a checkpoint. A crash loses later writes, but the job then restores its last snapshot anyway.
Reads and writes may come from the slot's loop and from a snapshot writer thread at the same time.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import EnvironmentProblemError, MissingExtraError, SnapshotError
from tidegate.extras import installation
from tidegate.state.rocksdb.byte_rows import ByteRows

if TYPE_CHECKING:
    from rocksdict import Options, Rdict

SCAN_BYTES = 2**20
"""Approximate bytes of keys and rows in one step of a scan."""
SCAN_ROWS = 8192
"""Most keys in one step of a scan."""
FIRST_SCAN_ROWS = 256
"""Keys in the first step of a scan. Few, because the size of the rows is not known before."""
READ_ROWS = 512
"""Keys in one multi-get, because RocksDB keeps the blocks of all of them in memory until it returns."""
BLOCK_BYTES = 4096
LIST_ROWS = 16384
"""Rows that are converted to Python objects at a time."""
WRITE_ROWS = 4096
"""Rows in one write batch. Few, because `rocksdict` holds the interpreter lock while it fills and writes a batch."""
WRITE_BYTES = 2**18
"""Approximate bytes in one write batch."""
MIN_WRITE_BUFFER_BYTES = 2**20
MAX_FILE_BYTES = 16 * 2**20
"""Approximate size of RocksDB's files, each of which is mapped into memory whole for a snapshot."""
OPEN_FILES = 256
"""Files that RocksDB keeps open at once, each with about ten KiB of its index."""


def require_rocksdict() -> None:
    """Raise MissingExtraError with the name of the extra if `rocksdict` is not installed."""
    try:
        import rocksdict  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "the state back end 'rocksdb' needs the package rocksdict",
            cause=str(error),
            remedy=f"Run `{installation('rocksdb')}` on the driver and the executors, or use state_backend='heap'",
        ) from error


class RocksDatabase:
    """A database in one directory. The first use of a table opens it, and creates it if needed."""

    def __init__(self, directory: Path, memory_bytes: int, *, read_only: bool = False) -> None:
        """Create without I/O.

        Args:
            directory: directory of this database alone.
            memory_bytes: limit of block cache, index and filter blocks and write buffers together.
            read_only: open an existing database and never write.
        """
        self.directory = directory
        self._memory_bytes = memory_bytes
        self._read_only = read_only
        self._database: Rdict | None = None
        self._families: dict[str, Rdict] = {}
        self._asked_for: dict[str, None] = {}
        self._opening = threading.RLock()
        self._closed = False

    def table(self, name: str) -> RocksTable:
        """Return the column family `name`, which is created when the database is opened, or at its first use
        afterwards.
        """
        self._asked_for[name] = None
        return RocksTable(self, name)

    def table_names(self) -> list[str]:
        """Return the names of all column families in the directory, whether the database is open or not."""
        from rocksdict import Options, Rdict

        with failures(self.directory):
            names: list[str] = Rdict.list_cf(str(self.directory), Options(raw_mode=True))
        return [name for name in names if name != "default"]

    def family(self, name: str) -> Rdict:
        """Return the open column family `name`. Raises EnvironmentProblemError after `close`."""
        found = self._families.get(name)
        if found is None:
            with self._opening, failures(self.directory):
                database = self.opened()
                found = self._families.get(name)
                if found is None:
                    found = self._families[name] = database.create_column_family(name, self._options)
        return found

    def drop(self, name: str) -> None:
        """Remove the column family `name` with its rows. It must not be used any more."""
        with self._opening, failures(self.directory):
            self._families.pop(name, None)
            self._asked_for.pop(name, None)
            self.opened().drop_column_family(name)

    def opened(self) -> Rdict:
        """Return the open database. Raises EnvironmentProblemError after `close`.

        A late thread must not reopen it, because the new database would be empty.
        """
        with self._opening:
            if self._closed:
                raise EnvironmentProblemError(
                    "the database of keyed state is closed",
                    where=str(self.directory),
                    cause="the subtask has ended while its snapshot was still being written",
                    remedy="Do nothing: the snapshot is ignored",
                )
            if self._database is None:
                self._database = self._open()
            return self._database

    def files(self) -> list[dict[str, Any]]:
        """Return RocksDB's description of each of its table files."""
        with failures(self.directory):
            described: list[dict[str, Any]] = self.opened().live_files()
        return described

    def checkpoint(self, directory: Path) -> None:
        """Flush memory to files, and make `directory` another database of the same files, by hard links."""
        from rocksdict import Checkpoint

        # The checkpoint flushes, too, but `rocksdict` holds the interpreter lock meanwhile.
        self.flush()
        with failures(self.directory):
            Checkpoint(self.opened()).create_checkpoint(str(directory))

    def flush(self) -> None:
        """Write what is in memory to files."""
        with failures(self.directory):
            self.opened()
            for family in list(self._families.values()):
                family.flush()

    def close(self) -> None:
        """Close the database finally; may be called twice. The files stay."""
        with self._opening:
            self._closed = True
            self._families.clear()
            database, self._database = self._database, None
        if database is not None:
            with suppress(Exception):  # it flushes first, but no file is needed any more
                database.close()

    def remove(self) -> None:
        """Close the database and delete its files."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _open(self) -> Rdict:
        from rocksdict import AccessType, Rdict

        existing = self.table_names() if (self.directory / "CURRENT").exists() else []
        self._options = _options(self._memory_bytes)
        access = AccessType.read_only(False) if self._read_only else AccessType.read_write()
        names = existing if self._read_only else list(dict.fromkeys([*existing, *self._asked_for]))
        with failures(self.directory):
            families = dict.fromkeys(["default", *names], self._options)
            database = Rdict(str(self.directory), self._options, families, access)
            for name in names:
                self._families[name] = database.get_column_family(name)
        return database


class RocksTable:
    """One column family."""

    def __init__(self, database: RocksDatabase, name: str) -> None:
        """Create without I/O. Args: database: open or not. name: name of the column family."""
        self._database = database
        self.name = name

    def get(self, keys: ByteRows) -> ByteRows:
        """Return the row of each key; missing if there is none."""
        # Neighbouring keys share blocks, so that a multi-get in key order reads fewer of them.
        order = keys.order()
        with failures(self._database.directory):
            family: Any = self._database.family(self.name)
            wanted = keys.take(order).to_list()
            found: list[bytes | None] = []
            for start in range(0, len(wanted), READ_ROWS):
                found += family.get(wanted[start : start + READ_ROWS])
        rows = ByteRows.of_list(found)
        back = order.argsort()
        return rows.take(back)

    def write(self, keys: ByteRows, rows: ByteRows) -> None:
        """Set the row of each key, or remove it if the row is missing. Keys must be unique."""
        order = keys.order()
        row_bytes = int(keys.lengths.sum() + rows.lengths.sum()) // max(len(order), 1)
        batch_rows = min(WRITE_ROWS, 1 + WRITE_BYTES // max(row_bytes, 1))
        for start in range(0, len(order), LIST_ROWS):
            some = order[start : start + LIST_ROWS]
            there = rows.present[some]
            put = keys.take(some[there]).to_list(), rows.take(some[there]).to_list()
            removed = [] if there.all() else keys.take(some[~there]).to_list()
            for at in range(0, max(len(put[0]), len(removed)), batch_rows):
                part = slice(at, at + batch_rows)
                self._write(put[0][part], put[1][part], removed[part])

    def scan(self, lower: bytes = b"", upper: bytes | None = None) -> Iterator[tuple[ByteRows, ByteRows]]:
        """Yield keys and rows with lower <= key < upper in order, some at a time, never none.

        Nothing is held open between two steps, so that old files can be deleted. Concurrent writes may be seen.
        """
        limit = FIRST_SCAN_ROWS
        while True:
            found = self._some(lower, upper, limit)
            if not found:
                return
            keys, rows = (ByteRows.of_list(column) for column in zip(*found, strict=True))
            yield keys, rows
            if len(found) < limit:
                return
            # The least key that is greater than the last one.
            lower = found[-1][0] + b"\0"
            size = int(keys.lengths.sum() + rows.lengths.sum()) // len(found)
            limit = min(SCAN_ROWS, 1 + SCAN_BYTES // max(size, 1))

    def scan_prefixes(self, prefixes: Sequence[bytes]) -> tuple[ByteRows, ByteRows, list[int]]:
        """Return all keys and rows that begin with each of `prefixes`, and the number for each."""
        keys: list[bytes] = []
        rows: list[bytes] = []
        counts = []
        with failures(self._database.directory):
            cursor = self._database.family(self.name).iter()
            for prefix in prefixes:
                before = len(keys)
                cursor.seek(prefix)
                while cursor.valid() and (key := cursor.key()).startswith(prefix):
                    keys.append(key)
                    rows.append(cursor.value())
                    cursor.next()
                counts.append(len(keys) - before)
            # A cursor is also invalid after an error, which only `status` raises.
            cursor.status()
        return ByteRows.of_list(keys), ByteRows.of_list(rows), counts

    def first_from(self, lowers: Sequence[bytes]) -> list[bytes | None]:
        """Return the first key that is not less than each of `lowers`; None if there is none."""
        found: list[bytes | None] = []
        with failures(self._database.directory):
            cursor = self._database.family(self.name).iter()
            for lower in lowers:
                cursor.seek(lower)
                found.append(cursor.key() if cursor.valid() else None)
            cursor.status()
        return found

    def skip_scan(self, lower: bytes, upper: bytes, after: Callable[[bytes], bytes]) -> list[tuple[bytes, bytes]]:
        """Return some keys with lower <= key < upper and their rows: the first, then each time the first key that is
        not less than `after` of the last one.
        """
        found: list[tuple[bytes, bytes]] = []
        with failures(self._database.directory):
            cursor = self._database.family(self.name).iter()
            cursor.seek(lower)
            while cursor.valid() and (key := cursor.key()) < upper:
                found.append((key, cursor.value()))
                cursor.seek(after(key))
            cursor.status()
        return found

    def file_bytes(self) -> int:
        """Return the size of its files."""
        with failures(self._database.directory):
            return int(self._database.family(self.name).property_int_value("rocksdb.total-sst-files-size") or 0)

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        """Remove all keys with lower <= key < upper."""
        with failures(self._database.directory):
            self._database.family(self.name).delete_range(lower, upper, _unlogged())

    def _write(self, keys: Sequence[bytes], rows: Sequence[bytes], removed: Sequence[bytes]) -> None:
        from rocksdict import WriteBatch

        with failures(self._database.directory):
            # Creates the column family if it is missing, because the handle below needs it.
            self._database.family(self.name)
            database = self._database.opened()
            batch = WriteBatch(raw_mode=True)
            batch.set_default_column_family(database.get_column_family_handle(self.name))
            # A deque of length 0 consumes the calls without a loop in Python.
            deque(map(batch.put, keys, rows), maxlen=0)
            deque(map(batch.delete, removed), maxlen=0)
            database.write(batch, _unlogged())

    def _some(self, lower: bytes, upper: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        from rocksdict import ReadOptions

        with failures(self._database.directory):
            bounds = ReadOptions()
            if upper is not None:
                bounds.set_iterate_upper_bound(upper)
            items: Any = self._database.family(self.name).items(from_key=lower, read_opt=bounds)
            return list(islice(items, limit))


@contextmanager
def failures(directory: Path) -> Iterator[None]:
    """Convert RocksDB's errors: SnapshotError for damaged files, EnvironmentProblemError for others."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, TypeError):
        raise
    except Exception as error:
        # rocksdict raises a plain Exception for RocksDB's own errors.
        if type(error) is not Exception:
            raise
        text = str(error)
        if any(sign in text for sign in ("Corruption", "No such file", "does not exist", "Invalid argument")):
            raise SnapshotError(
                "the RocksDB files of keyed state are damaged",
                where=str(directory),
                cause=text,
                remedy="Restore another snapshot. If it happens again, check the local disk",
            ) from error
        raise EnvironmentProblemError(
            "RocksDB cannot read or write its files",
            where=str(directory),
            cause=text,
            remedy="Free space on the executor's local disk, or choose another directory for scratch files",
        ) from error


def _unlogged() -> Any:
    from rocksdict import WriteOptions

    options: Any = WriteOptions()
    options.disable_wal = True
    return options


def _options(memory_bytes: int) -> Options:
    """Return options with half of the memory for write buffers, which count towards the block cache, and the rest for
    blocks.

    Index and filter blocks are in the cache, in partitions, so that their memory depends on the keys that are read and
    not on the size of the state.
    """
    from rocksdict import (
        BlockBasedIndexType,
        BlockBasedOptions,
        Cache,
        DBCompressionType,
        Options,
        WriteBufferManager,
    )

    cache = Cache(memory_bytes)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_top_level_index_and_filter(True)
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_partition_filters(True)
    blocks.set_metadata_block_size(BLOCK_BYTES)
    blocks.set_block_size(BLOCK_BYTES)
    blocks.set_bloom_filter(10, False)
    blocks.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.lz4())
    write_buffers = memory_bytes // 2
    options.set_write_buffer_manager(
        WriteBufferManager.new_write_buffer_manager_with_cache(write_buffers, False, cache)
    )
    options.set_write_buffer_size(max(MIN_WRITE_BUFFER_BYTES, write_buffers // 4))
    options.set_max_write_buffer_number(3)
    file_bytes = min(MAX_FILE_BYTES, max(MIN_WRITE_BUFFER_BYTES, memory_bytes // 8))
    options.set_target_file_size_base(file_bytes)
    options.set_max_bytes_for_level_base(8 * file_bytes)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_open_files(OPEN_FILES)
    options.set_max_background_jobs(2)
    options.set_max_manifest_file_size(2**20)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(2**20)
    options.set_stats_dump_period_sec(0)
    return options
