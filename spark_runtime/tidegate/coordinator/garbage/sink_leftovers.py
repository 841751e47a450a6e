"""Remove data from a job's sinks that no snapshot can refer to, per lineage: `tidegate gc --sinks` (S2.3, S7.4, ADR
0018). In the same way, `tidegate gc --sources` releases what the job's sources own.

Works with no job running, and next to a running job, without a fence. Why this is safe:

- Staged data is removed only from lineages in which no run is active: the lineages of submissions before a fresh start,
or before a restore of another job's snapshot; and, if the job has ended, the last one. Staged data that an existing
snapshot of the lineage holds is kept, because a restore of the snapshot commits it. In the other lineages a run owns
the staged data, or deletes it at its start.
- A savepoint that is not in its location counts as moved, because users may move savepoints and restore the copy. Data
that it may hold is kept. If a snapshot cannot be read, everything of its lineage is kept, too.
- Commit markers are kept if an existing snapshot can need them: for its own transactions, and for transactions that a
rewind to it would delete. These markers are packed.
- The log is read again after the snapshots, so that a run that begins in the meantime is noticed
(`stable_referenced_transactions`). A run that begins later finds everything that the snapshots hold.
- Only data older than a grace period is removed. It covers what the log cannot show: zombies, and data in transit.
- What a source owns, such as a replication slot, is released if the lineage has no run and no existing snapshot, or if
the user gives its snapshots up. It has no age: a zombie that uses it keeps it.
- Quarantine is not touched. Its data has left the sink's staging area. Rejected data that is still staged is held by a
snapshot that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tidegate.channel.elements import SAVEPOINT_KINDS
from tidegate.connectors.interface import CollectsLeftovers, ReleasesInput, Sink, Source, SourceContext
from tidegate.connectors.leftovers import ALL_CHECKPOINTS, Leftover, LeftoverReport, NeededTransactions
from tidegate.connectors.transactions import Committable, SinkContext, parse_transaction_id
from tidegate.coordinator.garbage.garbage_collection import has_ended
from tidegate.coordinator.recovery.sink_rewind import sink_handles
from tidegate.errors import SnapshotError, StoreError
from tidegate.jobs.history.checkpoints import CheckpointView, checkpoint_views
from tidegate.jobs.history.rewinds import rewound_checkpoints
from tidegate.jobs.history.submissions import entries_by_submission, may_have_run, next_submission_that_ran
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision, Spec
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder
from tidegate.jobs.stores.store import Store
from tidegate.snapshot.handles import SnapshotStreams
from tidegate.snapshot.metadata import read_metadata

MAX_READ_ATTEMPTS = 10
"""Attempts to read the snapshots of a lineage without a new one completing at the same time."""


@dataclass(frozen=True)
class SinkLineage:
    """One of a job's lineages.

    Attributes:
        goes_on: a run may be active in it. The run owns staged data, or deleted unneeded staged data when it started.
        snapshots: completed snapshots of the lineage that may be restored, if they still exist.
    """

    name: str
    goes_on: bool
    snapshots: tuple[CheckpointView, ...]


@dataclass(frozen=True)
class ReferencedTransactions:
    """Transactions that snapshots of a lineage may request from its sinks.

    Attributes:
        handles: sink uid -> uncommitted transactions in the snapshots.
        oldest: the oldest checkpoint whose transactions they may request.
        kept: why everything of the lineage is kept; "": all snapshots could be read.
        snapshots: snapshots that exist, or may have been moved, for messages.
        is_active: a run has begun in the lineage, or new snapshots complete.
    """

    handles: Mapping[str, Sequence[Committable]]
    oldest: int = ALL_CHECKPOINTS
    kept: str = ""
    snapshots: tuple[str, ...] = ()
    is_active: bool = False

    @property
    def nothing_exists(self) -> bool:
        """Return whether no snapshot of the lineage exists."""
        return not self.kept and self.oldest == ALL_CHECKPOINTS

    def of(self, uid: str, lineage: SinkLineage, before: datetime) -> NeededTransactions:
        """Return the needed transactions of one sink."""
        if self.kept:
            return NeededTransactions(None, 0, before)
        return NeededTransactions(None if lineage.goes_on else self.handles.get(uid, ()), self.oldest, before)


@dataclass(frozen=True)
class SinkLeftovers:
    """Result of a collection in a job's sinks and sources, or of a dry run.

    Attributes:
        found: removed items, each with the description of its sink or source.
        too_young: number of files that are not needed, and not older than the grace period.
        kept: what was kept because its use is unknown, or a snapshot needs it, and why; for display.
        abandoned: snapshots that cannot be restored any more, because of what was released; for display.
    """

    found: tuple[tuple[str, Leftover], ...] = ()
    too_young: int = 0
    kept: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes that the collection freed."""
        return sum(one.size_bytes for _, one in self.found)


def lineages_of(decisions: Sequence[Decision], specs: Sequence[Spec]) -> tuple[SinkLineage, ...]:
    """Return a job's lineages, oldest first; none if no driver has run. Pure."""
    fence = next((d for d in reversed(decisions) if d.kind == "fence"), None)
    if fence is None:
        return ()
    entries = entries_by_submission(decisions)
    newest = min(fence.data["spec"], next_submission_that_ran(len(specs) + 1, may_have_run(entries)))
    is_over = has_ended(decisions) and specs[-1].number == fence.data["spec"]
    going_on = {spec.lineage for spec in specs if spec.number >= newest and not is_over}
    gone = rewound_checkpoints(specs, entries)
    by_spec = {spec.number: spec.lineage for spec in specs}
    views = [view for view in checkpoint_views(entries, ended=False) if view.status == "completed"]
    there = [view for view in views if view.checkpoint_id not in gone]
    return tuple(
        SinkLineage(name, name in going_on, tuple(view for view in there if by_spec.get(view.spec) == name))
        for name in dict.fromkeys(spec.lineage for spec in specs)
    )


def referenced_transactions(
    lineage: SinkLineage, store: Store, specs: Sequence[Spec], owned: Collection[str], deleted: Collection[str]
) -> ReferencedTransactions:
    """Read the transactions that the snapshots hold. Blocks.

    Args:
        owned: savepoints that nobody may have moved: the job owns and deletes them (`claimed_savepoints`), or their
            user has deleted them (`deleted_savepoints`).
        deleted: folders of checkpoints that this collection deletes.
    """
    options = {spec.number: spec.storage_options for spec in specs}
    handles: dict[str, list[Committable]] = {}
    oldest, kept = ALL_CHECKPOINTS, ""
    names: list[str] = []
    for view in lineage.snapshots:
        if view.path in deleted:
            continue
        name = f"{view.kind} {view.checkpoint_id}"
        try:
            holder, folder = open_snapshot_folder(store, options.get(view.spec, {}), view.path)
            if not holder.exists(JobLayout.metadata(folder)):
                if view.kind not in SAVEPOINT_KINDS or view.path in owned:
                    continue  # the job owned it, or its user deleted it, so that there is no copy
                names.append(f"{name} ({view.path}, moved or deleted)")
                kept = kept or f"{name} was moved or deleted, and a moved copy may still need the data"
                continue
            held = sink_handles(view.path, read_metadata(holder, folder), SnapshotStreams(holder, folder))
            names.append(f"{name} ({view.path})")
        except (SnapshotError, StoreError) as error:
            names.append(f"{name} ({view.path}, not readable)")
            kept = kept or f"{name} cannot be read: {error}"
            continue
        for uid, of_sink in held.items():
            handles.setdefault(uid, []).extend(of_sink)
        barriers = (parse_transaction_id(h.transaction_id).checkpoint_id for of in held.values() for h in of)
        # + 1 because a rewind to this snapshot deletes only the transactions after it.
        oldest = min(oldest, view.checkpoint_id + 1, *barriers)
    if kept:
        return ReferencedTransactions({}, kept=kept, snapshots=tuple(names))
    return ReferencedTransactions(handles, oldest, snapshots=tuple(names))


def stable_referenced_transactions(
    lineage: SinkLineage, now: Callable[[], Sequence[SinkLineage]], ask: Callable[[SinkLineage], ReferencedTransactions]
) -> ReferencedTransactions:
    """Return the transactions in the snapshots of a lineage, all of which exist at the same time. Blocks.

    A run deletes snapshots when newer ones hold the same transactions. So no snapshot may complete while they are read,
    and no run may begin in a lineage without one.

    Args:
        lineage: its state when the collection began.
        now: reads the log again and returns the current lineages.
        ask: `referenced_transactions`.
    """

    def as_it_is() -> SinkLineage:
        return next(one for one in now() if one.name == lineage.name)

    current = as_it_is()
    for _ in range(MAX_READ_ATTEMPTS):
        if current.goes_on and not lineage.goes_on:
            return ReferencedTransactions(
                {},
                kept="a run of this lineage has begun during the collection. Repeat the command later",
                is_active=True,
            )
        answer = ask(current)
        before, current = current, as_it_is()
        if answer.kept or (_ids(current), current.goes_on) == (_ids(before), before.goes_on):
            return answer
    return ReferencedTransactions(
        {},
        kept=f"new snapshots completed during each of {MAX_READ_ATTEMPTS} attempts to read all of them. Repeat the "
        "command later",
        is_active=True,
    )


def _ids(lineage: SinkLineage) -> frozenset[int]:
    return frozenset(view.checkpoint_id for view in lineage.snapshots)


def collect_leftovers(
    sinks: Sequence[tuple[Sink, SinkContext]],
    lineages: Sequence[SinkLineage],
    asked: Callable[[SinkLineage], ReferencedTransactions],
    before: datetime,
    *,
    sources: Sequence[tuple[Source, SourceContext]] = (),
    dry_run: bool = False,
    even_with_snapshots: bool = False,
) -> SinkLeftovers:
    """Collect leftovers of every sink in every lineage. Blocks; may be repeated, and interrupted at any point.

    Args:
        sinks: each sink with the context of a writer, whose lineage is replaced.
        sources: likewise; what they own in lineages that are over is released.
        before: only data last written before this time is removed. Take this time before reading the log.
        even_with_snapshots: also release what existing snapshots of these lineages need, so that they cannot be
            restored any more.

    Raises:
        TidegateError: errors of sinks and their clients pass through; some data may already be removed.
    """
    found: list[tuple[str, Leftover]] = []
    kept: list[str] = []
    abandoned: list[str] = []
    too_young = 0
    able = [(sink, ctx) for sink, ctx in sinks if isinstance(sink, CollectsLeftovers)]
    owning = [(source, ctx) for source, ctx in sources if isinstance(source, ReleasesInput)]
    for lineage in lineages if able or owning else ():
        answer = asked(lineage)
        if answer.kept and able:
            kept.append(f"lineage {lineage.name}: {answer.kept}")
        for sink, ctx in able:
            made: LeftoverReport = sink.collect(
                replace(ctx, lineage=lineage.name), answer.of(ctx.uid, lineage, before), dry_run=dry_run
            )
            found += [(sink.describe(), one) for one in made.found]
            too_young += made.too_young
        if not lineage.goes_on and not answer.is_active:
            may = answer.nothing_exists or even_with_snapshots
            for source, place in owning:
                owned = source.release(replace(place, lineage=lineage.name), dry_run=dry_run or not may)
                if may:
                    found += [(source.describe(), one) for one in owned]
                    abandoned += answer.snapshots if owned else ()
                elif owned:
                    kept.append(_needed(place.uid, owned, answer.snapshots))
    return SinkLeftovers(tuple(found), too_young, tuple(kept), tuple(dict.fromkeys(abandoned)))


def _needed(uid: str, owned: Sequence[Leftover], snapshots: Sequence[str]) -> str:
    return (
        f"{', '.join(one.path for one in owned)} of source {uid!r}, which a restore of {', '.join(snapshots)} needs. "
        "Delete snapshots that you will not restore; or run `tidegate gc JOB --sources --even-with-snapshots`, after "
        "which they cannot be restored"
    )
