"""Replay: a source that plays files as a stream, in event-time order, at a chosen speed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, Self

import pyarrow as pa

from tidegate.connectors.files.source.bad_records import OnBadRecord
from tidegate.connectors.files.source.file_formats import MAX_BATCH_ROWS, FormatName
from tidegate.connectors.files.source.file_listing import FoundFile
from tidegate.connectors.files.source.file_schema import DEFAULT_NULL_VALUES, FilePolicy, OnMissingField, OnNewField
from tidegate.connectors.files.source.file_set import FileSet, Paths
from tidegate.connectors.found_schema import FoundSchema
from tidegate.connectors.interface import Boundedness, Source, SourceContext, SourceReader, Split
from tidegate.connectors.replay_reader import AtEnd, ReplayReader
from tidegate.errors import OptionError, PipelineError


class Replay(Source):
    """Plays the files that exist when the job starts. Unbounded, unless `at_end="end"`.

    All records are ordered by (time, order of the files); records without a time come last. Record r belongs to split r
    modulo the number of splits. The position of a split is (loop, records emitted in it) (S4.2). Every reader reads all
    files once when it starts, and holds the records of its splits in memory.

    With `at_end="idle"`, the replay stays open at its end, emits nothing and is idle (S4.4). With `loop`, it starts
    over, and event times advance by the span from the first to the last time. With `end`, it ends, and so is bounded:
    use it for a fork that processes the remaining rows of an `idle` replay. The status shows `played_all`, `rows` and
    `null_times` (records without a time).

    Args:
        paths, format, schema, columns, storage_options, null_values, encoding, on_missing_field, on_new_field,
        on_bad_record: see `Files`.
        time_column: column with the event time: a timestamp, or int64 microseconds since the epoch.
        rate: records per second over all splits, from the first poll after each start.
        speedup: seconds of event time per second, from the first record of each start. Without `rate` and `speedup`: as
            fast as downstream operators accept them.
        at_end: "idle", "loop" or "end".
        splits: number of splits; None: the source's parallelism at the first start.
        batch_rows: maximum number of records in one batch.

    Raises:
        OptionError: a number is out of range, or both `rate` and `speedup` are passed.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        time_column: str,
        rate: float | None = None,
        speedup: float | None = None,
        at_end: AtEnd = "idle",
        splits: int | None = None,
        batch_rows: int = MAX_BATCH_ROWS,
        format: FormatName | None = None,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        null_values: Sequence[str] = DEFAULT_NULL_VALUES,
        encoding: str = "utf-8",
        on_missing_field: OnMissingField | None = None,
        on_new_field: OnNewField = "ignore",
        on_bad_record: OnBadRecord = "fail",
    ) -> None:
        if rate is not None and speedup is not None:
            raise OptionError(
                "rate and speedup exclude each other", where="Replay(...)", remedy="Pass only one of them"
            )
        for name, value in (("rate", rate), ("speedup", speedup), ("splits", splits), ("batch_rows", batch_rows)):
            if value is not None and not value > 0:
                raise OptionError(
                    f"{name}={value} is not positive", where=f"Replay({name}=...)", remedy="Pass a value above 0"
                )
        if at_end not in ("idle", "loop", "end"):
            raise OptionError(
                f"at_end={at_end!r} is unknown", where="Replay(at_end=...)", remedy='Use "idle", "loop" or "end"'
            )
        self._files = FileSet(
            paths,
            format=format,
            schema=schema,
            columns=columns,
            storage_options=storage_options,
            policy=FilePolicy(null_values, encoding, on_missing_field, on_new_field, on_bad_record),
        )
        self._time_column = time_column
        self._rate = rate
        self._speedup = speedup
        self._at_end = at_end
        self._splits = splits
        self._batch_rows = batch_rows

    @property
    def boundedness(self) -> Boundedness:
        """Return `bounded` with `at_end="end"`, else `unbounded`: the job then ends when it is stopped or drained."""
        return "bounded" if self._at_end == "end" else "unbounded"

    def schema(self) -> pa.Schema:
        """Return the schema that the user passed, or the schema found in the first file; see `FileSet.schema`.

        Raises:
            PipelineError: the schema lacks the time column, or the column is not a time.
        """
        schema = self._files.schema()
        where = f"{self._files.describe()}, time_column={self._time_column!r}"
        if self._time_column not in schema.names:
            raise PipelineError(
                f"the files have no column {self._time_column!r}, which time_column= names",
                where=where,
                cause=f"the columns are {', '.join(schema.names)}",
                remedy="Name one of these columns in time_column=, and check columns=",
            )
        kind = schema.field(self._time_column).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_int64(kind)):
            raise PipelineError(
                f"time column {self._time_column!r} has type {kind}, which is not a time",
                where=where,
                remedy="Use a timestamp column, or int64 microseconds since the epoch; declare its type in schema=",
            )
        return schema

    def found_schema(self) -> FoundSchema | None:
        """Return the schema of the first file with a record; None if `schema` was passed."""
        return self._files.found_schema()

    def with_found_schema(self, found: FoundSchema) -> Self:
        """Return the same source, whose files are read with that schema."""
        other = copy.copy(self)
        other._files = self._files.with_found_schema(found)
        return other

    def side_outputs(self) -> Mapping[str, pa.Schema]:
        """See `Files.side_outputs`."""
        return self._files.side_outputs()

    def required_side_outputs(self) -> Mapping[str, str]:
        """See `Files.required_side_outputs`."""
        return self._files.must_be_read()

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return `splits` splits, each of which lists all files.

        Raises:
            PipelineError: no file matches, or the files differ.
        """
        files = [list(astuple(file)) for file in self._files.files()]
        count = self._splits or parallelism
        return [
            Split(f"replay-{s:05d}-of-{count:05d}", {"index": s, "of": count, "files": files}) for s in range(count)
        ]

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader that plays its splits in turn."""
        return ReplayReader(
            self._files,
            self._time_column,
            rate=self._rate,
            speedup=self._speedup,
            at_end=self._at_end,
            batch_rows=self._batch_rows,
        )

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        """Return all splits if a file is missing or was changed, because every split reads every file."""
        files = {tuple(file): FoundFile(*file) for split in splits for file in split.data["files"]}
        why = next(filter(None, map(self._files.why_unreadable, files.values())), "")
        return [(split.split_id, why) for split in splits if why]

    def describe(self) -> str:
        """Describe paths, speed and behaviour at the end."""
        speed = f", {self._rate:g} rows/s" if self._rate else f", speedup {self._speedup:g}" if self._speedup else ""
        return f"Replay({self._files.describe()} by {self._time_column}{speed}, at end {self._at_end})"
