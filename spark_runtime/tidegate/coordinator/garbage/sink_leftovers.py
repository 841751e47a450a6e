"""What may still be asked of a job's sinks, lineage by lineage, and removing the rest: `tidegate gc --sinks` (S2.3,
S7.4, ADR 0022).

Works with no job running, and beside a running one, without a fence. Why that is safe:

- Staged data goes only of lineages that no run is in: those of older submissions, behind a fresh start or a restore of
  another job's snapshot, and of a job that has ended the last one. And only what no snapshot of the lineage holds that
  may be there: such a snapshot may be restored, and then commits it. In the others a run owns it, or its start removes
  it.
- A savepoint that is not in its place counts as moved, since people may move savepoints and restore them from there: of
  what it may hold nothing goes. A snapshot that cannot be read keeps everything of its lineage, too.
- Of commit markers nothing is forgotten that a snapshot which may be there can ask for: its own transactions, and what
  a rewind to it would have to take back; these are packed.
- The log is read again behind the snapshots: what a run that begins meanwhile has taken over is not in those that it
  left there (`stable_referenced_transactions`). What begins still later finds all that these hold.
- Only what is older than a grace goes. It covers what the log cannot tell: zombies, and what is on its way.
- Quarantine is not touched: its data has left the sink's staging, and what has not is held by a snapshot that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tidegate.channel.elements import SAVEPOINT_KINDS
from tidegate.connectors.interface import CollectsLeftovers, Sink
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
"""Of a lineage's snapshots, until none is completed meanwhile."""


@dataclass(frozen=True)
class SinkLineage:
    """One of a job's lineages.

    Attributes:
        goes_on: a run may be in it, which owns what is staged, or removed what it does not when it started.
        snapshots: that were completed in it and may be restored, if they are there.
    """

    name: str
    goes_on: bool
    snapshots: tuple[CheckpointView, ...]


@dataclass(frozen=True)
class ReferencedTransactions:
    """What snapshots of a lineage may ask of its sinks.

    Attributes:
        handles: sink uid -> uncommitted transactions that they hold.
        oldest: the oldest checkpoint of which they may ask anything.
        kept: why nothing of the lineage is forgotten or removed; "": all of them could be read.
    """

    handles: Mapping[str, Sequence[Committable]]
    oldest: int = ALL_CHECKPOINTS
    kept: str = ""

    def of(self, uid: str, lineage: SinkLineage, before: datetime) -> NeededTransactions:
        """Of one sink."""
        if self.kept:
            return NeededTransactions(None, 0, before)
        return NeededTransactions(None if lineage.goes_on else self.handles.get(uid, ()), self.oldest, before)


@dataclass(frozen=True)
class SinkLeftovers:
    """What a collection did in a job's sinks, or would do.

    Attributes:
        found: by the description of the sink.
        too_young: files that nobody needs and that are not older than the grace.
        kept: for people: what was left alone because it cannot be known.
    """

    found: tuple[tuple[str, Leftover], ...] = ()
    too_young: int = 0
    kept: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """That are free now."""
        return sum(one.size_bytes for _, one in self.found)


def lineages_of(decisions: Sequence[Decision], specs: Sequence[Spec]) -> tuple[SinkLineage, ...]:
    """A job's lineages, oldest first; none when no driver has run. Pure."""
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
    """Reads what the snapshots hold. Blocks.

    Args:
        owned: savepoints that the job owns and deletes itself (`claimed_savepoints`).
        deleted: folders of checkpoints that this collection deletes.
    """
    options = {spec.number: spec.storage_options for spec in specs}
    handles: dict[str, list[Committable]] = {}
    oldest = ALL_CHECKPOINTS
    for view in lineage.snapshots:
        if view.path in deleted:
            continue
        name = f"{view.kind} {view.checkpoint_id}"
        try:
            holder, folder = open_snapshot_folder(store, options.get(view.spec, {}), view.path)
            if not holder.exists(JobLayout.metadata(folder)):
                if view.kind not in SAVEPOINT_KINDS or view.path in owned:
                    continue  # deleted by a driver; of what it deletes itself there is no copy
                return ReferencedTransactions({}, kept=f"{name} is not in its place, and a copy may be restored")
            held = sink_handles(view.path, read_metadata(holder, folder), SnapshotStreams(holder, folder))
        except (SnapshotError, StoreError) as error:
            return ReferencedTransactions({}, kept=f"{name} cannot be read: {error}")
        for uid, of_sink in held.items():
            handles.setdefault(uid, []).extend(of_sink)
        barriers = (parse_transaction_id(h.transaction_id).checkpoint_id for of in held.values() for h in of)
        oldest = min(oldest, view.checkpoint_id + 1, *barriers)
    return ReferencedTransactions(handles, oldest)


def stable_referenced_transactions(
    lineage: SinkLineage, now: Callable[[], Sequence[SinkLineage]], ask: Callable[[SinkLineage], ReferencedTransactions]
) -> ReferencedTransactions:
    """What the snapshots of a lineage hold, all of which are there at one time. A run deletes snapshots when newer ones
    hold the same; so none may be completed while they are read, nor a run begin in a lineage where none was. Blocks.

    Args:
        lineage: as it was when the collection began.
        now: reads the log, for all lineages as they are by now.
        ask: `referenced_transactions`.
    """

    def as_it_is() -> SinkLineage:
        return next(one for one in now() if one.name == lineage.name)

    current = as_it_is()
    for _ in range(MAX_READ_ATTEMPTS):
        if current.goes_on and not lineage.goes_on:
            return ReferencedTransactions({}, kept="a run has begun in it meanwhile; call again later")
        answer = ask(current)
        before, current = current, as_it_is()
        if answer.kept or (_ids(current), current.goes_on) == (_ids(before), before.goes_on):
            return answer
    return ReferencedTransactions(
        {}, kept=f"snapshots were completed {MAX_READ_ATTEMPTS} times while they were read; call again later"
    )


def _ids(lineage: SinkLineage) -> frozenset[int]:
    return frozenset(view.checkpoint_id for view in lineage.snapshots)


def collect_leftovers(
    sinks: Sequence[tuple[Sink, SinkContext]],
    lineages: Sequence[SinkLineage],
    asked: Callable[[SinkLineage], ReferencedTransactions],
    before: datetime,
    *,
    dry_run: bool = False,
) -> SinkLeftovers:
    """Go through every sink in every lineage. Blocks; may be repeated, and broken off anywhere.

    Args:
        sinks: each with the context of a writer; its lineage is replaced.
        before: only what was last written before this time goes; to be taken before the log is read.

    Raises:
        TidegateError: what sinks and their clients raise passes as it is; some of it may be gone.
    """
    found: list[tuple[str, Leftover]] = []
    kept: list[str] = []
    too_young = 0
    able = [(sink, ctx) for sink, ctx in sinks if isinstance(sink, CollectsLeftovers)]
    for lineage in lineages if able else ():
        answer = asked(lineage)
        if answer.kept:
            kept.append(f"lineage {lineage.name}: {answer.kept}")
        for sink, ctx in able:
            made: LeftoverReport = sink.collect(
                replace(ctx, lineage=lineage.name), answer.of(ctx.uid, lineage, before), dry_run=dry_run
            )
            found += [(sink.describe(), one) for one in made.found]
            too_young += made.too_young
    return SinkLeftovers(tuple(found), too_young, tuple(kept))
