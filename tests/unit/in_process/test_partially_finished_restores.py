"""Restores of a snapshot in which some subtasks of an operator had finished, into another graph (S6.2, S6.4)."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from test_finished_subtasks import ROWS, Finishing, checkpoint, until_ended, with_state

from tidegate.api.pipeline import Pipeline
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.restore.compatibility import RestoreTarget, RestoreVerdict, SnapshotFacts, check_compatibility
from tidegate.plan.graph_document import graph_document


def partially_finished() -> Finishing:
    """Checkpoint 2: subtask 1 of "numbers", "seen" and "out" had finished, "seen" with state."""
    finishing = Finishing(with_state("list"))
    run = finishing.job.submit()
    until_ended(run, 1)
    assert checkpoint(run, "one").ok and checkpoint(run, "two").ok
    assert finishing.statuses(2)["seen"] == "partially_finished"
    run.crash()
    finishing.diary.entries.clear()
    return finishing


def with_more(job: Finishing) -> Pipeline:
    """A new source comes to the operator, subtask by subtask."""
    p = Pipeline()
    both = job.read(p, "numbers").union(job.read(p, "more", 40))
    job.seen(both, "list").write(job.sink(), uid="out")
    return p


def with_more_through_a_filter(job: Finishing) -> Pipeline:
    """The same, and the new rows pass a filter."""
    p = Pipeline()
    both = job.read(p, "numbers").union(job.read(p, "more", 40).filter(pc.field("v") >= 0))
    job.seen(both, "list").write(job.sink(), uid="out")
    return p


def filtered(job: Finishing) -> Pipeline:
    """A filter, which keeps nothing, between the two that had finished in part."""
    p = Pipeline()
    job.seen(job.read(p, "numbers").filter(pc.field("v") >= 0), "list").write(job.sink(), uid="out")
    return p


def counted_before(job: Finishing) -> Pipeline:
    """An operator with state that never ran between the two: its subtask 1 may have rows to give at its end."""
    p = Pipeline()
    job.seen(job.seen(job.read(p, "numbers"), "list", "counted"), "list").write(job.sink(), uid="out")
    return p


def counted_after(job: Finishing) -> Pipeline:
    """A new operator after the one that had finished in part."""
    p = Pipeline()
    job.seen(job.seen(job.read(p, "numbers"), "list"), "list", "counted").write(job.sink(), uid="out")
    return p


def preflight(finishing: Finishing) -> RestoreVerdict:
    """What the documents alone say: `tidegate snapshot check`, `TidegateCheckRestoreOperator`."""
    body = finishing.metadata(2)
    operators = [
        {"uid": op.uid, "status": op.status, "subtasks": [_subtask(s) for s in op.subtasks]} for op in body.operators
    ]
    facts = SnapshotFacts.from_body(
        {"parallelism": 2, "max_parallelism": 128, "operators": operators, "graph": body.graph}
    )
    return check_compatibility(facts, RestoreTarget(graph_document(finishing.job.build().build()), 2, 128))


def _subtask(state: object) -> dict[str, object]:
    handle = state.handle  # type: ignore[attr-defined]
    told = None if handle is None else handle.to_json()
    return {"index": state.index, "finished": state.finished, "handle": told}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("build", "sender"),
    [(with_more, "more"), (with_more_through_a_filter, "more"), (counted_before, "counted")],
)
def test_a_running_operator_before_finished_subtasks_is_refused_by_both_names(build: object, sender: str) -> None:
    """S6.4: also by forward. Rows would come to subtask 1 of "seen", whose state is dropped."""
    finishing = partially_finished()
    finishing.job.build = lambda: build(finishing)  # type: ignore[operator]
    said = f"operator '{sender}', which has not finished, sends rows.*subtasks of 'seen' that have"
    with pytest.raises(SnapshotError, match=said) as refused:
        finishing.job.submit(RestoreFrom("checkpoint", checkpoint_id=2))
    assert "Restore a snapshot from before the end" in refused.value.remedy
    assert finishing.diary.entries == [], "no operator was opened"
    assert [finding.uid for finding in preflight(finishing).refused if finding.code == "finished"] == ["seen"]


@pytest.mark.parametrize("build", [with_state("list"), filtered, counted_after])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_graphs_that_send_nothing_new_to_finished_subtasks_are_restored(build: object, parallelism: int) -> None:
    """S6.2, S6.4: the same graph, an operator that passes on, a new one after it; whatever the parallelism."""
    finishing = partially_finished()
    finishing.job.build = lambda: build(finishing)  # type: ignore[operator]
    assert not [finding for finding in preflight(finishing).findings if finding.code == "finished"]
    finishing.job.options = {**finishing.job.options, "parallelism": parallelism}
    run = finishing.job.submit(RestoreFrom("checkpoint", checkpoint_id=2))
    assert run.to_end() == RunEnded(None, None, None, None)
    assert finishing.rows() == list(range(ROWS))
