"""AsyncMap: calls a slow user function for rows without blocking the slot's loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, Watermark
from tidegate.errors import OutageError, PipelineError, TidegateError
from tidegate.operators.async_requests import concurrent_requests, start_requests
from tidegate.operators.async_specs import HELD, REQUESTS, TIMED_OUT, AsyncMapSpec
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS, coalesce_batches
from tidegate.operators.declared_outputs import check_outputs
from tidegate.operators.restored_parts import single_part
from tidegate.operators.stream_operator import EMISSION_PAUSED, OperatorContext, Output, SideOutput, StreamOperator
from tidegate.snapshot.parts import OWNER_COLUMN, AsyncSnapshot, StatePart

REQUESTS_TIMED_OUT = "requests_timed_out"
"""Counter: rows of requests that timed out."""
HELD_SCHEMA = pa.schema([pa.field("held_us", pa.int64()), pa.field(OWNER_COLUMN, pa.int32())])
"""State `held`: the last watermark that waits in the queue (null: none). Every subtask restores all of them, because at
another parallelism each subtask must hold back the earliest."""


@dataclass(eq=False)
class _Request:
    """One call of the user's function.

    Attributes:
        number: position in the order of the input.
        rows: the rows passed to the function.
        deadline_ms: processing time of the timeout; None before the call, or without a timeout.
        answer: None until the function has answered.
    """

    number: int
    rows: pa.RecordBatch
    deadline_ms: int | None = None
    answer: list[Output] | None = None


class AsyncMap(StreamOperator):
    """Calls a user function for batches of rows and emits its answers.

    Requests and watermarks stand in a queue, in the order of arrival. In ordered mode, answers are emitted from the
    head of the queue, in that order. In unordered mode, the answers before the first watermark are emitted as they
    arrive. No row passes a watermark in either mode, so this operator makes no row late (S4.4).

    When `capacity` requests are in the queue, the operator accepts no more input until an answer is emitted. At the end
    of the input it waits for the last answers.

    State: `requests` (list), the rows of all requests in the queue, and `held` (list). After a restore these requests
    are submitted again, before new ones, so the function may see a row more than once. At another parallelism, all rows
    of one old subtask go to one new subtask.
    """

    def __init__(self, spec: AsyncMapSpec) -> None:
        self._spec = spec
        self._at_once = concurrent_requests(spec.function, spec.capacity)
        self._side_outputs = dict(spec.side_outputs)
        self._queue: deque[_Request | Watermark] = deque()
        self._queued = 0  # number of requests in the queue
        self._waiting: deque[_Request] = deque()
        self._asked: dict[int, _Request] = {}
        self._done: deque[tuple[int, object, BaseException | None]] = deque()
        self._number = 0
        self._passes_watermarks = True

    def open(self, ctx: OperatorContext) -> None:
        """Start the threads or the event loop that call the function."""
        super().open(ctx)
        self._requests = (ctx.requests or start_requests)(self._spec.function, self._spec.capacity, self._on_done)

    def close(self) -> None:
        """Stop without waiting for answers."""
        if hasattr(self, "_requests"):
            self._requests.close()

    # ------------------------------------------------------------ input

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Wait for room in the queue, submit the rows, and emit the answers that are ready."""
        while self._queued >= self._spec.capacity:
            yield from self._progress()
            if self._queued >= self._spec.capacity:
                yield EMISSION_PAUSED
        self._enqueue(batch)
        yield from self._progress()

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Queue the watermark after the requests before it. At the end of time, wait until all requests are
        answered."""
        if watermark_us == MAX_WATERMARK:
            yield from self._all_answered()
            return
        self._passes_watermarks = not self._queue
        # Of adjacent watermarks, only the last matters.
        if self._queue and isinstance(self._queue[-1], Watermark):
            self._queue[-1] = Watermark(watermark_us)
        elif self._queue:
            self._queue.append(Watermark(watermark_us))

    def forwards_watermarks(self) -> bool:
        """True if no watermark waits in the queue."""
        return self._passes_watermarks

    def has_pending_rows(self) -> bool:
        """True while requests are in the queue."""
        return self._queued > 0

    def finish(self) -> Iterator[Output]:
        """Wait for the last answers and emit them."""
        yield from self._all_answered()

    # ------------------------------------------------------------ answers

    def next_processing_time_ms(self) -> int | None:
        """Return 0 if answers are ready or requests can be submitted, else the deadline of the oldest request."""
        if self._done or (self._waiting and len(self._asked) < self._at_once):
            return 0
        oldest = next(iter(self._asked.values()), None)
        return None if oldest is None else oldest.deadline_ms

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Emit the answers that are ready."""
        yield from self._progress()

    def _on_done(self, number: int, answer: object, error: BaseException | None) -> None:
        """Store an answer and wake the slot's loop. Called from any thread."""
        self._done.append((number, answer, error))
        self.ctx.wake()

    def _all_answered(self) -> Iterator[Output]:
        yield from self._progress()
        while self._queue:
            yield EMISSION_PAUSED
            yield from self._progress()

    def _progress(self) -> Iterator[Output]:
        """Store the answers that arrived, submit waiting requests, and emit what is ready."""
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
                continue  # the answer arrived after the timeout
            if error is not None:
                raise error if isinstance(error, Exception) else self._interrupted(error)
            request.answer = self._checked(answer)

    def _submit(self, request: _Request) -> None:
        self._asked[request.number] = request
        if self._spec.timeout_ms is not None:
            request.deadline_ms = self.ctx.processing_time_ms() + self._spec.timeout_ms
        self._requests.submit(request.number, request.rows)

    def _expire(self) -> None:
        """Handle requests past their deadline. Requests are submitted in order, so the oldest deadline comes first."""
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
        """Remove from the queue what can be emitted now, and return it."""
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
        """Return the answers before the first watermark, in the order of the input.

        Unanswered requests stay at the head of the queue. The search ends at the first request that was not submitted
        yet, because no later request has an answer.
        """
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
            raise self._refused(f"the answer is a {type(answer).__name__}", "Return one or more pyarrow.RecordBatch")
        schema, sides = self._spec.schema, self._side_outputs
        return [output for result in results for output in check_outputs(result, schema, sides, self._refused)]

    # ------------------------------------------------------------ state

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the rows in the queue. Batches are immutable, so nothing is copied."""
        rows = [entry.rows for entry in self._queue if isinstance(entry, _Request)]
        held = [entry.time_us for entry in self._queue if isinstance(entry, Watermark)]
        held_part = StatePart(HELD, "list", pa.table([[held[-1] if held else None], [None]], schema=HELD_SCHEMA))
        return lambda: [StatePart(REQUESTS, "list", self._table(rows)), held_part]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Queue the requests of the snapshot before new ones.

        Raises:
            SnapshotError: the input has other columns now (S5.5).
        """
        held: list[int | None] = []
        for part in parts:
            if part.name == HELD:
                held += part.table.column("held_us").to_pylist()
                continue
            rows = replace(part, table=part.table.drop_columns(OWNER_COLUMN))
            for batch in single_part(rows, self._spec.input_schema, self.ctx.uid).table.to_batches():
                self._enqueue(pa.RecordBatch.from_arrays(batch.columns, schema=self._spec.input_schema))
        known = [time_us for time_us in held if time_us is not None]
        # An old subtask that held no watermark counts as the earliest, so that none is held then.
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
            f"rows that map_async function {self._name} returned do not match its declared schema",
            where=f"operator {self.ctx.uid!r}",
            cause=cause,
            remedy=remedy,
        )

    def _interrupted(self, error: BaseException) -> TidegateError:
        """Wrap an error such as SystemExit, which must not end the slot's loop."""
        return TidegateError(
            f"map_async function {self._name} returned no answer",
            where=f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}",
            cause=f"the function was interrupted by {type(error).__name__}{f': {error}' if str(error) else ''}",
            remedy="Return rows, or raise an Exception",
        )

    def _timed_out(self, request: _Request) -> OutageError:
        return OutageError(
            f"map_async function {self._name} returned no answer for {request.rows.num_rows} rows within its timeout",
            where=f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}",
            cause=f"the timeout is {(self._spec.timeout_ms or 0) / 1000:g} s",
            remedy='Set a longer timeout, or set on_timeout="side_output" to continue without an answer',
        )
