"""Checks whether a snapshot fits a pipeline (S5.5, S6.4, S7.5). They read only documents, so that the driver, the
command line and Airflow get the same result. Pure: no pyarrow, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate.jobs.restore.state_shapes import StateShape, compare_states

Graph = Mapping[str, Any]
"""The document of a JobGraph (`plan.graph_document`)."""
_DROPPED = ": it is dropped"
_KEPT_BY = {"source": "positions", "sink": "transactions"}


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """An operator of a snapshot.

    Attributes:
        uid: uid of the operator.
        status: running, partially_finished or finished (S6.2).
        has_state: one of its subtasks wrote a state stream.
        tells_kinds: all its streams contain the kinds of their states. Streams of the first version do not.
        formats: formats of state back ends in which its state is stored, other than rows; known since version 3 of the
            metadata.
        ended: numbers of its subtasks that had finished.
    """

    uid: str
    status: str
    has_state: bool
    tells_kinds: bool
    formats: tuple[str, ...] = ()
    ended: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """The facts about a snapshot that the check of a restore needs."""

    parallelism: int
    max_parallelism: int
    operators: tuple[OperatorFacts, ...]
    graph: Graph
    drained: tuple[str, ...] = ()

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> SnapshotFacts:
        """Read the facts from the body of a `_metadata` document."""
        operators = []
        for operator in body["operators"]:
            handles = [s["handle"] for s in operator["subtasks"] if s["handle"] is not None]
            tells = all(handle.get("kinds") is not None for handle in handles)
            formats = sorted({name for handle in handles for name in handle.get("formats", ())})
            ended = frozenset(s["index"] for s in operator["subtasks"] if s["finished"])
            uid, status = operator["uid"], operator["status"]
            operators.append(OperatorFacts(uid, status, bool(handles), tells, tuple(formats), ended))
        drained = tuple(body.get("drained_operators", ()))
        return cls(body["parallelism"], body["max_parallelism"], tuple(operators), body["graph"], drained)


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The pipeline to restore a snapshot to, and the differences that are allowed.

    Attributes:
        graph: graph of the pipeline.
        allow_non_restored_state: drop state that has no operator (S5.5).
        allow_drained: operators that a drain made fire early may fire again (S7.5).
        commit_only: the restore only commits, and runs no operator (S7.7).
        state_backend: state back end of the job; None: unknown.
        is_fork: the restore is a fork, which commits nothing of the snapshot (S7.4); None: unknown.
    """

    graph: Graph
    parallelism: int
    max_parallelism: int
    allow_non_restored_state: bool = False
    allow_drained: bool = False
    commit_only: bool = False
    state_backend: str | None = None
    is_fork: bool | None = None


@dataclass(frozen=True, slots=True)
class RestoreFinding:
    """One result of the check.

    Attributes:
        code: "max_parallelism", "parallelism", "lost_operator", "rescale", "connector", "operator", "finished",
            "state", "lost_state", "format", "drained", "new_operator" or "source".
        verdict: "fits", "changes" (it fits, and something differs), "refused" or "unknown" (known only at the restore).
        what: the finding, as one sentence.
        cause: the likely cause of a refusal.
        remedy: the next action after a refusal.
        uid: uid of the operator concerned.
        state: name of the state concerned.
    """

    code: str
    verdict: str
    what: str
    cause: str = ""
    remedy: str = ""
    uid: str | None = None
    state: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the finding for programs."""
        known = {"code": self.code, "verdict": self.verdict, "uid": self.uid, "state": self.state, "what": self.what}
        return {**known, "cause": self.cause, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class RestoreVerdict:
    """All findings, refusals first."""

    findings: tuple[RestoreFinding, ...]

    @property
    def fits(self) -> bool:
        """Return whether no finding is a refusal."""
        return not self.refused

    @property
    def refused(self) -> tuple[RestoreFinding, ...]:
        """The findings that are refusals."""
        return tuple(finding for finding in self.findings if finding.verdict == "refused")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of a verdict. All outputs use it."""
        return {"fits": self.fits, "findings": [finding.to_json() for finding in self.findings]}


def verdict_of_findings(findings: Sequence[RestoreFinding]) -> RestoreVerdict:
    """Return the verdict of these findings."""
    order = ("refused", "unknown", "changes", "fits")
    return RestoreVerdict(tuple(sorted(findings, key=lambda finding: order.index(finding.verdict))))


def check_compatibility(snapshot: SnapshotFacts, target: RestoreTarget) -> RestoreVerdict:
    """Check everything that the documents contain. Staged output, verdicts of a commit gate and positions of sources
    are checked elsewhere."""
    looks = (_numbers, _operators, _connectors, _states, _finished, _check_drained)
    return verdict_of_findings([finding for look in looks for finding in look(snapshot, target)])


def _numbers(snapshot: SnapshotFacts, target: RestoreTarget) -> Iterator[RestoreFinding]:
    was, now = snapshot.max_parallelism, target.max_parallelism
    if was != now:
        yield RestoreFinding(
            "max_parallelism",
            "refused",
            f"max_parallelism is {was} in the snapshot and {now} in the job",
            "max_parallelism cannot change after the first start of a job",
            f"Set max_parallelism={was}",
        )
    if snapshot.parallelism == target.parallelism:
        return
    known = {operator["uid"] for operator in target.graph["operators"]}
    silent = next((o for o in snapshot.operators if o.uid in known and o.has_state and not o.tells_kinds), None)
    if silent is not None:
        yield RestoreFinding(
            "rescale",
            "refused",
            f"the state of operator {silent.uid!r} can be restored with parallelism {snapshot.parallelism}, "
            f"not with {target.parallelism}",
            "the older tidegate that wrote the snapshot did not record what a change of parallelism needs",
            f"Restore the snapshot with parallelism={snapshot.parallelism}, and take a savepoint. Then restore the "
            "savepoint with the new parallelism",
            silent.uid,
        )
    else:
        yield RestoreFinding(
            "parallelism", "changes", f"parallelism changes from {snapshot.parallelism} to {target.parallelism}"
        )


def _operators(snapshot: SnapshotFacts, target: RestoreTarget) -> Iterator[RestoreFinding]:
    known = [operator["uid"] for operator in target.graph["operators"]]
    lost = [operator.uid for operator in snapshot.operators if operator.uid not in known and operator.has_state]
    what = f"the pipeline has no operator for the state of {', '.join(map(repr, lost))}"
    uid = lost[0] if len(lost) == 1 else None
    if lost and target.allow_non_restored_state:
        yield RestoreFinding("lost_operator", "changes", what + _DROPPED, uid=uid)
    elif lost:
        cause = "an operator was removed or its uid changed"
        remedy = f"Give the operator the uid {lost[0]!r} again, or set allow_non_restored_state to drop the state"
        yield RestoreFinding("lost_operator", "refused", what, cause, remedy, uid)
    before = {operator.uid for operator in snapshot.operators}
    for operator in target.graph["operators"]:
        if operator["uid"] not in before and operator["stateful"]:
            what = f"operator {operator['uid']!r} is new and starts without state"
            yield RestoreFinding("new_operator", "changes", what, uid=operator["uid"])


def _connectors(snapshot: SnapshotFacts, target: RestoreTarget) -> Iterator[RestoreFinding]:
    """Check classes of sources and sinks: one class cannot use the positions or transactions of another (S5.5)."""
    old = {operator["uid"]: operator for operator in snapshot.graph.get("operators", ())}
    new = {operator["uid"]: operator for operator in target.graph["operators"]}
    for operator in snapshot.operators:
        uid = operator.uid
        if uid not in old or uid not in new or not operator.has_state:
            continue
        kind, before, now = old[uid]["kind"], old[uid].get("connector"), new[uid].get("connector")
        # Each list begins with the name of the class. The other names
        # are its bases and its former names, whose data it can read.
        if kind != new[uid]["kind"] or not before or not now or before[0] in now or now[0] in before:
            continue
        if kind == "source" and operator.status == "finished":
            continue  # a finished source is not read again
        if kind == "sink" and target.is_fork:
            continue  # a fork ignores transactions that the original has to commit
        yield RestoreFinding(
            "connector",
            "unknown" if kind == "sink" and target.is_fork is None else "refused",
            f"{kind} {uid!r} was a {before[0]} in the snapshot, but is a {now[0]} in the pipeline",
            f"a {now[0]} cannot use the {_KEPT_BY.get(kind, 'state')} of a {before[0]}",
            f"Use {before[0]} again, or a class derived from it. If {before[0]} was renamed, add it to "
            f"{now[0]}.former_names, or give the {kind} a new uid and set allow_non_restored_state",
            uid,
        )


def _states(snapshot: SnapshotFacts, target: RestoreTarget) -> Iterator[RestoreFinding]:
    if target.commit_only:
        return
    old = {operator["uid"]: operator for operator in snapshot.graph.get("operators", ())}
    new = {operator["uid"]: operator for operator in target.graph["operators"]}
    for operator in snapshot.operators:
        uid = operator.uid
        if uid not in new or not operator.has_state:
            continue
        misfits = operator.formats and target.state_backend not in (None, *operator.formats)
        if misfits and operator.status != "finished":
            yield _other_back_end(operator, str(target.state_backend))
            continue
        before, now = old.get(uid, {}).get("states"), new[uid].get("states")
        kinds = old.get(uid, {}).get("kind", new[uid]["kind"]), new[uid]["kind"]
        if (before is None or now is None) and kinds[0] != kinds[1]:
            yield _other_kind(uid, *kinds)
            continue
        if before is None or now is None:
            yield RestoreFinding(
                "state",
                "unknown",
                f"whether the states of operator {uid!r} fit is checked only at the restore",
                uid=uid,
            )
            continue
        shapes = [*map(StateShape.from_json, before)], [*map(StateShape.from_json, now)]
        for finding in _states_of(uid, *shapes, may_drop=target.allow_non_restored_state):
            became = f"operator {uid!r} was a {kinds[0]} and is a {kinds[1]}"
            if finding.verdict == "refused" and kinds[0] != kinds[1]:
                finding = replace(finding, cause=f"{became}: {finding.cause}")
            yield restrict_to_row_formats(finding, operator.formats)


def restrict_to_row_formats(finding: RestoreFinding, formats: Sequence[str]) -> RestoreFinding:
    """Refuse a dropped state when the state is not stored as rows: a back end restores its own files completely."""
    if not formats or finding.code != "lost_state" or finding.verdict != "changes":
        return finding
    cause = f"the operator's state is in files of {', '.join(formats)}"
    remedy = "Take a savepoint with the former pipeline, and restore the savepoint: it stores states as rows"
    what = finding.what.removesuffix(_DROPPED)
    return replace(finding, verdict="refused", what=what, cause=cause, remedy=remedy)


def _other_kind(uid: str, before: str, now: str) -> RestoreFinding:
    return RestoreFinding(
        "operator",
        "refused",
        f"operator {uid!r} was a {before} in the snapshot, but is a {now} in the pipeline",
        f"a {now} cannot use the state of a {before}",
        f"Make {uid!r} a {before} again, or give the operator a new uid and set allow_non_restored_state",
        uid,
    )


def _other_back_end(operator: OperatorFacts, state_backend: str) -> RestoreFinding:
    format_ = operator.formats[0]
    return RestoreFinding(
        "format",
        "refused",
        f"operator {operator.uid!r} has its state in files of {format_}, which {state_backend!r} cannot read",
        "a checkpoint stores state in the format of the option state_backend that it was taken with",
        f"Restore with state_backend={format_!r}. To change the back end, take a savepoint of the restored job and "
        "restore that savepoint with the other back end: every back end reads savepoints",
        operator.uid,
    )


def _states_of(
    uid: str, old: Sequence[StateShape], new: Sequence[StateShape], *, may_drop: bool
) -> Iterator[RestoreFinding]:
    found = compare_states(old, new)
    keyed = {shape.name for shape in old if shape.kind == "keyed"}
    for name in dict.fromkeys(name for name, _ in found.refused):
        yield RestoreFinding(
            "state",
            "refused",
            f"state {name!r} of operator {uid!r} does not fit the pipeline",
            "; ".join(why for state, why in found.refused if state == name),
            "Restore with the pipeline that took the snapshot, or give the operator a new uid",
            uid,
            name,
        )
    for name in found.undeclared:
        what = f"operator {uid!r} does not declare state {name!r}, which is in the snapshot"
        if may_drop and name in keyed:
            yield RestoreFinding("lost_state", "changes", what + _DROPPED, uid=uid, state=name)
            continue
        cause = "the state was removed or renamed, or the operator has been replaced"
        more = ", or set allow_non_restored_state to drop it" if name in keyed else ""
        remedy = f"Declare state {name!r} again, or give the operator a new uid{more}"
        yield RestoreFinding("lost_state", "refused", what, cause, remedy, uid, name)
    for name, change in found.changes:
        yield RestoreFinding("state", "changes", f"state {name!r} of operator {uid!r}: {change}", uid=uid, state=name)


def _finished(snapshot: SnapshotFacts, target: RestoreTarget) -> Iterator[RestoreFinding]:
    """Check operators that had finished when the snapshot was taken (S6.4)."""
    if target.commit_only:
        return
    status = {operator.uid: operator.status for operator in snapshot.operators}
    remedy = (
        "Restore a snapshot from before the end of the finished operator, or add new operators only where no "
        "finished operator is downstream"
    )
    refused = [
        *_running_before_finished(status, target.graph),
        *_running_before_ended_subtasks(snapshot, target.graph),
        *_mixed_chains(status, target.graph),
    ]
    for uid, what in refused:
        cause = "the pipeline has changed since the snapshot, and rows cannot be sent to a finished operator"
        yield RestoreFinding("finished", "refused", what, cause, remedy, uid)


def _running_before_finished(status: Mapping[str, str], graph: Graph) -> Iterator[tuple[str, str]]:
    """Find running operators that would send rows to subtasks that have ended."""
    for operator in graph["operators"]:
        uid = operator["uid"]
        for feeder, exchange in zip(operator["inputs"], operator["exchanges"], strict=True):
            if status.get(feeder) == "finished":
                continue
            if status.get(uid) == "finished":
                yield uid, f"operator {feeder!r}, which has not finished, is upstream of {uid!r}, which has finished"
            elif status.get(uid) == "partially_finished" and exchange != "forward":
                feeds = (
                    f"operator {feeder!r}, which has not finished, sends rows by {exchange} to all subtasks of {uid!r}"
                )
                yield uid, f"{feeds}, some of which have finished"


def _running_before_ended_subtasks(snapshot: SnapshotFacts, graph: Graph) -> Iterator[tuple[str, str]]:
    """Find running operators that would send rows to ended subtasks, also by forward. The state of an ended subtask is
    dropped (S6.2), so no row may need it."""
    facts = {operator.uid: operator for operator in snapshot.operators}
    operators = {operator["uid"]: operator for operator in graph["operators"]}

    def sends_on(uid: str, subtasks: frozenset[int]) -> str | None:
        """Return the operator, `uid` or one upstream, that still has rows for one of these subtasks; None: none."""
        operator, fact = operators[uid], facts.get(uid)
        if operator["inputs"] and not operator["stateful"]:  # it only passes rows on, so its own status does not matter
            for feeder, exchange in zip(operator["inputs"], operator["exchanges"], strict=True):
                whole = facts[feeder].status == "finished" if feeder in facts else False
                found = sends_on(feeder, subtasks) if exchange == "forward" else None if whole else feeder
                if found is not None:
                    return found
            return None
        if fact is None or fact.status == "running":
            return uid
        return None if fact.status == "finished" or subtasks <= fact.ended else uid

    for uid, operator in operators.items():
        fact = facts.get(uid)
        if fact is None or fact.status != "partially_finished" or operator["kind"] == "sink":
            continue  # a sink keeps its staged transactions (`coordinator.recovery.restore.drop_finished_state`)
        if not (fact.has_state or operator["stateful"]):
            continue
        for feeder, exchange in zip(operator["inputs"], operator["exchanges"], strict=True):
            sender = sends_on(feeder, fact.ended) if exchange == "forward" else None
            if sender is not None:
                through = "" if sender == feeder else f" through {feeder!r}"
                feeds = f"operator {sender!r}, which has not finished, sends rows{through} to subtasks of {uid!r}"
                yield uid, f"{feeds} that have finished and have no state any more"


def _mixed_chains(status: Mapping[str, str], graph: Graph) -> Iterator[tuple[str, str]]:
    """Find chains in which only some operators have finished. The operators of a chain end together."""
    for uids in chains_of(graph):
        ended = [uid for uid in uids if status.get(uid) == "finished"]
        running = [uid for uid in uids if status.get(uid) != "finished"]
        if ended and running:
            runs = f"operator {running[0]!r}, which has not finished, is in one chain with {ended[0]!r}"
            yield ended[0], f"{runs}, which has finished"


def chains_of(graph: Graph) -> list[list[str]]:
    """Return the uids of each chain, as `plan.execution_plan` makes them.

    An operator joins the chain of its input if it reads only that operator's main output, by forward, and is the only
    reader. Documents before version 3 have no other outputs.
    """
    readers: dict[str, int] = {}
    for operator in graph["operators"]:
        for feeder in operator["inputs"]:
            readers[feeder] = readers.get(feeder, 0) + 1
    chains: dict[str, list[str]] = {}
    for operator in graph["operators"]:
        uid, inputs = operator["uid"], operator["inputs"]
        plain = operator["exchanges"] == ["forward"] and operator.get("outputs", ["main"]) == ["main"]
        joins = len(inputs) == 1 and plain and readers[inputs[0]] == 1
        # One list for each chain, stored under all its operators, so that appending here extends it for all of them.
        chain = chains[inputs[0]] if joins else []
        chain.append(uid)
        chains[uid] = chain
    return [chain for uid, chain in chains.items() if chain[0] == uid]


def _check_drained(snapshot: SnapshotFacts, target: RestoreTarget) -> Iterator[RestoreFinding]:
    """Check whether a drain took the snapshot (S7.5)."""
    if not snapshot.drained or target.commit_only:
        return
    kinds = {operator["uid"]: operator["kind"] for operator in snapshot.graph.get("operators", ())}
    early = ", ".join(f"{uid} ({kinds.get(uid, 'unknown')})" for uid in snapshot.drained)
    if target.allow_drained:
        yield RestoreFinding(
            "drained",
            "changes",
            f"the snapshot was taken by a drain: windows of {early} fired early, and will emit again",
        )
        return
    yield RestoreFinding(
        "drained",
        "refused",
        f"the snapshot was taken by a drain, which fired the open windows of {early} early",
        "the input had not ended: after a restore the windows would emit a second time, and "
        "joins had read only a part of one input",
        "Restore an earlier snapshot, or set allow_drained to accept a second result for these windows",
    )
