"""The head of a source chain: a reader, its splits, and the information about splits for operators (S4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tidegate.channel.control.protocol import SourceMetrics
from tidegate.channel.elements import SplitChanged
from tidegate.connectors.interface import PollResult, SourceReader, Split
from tidegate.connectors.split_documents import splits_part
from tidegate.errors import SnapshotError
from tidegate.operators.stream_operator import OperatorContext, SideOutput
from tidegate.operators.time.watermark_specs import AlignmentGroup
from tidegate.snapshot.parts import AsyncSnapshot
from tidegate.subtask.chain import OperatorFailure

HeldSplits = tuple[int, int, int, int]
"""(unfinished splits, splits that this run has assigned to the reader, newest snapshot passed, newest one aborted)."""

MAX_POLL_WAIT_MS = 1000
"""Longest time between two polls of a reader that has no records, milliseconds."""


class ExhaustedReader(SourceReader):
    """Replaces the reader of a source that had finished in the restored snapshot: no code of the source runs (S6.2)."""

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Ignore the splits: none are left."""

    def poll(self, now_ms: int) -> PollResult:
        """Return the end."""
        return PollResult(state="end")

    def snapshot(self) -> Sequence[Split]:
        """Return no splits."""
        return ()


class SourceSignal:
    """A reader calls it when it has records before its `retry_at_ms`. Safe from any thread.

    Attributes:
        is_set: True from a call until `clear`.
    """

    def __init__(self, wake_loop: Callable[[], None]) -> None:
        self._wake_loop = wake_loop
        self.is_set = False

    def __call__(self) -> None:
        """Have the reader polled in the next round."""
        self.is_set = True
        self._wake_loop()

    def clear(self) -> None:
        """Forget the calls so far. Call it before the reader is polled, so that no later call is lost."""
        self.is_set = False


class SourceInput:
    """A reader as the subtask sees it.

    Records and position advance together, because one loop calls both `poll` and `snapshot` (S4.1).

    Attributes:
        turn: the split of the last polled batch, and the splits that are left.
    """

    def __init__(
        self,
        uid: str,
        reader: SourceReader,
        contexts: Sequence[OperatorContext],
        subtask: int,
        idle_after_ms: int | None = None,
        group: AlignmentGroup | None = None,
        side_outputs: Collection[str] = (),
        signal: SourceSignal | None = None,
        on_held: Callable[[HeldSplits], None] | None = None,
    ) -> None:
        """Create the input.

        Args:
            contexts: contexts of the chain's operators, which receive the split of the current batch.
            idle_after_ms: time without records after which the source counts as idle; None: only if the reader reports
                it.
            group: alignment group that limits how far the source may be ahead.
            side_outputs: side outputs that are read.
            signal: set by the reader; None: it sets none.
            on_held: for a source that discovers splits while the job runs; called when the reader's splits have
                changed.
        """
        self.group = group
        self._signal = signal or SourceSignal(lambda: None)
        self._paused_for: set[str] = set()
        self._idle_after_ms = idle_after_ms
        self._side_outputs = frozenset(side_outputs)
        self._silent_since_ms: int | None = None
        self.uid = uid
        self.records = 0
        self._reader = reader
        self._contexts = tuple(contexts)
        self._subtask = subtask
        self._split: str | None = None
        self._restored: str | None = None
        self.turn = SplitChanged(None, frozenset())
        self._idle = False
        self._on_held = on_held
        # Positions are kept for the reader only if it has use for them.
        self._wants_completions = type(reader).checkpoint_completed is not SourceReader.checkpoint_completed
        self._received = self._passed = self._aborted = 0
        self._held: HeldSplits | None = None
        self._taken: dict[int, Sequence[Split]] = {}

    def start(self, splits: Sequence[Split]) -> None:
        """Pass the splits to the reader. Call it once. More splits follow only with `on_held`."""
        self._restored = next((split.split_id for split in splits if split.position is not None), None)
        self._guard(lambda: self._reader.add_splits(splits))
        if self._on_held is None:
            self._guard(self._reader.no_more_splits)
        self._learn_splits(None)

    def assign(self, splits: Sequence[Split], *, last: bool) -> None:
        """Pass further splits to the reader. `last`: no more follow (S4.3)."""
        self._received += len(splits)
        if splits:
            self._guard(lambda: self._reader.add_splits(splits))
        if last:
            self._guard(self._reader.no_more_splits)
        self._learn_splits(self._split)

    def report_held(self) -> None:
        """Report what the reader holds, if it has changed since the last report."""
        if self._on_held is None:
            return
        held = len(self.turn.active), self._received, self._passed, self._aborted
        if held != self._held:
            self._held = held
            self._on_held(held)

    def poll(self, now_ms: int) -> PollResult:
        """Return the next batch. The contexts then name its split."""
        self._signal.clear()
        polled: PollResult = self._guard(lambda: self._reader.poll(now_ms))
        if polled.batch is not None:
            self.records += polled.batch.num_rows
        split_id = self._split if polled.batch is None else polled.split_id
        # The last split of a reader may end with its last batch. Only the next poll shows that.
        has_run_dry = self._on_held is not None and polled.batch is None
        if polled.splits_changed or split_id != self._split or has_run_dry:
            self._learn_splits(split_id)
            self.report_held()
        return polled

    def sides(self, polled: PollResult) -> list[SideOutput]:
        """Return the rows of side outputs that are read. The source itself counts the others, if they matter."""
        return [SideOutput(name, batch) for name, batch in polled.sides.items() if name in self._side_outputs]

    def is_idle(self, polled: PollResult, now_ms: int) -> bool:
        """Return whether the source is idle: silent for `idle_after_ms`, or idle by its own report (S4.4).

        Silence begins with the first poll that returns nothing. Before that, the subtask may have been waiting with a
        batch.
        """
        if polled.batch is not None:
            self._silent_since_ms = None
        elif self._silent_since_ms is None:
            self._silent_since_ms = now_ms
        silent_ms = 0 if self._silent_since_ms is None else now_ms - self._silent_since_ms
        self._idle = polled.idle or (self._idle_after_ms is not None and silent_ms >= self._idle_after_ms)
        return self._idle

    def next_poll_ms(self, polled: PollResult, now_ms: int) -> int | None:
        """Return when to poll again after `polled`: when the reader says, or when the source becomes idle by silence.

        None: without a wait. Call it after `is_idle`.
        """
        if polled.state != "nothing_now":
            return None
        poll_at_ms = min(polled.poll_again_ms(now_ms), now_ms + MAX_POLL_WAIT_MS)
        if self._idle or self._idle_after_ms is None or self._silent_since_ms is None:
            return poll_at_ms
        return min(poll_at_ms, self._silent_since_ms + self._idle_after_ms)

    @property
    def is_woken(self) -> bool:
        """True if the reader has asked to be polled since the last poll."""
        return self._signal.is_set

    @property
    def is_paused(self) -> bool:
        """True while the source must not be polled, for any reason."""
        return bool(self._paused_for)

    def pause(self, why: str, paused: bool) -> None:
        """Pause polling for the reason `why`, or end that pause. Polling resumes when no reason is left.

        After a pause `idle_after` begins again, because a paused source emits nothing and is not silent. Otherwise its
        first empty poll would advance the watermark past rows that wait in the source (S4.4).
        """
        if paused == (why in self._paused_for):
            return
        self._paused_for ^= {why}
        for context in self._contexts:
            context.input_held = self.is_paused
        if not self.is_paused and not self._idle:
            self._silent_since_ms = None

    def snapshot(self, checkpoint_id: int, *, completes: bool = True) -> AsyncSnapshot:
        """Return the positions after the last polled batch (S4.2). Args: completes: `completed` may follow."""
        # Read now and not on a writer thread: it must be the position at the barrier (S4.2).
        splits = self._reader.snapshot()
        if self._wants_completions and completes:
            self._taken[checkpoint_id] = splits
        self._passed = max(self._passed, checkpoint_id)
        self.report_held()
        part = splits_part(splits, self._guard(self._reader.readable_until_ms))
        return lambda: [part]

    def aborted(self, checkpoint_id: int, *, reads_on: bool) -> None:
        """Forget a snapshot that will never complete. Args: reads_on: the subtask has not ended its data."""
        self._taken.pop(checkpoint_id, None)
        if reads_on:
            self._aborted = max(self._aborted, checkpoint_id)
            self.report_held()

    def completed(self, checkpoint_id: int) -> None:
        """Report a completed checkpoint to the reader. Older ones are forgotten."""
        splits = self._taken.get(checkpoint_id)
        for older in [n for n in self._taken if n <= checkpoint_id]:
            del self._taken[older]
        if splits is not None:
            self._guard(lambda: self._reader.checkpoint_completed(checkpoint_id, splits))

    def metrics(self) -> SourceMetrics:
        """Return the metrics for the heartbeat. A reader may replace `records`, and adds other facts."""
        facts = {"records": self.records, **self._reader.progress()}
        records, played_all = int(facts.pop("records")), bool(facts.pop("played_all", False))
        if self._paused_for:
            facts["paused"] = ", ".join(sorted(self._paused_for))
        return SourceMetrics(self.uid, records, played_all, facts, self.counters())

    def counters(self) -> dict[str, int]:
        """Return named counts over all runs."""
        return dict(self._reader.counters())

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _learn_splits(self, split_id: str | None) -> None:
        self._split = split_id
        active = self._reader.active_splits()
        self.turn = SplitChanged(split_id, active)
        for context in self._contexts:
            context.current_split = split_id
            context.active_splits = active

    def _guard(self, call: Any) -> Any:
        try:
            return call()
        except (LookupError, TypeError, AttributeError) as error:
            # After the first record the position was evidently understood, so that the error has another cause.
            if self._restored is None or self.records:
                raise OperatorFailure(self.uid, self._subtask, error) from error
            foreign = self._foreign(error)
            # Set explicitly: `foreign` is never raised, and Python sets the cause only in a `raise`.
            foreign.__cause__ = error
            raise OperatorFailure(self.uid, self._subtask, foreign) from foreign
        except Exception as error:
            raise OperatorFailure(self.uid, self._subtask, error) from error

    def _foreign(self, error: Exception) -> SnapshotError:
        """Return the error for a position of another source class.

        Snapshots of earlier versions do not name the source's class, so that only the reader can notice it.
        """
        return SnapshotError(
            f"{type(self._reader).__name__} of source {self.uid!r} cannot continue from split {self._restored!r}",
            where=f"source {self.uid!r} subtask {self._subtask}",
            cause=f"another source class or version may have written the position: {type(error).__name__}: {error}",
            remedy="Restore with the source class that wrote the position, or give the source a new uid",
        )
