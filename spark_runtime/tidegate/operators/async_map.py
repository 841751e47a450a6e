"""AsyncMap: rows for rows from a user's function that takes its time, without the slot's loop waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, Watermark
from tidegate.errors import OutageError, PipelineError, TidegateError
from tidegate.operators.async_requests import run_inline, start_requests
from tidegate.operators.async_specs import HELD, REQUESTS, TIMED_OUT, AsyncMapSpec
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS, coalesce_batches
from tidegate.operators.declared_outputs import check_outputs
from tidegate.operators.restored_parts import single_part
from tidegate.operators.stream_operator import EMISSION_PAUSED, OperatorContext, Output, SideOutput, StreamOperator
from tidegate.snapshot.parts import OWNER_COLUMN, AsyncSnapshot, StatePart

REQUESTS_TIMED_OUT = "requests_timed_out"
"""Counter: rows of requests that were not answered in time."""
HELD_SCHEMA = pa.schema([pa.field("held_us", pa.int64()), pa.field(OWNER_COLUMN, pa.int32())])
"""State `held`: the last watermark that waits behind requests (null: none), for every subtask to see: at another
parallelism each holds the earliest."""


@dataclass(eq=False)
class _Request:
    """Attributes: answer: None until it has come."""

    number: int
    rows: pa.RecordBatch
    deadline_ms: int | None = None
    answer: list[Output] | None = None


class AsyncMap(StreamOperator):
    """Requests and watermarks stand in a queue in the order in which they came; from its head answers come out, in that
    order, or, unordered, those before its first watermark as they come. So no row passes a watermark either way, and
    none is late behind this operator that was not before it (S4.4).

    With `capacity` requests in the queue no more input is taken: what goes on waits. At the end of the input the last
    answers are waited for.

    State: `requests` (list), the rows of all requests in the queue, and `held` (list). After a restore they are asked
    again, before new ones: the function may see a row more than once. At another parallelism the rows of one old
    subtask come to one new one.
    """

    def __init__(self, spec: AsyncMapSpec) -> None:
        self._spec = spec
        self._at_once = run_inline(spec.function, spec.capacity)
        self._side_outputs = dict(spec.side_outputs)
        self._queue: deque[_Request | Watermark] = deque()
        self._queued = 0  # requests in it
        self._waiting: deque[_Request] = deque()
        self._asked: dict[int, _Request] = {}
        self._done: deque[tuple[int, object, BaseException | None]] = deque()
        self._number = 0
        self._passes_watermarks = True

    def open(self, ctx: OperatorContext) -> None:
        """Make ready to ask."""
        super().open(ctx)
        self._requests = (ctx.requests or start_requests)(self._spec.function, self._spec.capacity, self._on_done)

    def close(self) -> None:
        """Wait for no answer."""
        if hasattr(self, "_requests"):
            self._requests.close()

    # ------------------------------------------------------------ input

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Wait for room; ask; give what is ready."""
        while self._queued >= self._spec.capacity:
            yield from self._progress()
            if self._queued >= self._spec.capacity:
                yield EMISSION_PAUSED
        self._enqueue(batch)
        yield from self._progress()

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """It waits behind the requests in front of it; the end of time until all are answered."""
        if watermark_us == MAX_WATERMARK:
            yield from self._all_answered()
            return
        self._passes_watermarks = not self._queue
        if self._queue and isinstance(self._queue[-1], Watermark):
            self._queue[-1] = Watermark(watermark_us)
        elif self._queue:
            self._queue.append(Watermark(watermark_us))

    def forwards_watermarks(self) -> bool:
        """While nothing waits."""
        return self._passes_watermarks

    def has_pending_rows(self) -> bool:
        """While requests are in the queue."""
        return self._queued > 0

    def finish(self) -> Iterator[Output]:
        """Wait for the last answers."""
        yield from self._all_answered()

    # ------------------------------------------------------------ answers

    def next_processing_time_ms(self) -> int | None:
        """At once where answers have come or more may be asked, else when the oldest request has taken too long."""
        if self._done or (self._waiting and len(self._asked) < self._at_once):
            return 0
        oldest = next(iter(self._asked.values()), None)
        return None if oldest is None else oldest.deadline_ms

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Give what has become ready."""
        yield from self._progress()

    def _on_done(self, number: int, answer: object, error: BaseException | None) -> None:
        """From any thread."""
        self._done.append((number, answer, error))
        self.ctx.wake()

    def _all_answered(self) -> Iterator[Output]:
        yield from self._progress()
        while self._queue:
            yield EMISSION_PAUSED
            yield from self._progress()

    def _progress(self) -> Iterator[Output]:
        """Take answers, ask more, and give what is ready."""
        self._take_answers()
        while self._waiting and len(self._asked) < self._at_once:
            self._submit(self._waiting.popleft())
            self._take_answers()
        self._expire()
        batches: list[pa.RecordBatch] = []
        for output in self._ready():
            if isinstance(output, pa.RecordBatch):
                batches.append(output)
            else:
                yield from coalesce_batches(batches)
                batches = []
                yield output
        yield from coalesce_batches(batches)

    def _take_answers(self) -> None:
        while self._done:
            number, answer, error = self._done.popleft()
            request = self._asked.pop(number, None)
            if request is None:
                continue  # it came too late
            if error is not None:
                raise error if isinstance(error, Exception) else self._interrupted(error)
            request.answer = self._checked(answer)

    def _submit(self, request: _Request) -> None:
        self._asked[request.number] = request
        if self._spec.timeout_ms is not None:
            request.deadline_ms = self.ctx.processing_time_ms() + self._spec.timeout_ms
        self._requests.submit(request.number, request.rows)

    def _expire(self) -> None:
        """What was asked first is due first."""
        now_ms = self.ctx.processing_time_ms()
        while self._asked:
            request = next(iter(self._asked.values()))
            if request.deadline_ms is None or request.deadline_ms > now_ms:
                return
            del self._asked[request.number]
            self._requests.cancel(request.number)
            self.ctx.count(REQUESTS_TIMED_OUT, request.rows.num_rows)
            if self._spec.on_timeout == "fail":
                raise self._timed_out(request)
            request.answer = [SideOutput(TIMED_OUT, request.rows)]

    def _ready(self) -> Iterator[Output]:
        """What comes out now, taken off the queue."""
        while self._queue:
            head = self._queue[0]
            if isinstance(head, Watermark):
                yield self._queue.popleft()
            elif self._spec.ordered:
                if head.answer is None:
                    return
                self._queue.popleft()
                self._queued -= 1
                yield from head.answer
            else:
                yield from self._answered_before_watermark()
                if self._queue and not isinstance(self._queue[0], Watermark):
                    return

    def _answered_before_watermark(self) -> Iterator[Output]:
        """In the order of the input, too; those not answered stay at the head of the queue. Behind the first one that
        has not been asked none has."""
        first_waiting = self._waiting[0].number if self._waiting else self._number + 1
        unanswered: list[_Request] = []
        answers: list[Output] = []
        while self._queue and isinstance(entry := self._queue[0], _Request) and entry.number < first_waiting:
            self._queue.popleft()
            if entry.answer is None:
                unanswered.append(entry)
            else:
                answers += entry.answer
                self._queued -= 1
        self._queue.extendleft(reversed(unanswered))
        yield from answers

    def _enqueue(self, rows: pa.RecordBatch) -> None:
        step = self._spec.batch_rows or MAX_BATCH_ROWS
        for start in range(0, rows.num_rows, step):
            self._number += 1
            request = _Request(self._number, rows.slice(start, step))
            self._queue.append(request)
            self._waiting.append(request)
            self._queued += 1

    def _checked(self, answer: object) -> list[Output]:
        if answer is None:
            return []
        if isinstance(answer, pa.RecordBatch | SideOutput):
            results: Iterable[object] = (answer,)
        elif isinstance(answer, Iterable):
            results = answer
        else:
            raise self._refused(f"it gave a {type(answer).__name__}", "Return a pyarrow.RecordBatch, or several")
        schema, sides = self._spec.schema, self._side_outputs
        return [output for result in results for output in check_outputs(result, schema, sides, self._refused)]

    # ------------------------------------------------------------ state

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """The rows in the queue; batches are immutable, so that nothing is copied."""
        rows = [entry.rows for entry in self._queue if isinstance(entry, _Request)]
        held = [entry.time_us for entry in self._queue if isinstance(entry, Watermark)]
        held_part = StatePart(HELD, "list", pa.table([[held[-1] if held else None], [None]], schema=HELD_SCHEMA))
        return lambda: [StatePart(REQUESTS, "list", self._table(rows)), held_part]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Ask again, before anything new. Raises SnapshotError when the input has other columns now (S5.5)."""
        held: list[int | None] = []
        for part in parts:
            if part.name == HELD:
                held += part.table.column("held_us").to_pylist()
                continue
            rows = replace(part, table=part.table.drop_columns(OWNER_COLUMN))
            for batch in single_part(rows, self._spec.input_schema, self.ctx.uid).table.to_batches():
                self._enqueue(pa.RecordBatch.from_arrays(batch.columns, schema=self._spec.input_schema))
        known = [time_us for time_us in held if time_us is not None]
        if self._queue and known and len(known) == len(held):
            self._queue.append(Watermark(min(known)))

    def _table(self, rows: Sequence[pa.RecordBatch]) -> pa.Table:
        schema = self._spec.input_schema
        table = pa.Table.from_batches([r if r.schema.equals(schema) else r.cast(schema) for r in rows], schema)
        return table.append_column(OWNER_COLUMN, pa.array(np.full(table.num_rows, self.ctx.subtask, np.int32)))

    # ------------------------------------------------------------ errors

    @property
    def _name(self) -> str:
        return getattr(self._spec.function, "__qualname__", type(self._spec.function).__name__)

    def _refused(self, cause: str, remedy: str) -> PipelineError:
        return PipelineError(
            f"map_async function {self._name} broke its declared schema",
            where=f"operator {self.ctx.uid!r}",
            cause=cause,
            remedy=remedy,
        )

    def _interrupted(self, error: BaseException) -> TidegateError:
        """Of what must not get any further as it is, such as SystemExit: the slot's loop is not the function's."""
        return TidegateError(
            f"map_async function {self._name} gave no answer",
            where=f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}",
            cause=f"it was broken off by {type(error).__name__}{f': {error}' if str(error) else ''}",
            remedy="Let it return rows, or raise an Exception",
        )

    def _timed_out(self, request: _Request) -> OutageError:
        return OutageError(
            f"map_async function {self._name} has not answered for {request.rows.num_rows} rows",
            where=f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}",
            cause=f"it may take {(self._spec.timeout_ms or 0) / 1000:g} s",
            remedy='Give it a longer timeout, or on_timeout="side_output" to go on without an answer',
        )
