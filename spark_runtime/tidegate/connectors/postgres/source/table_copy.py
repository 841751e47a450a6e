"""Rows that the server sends with COPY, as batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.postgres.source.column_values import column_of
from tidegate.connectors.postgres.source.source_session import (
    WAIT_S,
    end_results,
    run_simple,
    wait_for_data,
)

if TYPE_CHECKING:
    import psycopg

MOST_ROWS = 16_384
"""Rows of a batch: large enough that its fixed cost does not count, and made in some 30 ms."""
MOST_BYTES = 4 * 2**20
"""Bytes from which on a batch is complete."""
# Key columns come first, under names that no column of a table can have.
_KEY_NAME = "\x00key{}"


@dataclass(frozen=True)
class CopiedRows:
    """Rows in the order of their key.

    Attributes:
        last: texts of the key of the last row.
    """

    batch: pa.RecordBatch
    last: tuple[str, ...]


def copied_rows(
    connection: psycopg.Connection[Any],
    statement: str,
    keys: int,
    schema: pa.Schema,
    closed: threading.Event,
    where: str,
) -> Iterator[CopiedRows]:
    """Yield the rows of a COPY statement, whose columns are `keys` texts and then the columns of `schema`.

    After an error, or if the caller does not take all rows, the connection cannot be used any more.

    Raises:
        psycopg.Error: the server ends the copy, or the connection is lost.
        DataError: a value does not fit its column.
        SourceClosedError: `closed` is set.
    """
    run_simple(connection, statement, closed)
    libpq, lines, size = connection.pgconn, list[bytes](), 0
    while True:
        length, line = libpq.get_copy_data(1)
        if length > 0:
            lines.append(bytes(line))
            size += length
            if len(lines) >= MOST_ROWS or size >= MOST_BYTES:
                yield parsed_rows(b"".join(lines), keys, schema, where)
                lines, size = [], 0
        elif length == 0:
            wait_for_data(connection, WAIT_S, closed)
            libpq.consume_input()
        else:
            break
    end_results(connection, closed)
    if lines:
        yield parsed_rows(b"".join(lines), keys, schema, where)


def parsed_rows(data: bytes, keys: int, schema: pa.Schema, where: str) -> CopiedRows:
    """Return rows in COPY's CSV format. The first `keys` columns are the key."""
    from pyarrow import csv

    names = [_KEY_NAME.format(n) for n in range(keys)] + schema.names
    table = csv.read_csv(
        pa.BufferReader(data),
        # One block, because a row may be larger than the usual ones.
        csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        # COPY quotes empty texts, and writes nothing for null.
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).combine_chunks()
    texts = [column.chunk(0) for column in table.columns]
    last = tuple(text[-1].as_py() for text in texts[:keys])
    columns = [column_of(text, field, where) for text, field in zip(texts[keys:], schema, strict=True)]
    return CopiedRows(pa.RecordBatch.from_arrays(columns, schema=schema), last)


def first_of(names: Sequence[str], used: frozenset[str] | None) -> list[str]:
    """Return the columns to read: those that are used, or one, because rows without columns have no number."""
    kept = [name for name in names if used is None or name in used]
    return kept or list(names[:1])
