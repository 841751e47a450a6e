"""FedSource: a source that a test feeds while the job runs, and the operator that forwards its watermarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from tidegate.api.draft.column_checks import missing_column
from tidegate.channel.elements import MIN_WATERMARK, Watermark
from tidegate.connectors.interface import Boundedness, PollResult, Source, SourceContext, SourceReader, Split
from tidegate.errors import PipelineError
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import Output, StreamOperator
from tidegate.testing.script import moment_us

MARK = b"tidegate.watermark_us"
"""Schema metadata of the empty batch that carries a watermark from the source to `PassMarks`, which follows it
directly."""


@dataclass
class Feed:
    """Elements fed to one source so far. The list grows while the job runs; a restored run reads it again.

    Attributes:
        items: batches, and watermarks in microseconds, in order.
        ended: no more elements follow.
    """

    uid: str
    schema: pa.Schema
    items: list[pa.RecordBatch | int] = field(default_factory=list)
    ended: bool = False

    def add(self, rows: Sequence[Mapping[str, Any]] | pa.RecordBatch | pa.Table) -> None:
        """Feed rows as one batch, or the batches of a table. Raises PipelineError if they do not fit the source's
        schema."""
        if isinstance(rows, pa.Table):
            self.items += [self._checked(batch) for batch in rows.to_batches() if batch.num_rows]
        elif isinstance(rows, pa.RecordBatch):
            self.items.append(self._checked(rows))
        else:
            self.items.append(rows_to_batch(rows, self.schema, f"input {self.uid!r}"))

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self.schema):
            return batch
        where = f"input {self.uid!r}"
        for name in batch.schema.names:
            if name not in self.schema.names:
                raise missing_column(self.schema, name, where)
        try:
            return pa.RecordBatch.from_arrays(
                [batch.column(f.name).cast(f.type) for f in self.schema], schema=self.schema
            )
        except (KeyError, pa.ArrowException) as error:
            raise PipelineError(
                "the rows of the input do not fit the schema of the source",
                where=where,
                cause=str(error),
                remedy=f"Pass rows with the columns {', '.join(f'{f.name}: {f.type}' for f in self.schema)}",
            ) from error


def rows_to_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Convert rows to one batch. A column that a row lacks is null.

    Times may be texts, such as "2026-01-01 10:00". In a column with a time zone, a text without a zone means UTC.

    Raises:
        PipelineError: a column is not in the schema, or a value has another type.
    """
    for row in rows:
        for name in row:
            if name not in schema.names:
                raise missing_column(schema, name, where)
    arrays = [_column(fd, [row.get(fd.name) for row in rows], where) for fd in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(column: pa.Field, values: list[Any], where: str) -> pa.Array:
    texts = [v for v in values if isinstance(v, str)]
    try:
        of_texts = bool(texts) and pt.is_temporal(column.type) and len(texts) == sum(v is not None for v in values)
        if of_texts and pt.is_timestamp(column.type) and column.type.tz is not None:
            times_us = [None if v is None else moment_us(v, f"{where}, column {column.name!r}") for v in values]
            array = pa.array(times_us, pa.timestamp("us", "UTC")).cast(column.type)
        elif of_texts:
            array = pa.array(values, pa.string()).cast(column.type)
        else:
            array = pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise PipelineError(
            f"the values of column {column.name!r} are not of type {column.type}",
            where=where,
            cause=str(error),
            remedy=f"Pass values of type {column.type}",
        ) from error
    if array.null_count and not column.nullable:
        raise PipelineError(
            f"column {column.name!r} has no value in row {array.is_null().index(True).as_py()}",
            where=where,
            cause="the column is not nullable in the source's schema",
            remedy="Pass a value in every row",
        )
    return array


@dataclass(frozen=True, eq=False)
class Fed(Source):
    """Replaces a source in a pipeline that only `tidegate.testing.run` runs: it has a schema, but no records.

    Attributes:
        columns: schema of the records.
        bounded: whether the replaced source is bounded.
    """

    columns: pa.Schema
    bounded: bool = False

    @property
    def boundedness(self) -> Boundedness:
        """Return whether the replaced source is bounded."""
        return "bounded" if self.bounded else "unbounded"

    def schema(self) -> pa.Schema:
        """Return the declared schema."""
        return self.columns

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Raise PipelineError: only the test's script has rows."""
        raise PipelineError(
            "a Fed source has no records of its own",
            where="Fed(...)",
            remedy="Pass its rows as inputs of tidegate.testing.run, or use the real source instead",
        )

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Never called: see `discover`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class FedSource(Source):
    """Reads a feed. Split s of S has every S-th batch; watermarks are in all splits.

    A split's position is the number of elements that are read (S4.2).
    """

    feed: Feed

    @property
    def boundedness(self) -> Boundedness:
        """Return "bounded": it ends when the feed does."""
        return "bounded"

    def schema(self) -> pa.Schema:
        """Return the feed's schema."""
        return self.feed.schema

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return a split for each subtask."""
        return [Split(f"fed-{s:05d}-of-{parallelism:05d}", {"index": s, "of": parallelism}) for s in range(parallelism)]

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader of the feed."""
        return _FedReader(self.feed)


class _FedReader(SourceReader):
    """Reads the elements of its splits in the order in which they were fed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._splits: list[Split] = []
        self._restored_us: int | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Add splits. The last watermark that they had emitted before a restore is emitted again."""
        self._splits = list(splits)
        start = min((s.position or 0 for s in splits), default=0)
        self._restored_us = max((i for i in self._feed.items[:start] if isinstance(i, int)), default=None)

    def poll(self, now_ms: int) -> PollResult:
        """Return the next batch of its own splits, or a watermark."""
        items = self._feed.items
        if self._restored_us is not None:
            restored_us, self._restored_us = self._restored_us, None
            return self._mark(restored_us)
        while self._splits:
            place = min(s.position or 0 for s in self._splits)
            if place == len(items):
                break
            item, mine = items[place], [s for s in self._splits if (s.position or 0) == place]
            self._splits = [replace(s, position=place + 1) if s in mine else s for s in self._splits]
            if isinstance(item, int):
                return self._mark(item)
            number = sum(isinstance(i, pa.RecordBatch) for i in items[:place])
            for split in mine:
                if number % split.data["of"] == split.data["index"]:
                    return PollResult(item, split.split_id)
        over = self._feed.ended or not self._splits
        return PollResult(state="end") if over else PollResult(state="nothing_now", retry_at_ms=now_ms)

    def _mark(self, time_us: int) -> PollResult:
        schema = self._feed.schema
        empty = schema.with_metadata({MARK: str(time_us).encode()}).empty_table()
        return PollResult(pa.RecordBatch.from_arrays([c.combine_chunks() for c in empty.columns], schema=empty.schema))

    def snapshot(self) -> Sequence[Split]:
        """Return all splits with their positions."""
        over = self._feed.ended
        return [replace(s, finished=over and s.position == len(self._feed.items)) for s in self._splits]


@dataclass(frozen=True)
class PassMarksSpec(OperatorSpec):
    """Forwards fed watermarks: placed directly after a fed source with watermarks. It also replaces the
    `with_watermark` after that source; there it forwards everything."""

    def describe(self) -> str:
        """Return its purpose."""
        return "watermarks as fed"


class PassMarks(StreamOperator):
    """Forwards fed watermarks; see `PassMarksSpec`. Stateless: a restored source emits the latest watermark again."""

    def __init__(self, _spec: PassMarksSpec) -> None:
        self._current_us = MIN_WATERMARK

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the batch, or the watermark that it carries, which never decreases."""
        marked = (batch.schema.metadata or {}).get(MARK)
        if marked is None:
            yield batch
        elif int(marked) > self._current_us:
            self._current_us = int(marked)
            yield Watermark(self._current_us)
