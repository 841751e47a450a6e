"""The contracts of sources and sinks."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from tidegate.connectors.found_schema import FoundSchema
from tidegate.connectors.leftovers import LeftoverReport, NeededTransactions
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity, recorded_identity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Boundedness = Literal["bounded", "unbounded"]

NO_CHECKPOINT = sys.maxsize
"""An id that no checkpoint ever has."""


@dataclass(frozen=True)
class Split:
    """A part of a source's input, read by one reader at a time.

    Attributes:
        split_id: unique within the source, stable over restores.
        data: JSON-able description (path, row range, ...), without secrets.
        position: JSON-able position after the last emitted record; None: from the start (S4.2).
        finished: read to its end.
        weight: relative size, for even assignment.
    """

    split_id: str
    data: Mapping[str, Any]
    position: Any = None
    finished: bool = False
    weight: int = 1


@dataclass(frozen=True)
class PollResult:
    """Answer of one `SourceReader.poll`.

    Attributes:
        batch: records, or None.
        split_id: the split they came from.
        state: `more` (poll again), `nothing_now` (poll again at `retry_at_ms`), `end` (all splits read; bounded
            sources only).
        retry_at_ms: with `nothing_now`: processing time in milliseconds at which to poll again.
        idle: the reader has nothing for an indefinite time: leave it out of the watermark (S4.4).
        splits_changed: a split ended apart from a batch of its own: ask `active_splits` anew.
        sides: rows of side outputs, by name; with or without a batch. The position is behind them, too.
    """

    batch: pa.RecordBatch | None = None
    split_id: str | None = None
    state: Literal["more", "nothing_now", "end"] = "more"
    retry_at_ms: int = 0
    idle: bool = False
    splits_changed: bool = False
    sides: Mapping[str, pa.RecordBatch] = field(default_factory=dict)


class SourceReader(ABC):
    """Reads splits in one subtask. All methods on the slot's loop; `poll` must not block for more than a few
    milliseconds beyond the work of making one batch (at most some 64k rows)."""

    @abstractmethod
    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take splits: fresh ones (`position` None) or restored ones. Called once, before the first poll."""

    @abstractmethod
    def poll(self, now_ms: int) -> PollResult:
        """The next batch. The position moves together with the batch (S4.1)."""

    @abstractmethod
    def snapshot(self) -> Sequence[Split]:
        """All splits of this reader, finished ones too, with positions after the last batch polled (S4.2)."""

    def active_splits(self) -> frozenset[str]:
        """Ids of the splits not read to their end; those not begun hold the watermark back (S4.4). Asked whenever the
        split of a polled batch differs from the one before."""
        return frozenset(split.split_id for split in self.snapshot() if not split.finished)

    def progress(self) -> Mapping[str, Any]:
        """Small JSON-able facts for the status, such as `{"played_all": true}`."""
        return {}

    def counters(self) -> Mapping[str, int]:
        """Named counts for the status, such as `bad_records`; over all runs, so from positions (S4.2)."""
        return {}

    def close(self) -> None:
        """Release resources."""


@dataclass(frozen=True)
class SourceContext:
    """What a reader knows of its place.

    Attributes:
        subtask, parallelism: its own index, and how many readers the source has.
        wake: rouses the slot's loop, which else polls a reader that had nothing within tens of milliseconds; from any
            thread, never blocks.
    """

    uid: str
    subtask: int
    parallelism: int
    wake: Callable[[], None] = lambda: None


class Source(ABC):
    """A description of input: frozen, cheap to make, no I/O in its constructor."""

    former_names: tuple[str, ...] = ()
    """Names that its class had: snapshots taken under these are restored, too (S5.5)."""

    @property
    @abstractmethod
    def boundedness(self) -> Boundedness:
        """Bounded sources reach the end of input by themselves."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Schema of the records. May read a file's header; raises PipelineError naming the path when it is missing."""

    def found_schema(self) -> FoundSchema | None:
        """What `schema` took from the input that is there today; None: nothing, as where the user declared it. Recorded
        with the job's graph and in its snapshots (S5.5). Asked after `schema`."""
        return None

    def with_found_schema(self, found: FoundSchema) -> Source:
        """The same source with the schema that its job found before, whatever is in the input today. A source that
        finds none, or whose schema is declared, is returned as it is."""
        return self

    def side_outputs(self) -> Mapping[str, pa.Schema]:
        """Name -> schema of what `PollResult.sides` may hold."""
        return {}

    def required_side_outputs(self) -> Mapping[str, str]:
        """Side outputs without a reader of which the pipeline is not built -> why."""
        return {}

    @abstractmethod
    def discover(self, parallelism: int) -> Sequence[Split]:
        """All splits, in the driver, once per fresh start; deterministic order (S4.3)."""

    @abstractmethod
    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """A reader, in the slot."""

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]] | None:
        """(split id, why) of those of a snapshot's splits that could not be read on from their positions; None: cannot
        tell, before they are read. For a preflight, not in a slot; may do I/O. Finished splits need nothing.

        Raises:
            OSError, StoreError, OutageError: what holds them does not answer.
        """
        return None

    def describe(self) -> str:
        """One line for `explain()`, without secrets."""
        return type(self).__name__


class SinkWriter(ABC):
    """Two-phase writer of one subtask (S7.4). `write`, `prepare_commit` run on the loop; the function that
    `prepare_commit` returns, `commit` and `abort` run on a writer thread and may block."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Write to where readers do not see it."""

    def end_input(self) -> None:
        """No write follows in this run: what the function of `prepare_commit` would do first may begin now, on threads
        of the writer's own; the last snapshot comes some milliseconds later. On the loop, does not block; not called
        when a run ends in another way than with its data (S7.2)."""

    @abstractmethod
    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction; later writes belong to the next. The returned function (called once) makes
        the staged data durable and gives its handles; empty when nothing was written."""

    @abstractmethod
    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish, idempotently. Neither commit marker nor staged data: raise TidegateError, never take it for done; so
        with transactions of another job, lineage or sink (`transactions.check_own`), as in `abort`. Called only
        while the caller holds a `CommitPermit` that covers them. What a restore permits is committed, by all subtasks,
        before the first of them runs, so before anything of a newer checkpoint; but for what waits for a verdict
        (S7.8): an approval covers that and newer ones, and subtasks commit side by side."""

    @abstractmethod
    def abort(self, committables: Sequence[Committable]) -> None:
        """Remove staged data. Idempotent. For whoever gives up transactions that he holds handles of; no run does: what
        an aborted checkpoint pre-committed stays pending and is part of the next one, and what a failed run, a rejected
        or an abandoned timeline, or a zombie left staged is removed by the next start's `recover`, which needs no
        handles (S7.4)."""

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        """Called once at the start of a run, on a writer thread, perhaps beside new writes of this run; at restore
        after committing what the restored snapshot `checkpoint_id` held (0: fresh start): remove staged data that
        failed runs of the same job, lineage and uid left, of its own subtask index and, when they ran at a higher
        parallelism, of the indices congruent to it (`transactions.is_leftover` tells them). `pending`: restored handles
        that still await a permit (S7.8): keep. `commit` may be given handles of those indices, too."""

    def close(self) -> None:
        """Release resources; staged data that was not prepared is dropped."""


class Sink(ABC):
    """A description of output: frozen, cheap to make, no I/O in its constructor.

    What only some sinks can do is a method more, which the runtime finds by its name: `SupportsRewind`,
    `SupportsQuarantine`, `CollectsLeftovers`, `ReportsExistingOutput`.
    """

    former_names: tuple[str, ...] = ()
    """Names that its class had: snapshots taken under these are restored, too (S5.5)."""

    two_phase: bool = True
    """False: rows are visible when they are written, nothing is committed (a discarding or printing sink); then no
    final checkpoint is forced. A promise about the rows, so an attribute and no capability."""

    def check(self, schema: pa.Schema) -> None:
        """Raise PipelineError when records of this schema cannot be written, or the target cannot be used."""

    def check_fresh_start(self, ctx: SinkContext) -> None:
        """Raise PipelineError when a job that starts afresh may not write to what its target holds already. In the
        driver, before the submission's first run waits for slots, and by the command line before it submits; the
        driver's call may leave a record of its own, and comes again until the job runs. Not called for restores, but
        for forks. By default every target is accepted.

        Args:
            ctx: of the run to come, with `subtask` 0 and `parallelism` 1. Output of this job and lineage is its own.
                Without a lineage (the command line) nothing may be changed.
        """

    @abstractmethod
    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """A writer, in the slot."""

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """Where the staged data of one transaction can be read before it is committed (S7.8): paths of whole files that
        common readers take, or a table and a condition. Cheap, from the handle alone; it goes into the metadata of
        every snapshot that holds the handle. By default only that there is something.

        Args:
            ctx: of a writer in this job and lineage, of any subtask.
            checkpoint_id: the transaction was pre-committed for.
        """
        return StagedData(ctx.uid, checkpoint_id)

    def identity(self) -> SinkIdentity:
        """What it writes to: by it a fork is kept from its original's place (S7.4), and lineage names the output. By
        default the place is not known, unless a `describe` of the sink's own names it: `Kind('place', ...)`."""
        if type(self).describe is Sink.describe:
            return SinkIdentity(type(self).__name__)
        return recorded_identity(self.describe())

    def describe(self) -> str:
        """One line for `explain()` and the decision log, without secrets: the identity as text."""
        return str(self.identity())


# Capabilities are found by their methods and not inherited, since graph documents keep the names of base classes.
# A subclass without a capability of its base sets the method to None.


@runtime_checkable
class SupportsRewind(Protocol):
    """A sink that can take back what it published. Without it, a restore with `on_committed_after="rewind"` is
    refused."""

    def rewind_to(
        self,
        ctx: SinkContext,
        checkpoint_id: int,
        pending: Sequence[Committable] = (),
        *,
        before: int = NO_CHECKPOINT,
    ) -> Callable[[], None]:
        """Prepare to take the target back to what this job's lineage had published up to snapshot `checkpoint_id`, for
        a restore with `on_committed_after="rewind"` (S9.3). Changes nothing and raises when it cannot be done; the
        returned function does it, idempotently, and is to be repeated, from this call on, until it has returned. So a
        pipeline's sinks are all asked before the first is changed.

        In the driver, once its fence is in the log and before a slot of the run starts: nobody but zombies of older
        generations writes meanwhile, and what they have staged is removed, too. May block. The lineage's snapshots
        behind `checkpoint_id` must never be restored afterwards: the rows they count as published are gone.

        Args:
            ctx: of the run to come, with `subtask` 0 and `parallelism` 1: it stands for all subtasks there ever were.
            pending: all handles that snapshot `checkpoint_id` holds, of all subtasks: keep their staged data.
            before: leave alone what was published for checkpoints of this id and later: a newer driver claims those,
                beside which this one may still be at it, not knowing that it has been replaced (S9.2).
        """


@runtime_checkable
class SupportsQuarantine(Protocol):
    """A sink that can put away what it staged. Without it, a rejection stops the job or rewinds it."""

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Move staged data to where nobody will ever commit it, `recover` does not remove it, and people can read it
        (S7.8): files into the folder `into`, what cannot be in files to a place of the sink's own; then note in `into`
        where it is. Idempotent: it is repeated until it has returned, and may come again long after; what is not there
        any more was taken by people. On a writer thread of a slot, beside a writer of the same context, or in the
        driver; may block.

        Args:
            ctx: of a subtask, or with `subtask` 0 and `parallelism` 1: it then stands for all subtasks there ever were.
        """


@runtime_checkable
class CollectsLeftovers(Protocol):
    """A sink that lists and deletes data that no snapshot needs. `tidegate gc` skips other sinks."""

    def collect(self, ctx: SinkContext, needed: NeededTransactions, *, dry_run: bool = False) -> LeftoverReport:
        """Remove what one lineage of a job left here and `needed` does not name, such as data that failed runs staged
        before a fresh start, and commit markers, without forgetting what these tell of checkpoints from
        `needed.markers_from` on (S2.3). Blocks; idempotent. May be broken off anywhere, run twice at once, and beside a
        running job, of this lineage too.

        Args:
            ctx: of the lineage, with `subtask` 0 and `parallelism` 1: it stands for all subtasks there ever were.
            dry_run: change nothing, but tell.
        """


@runtime_checkable
class ReportsExistingOutput(Protocol):
    """A sink that lets the user choose what happens to output that is there before the job."""

    def existing_output(self) -> str:
        """What a fresh start does with it, as the rest of a sentence that begins with the sink: "keeps the files that
        are there". For `tidegate start --fresh`."""


@runtime_checkable
class WrittenBySpark(Protocol):
    """A sink whose commit is one write of Spark in the driver, at the end of a job: in batch mode only."""

    def check_target(self) -> None:
        """Raise PipelineError when the write will be refused. In a driver with a Spark session, before the job."""

    def publish(self, rows: Any) -> None:
        """Write all staged rows."""


@runtime_checkable
class ReadBySpark(Protocol):
    """A source whose rows Spark gives, as a bounded DataFrame. It has no splits before a driver has materialised it."""

    def frame(self, session: SparkSession) -> DataFrame:
        """The rows; in the driver."""

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""

    def describe(self) -> str:
        """See `Source.describe`."""
