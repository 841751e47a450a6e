"""StreamOperator: the interface between a subtask and the operators that it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from tidegate.channel.elements import Watermark
from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.options import ProcessingTimeOnEnd, StateBackend
from tidegate.jobs.stores.store import Store
from tidegate.snapshot.parts import AsyncSnapshot, StatePart

MERGED_BYTES = 256 * 1024
"""Queued batches are merged up to this size. Larger ones would be copied for less than their processing costs."""
MAIN_OUTPUT = "main"
"""Name of the output that every operator has."""
Done: TypeAlias = Callable[[int, object, BaseException | None], None]
"""Called with number, answer and error of a request."""


@dataclass(frozen=True, slots=True)
class SideOutput:
    """Rows for a side output of an operator.

    The output is declared, with its schema, where the operator is created. If nothing reads the output, the rows are
    dropped and counted.

    Attributes:
        name: of the output.
        batch: the rows, in the schema declared for the output.
    """

    name: str
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class EmissionPaused:
    """Emission has paused and more output will follow. The loop continues it soon, or when `OperatorContext.wake` is
    called. Until it ends, the subtask processes nothing else and accepts no barrier, so the wait must have an end."""


class TurnOver(EmissionPaused):
    """Emission continues after the other subtasks of the slot have had their turns.

    Between turns, batches that arrive for the operator's input are taken from the channels, up to `merged_bytes`."""


EMISSION_PAUSED = EmissionPaused()
TURN_OVER = TurnOver()
Output: TypeAlias = pa.RecordBatch | SideOutput | Watermark | EmissionPaused
"""Everything that an operator may emit. Only an operator that does not forward watermarks emits its own; they go to all
outputs."""


Answer: TypeAlias = pa.RecordBatch | SideOutput | Iterable[pa.RecordBatch | SideOutput] | None
AsyncFunction: TypeAlias = Callable[[pa.RecordBatch], Answer | Awaitable[Answer]]
"""A user's function: its argument is a batch; it returns rows for it, or an awaitable of rows."""


class AsyncRequests(Protocol):
    """Calls a function for several requests at the same time. Used only by the slot's loop; no call blocks."""

    def submit(self, number: int, batch: pa.RecordBatch) -> None:
        """Start request `number`. `done` is called when it ends, from any thread."""

    def cancel(self, number: int) -> None:
        """Give up a request. `done` may still be called for it."""

    def close(self) -> None:
        """Give up all requests."""


StartRequests: TypeAlias = Callable[[AsyncFunction, int, Done], AsyncRequests]
"""Makes an `AsyncRequests` from a function, the number of requests at a time, and the callback `done`."""


@dataclass
class OperatorContext:
    """Facts about an operator subtask and its job. Created once per run, before `open`.

    Attributes:
        job_id: the job.
        lineage: id of the lineage (S7.4). Transaction ids contain it, so a fork touches no transaction of its original.
        uid: the operator's uid.
        subtask: index, 0 <= subtask < parallelism.
        parallelism: subtasks of this operator.
        max_parallelism: number of key groups.
        generation: number of the driver (S9.2).
        run_id: number of the run within the generation.
        input_schemas: one per input.
        processing_time_ms: the injected clock, milliseconds since the epoch.
        wake: wakes the slot's loop, from any thread; never blocks.
        requests: how user functions are called outside the loop; None: on threads of their own.
        current_split: id of the source split of the current batch; None downstream of an exchange or on a second input.
        active_splits: ids of the splits that the source subtask has not finished, whether it has started them or not;
            empty downstream of an exchange or on a second input.
        input_held: the source of this chain is paused, or a checkpoint holds back rows of an input channel. The absence
            of rows then does not mean that the input is idle.
        side_outputs: names of the operator's side outputs that something reads. The operator may skip all others.
        counters: named counts shown in metrics, such as `late_dropped`.
        scratch: a private writable directory on local disk.
        processing_time_on_end: what happens at the end of the input to windows and timers that wait for a processing
            time: "fire" fires them once, "drop" drops and counts them (S7.6).
        drained: this operator was restored from the snapshot of a drain that had ended its input early (S7.5).
        after_drain: the job was restored from the snapshot of a drain: no row is in flight, and no operator remembers
            its watermark.
        gated: the job commits nothing without an approval (S7.8).
        state_backend: name of the back end for keyed state (S5.2).
        state_memory_bytes: memory limit for state, for a back end that can keep state outside memory.
        staging: in batch mode, URL and storage options of the checkpoint's folder.
        storage: URL and storage options of the folder for sinks in the job directory; see `SinkContext.storage`.
    """

    job_id: str
    lineage: str
    uid: str
    subtask: int
    parallelism: int
    max_parallelism: int
    generation: int
    run_id: str
    input_schemas: tuple[pa.Schema, ...]
    processing_time_ms: Callable[[], int]
    current_split: str | None = None
    active_splits: frozenset[str] = frozenset()
    input_held: bool = False
    side_outputs: frozenset[str] = frozenset()
    wake: Callable[[], None] = lambda: None
    requests: StartRequests | None = None
    counters: dict[str, int] = field(default_factory=dict)
    scratch: str = ""
    processing_time_on_end: ProcessingTimeOnEnd = "fire"
    drained: bool = False
    after_drain: bool = False
    gated: bool = False
    state_backend: StateBackend = "heap"
    state_memory_bytes: int = 256 * 2**20
    staging: tuple[str, Mapping[str, Any]] | None = None
    storage: tuple[str, Mapping[str, Any]] | None = None

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` to the counter `name`."""
        self.counters[name] = self.counters.get(name, 0) + n


@dataclass(frozen=True)
class CommitPermit:
    """The right to commit every transaction up to `checkpoint_id`. It is created only from a `complete` entry of the
    decision log (S7.4), or with a commit gate only from an `approve` entry (S7.8)."""

    checkpoint_id: int
    generation: int
    log_number: int


class StreamOperator(ABC):
    """One operator of one subtask. The slot's loop calls all methods, one at a time (S4.1).

    Call order: `open`; `restore` (only on restore, before any input); then any number of `process`, `on_watermark`,
    `on_processing_time` and snapshot calls; on a real end of the input one `end_input` per input, then `finish` once
    (S7.1; never on suspend); `close` always.

    `process`, `on_watermark`, `on_processing_time`, `end_input`, `finish` and `prepare_snapshot_pre_barrier` are
    generators. The loop may pause a generator between two batches when the output is full. It calls no other method
    until the generator is exhausted. Generators must not block. An emitted batch should hold at most about 64k rows.
    """

    ctx: OperatorContext
    portable: bool = False
    """Set before each `snapshot`. True: the snapshot is a savepoint, and any back end must be able to restore it
    (S5.2)."""
    merged_bytes: int = MERGED_BYTES
    """Batches that wait in the queues of an input are merged up to this size before `process` (S3.1). The operator may
    change it at any time."""

    def open(self, ctx: OperatorContext) -> None:
        """Store the context. Compile kernels here, not at the first record."""
        self.ctx = ctx

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore what `snapshot` wrote, from all parts of this subtask."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Process one batch of input `input_index`."""

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Handle a new minimum of all inputs' watermarks, `watermark_us`. Called before the watermark is forwarded."""
        yield from ()

    def next_processing_time_ms(self) -> int | None:
        """Return the processing time, milliseconds since the epoch, at which `on_processing_time` must be called next.

        None: nothing waits for the clock. The loop calls this method before every step, so it must be cheap. The loop
        calls it only on operators that override it.
        """
        return None

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Do what is due at `now_ms`: the clock has reached `next_processing_time_ms`.

        Afterwards `next_processing_time_ms` must return a later time. The call comes when the loop is free and the
        output has room, which may be long after the time, as after a restore. After the end of the input, real or by a
        suspend, it never comes (S7.2).
        """
        yield from ()

    def forwards_watermarks(self) -> bool:
        """False: incoming watermarks except MAX_WATERMARK stop here, as in an operator that assigns its own."""
        return True

    def forwards_end(self) -> bool:
        """False: MAX_WATERMARK is forwarded after `finish`, because `finish` emits rows that downstream needs: after
        MAX_WATERMARK joins and windows would be closed, or would treat these rows as late (S4.4)."""
        return True

    def has_pending_rows(self) -> bool:
        """Return whether rows will be emitted even if no more input arrives.

        If True, idleness is not forwarded, because rows from an idle channel may be late (S4.4). The answer may change
        in `process`, `on_watermark`, `on_processing_time` and `end_input`.
        """
        return False

    def is_idle(self) -> bool:
        """Return whether downstream should not wait for this operator's watermark, because no row has arrived for long.

        If True, the subtask reports itself idle downstream, until a row arrives (S4.4). The answer may change in
        `process` and `on_processing_time`. The loop calls this method only on operators that override it.
        """
        return False

    def end_input(self, input_index: int) -> Iterator[Output]:
        """Handle the real end of input `input_index`: EndOfData(drain=True) came on all its channels."""
        yield from ()

    def finish(self) -> Iterator[Output]:
        """Emit the last rows, after the real end of all inputs (S7.1).

        This includes windows and timers that wait for a processing time, unless `ctx.processing_time_on_end` is "drop"
        (S7.6). May be called again after a failure.
        """
        yield from ()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Iterator[Output]:
        """Flush pre-aggregates before the barrier (S3.6)."""
        yield from ()

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the state within a few milliseconds. The returned function writes it later. None: no state."""
        return None

    def commit(self, permit: CommitPermit) -> Callable[[], None] | None:
        """Commit: checkpoint `permit.checkpoint_id` is complete.

        Returns blocking work for a writer thread, or None. Idempotent: it may be called twice for an id. It may also
        never be called for an id, if a newer checkpoint is complete.
        """
        return None

    def needs_commit_permit(self, checkpoint_id: int) -> bool:
        """Return whether the operator still has output to commit for the completed checkpoint `checkpoint_id`."""
        return False

    def quarantine(self, withheld: WithheldRange, folder: Callable[[], tuple[Store, str]]) -> Callable[[], None] | None:
        """Never commit the range `withheld` from now on, whatever permits follow.

        Returns blocking work for a writer thread, or None. The work moves the range's output into `folder`, a store and
        a path in it. May be called again at every restore.
        """
        return None

    def aborted(self, checkpoint_id: int) -> None:
        """Handle the end of checkpoint `checkpoint_id`, which will never complete. Its pre-committed output joins the
        next checkpoint."""

    def close(self) -> None:
        """Release resources. Always called, also after errors. Must not emit."""
