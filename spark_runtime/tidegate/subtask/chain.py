"""The operators of one chain, called in order as nested generators.

An emission can therefore pause between any two batches.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, SplitChanged, Watermark
from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.stores.store import Store
from tidegate.operators.stream_operator import (
    MERGED_BYTES,
    CommitPermit,
    EmissionPaused,
    Output,
    SideOutput,
    StreamOperator,
)
from tidegate.snapshot.parts import AsyncSnapshot
from tidegate.subtask.failure_codes import failure_code

T = TypeVar("T")

SIDE_OUTPUT_DROPPED = "side_output_dropped"
"""Counter: rows that an operator emitted to a side output that nobody reads."""


class OperatorFailure(Exception):
    """A user function or operator raised. Carries the root cause to the driver.

    Attributes: uid, subtask index, message and traceback as text, code (`failure_code`).
    """

    def __init__(self, uid: str, subtask: int, error: BaseException) -> None:
        self.uid, self.subtask = uid, subtask
        self.message = f"{type(error).__name__}: {error}"
        self.traceback = "".join(traceback.format_exception(error))
        self.code = failure_code(error)
        super().__init__(f"operator {uid!r} subtask {subtask}: {self.message}")


class OperatorChain:
    """Run a chain's operators. `index` counts from the head. An empty chain passes everything through."""

    def __init__(
        self,
        operators: Sequence[StreamOperator],
        uids: Sequence[str],
        subtask: int,
        columns: Sequence[tuple[str, ...] | None] = (),
    ) -> None:
        """Create the chain. Args: columns: for each operator the columns that it receives from the operator, or the
        source, before it; None: all. Empty: every operator receives all."""
        self.operators = tuple(operators)
        self._columns = tuple(columns) or (None,) * len(self.operators)
        self._uids = tuple(uids)
        self._subtask = subtask
        self._timed = [
            # The loop checks for due work before each step, so that operators without timers must cost nothing there.
            (index, operator)
            for index, operator in enumerate(self.operators)
            if type(operator).next_processing_time_ms is not StreamOperator.next_processing_time_ms
        ]
        self._idling = [o for o in self.operators if type(o).is_idle is not StreamOperator.is_idle]
        self._holding = [o for o in self.operators if type(o).has_pending_rows is not StreamOperator.has_pending_rows]
        self._at: int | None = None
        self._writing: list[str] = []

    def busy_operators(self) -> tuple[str, ...]:
        """Return the uids of operators that have not finished the requested work. Safe from any thread.

        These are the operator that is called on the loop or keeps it waiting, and operators whose state is being
        written or committed.
        """
        # Both attributes are read once, because the loop and the writer threads change them at the same time.
        at, writing = self._at, tuple(self._writing)
        return tuple(dict.fromkeys((*(() if at is None else (self._uids[at],)), *writing)))

    @property
    def merged_bytes(self) -> int:
        """Return the size up to which queued batches are merged before the head processes them."""
        return self.operators[0].merged_bytes if self.operators else MERGED_BYTES

    def batch(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Process a batch, from the head on."""
        if not self.operators:
            yield batch
            return
        yield from self._run(0, self.operators[0].process(self._received(0, batch), input_index))

    def watermark(self, time_us: int) -> Iterator[Output]:
        """Process a watermark, from the head on."""
        yield from self._through(0, Watermark(time_us))

    def begin_split(self, turn: SplitChanged) -> Iterator[SplitChanged]:
        """Process a change of split of the source upstream, which is the chain's only input."""
        for operator in self.operators:
            operator.ctx.current_split, operator.ctx.active_splits = turn.split, turn.active
        yield turn

    def end_input(self, input_index: int) -> Iterator[Output]:
        """Process the real end of input `input_index` of the head, without suspend."""
        if self.operators:
            yield from self._run(0, self.operators[0].end_input(input_index))

    def has_pending_rows(self) -> bool:
        """Return whether an operator holds rows back that it has yet to emit."""
        return bool(self._holding) and any(operator.has_pending_rows() for operator in self._holding)

    def hold_input(self, held: bool) -> None:
        """Set whether input channels are blocked for a checkpoint.

        Operators must distinguish it from silence (S4.4).
        """
        for operator in self._idling:
            operator.ctx.input_held = held

    def is_idle(self) -> bool:
        """Return whether an operator that creates watermarks is idle, so that nobody should wait for them."""
        return bool(self._idling) and any(operator.is_idle() for operator in self._idling)

    @property
    def has_timers(self) -> bool:
        """True if an operator may wait for the clock."""
        return bool(self._timed)

    def next_processing_time_ms(self) -> int | None:
        """Return when `processing_time` has work; None: no operator waits for the clock. Cheap if none can."""
        if not self._timed:
            return None
        times = [operator.next_processing_time_ms() for _, operator in self._timed]
        return min((t for t in times if t is not None), default=None)

    def processing_time(self, now_ms: int) -> Iterator[Output]:
        """Do the work that is due at `now_ms`, head first, so that results reach the operators downstream."""
        for index, operator in self._timed:
            due_ms = operator.next_processing_time_ms()
            if due_ms is not None and due_ms <= now_ms:
                yield from self._run(index, operator.on_processing_time(now_ms))

    def finish(self) -> Iterator[Output]:
        """Process the real end of all inputs (S7.2).

        Calls every operator's end_input, except the head's, and finish, in order. MAX_WATERMARK follows where an
        operator held it back.
        """
        for index, operator in enumerate(self.operators):
            if index:
                yield from self._run(index, operator.end_input(0))
            yield from self._run(index, operator.finish())
            if not operator.forwards_end():
                yield from self._through(index + 1, Watermark(MAX_WATERMARK))

    def prepare_snapshot(self, checkpoint_id: int) -> Iterator[Output]:
        """Flush pre-aggregates before the barrier, head first (S3.6)."""
        for index, operator in enumerate(self.operators):
            yield from self._run(index, operator.prepare_snapshot_pre_barrier(checkpoint_id))

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> list[tuple[str, AsyncSnapshot]]:
        """Freeze the state of every operator that has any (S3.6). `portable`: for a savepoint."""
        found: list[tuple[str, AsyncSnapshot]] = []
        for uid, operator in zip(self._uids, self.operators, strict=True):
            operator.portable = portable
            try:
                part = operator.snapshot(checkpoint_id)
            except Exception as error:  # user code that writes raw state may raise anything
                raise OperatorFailure(uid, self._subtask, error) from error
            if part is not None:
                found.append((uid, partial(self._noted, uid, part)))
        return found

    def commits(self, permit: CommitPermit) -> list[Callable[[], None]]:
        """Return the blocking work that `permit` allows (S7.4). Errors name the operator."""
        found = ((uid, operator.commit(permit)) for uid, operator in zip(self._uids, self.operators, strict=True))
        return [partial(self._do, uid, work) for uid, work in found if work is not None]

    def quarantines(self, withheld: WithheldRange, folder: Callable[[], tuple[Store, str]]) -> list[Callable[[], None]]:
        """Return the blocking work that moves `withheld` output into `folder` (S7.8). Errors name the operator."""
        both = zip(self._uids, self.operators, strict=True)
        found = ((uid, operator.quarantine(withheld, folder)) for uid, operator in both)
        return [partial(self._do, uid, work) for uid, work in found if work is not None]

    def awaits_permit(self, checkpoint_id: int) -> bool:
        """Return whether the completed checkpoint contains output that is not committed (S7.8)."""
        return any(operator.needs_commit_permit(checkpoint_id) for operator in self.operators)

    def _do(self, uid: str, work: Callable[[], None]) -> None:
        try:
            self._noted(uid, work)
        except Exception as error:
            raise OperatorFailure(uid, self._subtask, error) from error

    def _noted(self, uid: str, work: Callable[[], T]) -> T:
        self._writing.append(uid)
        try:
            return work()
        finally:
            self._writing.remove(uid)

    def close(self) -> None:
        """Close every operator. The first error is raised after all have been closed."""
        errors: list[BaseException] = []
        for operator in self.operators:
            try:
                operator.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _through(self, index: int, element: Output) -> Iterator[Output]:
        """Pass an element of operator `index - 1` to the operators downstream.

        Only side outputs of the tail are read: an operator whose side output is read has two consumers, and ends its
        chain.
        """
        if isinstance(element, SideOutput):
            context = self.operators[index - 1].ctx
            if element.name in context.side_outputs:
                assert index == len(self.operators), f"{context.uid!r} has a side output, but does not end its chain"
                yield element
            else:
                context.count(SIDE_OUTPUT_DROPPED, element.batch.num_rows)
            return
        if index == len(self.operators) or isinstance(element, EmissionPaused):
            yield element
            return
        operator = self.operators[index]
        if isinstance(element, Watermark):
            yield from self._run(index, operator.on_watermark(element.time_us))
            is_end = element.time_us == MAX_WATERMARK
            if operator.forwards_end() if is_end else operator.forwards_watermarks():
                yield from self._through(index + 1, element)
        else:
            yield from self._run(index, operator.process(self._received(index, element), 0))

    def _received(self, index: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = self._columns[index]
        try:
            return batch if columns is None else batch.select(columns)
        except KeyError as error:  # a source emits other columns than it declares
            raise OperatorFailure(self._uids[index], self._subtask, error) from error

    def _run(self, index: int, emission: Iterable[Output]) -> Iterator[Output]:
        """Pass what operator `index` emits to the operators downstream. Its exceptions become OperatorFailures."""
        before, self._at = self._at, index
        is_last = index + 1 == len(self.operators)
        try:
            for out in emission:
                if is_last and not isinstance(out, SideOutput):  # saves a generator
                    yield out
                else:
                    yield from self._through(index + 1, out)
                self._at = index  # operators downstream have set it in the meantime
        # An operator downstream runs nested in this emission. Its failure names its own uid already.
        except OperatorFailure:
            raise
        except Exception as error:
            raise OperatorFailure(self._uids[index], self._subtask, error) from error
        self._at = before
