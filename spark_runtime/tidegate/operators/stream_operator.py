"""The contract between a subtask and the stream operators it runs."""

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

MAIN_OUTPUT = "main"
"""Name of the output that every operator has."""


@dataclass(frozen=True, slots=True)
class SideOutput:
    """Rows for another output of an operator than its main one. The output is declared, with its schema, where the
    operator is made; where nobody reads it, the rows are dropped and counted.

    Attributes:
        name: of the output.
        batch: the rows, of the schema declared for it.
    """

    name: str
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class EmissionPaused:
    """Nothing comes out now, and more will: the emission goes on when the loop is roused (`OperatorContext.wake`), or
    soon. Until it ends the subtask does nothing else, and takes no barrier: only for what has an end of its own."""


EMISSION_PAUSED = EmissionPaused()
Output: TypeAlias = pa.RecordBatch | SideOutput | Watermark | EmissionPaused
"""What an operator may emit. Only one that does not forward watermarks emits its own; they go to all outputs."""


Answer: TypeAlias = pa.RecordBatch | SideOutput | Iterable[pa.RecordBatch | SideOutput] | None
AsyncFunction: TypeAlias = Callable[[pa.RecordBatch], Answer | Awaitable[Answer]]
"""A user's: takes a batch, gives rows for it, or an awaitable of them."""
Done: TypeAlias = Callable[[int, object, BaseException | None], None]
"""Takes number, answer and error of a request."""


class AsyncRequests(Protocol):
    """Asks a function, several times at once. Called by the slot's loop alone; no call blocks."""

    def submit(self, number: int, batch: pa.RecordBatch) -> None:
        """Begin request `number`; `done` is called when it is over, from any thread."""

    def cancel(self, number: int) -> None:
        """Its answer is not wanted any more; it may come all the same."""

    def close(self) -> None:
        """No answer is wanted any more."""


StartRequests: TypeAlias = Callable[[AsyncFunction, int, Done], AsyncRequests]
"""Makes a `AsyncRequests` of a function, for so many at once, that calls `done`."""


@dataclass
class OperatorContext:
    """What an operator subtask knows of its place. Built once per run, before `open`.

    Attributes:
        job_id: the job.
        lineage: id of the lineage (S7.4): enters transaction ids, so that a fork touches none of its original's.
        uid: the operator's uid.
        subtask: index, 0 <= subtask < parallelism.
        parallelism: subtasks of this operator.
        max_parallelism: number of key groups.
        generation: the driver's reign (S9.2).
        run_id: the attempt within it.
        input_schemas: one per input.
        processing_time_ms: the injected clock, milliseconds since the epoch.
        wake: rouses the slot's loop, from any thread; never blocks.
        requests: how functions are asked beside the loop; None: on threads of their own.
        current_split: id of the source split the batch in hand came from; None behind an exchange or a second input.
        active_splits: ids of the splits the source subtask has not finished (read or not); empty behind those.
        input_held: the source of this chain is not read now, or a checkpoint keeps rows of an input channel waiting:
            that nothing comes tells nothing.
        side_outputs: names of the operator's side outputs that something reads; rows for others need not be made.
        counters: named counts shown in metrics, such as `late_dropped`.
        scratch: a private writable directory on local disk.
        processing_time_on_end: at the end of the input what waits for a processing time fires once, or is dropped and
            counted (S7.6).
        drained: this operator goes on from a snapshot of a drain, which had ended its input early (S7.5).
        after_drain: the job does: no row is in flight, and how far time had come is forgotten everywhere.
        gated: the job commits nothing without an approval (S7.8).
        state_backend: what keeps keyed state (S5.2).
        state_memory_bytes: what it may hold in memory, where it can keep state elsewhere.
        staging: in batch mode URL and storage options of the checkpoint's folder.
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

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` to the counter `name`."""
        self.counters[name] = self.counters.get(name, 0) + n


@dataclass(frozen=True)
class CommitPermit:
    """The right to commit every transaction <= `checkpoint_id`; made only from a `complete` entry of the decision log
    (S7.4), and behind a commit gate only from an `approve` entry (S7.8)."""

    checkpoint_id: int
    generation: int
    log_number: int


class StreamOperator(ABC):
    """One operator of one subtask. All methods are called by the slot's one loop, never concurrently (S4.1).

    Call order: `open`, `restore` (only on restore, before any input), then any number of `process` / `on_watermark` /
    `on_processing_time` / snapshot calls, per input one `end_input` and then once `finish` on a real end (S7.1, never
    on suspend), `close` always.

    `process`, `on_watermark`, `on_processing_time`, `end_input`, `finish` and `prepare_snapshot_pre_barrier` are
    generators: the loop may stop pulling between two batches when the output is full, and calls nothing else until the
    generator is exhausted. They must not block. Emitted batches should hold at most some 64k rows.
    """

    ctx: OperatorContext
    portable: bool = False
    """Set before each `snapshot`: it is for a savepoint, whose state any back end restores (S5.2)."""

    def open(self, ctx: OperatorContext) -> None:
        """Take the context; compile kernels here, not at the first record."""
        self.ctx = ctx

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back what `snapshot` gave, all parts of this subtask."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Process one batch of input `input_index`."""

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """The minimum over all inputs has advanced to `watermark_us`. Called before the watermark is passed on."""
        yield from ()

    def next_processing_time_ms(self) -> int | None:
        """The processing time, milliseconds since the epoch, from which on `on_processing_time` has something to do;
        None: nothing waits for the clock. Asked before every step of the loop, so it must be cheap; only of operators
        that override it."""
        return None

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """The clock has reached `next_processing_time_ms`: do what is due at `now_ms`. `next_processing_time_ms` must
        be later afterwards. Comes as soon as the loop and the room downstream allow, perhaps long after the time, as
        after a restore; never once the input has ended, be it by a real end or a suspend (S7.2)."""
        yield from ()

    def forwards_watermarks(self) -> bool:
        """False: incoming watermarks stop here (a watermark assigner makes its own), but for MAX_WATERMARK."""
        return True

    def forwards_end(self) -> bool:
        """False: MAX_WATERMARK is passed on behind `finish`, which gives rows that downstream waits for: joins and
        windows would be over without them, or find them late (S4.4)."""
        return True

    def has_pending_rows(self) -> bool:
        """True: rows are still to come out though no input brings anything more. Idleness then stops here, since what
        comes from an idle channel may be late (S4.4). May change in `process`, `on_watermark`, `on_processing_time` and
        `end_input`."""
        return False

    def is_idle(self) -> bool:
        """True: nothing has come for so long that the watermark made here is not to be waited for: downstream is told
        that this subtask is idle, until a row comes (S4.4). Changes in `process` and `on_processing_time`; asked only
        of operators that override it."""
        return False

    def end_input(self, input_index: int) -> Iterator[Output]:
        """Input `input_index` has really ended (EndOfData(drain=True) on all its channels)."""
        yield from ()

    def finish(self) -> Iterator[Output]:
        """All inputs have really ended; the last chance to emit (S7.1), also what waits for a processing time, unless
        `ctx.processing_time_on_end` is "drop" (S7.6). May come again after a failure."""
        yield from ()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Iterator[Output]:
        """Flush pre-aggregates in front of the barrier (S3.6)."""
        yield from ()

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the state, in a few milliseconds; the returned function writes it out later. None: no state."""
        return None

    def commit(self, permit: CommitPermit) -> Callable[[], None] | None:
        """Checkpoint `permit.checkpoint_id` is complete. Returns the blocking work to do on a writer thread, or None.
        Idempotent; may come twice, or never for an id when a newer one is complete."""
        return None

    def needs_commit_permit(self, checkpoint_id: int) -> bool:
        """Checkpoint `checkpoint_id` is complete: whether something that it covers is still to be committed."""
        return False

    def quarantine(self, withheld: WithheldRange, folder: Callable[[], tuple[Store, str]]) -> Callable[[], None] | None:
        """What is `withheld` is never committed from now on, whatever permits come. Returns the blocking work that
        moves it into `folder`, a store and a path in it, for a writer thread; or None. May come again at every
        restore."""
        return None

    def aborted(self, checkpoint_id: int) -> None:
        """Checkpoint `checkpoint_id` will never complete. What it pre-committed joins the next one."""

    def close(self) -> None:
        """Release resources. Always called, also after errors; must not emit."""
