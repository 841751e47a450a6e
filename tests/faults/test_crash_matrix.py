"""A sample of the crash matrix (`make crash-matrix` runs all of it), and that its list of steps is not stale."""

from __future__ import annotations

import pytest
from crash_matrix import Case, Outcome, cases, missing_steps, run_in_process, verdict
from crash_points import SINK_STEPS
from crash_scenarios import RAW, SCHEMA, Found, Servers, compare, expected_raw, rows, target
from crash_slots import Killer
from crash_world import World

from tidegate import DataGen, Pipeline
from tidegate.connectors.interface import Sink
from tidegate.connectors.sink_operator import SinkOperator
from tidegate.testing.collect_sink import Collection

SAMPLE_EVERY = 193
"""Of the cases of one way to end; a prime, so that both victims and all kinds of points come."""


def test_every_step_of_the_end_flow_and_of_a_commit_is_a_case() -> None:
    """S7.1, S7.2, S7.3, S7.4: the steps are what a run meets, and those that must be among them are."""
    planned = [case for way in ("natural end", "suspend") for case in cases("Collect", way)]
    assert missing_steps("Collect", planned) == []
    assert {case.victim for case in planned} == {"subtask", "driver"}


@pytest.mark.parametrize("sink", sorted(SINK_STEPS.keys() - {"Kafka", "Postgres"}))
def test_every_step_of_a_sinks_own_is_a_case(sink: str) -> None:
    """S7.4: between them lie the moments at which a row could be published twice, or never."""
    assert missing_steps(sink, cases(sink, "natural end")) == []


@pytest.mark.parametrize("way", ["natural end", "suspend", "drain", "cancel", "SIGTERM"])
def test_a_job_killed_on_its_way_to_the_end_loses_and_repeats_nothing(way: str) -> None:
    """S7.5, S7.7, S9.1, S9.2."""
    outcomes = [run_in_process(case) for case in cases("Collect", way)[::SAMPLE_EVERY]]
    wrong = [(str(outcome.case), outcome.found, outcome.story) for outcome in outcomes if not outcome.found.is_right]
    assert not wrong
    assert any(outcome.killed for outcome in outcomes)


def test_a_runtime_that_forgets_what_it_has_to_commit_after_a_restore_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S7.4: killed between "complete n" and its commit."""
    monkeypatch.setattr(SinkOperator, "restore", lambda *_: None)
    found = [run_in_process(case).found for case in _at("log complete: after")]
    assert any(each.lost for each in found)


def test_a_sink_that_publishes_again_what_is_published_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4: killed between a commit and the next snapshot."""
    publish = Collection.publish

    def publish_always(collection: Collection, transaction: str) -> None:
        again = collection.committed.get(transaction)
        if again is not None:
            collection.committed[f"{transaction}, once more {len(collection.committed)}"] = again
        publish(collection, transaction)

    monkeypatch.setattr(Collection, "publish", publish_always)
    found = [run_in_process(case).found for case in _at("sink commits: after")]
    assert any(each.duplicated for each in found)


def _at(point: str) -> list[Case]:
    """The last few kills of a driver at a point of a natural end."""
    found = [case for case in cases("Collect", "natural end") if case.where.endswith(f", {point}")]
    return [case for case in found if case.victim == "driver"][-3:]


def test_rows_lost_and_repeated_are_seen() -> None:
    """The oracle knows the input alone: a case that loses one row and repeats two is told so."""
    wanted = expected_raw(5)
    assert compare([*wanted[1:], wanted[1], wanted[2]], wanted) == (1, 2)
    with target("Collect", None, "nothing-written", Servers()) as out:
        assert out.rows(RAW) == []
        assert out.judge("", fired_early=False).lost > 0


def test_a_job_that_never_ends_is_stuck() -> None:
    killer = Killer(None)
    with target("Collect", None, "stuck", Servers()) as out:
        world = World(lambda: _unbounded(out.sink(RAW)), {"checkpoint_interval": None}, killer, eager=True)
        world.submit()
        assert world.to_end(limit=50) == "stuck"
        world.close()


def test_the_last_line_counts_cases_not_rows() -> None:
    case = Case("Collect", "drain", "driver", 3)
    outcomes = [Outcome(case, found) for found in (Found(0, 0), Found(7, 1), Found(0, 0, "why"))]
    assert verdict(outcomes) == "crash-matrix: 3 cases, 1 lost, 1 duplicated, 1 stuck"


def _unbounded(sink: Sink) -> Pipeline:
    p = Pipeline()
    p.read(DataGen(rows, SCHEMA, rate=100.0, splits=2), uid="numbers").select("k", "v").write(sink, uid=RAW)
    return p
