"""Plan a restore of a snapshot older than committed output: refuse it, accept duplicates, or rewind the sinks (S9.3).

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tidegate.connectors.interface import Sink, SupportsRewind
from tidegate.errors import SnapshotError
from tidegate.jobs.history.checkpoints import RecoveryPoints, checkpoint_views
from tidegate.jobs.history.rewinds import Rewind, find_rewinds, rewound_sinks
from tidegate.jobs.history.submissions import LogEntry, entries_by_submission
from tidegate.jobs.records import Decision, Spec

SINKS_UNCHANGED = (
    "Restore with the unchanged pipeline and change the pipeline afterwards, or set "
    "on_committed_after=accept_duplicates"
)


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """Effect of a start from snapshot `checkpoint_id` on output that was completed later.

    Attributes:
        passed: later recovery points that may be committed, oldest first.
        takes_back: True: sinks delete this output before a slot starts. False: its rows are emitted again, which the
            submission accepts.
        is_recorded: the "rewind" entry is in the log, and must be carried out, possibly again.
        sinks: uids of the two-phase-commit sinks concerned.
    """

    checkpoint_id: int
    passed: tuple[int, ...]
    takes_back: bool
    is_recorded: bool
    sinks: tuple[str, ...]

    def log_text(self) -> str:
        """Return the text for the driver's log."""
        sinks = ", ".join(self.sinks)
        if self.takes_back:
            return f"sinks {sinks} delete the output that checkpoints {list(self.passed)} committed"
        return (
            f"the output of checkpoints {list(self.passed)} that was already committed appears a second time in sinks "
            f"{sinks} (on_committed_after=accept_duplicates)"
        )


def completed_after(
    decisions: Sequence[Decision], checkpoint_id: int, spec_number: int, never_committed: Collection[int] = ()
) -> list[int]:
    """Return ids of recovery points newer than `checkpoint_id` that earlier submissions completed.

    Their completion permitted their commit (S9.3). Checkpoints that a commit gate never let commit are excluded:
    `never_committed`.
    """
    return [
        entry.data["checkpoint_id"]
        for entry in entries_by_submission(decisions)
        if entry.kind == "complete"
        and entry.data["kind"] != "savepoint"
        and entry.spec < spec_number
        and entry.data["checkpoint_id"] > checkpoint_id
        and entry.data["checkpoint_id"] not in never_committed
    ]


def plan_rewind(
    specs: Sequence[Spec],
    decisions: Sequence[Decision],
    spec: Spec,
    *,
    location: str,
    checkpoint_id: int,
    lineage: str,
    sinks: Mapping[str, Sink],
    never_committed: Collection[int] = (),
) -> RewindPlan | None:
    """Decide whether submission `spec` may start from a snapshot of its job that is not the newest (S9.3).

    A rewind in the log takes precedence over the options of the submission. Once begun, it is carried out by every
    submission that starts from its snapshot, until a later snapshot has completed.

    Args:
        decisions: the whole log.
        location, checkpoint_id, lineage: location, id and lineage of the snapshot.
        sinks: the pipeline's two-phase-commit sinks by uid.
        never_committed: checkpoints that a commit gate never approved, or that were rejected (S7.8).

    Returns:
        None: no output after the snapshot can be committed.

    Raises:
        SnapshotError: the submission does not accept duplicates (lists sinks and ids); or sinks do not support rewind
            (names them); or the snapshot itself has been rewound.
    """
    entries = entries_by_submission(decisions)
    rewinds = [rewind for rewind in find_rewinds(specs, entries) if lineage == spec.lineage == rewind.lineage]
    _refuse_rewound(rewinds, spec, checkpoint_id, location)
    done = frozenset().union(*(rewind.gone for rewind in rewinds if rewind.is_done))
    passed = tuple(n for n in completed_after(decisions, checkpoint_id, spec.number, never_committed) if n not in done)
    mode = spec.restore.on_committed_after if spec.restore is not None else "refuse"
    begun = rewinds[-1] if rewinds and not rewinds[-1].is_done else None
    is_recorded = begun is not None and begun.checkpoint_id == checkpoint_id
    if begun is not None and not is_recorded and mode != "rewind":
        raise _unfinished_rewind(begun, spec)
    # Sinks that committed and are no longer in the pipeline count
    # too: `_check_sinks` refuses the rewind because of them.
    takes_back = is_recorded or (mode == "rewind" and bool(passed) and bool(sinks or rewound_sinks(entries, passed)))
    if takes_back:
        _check_sinks(specs, entries, spec, passed, sinks, _alternative_text(specs, entries, spec, passed))
        return RewindPlan(checkpoint_id, passed, True, is_recorded, tuple(sinks))
    if not passed or not sinks:
        return None
    if mode == "accept_duplicates":
        return RewindPlan(checkpoint_id, passed, False, False, tuple(sinks))
    remedy = "Set on_committed_after=rewind to delete that output, or on_committed_after=accept_duplicates to keep it"
    remedy = f"{_alternative_text(specs, entries, spec, passed)}, or s{remedy[1:]}"
    raise SnapshotError(
        f"checkpoints {list(passed)} were completed after {location}, and their output may already be committed",
        where=f"job {spec.job_id}, sinks {', '.join(sinks)}",
        cause="after a restore of the older snapshot, the job writes the same rows a second time",
        remedy=remedy,
    )


def _alternative_text(specs: Sequence[Spec], entries: Sequence[LogEntry], spec: Spec, passed: Sequence[int]) -> str:
    """Return a remedy that restores a snapshot not older than `passed`.

    It names the newest snapshot by its id, because "the latest" of this submission is the snapshot that it names.
    """
    points = RecoveryPoints(specs, entries, checkpoint_views(entries, ended=False))
    before = (points.latest(number) for number in range(1, spec.number))
    newest = max((point.checkpoint_id for point in before if point is not None), default=0)
    return f"Restore snapshot {newest}" if passed and newest >= passed[-1] else "Restore the latest snapshot"


def _refuse_rewound(rewinds: Sequence[Rewind], spec: Spec, checkpoint_id: int, location: str) -> None:
    for rewind in rewinds:
        if checkpoint_id in rewind.gone:
            raise SnapshotError(
                f"snapshot {location} cannot be restored: sinks have deleted the output that it had committed",
                where=f"job {spec.job_id}",
                cause=f"the job was restored from the earlier snapshot {rewind.checkpoint_id} with "
                "on_committed_after=rewind, which deletes all later output",
                remedy="Restore the latest snapshot, or choose one from `tidegate checkpoints`",
            )


def _unfinished_rewind(begun: Rewind, spec: Spec) -> SnapshotError:
    return SnapshotError(
        f"a rewind to snapshot {begun.checkpoint_id} has begun, but has not finished",
        where=f"job {spec.job_id}",
        cause="sinks may have deleted only a part of the output that was committed after that snapshot",
        remedy=f"Restore snapshot {begun.checkpoint_id} to finish the rewind, or an older snapshot with "
        "on_committed_after=rewind",
    )


def _check_sinks(
    specs: Sequence[Spec],
    entries: Sequence[LogEntry],
    spec: Spec,
    passed: Sequence[int],
    sinks: Mapping[str, Sink],
    other: str,
) -> None:
    """Check that every sink that committed output is in the pipeline and supports rewind.

    Args:
        other: remedy text that names the snapshot to restore instead.
    """
    other_ways = f"{other}, or set on_committed_after=accept_duplicates"
    lineages = {s.number: s.lineage for s in specs}
    strange = [
        e.data["checkpoint_id"]
        for e in entries
        if e.kind == "complete" and e.data["checkpoint_id"] in passed and lineages.get(e.spec) != spec.lineage
    ]
    if strange:
        raise _unsupported_sinks_error(
            spec,
            f"checkpoints {strange} were completed after a fresh start",
            "a sink can delete only output of the restored chain of snapshots, and a fresh start begins another chain",
            other_ways,
        )
    unable = [f"{uid!r} ({type(sink).__name__})" for uid, sink in sinks.items() if not isinstance(sink, SupportsRewind)]
    if unable:
        cause = "a sink of this kind cannot delete output that it has committed"
        raise _unsupported_sinks_error(spec, f"sinks {', '.join(unable)} do not support rewind", cause, other_ways)
    for uid, described in rewound_sinks(entries, passed).items():
        if uid not in sinks:
            cause = f"the sink committed output of checkpoints {list(passed)}, but is not in the pipeline any more"
            raise _unsupported_sinks_error(spec, f"sink {uid!r} cannot be rewound", cause, SINKS_UNCHANGED)
        now = sinks[uid].describe()
        if now != described:
            cause = f"the sink was {described}, and is now {now}"
            raise _unsupported_sinks_error(spec, f"sink {uid!r} now writes to another place", cause, SINKS_UNCHANGED)


def _unsupported_sinks_error(spec: Spec, what: str, cause: str, remedy: str) -> SnapshotError:
    return SnapshotError(
        f"the output that was committed after the snapshot cannot be deleted: {what}",
        where=f"job {spec.job_id}",
        cause=cause,
        remedy=remedy,
    )
