"""`tidegate snapshot read`: show the rows of a state, or write them to a file."""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from tidegate.cli.environment import CliEnvironment
from tidegate.cli.output import table
from tidegate.cli.snapshots.snapshot_path import reader_of
from tidegate.cli.snapshots.snapshot_verbs import DEFAULT_LIMIT
from tidegate.errors import OptionError, StoreError
from tidegate.jobs.status_text import event_time_text
from tidegate.state.state_reader import state_batches

TIME_COLUMNS = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "key:", "value:")
    for name in (
        *("window_start_us", "window_end_us", "span_start_us", "first_us", "last_us", "start_us", "end_us"),
        *("time_us", "watermark_us"),
    )
)
"""Columns of the runtime's own states with times in microseconds since the epoch. The table shows them as times."""
Write = Callable[[str, pa.Schema, Iterator[pa.RecordBatch]], int]


def run(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Show rows, or write them to a file. Returns the exit code."""
    if args.limit is not None and args.limit < 0:
        raise OptionError(f"the limit of rows, {args.limit}, is negative", where="--limit", remedy="Pass 0 or more")
    write = None if args.out is None else _writer_of(args.out)
    batches = state_batches(reader_of(args, around), args.uid, args.state)
    shows_some = args.out is None and args.format == "table"
    limit = DEFAULT_LIMIT if args.limit is None and shows_some else args.limit
    is_table = shows_some and not around.output.as_json
    # One row more than the table prints shows whether there are more.
    chosen = at_most(batches, limit + 1 if limit is not None and is_table else limit)
    described = {"uid": args.uid, "state": args.state, "columns": {f.name: str(f.type) for f in batches.schema}}
    if write is not None:
        rows = write(args.out, batches.schema, chosen)
        around.output.print(f"{args.out}: {rows:,} rows")
        around.output.document({**described, "out": args.out, "rows_written": rows})
        return 0
    shown = (row for batch in chosen for row in batch.to_pylist())
    if around.output.as_json:
        around.output.document({**described, "rows": [plain(row) for row in shown]})
    elif args.format == "json":
        for row in shown:
            around.output.print(json.dumps(plain(row), ensure_ascii=False))
    else:
        _print_table(around, batches.schema, list(shown), limit)
    return 0


def _print_table(around: CliEnvironment, schema: pa.Schema, rows: list[dict[str, Any]], limit: int | None) -> None:
    names = schema.names
    right = frozenset(f.name for f in schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type))
    times = frozenset(f.name for f in schema if f.name in TIME_COLUMNS and pa.types.is_integer(f.type))
    cells = [
        tuple("" if row[name] is None else _cell(row[name], is_time=name in times) for name in names)
        for row in rows[:limit]
    ]
    for line in table(names, cells, right=right):
        around.output.print(line)
    if limit is not None and len(rows) > limit:
        around.output.note("there are more rows; --limit N shows more, --out FILE.parquet writes all")


def _cell(value: Any, *, is_time: bool) -> str:
    """Format a value as text. `is_time`: it is microseconds since the epoch, shown as a time."""
    return (event_time_text(value) or "") if is_time else str(plain(value))


def at_most(batches: pa.RecordBatchReader, limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first `limit` rows; None: all. Reads no more batches than needed."""
    left = limit
    while left is None or left > 0:
        batch = next(iter(batches), None)
        if batch is None:
            return
        mine = batch if left is None else batch.slice(0, left)
        left = None if left is None else left - mine.num_rows
        yield mine


def plain(value: Any) -> Any:
    """Convert an Arrow value to JSON: bytes to base64, and values of types that JSON does not have to text."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # False for NaN and infinity, which JSON does not have.
        return value if value - value == 0 else str(value)
    return str(value)


def _writer_of(out: str) -> Write:
    writers: dict[str, Write] = {".parquet": _write_parquet, ".arrow": _write_arrow}
    found = writers.get(os.path.splitext(out)[1])
    if found is None:
        raise OptionError(
            f"the name {out!r} shows no known file format",
            where="--out",
            remedy="Use a name that ends in .parquet or .arrow",
        )
    return found


def _write_parquet(out: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    import pyarrow.parquet as pq

    with _file_errors(out), pq.ParquetWriter(out, schema) as writer:
        return _written(writer.write_batch, batches)


def _write_arrow(out: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    with _file_errors(out), pa.OSFile(out, "wb") as file, pa.ipc.new_file(file, schema) as writer:
        return _written(writer.write_batch, batches)


@contextlib.contextmanager
def _file_errors(out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            "the file of the rows cannot be written", where=f"--out {out}", cause=str(error), remedy="Name another file"
        ) from error


def _written(write: Callable[[pa.RecordBatch], None], batches: Iterator[pa.RecordBatch]) -> int:
    rows = 0
    for batch in batches:
        write(batch)
        rows += batch.num_rows
    return rows
