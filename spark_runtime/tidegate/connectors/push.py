"""Push sources: input that comes on a thread of its own or by callback (S4.1)."""

from __future__ import annotations

import json
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

ENTRY_BYTES = 512
"""What an entry counts besides its records, bytes: bounds how many entries without records can wait."""
MAX_PUSH_ROWS = 65_536
"""Most rows of one emission: the loop takes it as one batch, and takes nothing else meanwhile."""


class PushClosedError(Exception):
    """The reader was closed: the run is over, and what is emitted now belongs to nobody. End the thread."""


@dataclass(frozen=True)
class PushedBatch:
    """What the loop got.

    Attributes:
        batch, split_id: records and where they came from, or neither.
        finished: a split ended, with the batch or without one.
        idle: nothing is left, and the pusher said that nothing comes.
    """

    batch: pa.RecordBatch | None = None
    split_id: str | None = None
    finished: bool = False
    idle: bool = False


@dataclass(frozen=True)
class _QueuedBatch:
    """One emission, or the end of a split. `position` is the split's after `batch`."""

    split_id: str
    batch: pa.RecordBatch | None
    position: Any
    finishes: bool
    size_bytes: int


class PushQueue:
    """A bounded queue between a pusher's threads and the loop, and the positions on the loop's side.

    The lock is the subtask's checkpoint lock. An entry holds records and position, so there is no moment at which one
    of them has been handed over without the other; positions move when an entry is taken. The queue is full when
    its entries hold `capacity_bytes`; one entry may go beyond, so that any batch can pass.
    """

    def __init__(
        self, splits: Sequence[Split], capacity_bytes: int, wake: Callable[[], None], condition: threading.Condition
    ) -> None:
        """Args: wake: rouses the loop, from any thread. condition: on a lock that nobody else holds for long."""
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
        """Hand over records and position; waits, without the lock, while the queue is full."""
        text = json.dumps(position)
        entry = _QueuedBatch(split_id, batch, json.loads(text), False, batch.nbytes + len(text) + ENTRY_BYTES)
        with self._condition:
            while self.queued_bytes >= self._capacity_bytes and not self._closed.is_set():
                self._condition.wait()
            self._refuse_when_closed()
            if split_id not in self._open:
                problem = "has ended" if split_id in self._splits else "is not here"
                raise PipelineError(
                    f"The pusher emitted records of split {split_id!r}, which {problem}",
                    cause=f"open splits of this subtask: {sorted(self._open)}",
                    remedy="Emit for the splits in PushContext.splits only, each until finish_split",
                )
            rouse = not self._queue
            self._idle = False
            self._append(entry)
        if rouse:
            self._wake()

    def finish(self, split_id: str) -> None:
        """The end of a split, behind what was put for it; a second time changes nothing."""
        with self._condition:
            self._refuse_when_closed()
            if split_id not in self._splits:
                raise PipelineError(f"The pusher finished split {split_id!r}, which is not here")
            self._finish(split_id)
        self._wake()

    def mark_idle(self) -> None:
        """Nothing will come for an indefinite time; the next `put` ends that."""
        with self._condition:
            self._refuse_when_closed()
            self._idle = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """The pusher raised; the next `take` raises the same. Too late when closed."""
        with self._condition:
            if not self._closed.is_set():
                self._failure = error
        self._wake()

    def finish_all(self) -> None:
        """The pusher of a bounded source returned: every split has been read to its end."""
        with self._condition:
            for split_id in sorted(self._open):
                self._finish(split_id)
        self._wake()

    @property
    def has_open_splits(self) -> bool:
        """Splits whose end was not put."""
        with self._condition:
            return bool(self._open)

    @property
    def is_closed(self) -> bool:
        """Nothing is taken any more."""
        return self._closed.is_set()

    def wait_until_closed(self, timeout_s: float | None) -> bool:
        """Sleep until closed; False: `timeout_s` passed before."""
        return self._closed.wait(timeout_s)

    # ------------------------------------------------------------ the loop

    def take(self) -> PushedBatch:
        """The next batch, with its split's position moved behind it; raises what the pusher raised."""
        finished = False
        with self._condition:
            if self._failure is not None:
                raise self._failure
            while self._queue:
                entry = self._queue.popleft()
                finished |= self._move(entry)
                if entry.batch is None or entry.batch.num_rows == 0:
                    continue
                if self._queue and self._queue[0].finishes and self._queue[0].split_id == entry.split_id:
                    finished |= self._move(self._queue.popleft())
                self._condition.notify_all()
                return PushedBatch(entry.batch, entry.split_id, finished)
            self._condition.notify_all()
            return PushedBatch(finished=finished, idle=self._idle)

    def snapshot(self) -> list[Split]:
        """All splits with the positions behind what was taken; what waits in the queue is in no snapshot."""
        with self._condition:
            return list(self._splits.values())

    def active_splits(self) -> frozenset[str]:
        """Splits whose end has not been taken."""
        return self._active

    def close(self) -> None:
        """Take nothing more; waiting and later calls of the pusher raise PushClosedError. May come twice."""
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
        """Move the split's position with the entry; True: the split has ended."""
        split = self._splits[entry.split_id]
        self.queued_bytes -= entry.size_bytes
        if entry.finishes:
            self._splits[entry.split_id] = replace(split, finished=True)
            self._active -= {entry.split_id}
        else:
            self._splits[entry.split_id] = replace(split, position=entry.position)
        return entry.finishes

    def _refuse_when_closed(self) -> None:
        if self._closed.is_set():
            raise PushClosedError("the source's reader was closed: end the thread")


__all__ = ["PushClosedError", "PushContext", "PushReader", "PushSource", "Pusher"]

DEFAULT_BUFFER_BYTES = 8 * 1024 * 1024
PUSH_RETRY_MS = 1_000
"""How long a reader with nothing to give asks not to be polled; an emission wakes the loop before."""
PUSHER_STOP_S = 5.0
"""How long `close` waits for the pusher's thread, seconds. The loop stands still meanwhile."""


class PushContext:
    """What a pusher emits through. Every method may be called from any thread, and raises PushClosedError once the run
    is over.

    Attributes:
        splits: those of this subtask that are not read to their end; begin each behind its `position` (None: at its
            start).
    """

    def __init__(self, splits: Sequence[Split], schema: pa.Schema, where: str, handover: PushQueue) -> None:
        self.splits = tuple(splits)
        self._schema = schema
        self._where = where
        self._handover = handover

    def emit(self, batch: pa.RecordBatch, *, split_id: str, position: Any) -> None:
        """Hand over records of a split, and the position behind the last of them: no snapshot holds one without the
        other (S4.1). Blocks while `buffer_bytes` wait for the loop.

        Emissions of one split come one after the other: the next begins when the one before has returned. Neither
        `batch` nor what its memory belongs to may be changed afterwards; `position` is copied.

        Args:
            batch: with the source's schema and at most 65,536 rows; with none the position alone moves.
            position: JSON-able, not None; comes back through JSON (a tuple as a list).

        Raises:
            PushClosedError: the run is over; let it end `run`.
            PipelineError: another schema, too many rows, no position, or not an open split of this subtask.
        """
        if not isinstance(batch, pa.RecordBatch) or not batch.schema.equals(self._schema):
            found = batch.schema if isinstance(batch, pa.RecordBatch) else type(batch).__name__
            raise self._wrong("emitted records with another schema", f"declared {self._schema}, emitted {found}")
        if batch.num_rows > MAX_PUSH_ROWS:
            raise self._wrong(f"emitted {batch.num_rows} rows at once", f"at most {MAX_PUSH_ROWS} make one batch")
        if position is None:
            raise self._wrong("emitted without a position", "position=None means the start of the split")
        try:
            self._handover.put(split_id, batch, position)
        except PipelineError as error:
            raise PipelineError(error.what, where=self._where, cause=error.cause, remedy=error.remedy) from None
        except (TypeError, ValueError) as error:
            raise self._wrong("emitted a position that is not JSON", str(error)) from error

    def finish_split(self, split_id: str) -> None:
        """Say that a split has been read to its end; it holds the watermark back no longer, and is not read after a
        restore. Calling it again changes nothing."""
        try:
            self._handover.finish(split_id)
        except PipelineError as error:
            raise PipelineError(error.what, where=self._where) from None

    def idle(self) -> None:
        """Say that nothing comes for an indefinite time: the subtask is left out of the watermark until the next
        emission (S4.4)."""
        self._handover.mark_idle()

    @property
    def is_closed(self) -> bool:
        """The run is over; `run` should return."""
        return self._handover.is_closed

    def wait_until_closed(self, timeout_s: float | None = None) -> bool:
        """Block until the run is over: the end of a `run` whose records come by callback. False: `timeout_s` passed
        before."""
        return self._handover.wait_until_closed(timeout_s)

    def _wrong(self, what: str, cause: str) -> PipelineError:
        return PipelineError(f"The pusher {what}", where=self._where, cause=cause)


class Pusher(ABC):
    """Receives the input of one subtask."""

    @abstractmethod
    def run(self, push: PushContext) -> None:
        """Emit until the input ends or PushClosedError comes out of a call; may block. Called once, on a thread of its
        own, with the first poll; not at all in a subtask without splits to read. For callbacks: register them, then
        `push.wait_until_closed()`.

        Returning says that all splits have been read to their end, which only a bounded source's pusher may say. What
        it raises fails the run as root cause.
        """

    def stop(self) -> None:
        """Make `run` return soon, where it waits for something else than `push`: close a connection, say. Called once,
        on the slot's loop, when the run is over; must not block."""


class PushSource(Source):
    """A source that is not polled: it emits by itself.

    Implement `boundedness`, `schema`, `discover` and `create_pusher`. Guarantee: each record affects state once, if the
    pusher, given a split with a position, emits exactly what follows that position.

    Attributes:
        buffer_bytes: emitted and not yet taken by the loop; more makes `emit` wait.
    """

    buffer_bytes: int = DEFAULT_BUFFER_BYTES

    @abstractmethod
    def create_pusher(self, ctx: SourceContext) -> Pusher:
        """A pusher, in the slot. Neither connects nor blocks; `run` does."""

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """The reader that hands the pusher's records to the loop."""
        return PushReader(
            self.create_pusher(ctx),
            ctx,
            schema=self.schema(),
            boundedness=self.boundedness,
            buffer_bytes=self.buffer_bytes,
        )


class PushReader(SourceReader):
    """Makes a pusher look like any reader: polled by the loop, position moving with the batch (S4.1, S4.2).

    A batch that was emitted and not polled is not in a snapshot, and neither is its position: after a restore the
    pusher emits it again.
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
        """Args: condition, make_thread: for tests, which put themselves between any two steps."""
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
        """Take splits; the thread starts with the first poll."""
        self._handover = PushQueue(splits, self._buffer_bytes, self._ctx.wake, self._condition())

    def poll(self, now_ms: int) -> PollResult:
        """What was emitted first. Raises what the pusher raised."""
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
        """All splits with the positions behind the last batch polled."""
        return self._handover.snapshot()

    def active_splits(self) -> frozenset[str]:
        """Splits whose end has not been polled."""
        return self._handover.active_splits()

    def progress(self) -> Mapping[str, Any]:
        """`buffered_bytes`: emitted and not polled; near `buffer_bytes` the pusher waits for the job."""
        return {"buffered_bytes": self._handover.queued_bytes}

    def close(self) -> None:
        """End the pusher's thread and wait for it, a bounded time; one that goes on is named on standard error, with
        where it stands. It can emit nothing any more."""
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
        thread = self._make_thread(target=self._run, args=(push,), name=name, daemon=True)
        thread.start()
        self._thread = thread

    def _run(self, push: PushContext) -> None:
        try:
            self._pusher.run(push)
        except PushClosedError as error:
            if not push.is_closed:
                self._handover.fail(error)
        except Exception as error:
            self._handover.fail(error)
        except BaseException as error:
            self._handover.fail(self._ended(f"{type(error).__name__}: {error}"))
        else:
            if self._bounded:
                self._handover.finish_all()
            elif not push.is_closed and self._handover.has_open_splits:
                self._handover.fail(self._ended("its `run` returned"))

    def _ended(self, cause: str) -> PipelineError:
        return PipelineError(
            "The pusher ended while its source goes on",
            where=self._where,
            cause=cause,
            remedy="Return from `run` when the source is bounded and at its end; else wait with wait_until_closed()",
        )

    @property
    def _where(self) -> str:
        return f"source {self._ctx.uid!r}, subtask {self._ctx.subtask}"

    def _running_threads_text(self, thread: threading.Thread) -> None:
        frame = sys._current_frames().get(thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        print(
            f"tidegate: the pusher {type(self._pusher).__name__} of {self._where} did not end within "
            f"{self._stop_s:g} s; make its stop() end what its run() waits for. It stands at:\n{stack}",
            file=sys.stderr,
            flush=True,
        )
