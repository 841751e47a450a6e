"""Push sources: input that arrives on a thread of its own or by callback (S4.1)."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tidegate.connectors.interface import Boundedness, PollResult, Source, SourceContext, SourceReader, Split
from tidegate.errors import PipelineError
from tidegate.log_format import context

logger = logging.getLogger("tidegate.connectors")

ENTRY_BYTES = 512
"""Bytes that an entry counts besides its records: limits how many entries without records can wait."""
MAX_PUSH_ROWS = 65_536
"""Most rows of one emission. The loop processes them as one batch and does nothing else meanwhile."""
__all__ = ["PushClosedError", "PushContext", "PushReader", "PushSource", "Pusher"]

DEFAULT_BUFFER_BYTES = 8 * 1024 * 1024
PUSH_RETRY_MS = 1_000
"""Time, in milliseconds, for which a reader without records need not be polled; an emission wakes the loop earlier."""
PUSHER_STOP_S = 5.0
"""Time, in seconds, that `close` waits for the pusher's thread. The loop is blocked meanwhile."""


class PushClosedError(Exception):
    """The reader was closed because the run is over. Records emitted now are dropped: end the thread."""


@dataclass(frozen=True)
class PushedBatch:
    """Result of one `PushQueue.take`.

    Attributes:
        batch, split_id: records and their split, or None for both.
        finished: a split ended, with or without the batch.
        idle: the queue is empty, and the pusher reported that it is idle.
    """

    batch: pa.RecordBatch | None = None
    split_id: str | None = None
    finished: bool = False
    idle: bool = False


@dataclass(frozen=True)
class _QueuedBatch:
    """One emission, or the end of a split. `position` is the position of the split after `batch`."""

    split_id: str
    batch: pa.RecordBatch | None
    position: Any
    finishes: bool
    size_bytes: int


class PushQueue:
    """Bounded queue between the threads of a pusher and the loop, with the positions on the loop's side.

    The lock is the subtask's checkpoint lock. One entry holds both records and position, so they are always handed over
    together; positions advance when an entry is taken. The queue is full when its entries hold `capacity_bytes`. The
    last entry may exceed the limit, so that a batch of any size can pass.
    """

    def __init__(
        self, splits: Sequence[Split], capacity_bytes: int, wake: Callable[[], None], condition: threading.Condition
    ) -> None:
        """Create the queue.

        Args:
            wake: wakes the loop, from any thread.
            condition: condition on a lock that no other code holds for long.
        """
        self._capacity_bytes = capacity_bytes
        self._wake = wake
        self._condition = condition
        self._queue: deque[_QueuedBatch] = deque()
        self._splits = {split.split_id: split for split in splits}
        self._open = {split.split_id for split in splits if not split.finished}
        self._active = frozenset(self._open)
        self._closed = threading.Event()
        self._failure: BaseException | None = None
        self._idle = False
        self.queued_bytes = 0

    # ------------------------------------------------------------ the pusher's threads

    def put(self, split_id: str, batch: pa.RecordBatch, position: Any) -> None:
        """Add records and position. If the queue is full, waits without holding the lock."""
        # The copy through JSON protects the position from later changes by the pusher, and equals what a restore
        # returns.
        text = json.dumps(position)
        entry = _QueuedBatch(split_id, batch, json.loads(text), False, batch.nbytes + len(text) + ENTRY_BYTES)
        with self._condition:
            while self.queued_bytes >= self._capacity_bytes and not self._closed.is_set():
                self._condition.wait()
            self._refuse_when_closed()
            # Tested after the wait, because another thread may have finished the split meanwhile.
            if split_id not in self._open:
                problem = "has ended" if split_id in self._splits else "is not assigned to this subtask"
                raise PipelineError(
                    f"the pusher emitted records of split {split_id!r}, which {problem}",
                    cause=f"open splits of this subtask: {sorted(self._open)}",
                    remedy="Emit only for splits in PushContext.splits, and not after finish_split",
                )
            # The loop polls until the queue is empty, so only an entry in an empty queue has to wake it.
            rouse = not self._queue
            self._idle = False
            self._append(entry)
        if rouse:
            self._wake()

    def finish(self, split_id: str) -> None:
        """Add the end of a split, after the records already added. A second call changes nothing."""
        with self._condition:
            self._refuse_when_closed()
            if split_id not in self._splits:
                raise PipelineError(
                    f"the pusher finished split {split_id!r}, which is not assigned to this subtask",
                    remedy="Call finish_split only for splits in PushContext.splits",
                )
            self._finish(split_id)
        self._wake()

    def mark_idle(self) -> None:
        """Report that no records follow for an indefinite time; the next `put` ends the idle state."""
        with self._condition:
            self._refuse_when_closed()
            self._idle = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Store the error that the pusher raised; the next `take` raises it. Ignored when the queue is closed."""
        with self._condition:
            if not self._closed.is_set():
                self._failure = error
        self._wake()

    def finish_all(self) -> None:
        """Add the end of every open split. Called when the pusher of a bounded source returned."""
        with self._condition:
            for split_id in sorted(self._open):
                self._finish(split_id)
        self._wake()

    @property
    def has_open_splits(self) -> bool:
        """Return whether the end of a split is still missing."""
        with self._condition:
            return bool(self._open)

    @property
    def is_closed(self) -> bool:
        """Return whether the queue refuses entries."""
        return self._closed.is_set()

    def wait_until_closed(self, timeout_s: float | None) -> bool:
        """Wait until the queue is closed. Returns False if `timeout_s` elapsed first."""
        return self._closed.wait(timeout_s)

    # ------------------------------------------------------------ the loop

    def take(self) -> PushedBatch:
        """Return the next batch and advance the position of its split. Raises the error of the pusher, if any."""
        finished = False
        with self._condition:
            # Queued records are not delivered first: the run fails, and the restored pusher emits them again.
            if self._failure is not None:
                raise self._failure
            while self._queue:
                entry = self._queue.popleft()
                finished |= self._move(entry)
                if entry.batch is None or entry.batch.num_rows == 0:
                    continue
                # The end of the same split belongs to this batch, so that the watermark is not held back for one more
                # poll.
                if self._queue and self._queue[0].finishes and self._queue[0].split_id == entry.split_id:
                    finished |= self._move(self._queue.popleft())
                self._condition.notify_all()
                return PushedBatch(entry.batch, entry.split_id, finished)
            self._condition.notify_all()
            return PushedBatch(finished=finished, idle=self._idle)

    def snapshot(self) -> list[Split]:
        """Return all splits with the positions that the loop has reached. Batches in the queue are in no snapshot."""
        with self._condition:
            return list(self._splits.values())

    def active_splits(self) -> frozenset[str]:
        """Return the splits whose end has not been taken."""
        return self._active

    def close(self) -> None:
        """Refuse and drop all entries. Waiting and later calls of the pusher raise PushClosedError. May be called
        twice.
        """
        with self._condition:
            self._closed.set()
            self._queue.clear()
            self.queued_bytes = 0
            self._condition.notify_all()

    # ------------------------------------------------------------ with the lock held

    def _append(self, entry: _QueuedBatch) -> None:
        self._queue.append(entry)
        self.queued_bytes += entry.size_bytes

    def _finish(self, split_id: str) -> None:
        if split_id in self._open and not self._closed.is_set():
            self._open.discard(split_id)
            self._append(_QueuedBatch(split_id, None, None, True, ENTRY_BYTES))

    def _move(self, entry: _QueuedBatch) -> bool:
        """Advance the split's position to the entry. Returns True when the split has ended."""
        split = self._splits[entry.split_id]
        self.queued_bytes -= entry.size_bytes
        if entry.finishes:
            self._splits[entry.split_id] = replace(split, finished=True)
            # Makes a new set: `active_splits` returns the old one without the lock.
            self._active -= {entry.split_id}
        else:
            self._splits[entry.split_id] = replace(split, position=entry.position)
        return entry.finishes

    def _refuse_when_closed(self) -> None:
        if self._closed.is_set():
            raise PushClosedError("the reader of the source was closed. End the thread")


class PushContext:
    """Context through which a pusher emits.

    Every method may be called from any thread, and raises PushClosedError once the run is over.

    Attributes:
        splits: splits of this subtask that are not read to their end; begin each after its `position` (None: at its
            start).
    """

    def __init__(self, splits: Sequence[Split], schema: pa.Schema, where: str, handover: PushQueue) -> None:
        self.splits = tuple(splits)
        self._schema = schema
        self._where = where
        self._handover = handover

    def emit(self, batch: pa.RecordBatch, *, split_id: str, position: Any) -> None:
        """Emit records of a split together with the position after the last of them.

        No snapshot holds the one without the other (S4.1). Blocks while `buffer_bytes` wait for the loop. Emissions of
        one split must be sequential: begin the next when the previous call has returned. Do not modify `batch`, nor the
        memory it refers to, afterwards; `position` is copied.

        Args:
            batch: records in the source's schema, at most 65,536 rows; a batch without rows advances only the position.
            position: JSON-able, not None; a restore returns it as parsed from JSON (a tuple becomes a list).

        Raises:
            PushClosedError: the run is over; let it end `run`.
            PipelineError: wrong schema, too many rows, no position, or not an open split of this subtask.
        """
        if not isinstance(batch, pa.RecordBatch) or not batch.schema.equals(self._schema):
            found = batch.schema if isinstance(batch, pa.RecordBatch) else type(batch).__name__
            raise self._wrong(
                "emitted records with the wrong schema",
                f"declared {self._schema}, emitted {found}",
                "Emit record batches in the schema of the source",
            )
        if batch.num_rows > MAX_PUSH_ROWS:
            raise self._wrong(
                f"emitted {batch.num_rows} rows at once",
                f"one batch holds at most {MAX_PUSH_ROWS} rows",
                "Split the batch, and emit the parts one by one",
            )
        if position is None:
            raise self._wrong(
                "emitted without a position",
                "position=None means the start of the split",
                "Pass the position after the last record of the batch",
            )
        try:
            self._handover.put(split_id, batch, position)
        except PipelineError as error:
            raise PipelineError(error.what, where=self._where, cause=error.cause, remedy=error.remedy) from None
        except (TypeError, ValueError) as error:
            raise self._wrong(
                "emitted a position that is not JSON", str(error), "Pass numbers, strings, lists and dicts"
            ) from error

    def finish_split(self, split_id: str) -> None:
        """Report that a split has been read to its end.

        The split no longer holds the watermark back, and is not read after a restore. A second call changes nothing.
        """
        try:
            self._handover.finish(split_id)
        except PipelineError as error:
            raise PipelineError(error.what, where=self._where, remedy=error.remedy) from None

    def idle(self) -> None:
        """Report that no records follow for an indefinite time: the watermark ignores the subtask until the next
        emission (S4.4).
        """
        self._handover.mark_idle()

    @property
    def is_closed(self) -> bool:
        """Return whether the run is over; `run` should then return."""
        return self._handover.is_closed

    def wait_until_closed(self, timeout_s: float | None = None) -> bool:
        """Block until the run is over. Use it as the end of a `run` whose records arrive by callback.

        Returns False if `timeout_s` elapsed first.
        """
        return self._handover.wait_until_closed(timeout_s)

    def _wrong(self, what: str, cause: str, remedy: str) -> PipelineError:
        return PipelineError(f"the pusher {what}", where=self._where, cause=cause, remedy=remedy)


class Pusher(ABC):
    """Receiver of the input of one subtask."""

    @abstractmethod
    def run(self, push: PushContext) -> None:
        """Emit until the input ends or a call raises PushClosedError; may block.

        Called once, on a thread of its own, with the first poll; not called in a subtask without splits to read. For
        callbacks: register them, then call `push.wait_until_closed()`.

        Returning means that all splits have been read to their end; only the pusher of a bounded source may return
        before the run is over. An exception fails the run as root cause.
        """

    def stop(self) -> None:
        """Make `run` return soon if it waits for something other than `push`, for example by closing a connection.

        Called once, on the slot's loop, when the run is over; must not block.
        """


class PushSource(Source):
    """A source that emits by itself instead of being polled.

    Implement `boundedness`, `schema`, `discover` and `create_pusher`. Guarantee: each record affects state once, if the
    pusher, for a split with a position, emits exactly the records after that position.

    Attributes:
        buffer_bytes: bytes of emitted batches that may wait for the loop; `emit` blocks while more wait.
    """

    buffer_bytes: int = DEFAULT_BUFFER_BYTES

    @abstractmethod
    def create_pusher(self, ctx: SourceContext) -> Pusher:
        """Return a pusher. Called in the slot; must neither connect nor block, only `run` does."""

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return the reader that hands the pusher's records to the loop.

        Raises:
            PipelineError: the source discovers splits while the job runs. A pusher gets its splits once.
        """
        if self.continuous_discovery() is not None:
            raise PipelineError(
                "a push source cannot discover splits while the job runs",
                where=f"source {ctx.uid!r}, a {type(self).__name__}",
                remedy="Let the pusher find new input itself, or write a Source that is polled",
            )
        return PushReader(
            self.create_pusher(ctx),
            ctx,
            schema=self.schema(),
            boundedness=self.boundedness,
            buffer_bytes=self.buffer_bytes,
        )


class PushReader(SourceReader):
    """Adapter that lets the loop poll a pusher like any reader; the position advances with the batch (S4.1, S4.2).

    A batch that was emitted and not polled is not in a snapshot, nor is its position: after a restore the pusher emits
    it again.
    """

    def __init__(
        self,
        pusher: Pusher,
        ctx: SourceContext,
        *,
        schema: pa.Schema,
        boundedness: Boundedness,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        stop_s: float = PUSHER_STOP_S,
        condition: Callable[[], threading.Condition] = lambda: threading.Condition(threading.Lock()),
        make_thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        """Create the reader.

        Args:
            stop_s: seconds that `close` waits for the pusher's thread.
            condition, make_thread: for tests, which interleave the threads step by step.
        """
        self._pusher = pusher
        self._ctx = ctx
        self._schema = schema
        self._bounded = boundedness == "bounded"
        self._buffer_bytes = buffer_bytes
        self._stop_s = stop_s
        self._condition = condition
        self._make_thread = make_thread
        self._thread: threading.Thread | None = None
        self._closed = False
        self._handover = PushQueue((), buffer_bytes, ctx.wake, condition())

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits; the thread starts with the first poll."""
        self._handover = PushQueue(splits, self._buffer_bytes, self._ctx.wake, self._condition())

    def poll(self, now_ms: int) -> PollResult:
        """Return the oldest batch in the queue. Raises the error of the pusher, if any."""
        if self._thread is None and self._handover.active_splits():
            self._start()
        taken = self._handover.take()
        if taken.batch is not None:
            return PollResult(taken.batch, taken.split_id, splits_changed=taken.finished)
        no_more = not self._handover.active_splits()
        if no_more and self._bounded:
            return PollResult(state="end")
        return PollResult(
            state="nothing_now",
            retry_at_ms=now_ms + PUSH_RETRY_MS,
            idle=no_more or taken.idle,
            splits_changed=taken.finished,
        )

    def snapshot(self) -> Sequence[Split]:
        """Return all splits with positions after the last batch polled."""
        return self._handover.snapshot()

    def active_splits(self) -> frozenset[str]:
        """Return the splits whose end has not been polled."""
        return self._handover.active_splits()

    def progress(self) -> Mapping[str, Any]:
        """Return `buffered_bytes`: emitted and not polled. Near `buffer_bytes`, the pusher waits for the job."""
        return {"buffered_bytes": self._handover.queued_bytes}

    def close(self) -> None:
        """End the pusher's thread and wait for it, at most `stop_s` seconds.

        If the thread still runs, a warning with its stack is logged. It can no longer emit.
        """
        if self._closed:
            return
        self._closed = True
        self._handover.close()
        if self._thread is None:
            return
        try:
            self._pusher.stop()
        finally:
            self._thread.join(self._stop_s)
            if self._thread.is_alive():
                self._running_threads_text(self._thread)

    def _start(self) -> None:
        open_splits = [split for split in self._handover.snapshot() if not split.finished]
        push = PushContext(open_splits, self._schema, self._where, self._handover)
        name = f"push {self._ctx.uid} {self._ctx.subtask}"
        # A daemon thread, so that a pusher that ignores `stop` does not keep the process from ending.
        thread = self._make_thread(target=self._run, args=(push,), name=name, daemon=True)
        thread.start()
        # Set after the start, because `close` cannot join a thread that was never started.
        self._thread = thread

    def _run(self, push: PushContext) -> None:
        try:
            self._pusher.run(push)
        except PushClosedError as error:
            # Before the close it was raised by user code, and must not look like a regular end.
            if not push.is_closed:
                self._handover.fail(error)
        except Exception as error:
            self._handover.fail(error)
        # For example SystemExit: without this, a thread that user code ends would look like a silent source.
        except BaseException as error:
            self._handover.fail(self._ended(f"{type(error).__name__}: {error}"))
        else:
            if self._bounded:
                self._handover.finish_all()
            elif not push.is_closed and self._handover.has_open_splits:
                self._handover.fail(self._ended("its run() returned"))

    def _ended(self, cause: str) -> PipelineError:
        return PipelineError(
            "the pusher ended before the end of its source",
            where=self._where,
            cause=cause,
            remedy="Return from run() only at the end of a bounded source; otherwise call wait_until_closed()",
        )

    @property
    def _where(self) -> str:
        return f"source {self._ctx.uid!r}, subtask {self._ctx.subtask}"

    def _running_threads_text(self, thread: threading.Thread) -> None:
        frame = sys._current_frames().get(thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        logger.warning(
            "the thread of pusher %s of %s did not end within %g s and is left running. Change its stop() so that "
            "run() returns. "
            "Stack of the thread:\n%s",
            type(self._pusher).__name__,
            self._where,
            self._stop_s,
            stack.rstrip(),
            extra=context(operator=self._ctx.uid, subtask=self._ctx.subtask),
        )
