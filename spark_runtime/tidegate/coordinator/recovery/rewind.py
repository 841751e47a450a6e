"""Going back past what may be committed: refused, accepted, or taken back by the sinks (S9.3). Pure."""

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
    "Restore with the pipeline as it was and change it afterwards, or set on_committed_after=accept_duplicates"
)


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a start from snapshot `checkpoint_id` means for what came after it.

    Attributes:
        passed: recovery points behind it that may be committed, oldest first.
        takes_back: sinks take their rows back before a slot starts; False: the rows come again, which was accepted.
        is_recorded: the "rewind" entry is in the log, and has to be carried out, perhaps once more.
        sinks: uids of the two-phase sinks concerned.
    """

    checkpoint_id: int
    passed: tuple[int, ...]
    takes_back: bool
    is_recorded: bool
    sinks: tuple[str, ...]

    def log_text(self) -> str:
        """For the driver's log."""
        sinks = ", ".join(self.sinks)
        if self.takes_back:
            return f"sinks {sinks} take back what checkpoints {list(self.passed)} committed"
        return (
            f"rows of checkpoints {list(self.passed)} appear a second time in sinks {sinks}, as far as they were "
            "committed (on_committed_after=accept_duplicates)"
        )


def completed_after(
    decisions: Sequence[Decision], checkpoint_id: int, spec_number: int, never_committed: Collection[int] = ()
) -> list[int]:
    """Ids of recovery points newer than `checkpoint_id` that earlier submissions completed, and so permitted to commit
    (S9.3), but for those that a commit gate holds back: `never_committed`."""
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
    """Whether submission `spec` may start from a snapshot of its own job that is not the newest (S9.3).

    What the log says of a rewind goes before what the submission wishes: one that was begun is carried out by whoever
    goes on from its snapshot, until a snapshot has completed behind it.

    Args:
        decisions: the whole log.
        location, checkpoint_id, lineage: of the snapshot.
        sinks: the pipeline's two-phase sinks by uid.
        never_committed: completed behind a commit gate and never approved, or rejected (S7.8).

    Returns:
        None: nothing that may be committed is gone back past.

    Raises:
        SnapshotError: lists sinks and ids when the submission does not accept duplicates; names sinks that cannot take
            rows back; names what has been taken back itself.
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
    takes_back = is_recorded or (mode == "rewind" and bool(passed) and bool(sinks or rewound_sinks(entries, passed)))
    if takes_back:
        _check_sinks(specs, entries, spec, passed, sinks, _alternative_text(specs, entries, spec, passed))
        return RewindPlan(checkpoint_id, passed, True, is_recorded, tuple(sinks))
    if not passed or not sinks:
        return None
    if mode == "accept_duplicates":
        return RewindPlan(checkpoint_id, passed, False, False, tuple(sinks))
    remedy = "Set on_committed_after=rewind, to have them taken back, or =accept_duplicates"
    remedy = f"{_alternative_text(specs, entries, spec, passed)}, or s{remedy[1:]}"
    raise SnapshotError(
        f"checkpoints {list(passed)} were completed after {location} and may be committed already",
        where=f"job {spec.job_id}, sinks {', '.join(sinks)}",
        cause="restoring an older snapshot emits their rows again",
        remedy=remedy,
    )


def _alternative_text(specs: Sequence[Spec], entries: Sequence[LogEntry], spec: Spec, passed: Sequence[int]) -> str:
    """What does not go back past `passed`: the newest, by its id, since "the latest" of this submission is what it
    names."""
    points = RecoveryPoints(specs, entries, checkpoint_views(entries, ended=False))
    before = (points.latest(number) for number in range(1, spec.number))
    newest = max((point.checkpoint_id for point in before if point is not None), default=0)
    return f"Restore {newest}" if passed and newest >= passed[-1] else "Restore the latest"


def _refuse_rewound(rewinds: Sequence[Rewind], spec: Spec, checkpoint_id: int, location: str) -> None:
    for rewind in rewinds:
        if checkpoint_id in rewind.gone:
            raise SnapshotError(
                f"sinks have taken back what snapshot {location} had committed",
                where=f"job {spec.job_id}",
                cause=f"a restore of {rewind.checkpoint_id} with on_committed_after=rewind went back past it; its "
                "state counts rows that are gone",
                remedy="Restore the latest, or another (`tidegate checkpoints`)",
            )


def _unfinished_rewind(begun: Rewind, spec: Spec) -> SnapshotError:
    return SnapshotError(
        f"a rewind to snapshot {begun.checkpoint_id} was begun and has not been seen to its end",
        where=f"job {spec.job_id}",
        cause="part of what was committed behind it may be gone, part may be there still",
        remedy=f"Restore {begun.checkpoint_id}, which ends it, or go back further with on_committed_after=rewind",
    )


def _check_sinks(
    specs: Sequence[Spec],
    entries: Sequence[LogEntry],
    spec: Spec,
    passed: Sequence[int],
    sinks: Mapping[str, Sink],
    other: str,
) -> None:
    """Every sink that committed can be asked, and can do it. Args: other: what to restore instead."""
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
            "sinks take back what was committed since their own job began, not what a fresh start committed",
            other_ways,
        )
    unable = [f"{uid!r} ({type(sink).__name__})" for uid, sink in sinks.items() if not isinstance(sink, SupportsRewind)]
    if unable:
        cause = "a sink of this kind cannot take back what it published"
        raise _unsupported_sinks_error(spec, f"sinks {', '.join(unable)} cannot be rewound", cause, other_ways)
    for uid, described in rewound_sinks(entries, passed).items():
        if uid not in sinks:
            cause = f"it committed checkpoints of {list(passed)} and is not in the pipeline"
            raise _unsupported_sinks_error(spec, f"nobody can rewind sink {uid!r}", cause, SINKS_UNCHANGED)
        now = sinks[uid].describe()
        if now != described:
            cause = f"it was {described} and is {now}"
            raise _unsupported_sinks_error(spec, f"sink {uid!r} writes elsewhere now", cause, SINKS_UNCHANGED)


def _unsupported_sinks_error(spec: Spec, what: str, cause: str, remedy: str) -> SnapshotError:
    return SnapshotError(
        f"committed rows cannot be taken back: {what}", where=f"job {spec.job_id}", cause=cause, remedy=remedy
    )
