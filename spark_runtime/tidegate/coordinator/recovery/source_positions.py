"""The positions of sources in a snapshot, and whether a source can continue from them (S4.3, S5.5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tidegate.connectors.interface import Source
from tidegate.connectors.split_documents import split_documents, split_from_json
from tidegate.coordinator.recovery.restore import RestoreState
from tidegate.errors import OutageError, SnapshotError, StoreError, TidegateError
from tidegate.jobs.restore.compatibility import RestoreFinding
from tidegate.plan.job_graph import JobGraph
from tidegate.snapshot.handles import SnapshotStreams

MAX_SPLITS_NAMED = 5
"""Most splits of one source that a finding names."""


def positions_of(
    restore: RestoreState, factory: SnapshotStreams, sources: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return all splits with their positions, in the order of discovery.

    Readers that had ended have no positions: their splits have been read.
    """
    out: dict[str, list[dict[str, Any]]] = {}
    for operator in restore.operators:
        if operator.uid not in sources or operator.uid not in restore.metadata.splits:
            continue
        order = {s["split_id"]: place for place, s in enumerate(restore.metadata.splits[operator.uid])}
        found: list[dict[str, Any]] = []
        for state in operator.subtasks:
            if state.handle is not None:
                where = f"snapshot {restore.location}, source {operator.uid!r}, subtask {state.index}"
                found += split_documents(factory.parts(state.handle, where=where))
        out[operator.uid] = sorted(found, key=lambda s: order.get(s["split_id"], len(order)))
    return out


def check_discovery(graph: JobGraph, restore: RestoreState) -> None:
    """Check that each source discovers its splits as it did when the snapshot was taken (S4.3).

    Raises:
        SnapshotError: a source has begun or ceased to discover splits while the job runs. It would read its input
            again, or leave a part of it out.
    """
    for node in graph.nodes:
        known = restore.metadata.operator(node.uid)
        if (
            node.source is None
            or node.uid not in restore.metadata.splits
            or known is None
            or known.status == "finished"
        ):
            continue
        discovers = node.source.continuous_discovery() is not None
        if discovers != (node.uid in restore.metadata.enumerators):
            now, before = (
                ("discovers", "were discovered once") if discovers else ("does not discover", "were discovered")
            )
            raise SnapshotError(
                f"source {node.uid!r} {now} splits while the job runs, but its splits in the snapshot {before}"
                + ("" if discovers else " while the job ran"),
                where=f"snapshot {restore.location}, source at {node.location}",
                cause="it would read records twice, or leave records out",
                remedy="Discover splits as before, or give the source a new uid: then it starts afresh",
            )


def judge_source(
    uid: str, source: Source, splits: Sequence[Mapping[str, Any]], enumerator: Mapping[str, Any] | None = None
) -> RestoreFinding | None:
    """Return whether a source can continue from a snapshot; None: nothing is left to read. Blocks.

    Args:
        splits: splits of the readers, as JSON.
        enumerator: part of its enumerator in the metadata (`EnumerationState`), with the splits that no reader has;
            None: it has none.

    Raises:
        OSError, StoreError, OutageError: the source's input is not reachable. This is no finding about the positions.
    """
    part = enumerator or {}
    left = [split_from_json(split) for split in (*splits, *part.get("waiting", ())) if not split["finished"]]
    # An enumerator that has not searched yet starts afresh; a complete one searches no more.
    state = None if part.get("complete") else part.get("state")
    try:
        lost = None if state is None else source.unavailable_state(state)
        gone = source.unavailable_splits(left) if left and lost is None else []
    except (StoreError, OutageError):
        raise
    except TidegateError as error:
        return RestoreFinding("source", "refused", str(error), uid=uid)
    except (LookupError, TypeError, AttributeError) as error:
        what = f"source {uid!r}, a {type(source).__name__}, cannot read its positions in the snapshot"
        cause = f"another source class or version wrote the positions: {type(error).__name__}: {error}"
        remedy = "Restore with the source class that wrote the positions, or give the source a new uid"
        return RestoreFinding("source", "refused", what, cause, remedy, uid)
    if lost is not None:
        what = f"source {uid!r} cannot continue: it cannot find the input after the snapshot any more"
        remedy = "Restore a newer snapshot, or start the job without a snapshot"
        return RestoreFinding("source", "refused", what, lost, remedy, uid)
    if not left:
        return None
    if gone is None:
        return RestoreFinding(
            "source",
            "unknown",
            f"source {uid!r} cannot check before the run whether its positions still exist",
            uid=uid,
        )
    if not gone:
        return RestoreFinding("source", "fits", f"source {uid!r} finds all its {len(left)} open splits", uid=uid)
    named = "; ".join(f"{split_id}: {why}" for split_id, why in gone[:MAX_SPLITS_NAMED])
    more = f" and {len(gone) - MAX_SPLITS_NAMED} more" if len(gone) > MAX_SPLITS_NAMED else ""
    what = f"source {uid!r} cannot continue: {len(gone)} of {len(left)} splits cannot be read"
    remedy = "Restore the missing input data, or restore another snapshot"
    return RestoreFinding("source", "refused", what, named + more, remedy, uid)


def check_positions(
    graph: JobGraph, restore: RestoreState, positions: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Mapping[str, str]:
    """Before a submission's first run, refuse a run that would fail at a missing position.

    Positions that cannot be checked now are left to the run, which tries again (S9.1).

    Returns:
        Sources whose positions could not be checked: uid -> why.

    Raises:
        SnapshotError: a position is missing; `tidegate snapshot check` refuses the snapshot with the same text.
    """
    unchecked: dict[str, str] = {}
    for node in graph.nodes:
        known = restore.metadata.operator(node.uid)
        if node.source is None or known is None or known.status == "finished":
            continue
        try:
            enumerator = restore.metadata.enumerators.get(node.uid)
            finding = judge_source(node.uid, node.source, positions.get(node.uid, ()), enumerator)
        except Exception as error:
            unchecked[node.uid] = f"{type(error).__name__}: {error}"
            continue
        if finding is not None and finding.verdict == "refused":
            where = f"snapshot {restore.location}"
            raise SnapshotError(finding.what, where=where, cause=finding.cause, remedy=finding.remedy)
    return unchecked
