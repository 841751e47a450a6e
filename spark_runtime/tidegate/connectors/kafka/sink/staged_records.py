"""Staged files of a Kafka transaction: encoded records as Arrow IPC, with a checksum in the transaction's handle.

Nothing is encoded again at the commit, so a commit does not depend on a format, a schema registry or the pipeline.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.connectors.files.sink.encoded_file import EncodedFile
from tidegate.connectors.storage import with_path
from tidegate.errors import SnapshotError

TOPIC, PARTITION, TIMESTAMP, KEY, VALUE, HEADERS = "topic", "partition", "timestamp_ms", "key", "value", "headers"
HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
STAGED_SCHEMA = pa.schema(
    [
        pa.field(TOPIC, pa.string()),
        pa.field(PARTITION, pa.int32()),
        pa.field(TIMESTAMP, pa.int64()),
        pa.field(KEY, pa.binary()),
        pa.field(VALUE, pa.binary()),
        pa.field(HEADERS, HEADERS_TYPE),
    ],
    {"tidegate_kafka_records": "1"},
)
"""A null topic is the sink's topic, a null partition is chosen by the partitioner, a null time is set by the client."""
GROUP_ROWS = 65_536
GROUP_BYTES = 8 * 2**20
"""Rows and bytes that are compressed together, and that a commit holds in memory at a time."""
COMPRESSION = "lz4"
"""As in snapshots: a fifth of the time that zstd takes. The files live for one checkpoint."""
CHECKED_BYTES = 2**20
"""Bytes that the check of a file reads at a time."""


class _ChecksummedFile:
    """A new local file for Arrow's writer.

    Attributes:
        size_bytes, crc32: of what was written.
    """

    def __init__(self, path: str) -> None:
        self.size_bytes = 0
        self.crc32 = 0
        self.closed = False
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close()

    def write(self, data: bytes) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size_bytes += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True
        self._file.close()


class OpenRecords:
    """A file of records without a footer yet."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._file = _ChecksummedFile(path)
        options = pa.ipc.IpcWriteOptions(compression=COMPRESSION)
        self._writer = pa.ipc.new_file(pa.PythonFile(self._file, mode="w"), schema, options=options)

    def write(self, table: pa.Table) -> None:
        """Append records."""
        self._writer.write_table(table.combine_chunks(), max_chunksize=GROUP_ROWS)

    def size_bytes(self) -> int:
        """Return the number of bytes written."""
        return self._file.size_bytes

    def checksum(self) -> int:
        """Return the CRC-32 of the bytes written."""
        return self._file.crc32

    def close(self) -> None:
        """Write the footer; may be called again."""
        if not self._file.closed:
            self._writer.close()
            self._file.close()


@dataclass(frozen=True)
class RecordsEncoding:
    """Arrow IPC files, which `pyarrow.dataset` reads as the format "arrow"."""

    suffix = ".arrow"
    group_rows = GROUP_ROWS
    group_bytes = GROUP_BYTES

    def open(self, path: str, schema: pa.Schema) -> OpenRecords:
        """Begin a file."""
        return OpenRecords(path, schema)


class RecordsFile(EncodedFile):
    """A staged file whose entry in the handle holds its checksum."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(path, name, STAGED_SCHEMA, RecordsEncoding())
        self._records = self._open

    def entry(self) -> dict[str, Any]:
        """Return name, rows, bytes and checksum, after `finish_closing`."""
        assert isinstance(self._records, OpenRecords)
        return {**super().entry(), "crc32": self._records.checksum()}


def read_records(path: str, entry: Mapping[str, Any], *, where: str) -> Iterator[pa.RecordBatch]:
    """Yield the records of a local staged file, after a check of all its bytes.

    Args:
        entry: the file's entry in the handle.
        where: transaction and file, for the error.

    Raises:
        SnapshotError: the file is not the one that was staged.
    """
    found = (os.stat(path).st_size, _checksum(path))
    if found != (entry["bytes"], entry["crc32"]):
        raise SnapshotError(
            "a staged file of a pre-committed transaction is damaged",
            where=where,
            cause=f"size and checksum are {found}, but were {(entry['bytes'], entry['crc32'])}",
            remedy="Put the original file back, or restore an earlier snapshot; no record of it was sent",
        )
    with with_path(path), pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def _checksum(path: str) -> int:
    found = 0
    with open(path, "rb") as file:
        while data := file.read(CHECKED_BYTES):
            found = zlib.crc32(data, found)
    return found
