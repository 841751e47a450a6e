"""S5.5, S6.2, S6.4: whether a snapshot fits a pipeline, and what of it goes where."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pytest

from tidegate.connectors.datagen import DataGen
from tidegate.connectors.discard import Discard
from tidegate.coordinator.recovery.restore import RestoreState, check_snapshot_fits
from tidegate.errors import SnapshotError
from tidegate.operators.row_specs import UnionSpec
from tidegate.plan.execution_plan import make_execution_plan
from tidegate.plan.job_graph import Edge, JobGraph, Node
from tidegate.snapshot.handles import StateHandle
from tidegate.snapshot.metadata import OperatorState, SnapshotMetadata, SubtaskState

SCHEMA = pa.schema([("k", pa.int64())])
Status = Literal["running", "partially_finished", "finished"]
Inputs = Sequence[tuple[int, Any]]


def graph(*operators: tuple[str, Inputs]) -> JobGraph:
    """(uid, [(upstream, exchange)]): without inputs a source, the last one a sink."""
    nodes = []
    for number, (uid, inputs) in enumerate(operators):
        what: dict[str, Any] = {"spec": UnionSpec()}
        if not inputs:
            what = {"source": DataGen(lambda numbers: {"k": numbers}, SCHEMA)}
        elif number == len(operators) - 1:
            what = {"sink": Discard()}
        edges = tuple(Edge(upstream, exchange, ("k",) if exchange == "hash" else ()) for upstream, exchange in inputs)
        nodes.append(Node(number, uid, "node", edges, SCHEMA, "here.py:1", **what))
    return JobGraph(tuple(nodes))


def snapshot(
    status: Mapping[str, Status], parallelism: int = 2, kinds: Any = ("keyed",), splits: Any = None
) -> SnapshotMetadata:
    handle = StateHandle(None, b"state", 5, "sha", kinds)
    operators = tuple(
        OperatorState(uid, s, tuple(SubtaskState(i, s == "finished", handle) for i in range(parallelism)))
        for uid, s in status.items()
    )
    return SnapshotMetadata(
        3, "savepoint", "job", "l", 1, "r", None, parallelism, 128, "t", {}, operators, splits or {}
    )


def checked(metadata: SnapshotMetadata, pipeline: JobGraph, parallelism: int = 2, **more: Any) -> RestoreState:
    options: dict[str, Any] = {
        "lineage": "l",
        "log_number": 9,
        "allow_non_restored_state": False,
        "commit_only": False,
        **more,
    }
    return check_snapshot_fits("chk-3", metadata, pipeline, make_execution_plan(pipeline, parallelism, 128), **options)


CHAINED = graph(("a", []), ("b", [(0, "hash")]), ("out", [(1, "hash")]))
RUNNING: dict[str, Status] = {"a": "running", "b": "running", "out": "running"}


def test_a_not_finished_operator_in_front_of_a_finished_one_is_refused_by_name() -> None:
    """S6.4: a new source feeds an operator that has ended."""
    pipeline = graph(("a", []), ("new", []), ("b", [(0, "hash"), (1, "hash")]), ("out", [(2, "hash")]))
    status: dict[str, Status] = {"a": "finished", "b": "finished", "out": "finished"}
    with pytest.raises(SnapshotError, match="'new', which has not finished, is upstream of 'b'.*chk-3"):
        checked(snapshot(status), pipeline)


def test_a_chain_of_finished_and_running_operators_is_refused_by_name() -> None:
    """S6.4."""
    pipeline = graph(("a", []), ("b", [(0, "forward")]), ("out", [(1, "forward")]))
    with pytest.raises(SnapshotError, match="'b', which has not finished, is in one chain with 'a'"):
        checked(snapshot({"a": "finished", "b": "running", "out": "running"}), pipeline)


@pytest.mark.parametrize("exchange", ["hash", "broadcast", "rebalance"])
def test_all_to_all_into_a_partially_finished_operator_is_refused_by_name(exchange: str) -> None:
    """S6.4."""
    pipeline = graph(("a", []), ("new", []), ("b", [(0, "hash"), (1, exchange)]), ("out", [(2, "hash")]))
    status: dict[str, Status] = {"a": "finished", "b": "partially_finished", "out": "running"}
    with pytest.raises(SnapshotError, match=f"'new', which has not finished, sends rows by {exchange}.*'b'"):
        checked(snapshot(status), pipeline)
    untouched = graph(("a", []), ("b", [(0, "hash")]), ("out", [(1, "hash")]))
    checked(snapshot(status), untouched)


def test_a_partially_finished_source_and_what_it_feeds_by_forward_are_fine() -> None:
    """S6.2."""
    pipeline = graph(("a", []), ("b", [(0, "forward")]), ("out", [(1, "hash")]))
    checked(snapshot({"a": "partially_finished", "b": "partially_finished", "out": "running"}), pipeline)


def test_a_new_running_operator_after_a_finished_one_is_fine() -> None:
    """S6.4."""
    pipeline = graph(("a", []), ("b", [(0, "hash")]), ("new", [(1, "hash")]), ("out", [(2, "hash")]))
    restore = checked(snapshot({"a": "finished", "b": "finished", "out": "running"}), pipeline)
    assert restore.finished == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_all_new_subtasks_of_a_finished_operator_are_finished(parallelism: int) -> None:
    """S6.2."""
    restore = checked(snapshot({**RUNNING, "a": "finished"}), CHAINED, parallelism)
    assert restore.finished == {(0, i) for i in range(parallelism)}
    assert [restore.for_slot(i)["finished"] for i in range(parallelism)] == [[[0, i]] for i in range(parallelism)]


def test_when_only_commits_are_left_every_subtask_is_finished_whatever_the_graph() -> None:
    """S7.7."""
    restore = checked(snapshot({**RUNNING, "out": "finished"}), CHAINED, commit_only=True)
    assert len(restore.finished) == 6


def test_max_parallelism_is_fixed_and_parallelism_is_not() -> None:
    """S5.1, S5.5."""
    with pytest.raises(SnapshotError, match="max_parallelism=128"):
        check_snapshot_fits(
            "chk-3",
            snapshot(RUNNING),
            CHAINED,
            make_execution_plan(CHAINED, 2, 64),
            lineage="l",
            log_number=0,
            allow_non_restored_state=False,
            commit_only=False,
        )
    assert not checked(snapshot(RUNNING), CHAINED, 2).rescales
    assert checked(snapshot(RUNNING), CHAINED, 7).rescales


def test_state_without_an_operator_is_refused_unless_it_may_be_dropped() -> None:
    """S5.5."""
    pipeline = graph(("a", []), ("out", [(0, "hash")]))
    with pytest.raises(SnapshotError, match="no operator for the state of 'b'.*allow_non_restored_state"):
        checked(snapshot(RUNNING), pipeline)
    restore = checked(snapshot(RUNNING), pipeline, allow_non_restored_state=True)
    assert set(restore.for_slot(0)["shares"]) == {"a", "out"}


def test_each_slot_is_sent_the_streams_that_hold_something_for_it() -> None:
    """S5.5: the message is JSON."""

    def read(restore: RestoreState, index: int) -> list[int]:
        document = json.loads(json.dumps(restore.for_slot(index)))
        assert (document["checkpoint_id"], document["log_number"], document["parallelism"]) == (3, 9, 4)
        return [former for former, _ in document["shares"]["b"]["handles"]]

    metadata = snapshot(RUNNING, parallelism=4)
    assert [read(checked(metadata, CHAINED, 4), i) for i in range(4)] == [[0], [1], [2], [3]]
    assert [read(checked(metadata, CHAINED, 2), i) for i in range(2)] == [[0, 1], [2, 3]]
    assert [read(checked(metadata, CHAINED, 8), i) for i in range(8)] == [[i // 2] for i in range(8)]


def test_a_snapshot_that_does_not_tell_its_kinds_of_state_is_restored_at_its_own_parallelism_only() -> None:
    """S5.5: such as the first version wrote."""
    metadata = snapshot(RUNNING, kinds=None)
    assert set(checked(metadata, CHAINED, 2).for_slot(1)["shares"]) == {"a", "b", "out"}
    with pytest.raises(SnapshotError, match=r"operator 'a'.*parallelism 2, not with 3.*chk-3.*parallelism=2"):
        checked(metadata, CHAINED, 3)


def test_a_snapshot_of_another_lineage_is_a_fork() -> None:
    """S7.4."""
    assert checked(snapshot(RUNNING), CHAINED, lineage="other").for_slot(0)["is_fork"]
    assert not checked(snapshot(RUNNING), CHAINED).for_slot(0)["is_fork"]
