"""Interfaces of sources and sinks."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from tidegate.connectors.found_schema import FoundSchema
from tidegate.connectors.leftovers import Leftover, LeftoverReport, NeededTransactions
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity, recorded_identity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Boundedness = Literal["bounded", "unbounded"]

NO_CHECKPOINT = sys.maxsize
"""A checkpoint id that no checkpoint ever has."""
UNSET_RETRY_MS = 10
"""Wait until the next poll if a reader without records sets no time, milliseconds: without it the loop would spin."""


@dataclass(frozen=True)
class Split:
    """A part of a source's input, read by one reader at a time.

    Attributes:
        split_id: unique within the source, stable over restores.
        data: JSON-able description (path, row range, ...), without secrets.
        position: JSON-able position after the last emitted record; None: from the start (S4.2).
        finished: whether the split has been read to its end.
        weight: relative size, by which splits are assigned evenly.
    """

    split_id: str
    data: Mapping[str, Any]
    position: Any = None
    finished: bool = False
    weight: int = 1


@dataclass(frozen=True)
class PollResult:
    """Result of one `SourceReader.poll`.

    Attributes:
        batch: records, or None.
        split_id: split that the records come from.
        state: `more` (poll again), `nothing_now` (poll again at `retry_at_ms`; also with a batch after which there is
            nothing), `end` (all splits read; bounded sources only).
        retry_at_ms: with `nothing_now`: processing time in milliseconds at which to poll again; 0: in 10 ms. The loop
            may poll earlier, and polls at the latest after 1 s.
        idle: the reader has no records for an indefinite time; the watermark ignores it meanwhile (S4.4).
        splits_changed: a split ended without a batch of its own; the caller must call `active_splits` again.
        sides: rows of side outputs, by name; allowed with and without a batch. The position includes them.
    """

    batch: pa.RecordBatch | None = None
    split_id: str | None = None
    state: Literal["more", "nothing_now", "end"] = "more"
    retry_at_ms: int = 0
    idle: bool = False
    splits_changed: bool = False
    sides: Mapping[str, pa.RecordBatch] = field(default_factory=dict)

    def poll_again_ms(self, now_ms: int) -> int:
        """Return the processing time at which to poll again after `nothing_now`."""
        return self.retry_at_ms or now_ms + UNSET_RETRY_MS


@dataclass(frozen=True)
class Discovery:
    """Result of one search for splits.

    Attributes:
        splits: splits that no earlier search has returned, in the order in which they are to be read.
        state: JSON-able state after this search: an enumerator that begins with it finds only later splits. Snapshots
            contain it, so its size must not grow with the number of splits.
        complete: no split will follow. Only then can a bounded source reach its end.
        more: the search stopped early, because it had found enough. The next one follows without a pause, as soon as
            readers have taken these splits. A search returns at most some thousand splits, because snapshots contain
            them until readers have them.
        readable_until_ms: time until which an enumerator can continue from `state`, see
            `SourceReader.readable_until_ms`.
    """

    splits: Sequence[Split]
    state: Any
    complete: bool = False
    more: bool = False
    readable_until_ms: int | None = None


class SplitEnumerator(ABC):
    """Searches for splits of a source while its job runs (S4.3). There is one for each source, in the driver.

    The runtime calls it on a thread of its own, so its methods may block. It assigns the splits to readers, and stores
    with each snapshot the splits that no reader has yet.
    """

    @abstractmethod
    def discover(self) -> Discovery:
        """Search once.

        Raises:
            OutageError, StoreError: the system that holds the splits does not answer. The search is repeated after the
                interval. Any other error fails the run.
        """

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        """Process the completion of a checkpoint; see `SourceReader.checkpoint_completed`. An error is only logged.

        Args:
            state: `Discovery.state` in this checkpoint.
        """

    def close(self) -> None:
        """Release resources."""


@dataclass(frozen=True)
class ContinuousDiscovery:
    """How the splits of a source are discovered and assigned while its job runs (S4.3).

    Attributes:
        interval: pause between two searches, > 0.
        open_splits: most unfinished splits that a reader has at a time; None: no limit. With a limit a reader gets the
            next split when it has finished another one, so that no reader waits while another one has many.
        after_finished: search only when readers have read every discovered split to its end. So when `discover` is
            called, all splits of the searches before have been emitted; `Discovery.state` can record that, and is part
            of the next checkpoint. Readers report the end of a split with its last batch or `splits_changed`. If each
            search returns one split, the reader with the lowest index reads all of them, in their order.
        fits_event_time: False: rows of a split that no reader has yet may be older than rows that were emitted. As such
            a split holds no watermark back, a pipeline that uses event time of the source is refused.
    """

    interval: timedelta
    open_splits: int | None = None
    after_finished: bool = False
    fits_event_time: bool = True


class SourceReader(ABC):
    """Reader of splits in one subtask.

    All methods run on the slot's loop. `poll` must not block for more than a few milliseconds beyond the work of making
    one batch (at most about 64k rows).
    """

    @abstractmethod
    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits: fresh ones (`position` None) or restored ones.

        Called once, before the first poll. If the source discovers splits while the job runs, it is called again with
        every assignment, between two polls.
        """

    def no_more_splits(self) -> None:
        """No call of `add_splits` follows. The reader of a bounded source returns `end` only after this call.

        Without splits, and before this call, a reader returns `nothing_now` with `idle`.
        """

    @abstractmethod
    def poll(self, now_ms: int) -> PollResult:
        """Return the next batch. The position advances together with the batch (S4.1).

        The batch is not copied: its buffers must not change afterwards.
        """

    @abstractmethod
    def snapshot(self) -> Sequence[Split]:
        """Return all splits of this reader, also finished ones, with positions after the last batch polled (S4.2).

        If the source discovers splits while the job runs, finished splits may be left out: the state of the enumerator
        contains them.
        """

    def readable_until_ms(self) -> int | None:
        """Return until when a reader can continue from the positions of the last `snapshot`, as far as is known now.

        For input that is deleted some day: a topic with a retention, snapshots of a table that expire. Called directly
        after `snapshot`; must not block. A snapshot records the earliest time of all readers, so that a user knows how
        long it can be restored.

        Returns:
            Milliseconds since the epoch; None: no limit is known.
        """
        return None

    def active_splits(self) -> frozenset[str]:
        """Return the ids of the splits that are not read to their end.

        A split that has not begun holds the watermark back (S4.4). The runtime calls this method whenever the split of
        a polled batch differs from the split of the batch before.
        """
        return frozenset(split.split_id for split in self.snapshot() if not split.finished)

    def checkpoint_completed(self, checkpoint_id: int, splits: Sequence[Split]) -> None:
        """Process the completion of a checkpoint, for acknowledgements in the system that is read.

        Called once for each completed checkpoint, stop-savepoint and final snapshot in which this subtask took part;
        with a commit gate when it is approved. A restart may skip calls. Must not block.

        Args:
            splits: what `snapshot` returned for this checkpoint.
        """

    def progress(self) -> Mapping[str, Any]:
        """Return small JSON-able facts for the status, such as `{"played_all": true}`.

        The status shows a fact that all readers of the source report: the sum of numbers, and whether a boolean is true
        for any reader. A reader without splits therefore reports the same names, with 0 or False. A fact that ends in
        `_bytes` is shown as a size.

        A reader that waits for a system that does not answer adds `OUTAGE`: a mapping of `since` and `until`, the times
        (ISO 8601) at which the wait began and at which the run fails, and `cause`, without secrets.
        """
        return {}

    def counters(self) -> Mapping[str, int]:
        """Return named counts for the status, such as `bad_records`.

        Counts cover all runs, so a reader derives them from positions (S4.2).
        """
        return {}

    def close(self) -> None:
        """Release resources."""


@dataclass(frozen=True)
class SourceContext:
    """Place of a reader in the job.

    Attributes:
        subtask, parallelism: index of the reader, and the number of readers of the source.
        wake: wakes the slot's loop from any thread; never blocks. The loop then polls a reader that had no records
            before its `retry_at_ms`. Call it after the records can be polled.
        job_id, lineage: of the job, for resources that it owns in the system that is read; empty in batch mode. Retries
            of a fresh start have its lineage, a fork has another one (S7.4).
        generation, run_id: as in `SinkContext`, to fence readers of earlier runs (S9.2).
    """

    uid: str
    subtask: int
    parallelism: int
    wake: Callable[[], None] = lambda: None
    job_id: str = ""
    lineage: str = ""
    generation: int = 0
    run_id: str = ""


class Source(ABC):
    """Description of an input: frozen, cheap to make, no I/O in its constructor.

    Optional capabilities are additional methods, which the runtime finds by name: `ReadBySpark`, `ReleasesInput`.
    """

    former_names: tuple[str, ...] = ()
    """Former names of the class: snapshots stored under these names are restored, too (S5.5)."""

    @property
    @abstractmethod
    def boundedness(self) -> Boundedness:
        """`bounded` if the source reaches the end of input by itself (`bounded`)."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the schema of the records. May read a file's header; raises PipelineError with the path when it is
        missing.
        """

    def found_schema(self) -> FoundSchema | None:
        """Return the schema that `schema` found in today's input; None: nothing was found, or the user declared the
        schema.

        It is recorded with the job's graph and in its snapshots (S5.5). Called after `schema`.
        """
        return None

    def with_found_schema(self, found: FoundSchema) -> Source:
        """Return the same source with the schema that its job found before, whatever the input holds today.

        A source that finds no schema, or whose schema is declared, returns itself.
        """
        return self

    def reading_only(self, columns: Sequence[str]) -> Source:
        """Return the same source, of which the job uses only `columns`, some names of its schema in their order.

        Its readers may then leave out other columns, where this changes nothing else: not the splits, the positions
        (S4.2), the rows, nor which records are refused. The runtime drops what they emit beyond. The plan calls this;
        `schema` and `discover` are called on the whole source. The default returns the source itself.
        """
        return self

    def side_outputs(self) -> Mapping[str, pa.Schema]:
        """Return name -> schema of the side outputs that `PollResult.sides` may hold."""
        return {}

    def required_side_outputs(self) -> Mapping[str, str]:
        """Return the side outputs that need a reader -> why. Without a reader of each, the pipeline is not built."""
        return {}

    @abstractmethod
    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return all splits in deterministic order. Called in the driver, once per fresh start (S4.3).

        Not called in a streaming job if `continuous_discovery` returns settings.
        """

    def check_fresh_start(self) -> None:
        """Check that the input of a job that starts fresh can be read. The default accepts every input.

        Changes nothing. Called before `discover` by the command line before it submits, and in the driver until the
        submission's first run has begun. There an outage does not fail the job: it is logged, and the splits are
        discovered again. May log a warning about input that may still appear.

        Raises:
            PipelineError: there is no such input.
            OSError, StoreError, OutageError: the system that holds the input does not answer.
        """

    def continuous_discovery(self) -> ContinuousDiscovery | None:
        """Return how splits are discovered while the job runs; None: `discover` returns all of them (S4.3)."""
        return None

    def create_enumerator(self, state: Any) -> SplitEnumerator:
        """Return an enumerator. Called in the driver, for each run of a source with `continuous_discovery`.

        Args:
            state: `Discovery.state` of the restored snapshot; None: a fresh start.
        """
        raise NotImplementedError(f"{type(self).__name__} has continuous_discovery, but no create_enumerator")

    @abstractmethod
    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader. Called in the slot."""

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]] | None:
        """Check which splits of a snapshot cannot be read on from their positions.

        For a preflight, not in a slot; may do I/O. Finished splits are not checked.

        Returns:
            (split id, reason) of each such split; None: the source cannot know before it reads them.

        Raises:
            OSError, StoreError, OutageError: the system that holds the splits does not answer.
        """
        return None

    def unavailable_state(self, state: Any) -> str | None:
        """Check whether an enumerator can continue from its state in a snapshot (S4.3).

        The counterpart of `unavailable_splits` for input that was not discovered yet: versions of a table, or topics.
        For a preflight, not in a slot; may do I/O. Not called if the enumerator had not searched yet, or was complete.

        Args:
            state: `Discovery.state` in the snapshot.

        Returns:
            Why splits that follow the state cannot be found any more, as one sentence; None: they can be found, or the
            source cannot know before it searches.

        Raises:
            OSError, StoreError, OutageError: the system that holds the splits does not answer.
        """
        return None

    def describe(self) -> str:
        """Describe the source in one line for `explain()`, without secrets.

        `tidegate gc --sources` takes sources with the same text and uid for one source.
        """
        return type(self).__name__


class SinkWriter(ABC):
    """Two-phase-commit writer of one subtask (S7.4).

    `write` and `prepare_commit` run on the loop. The function that `prepare_commit` returns, `commit` and `abort` run
    on a writer thread and may block.
    """

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Write the batch to a place that readers do not see."""

    def end_input(self) -> None:
        """Prepare for the end: no write follows in this run.

        The writer may begin, on threads of its own, the work that the function of `prepare_commit` would do first; the
        last snapshot comes some milliseconds later. Called on the loop; does not block. Not called when a run ends
        before its input ends (S7.2).
        """

    @abstractmethod
    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction; later writes belong to the next one.

        The returned function is called once. It makes the staged data durable and returns its handles; no handles when
        nothing was written.
        """

    @abstractmethod
    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish staged data, idempotently.

        When neither a commit marker nor staged data exists, raise TidegateError: a lost transaction never counts as
        committed. Do the same for transactions of another job, lineage or sink (`transactions.check_writer`), as in
        `abort`.

        Called only while the caller holds a `CommitPermit` that covers the transactions. After a restore, all subtasks
        commit the permitted transactions before the first subtask runs, so before anything of a newer checkpoint is
        committed. Transactions that wait for a verdict are the exception (S7.8): an approval covers them and newer
        ones, and subtasks commit side by side.
        """

    @abstractmethod
    def abort(self, committables: Sequence[Committable]) -> None:
        """Remove staged data. Idempotent.

        For callers that give up transactions whose handles they hold; no run does so. Data that an aborted checkpoint
        pre-committed stays pending and is part of the next checkpoint. `recover` of the next start removes the data
        that a failed run, a rejected or abandoned timeline, or a zombie left staged; it needs no handles (S7.4).
        """

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        """Remove staged data that failed runs left.

        Called once at the start of a run, on a writer thread, possibly in parallel with new writes of this run. At a
        restore, it is called after the transactions of the restored snapshot `checkpoint_id` are committed (0: fresh
        start).

        It removes data of the same job, lineage and uid: of its own subtask index and, if failed runs had a higher
        parallelism, of the indices congruent to it (`transactions.is_leftover` decides). `commit` may be called with
        handles of those indices, too.

        Args:
            pending: restored handles that still await a permit (S7.8): keep their staged data.
        """

    def close(self) -> None:
        """Release resources and drop staged data that was not prepared."""


class Sink(ABC):
    """Description of an output: frozen, cheap to make, no I/O in its constructor.

    Optional capabilities are additional methods, which the runtime finds by name: `SupportsRewind`,
    `SupportsQuarantine`, `CollectsLeftovers`, `ReportsExistingOutput`.
    """

    former_names: tuple[str, ...] = ()
    """Former names of the class: snapshots stored under these names are restored, too (S5.5)."""

    two_phase: bool = True
    """True if the sink publishes its rows with a commit.

    False: rows are visible as soon as they are written (a discarding or printing sink), and no final checkpoint is
    forced. It states a guarantee for the rows, so it is an attribute and no capability.
    """

    def check(self, schema: pa.Schema) -> None:
        """Check that records of this schema can be written and that the target can be used. Raises PipelineError."""

    def check_fresh_start(self, ctx: SinkContext) -> None:
        """Check that a job that starts fresh may write to the target as it is. Raises PipelineError.

        Called in the driver before the submission's first run waits for slots, and by the command line before it
        submits. The driver's call may write a record of its own, and is repeated until the job runs. Not called for
        restores; called for forks. The default accepts every target.

        Args:
            ctx: context of the next run, with `subtask` 0 and `parallelism` 1. Output of this job and lineage is its
                own. Without a lineage (the command line), nothing may be changed.
        """

    @abstractmethod
    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer. Called in the slot."""

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """Describe where the staged data of one transaction can be read before it is committed (S7.8).

        The answer is paths of whole files that common readers accept, or a table and a condition. It is cheap and uses
        the handle alone, because it becomes part of the metadata of every snapshot that holds the handle. The default
        only states that staged data exists.

        Args:
            ctx: context of a writer in this job and lineage, of any subtask.
            checkpoint_id: checkpoint for which the transaction was pre-committed.
        """
        return StagedData(ctx.uid, checkpoint_id)

    def identity(self) -> SinkIdentity:
        """Return the identity of the target.

        By it, a fork is refused where its original writes (S7.4), and lineage names the output. By default the place is
        unknown, unless the sink overrides `describe` with text of the form `Kind('place', ...)`.
        """
        if type(self).describe is Sink.describe:
            return SinkIdentity(type(self).__name__)
        return recorded_identity(self.describe())

    def describe(self) -> str:
        """Describe the sink in one line for `explain()` and the decision log, without secrets: its identity as text."""
        return str(self.identity())


# Capabilities are found by their methods and not inherited, since graph documents keep the names of base classes.
# A subclass without a capability of its base sets the method to None.


@runtime_checkable
class SupportsRewind(Protocol):
    """A sink that can remove published output. Without it, a restore with `on_committed_after="rewind"` is refused."""

    def rewind_to(
        self,
        ctx: SinkContext,
        checkpoint_id: int,
        pending: Sequence[Committable] = (),
        *,
        before: int = NO_CHECKPOINT,
    ) -> Callable[[], None]:
        """Prepare to restore the target to what this job's lineage had published up to snapshot `checkpoint_id`.

        For a restore with `on_committed_after="rewind"` (S9.3). This call changes nothing, and raises when the rewind
        is impossible. The returned function does the rewind, idempotently. If it fails, the caller repeats both,
        beginning with this call. So all sinks of a pipeline are checked before the first one is changed.

        Runs in the driver, after its fence is in the log and before a slot of the run starts: only zombies of older
        generations may write meanwhile, and the rewind removes their staged data, too. May block. The lineage's
        snapshots after `checkpoint_id` must never be restored afterwards: the rows they count as published no longer
        exist.

        Args:
            ctx: context of the next run, with `subtask` 0 and `parallelism` 1: it stands for all subtasks that ever
                existed.
            pending: all handles in snapshot `checkpoint_id`, of all subtasks: keep their staged data.
            before: keep what was published for checkpoints of this id and later. They belong to a newer driver, which
                may already run while this driver does not know that it has been replaced (S9.2).
        """


@runtime_checkable
class SupportsQuarantine(Protocol):
    """A sink that can move staged data to quarantine. Without it, a rejection stops the job or rewinds it."""

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Move staged data to a place where users can read it, and where neither a commit nor `recover` touches it
        (S7.8).

        Files go into the folder `into`, data that cannot be files to a place of the sink's own. Afterwards, a note in
        `into` records the place. Idempotent: the caller repeats it until it has returned, and may repeat it long after.
        Missing data was removed by a user. Runs on a writer thread of a slot, in parallel with a writer of the same
        context, or in the driver; may block.

        Args:
            ctx: context of a subtask; or with `subtask` 0 and `parallelism` 1, which stands for all subtasks that ever
                existed.
        """


@runtime_checkable
class CollectsLeftovers(Protocol):
    """A sink that lists and deletes data that no snapshot needs. `tidegate gc` skips other sinks."""

    def collect(self, ctx: SinkContext, needed: NeededTransactions, *, dry_run: bool = False) -> LeftoverReport:
        """Delete leftovers of one lineage of a job that `needed` does not name.

        Leftovers are data that failed runs staged before a fresh start, and commit markers. Information about
        checkpoints from `needed.markers_from` on is kept (S2.3). Blocks; idempotent. It may be interrupted anywhere,
        run twice at once, and run in parallel with a running job, also of this lineage.

        Args:
            ctx: context of the lineage, with `subtask` 0 and `parallelism` 1: it stands for all subtasks that ever
                existed.
            dry_run: change nothing, only report.
        """


@runtime_checkable
class ReleasesInput(Protocol):
    """A source whose jobs own something in the system that is read, such as a replication slot. `tidegate gc --sources`
    skips other sources."""

    def release(self, ctx: SourceContext, *, dry_run: bool = False) -> Sequence[Leftover]:
        """Delete what one lineage of a job owns.

        Called when no run is active in the lineage, and none of its snapshots exists, or the user gives them up. So
        nothing needs it; `unavailable_splits` must refuse a restore afterwards. A zombie may still use it: then leave
        it. Blocks; idempotent. It may be interrupted anywhere, and run twice at once.

        Args:
            ctx: context of the lineage, with `subtask` 0 and `parallelism` 1.
            dry_run: change nothing, only report. Also called for lineages with snapshots, to report what they keep.
        """


@runtime_checkable
class ReportsExistingOutput(Protocol):
    """A sink that lets the user choose what happens to output that existed before the job."""

    def existing_output(self) -> str:
        """Describe what a fresh start does with existing output, as the rest of a sentence that begins with the sink.

        For example "keeps the files that are there". For `tidegate start --fresh`.
        """


@runtime_checkable
class WrittenBySpark(Protocol):
    """A sink whose commit is one Spark write in the driver, at the end of a job. In batch mode only."""

    def check_target(self) -> None:
        """Raise PipelineError if the write will be refused. Called in a driver with a Spark session, before the job."""

    def publish(self, rows: Any) -> None:
        """Write all staged rows."""


@runtime_checkable
class ReadBySpark(Protocol):
    """A source whose rows are a bounded Spark DataFrame. It has no splits until a driver has materialised it."""

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows as a DataFrame. Called in the driver."""

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""

    def describe(self) -> str:
        """See `Source.describe`."""
