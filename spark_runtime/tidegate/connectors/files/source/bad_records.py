"""Records that cannot be read: what a source does with them, and their form in a side output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tidegate.errors import PipelineError

OnBadRecord = Literal["fail", "skip", "dead_letter"]
"""`fail` the job; `skip` and count; `dead_letter`: count, and emit to the side output `bad_records`."""

BAD_RECORDS = "bad_records"
"""Side output of a source with `on_bad_record="dead_letter"`."""
BAD_RECORDS_SCHEMA = pa.schema(
    [("file", pa.string()), ("offset", pa.int64()), ("raw", pa.binary()), ("reason", pa.string())]
)
"""File, offset of the record's first byte, its (decompressed) bytes, and why it cannot be read."""
MAX_SHOWN_BYTES = 120
"""Most bytes of a record in an error message; a dead letter has all of them."""


@dataclass(frozen=True)
class BadRecord:
    """One record that cannot be read.

    Attributes:
        offset: of its first byte, in bytes of the (decompressed) text; in a Parquet file the number of the row.
        raw: its bytes, without the line end.
        reason: lower case, no full stop.
    """

    offset: int
    raw: bytes
    reason: str


def bad_batch(file: str, records: Sequence[BadRecord]) -> pa.RecordBatch:
    """Return records of one file as rows of the side output."""
    columns = [
        pa.array([file] * len(records), pa.string()),
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([record.raw for record in records], pa.binary()),
        pa.array([record.reason for record in records], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=BAD_RECORDS_SCHEMA)


def refused(file: str, record: BadRecord) -> PipelineError:
    """Return the error for `on_bad_record="fail"`."""
    raw = record.raw[:MAX_SHOWN_BYTES]
    shown = raw.decode("utf-8", "backslashreplace") + ("..." if len(record.raw) > len(raw) else "")
    return PipelineError(
        "a record of the input file cannot be read",
        where=f"{file}, offset {record.offset:,}",
        cause=f"{record.reason}; the record is {shown!r}",
        remedy='Correct the file or schema=, or set on_bad_record="skip" or "dead_letter"',
    )
