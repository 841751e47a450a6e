"""S7.8: rejections after which the job goes on: what they withhold, and who hears of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator_driver import Driver, of
from test_commit_gate import gated, spec
from test_recovery import Log

from tidegate.channel.control.protocol import PauseSources
from tidegate.coordinator import events as ev
from tidegate.coordinator.commits.commit_gate import CommitGate
from tidegate.coordinator.commits.ruling import AppendVerdict, decide_verdict, ends_lineage
from tidegate.coordinator.events import Verdict
from tidegate.coordinator.topology import ChainShape, Topology
from tidegate.jobs.history.verdicts import WithheldRange, find_verdicts
from tidegate.jobs.records import RestoreFrom


def to_quarantine(n: int, log: Log, **more: Any) -> AppendVerdict | ev.CommandAnswer:
    word = Verdict("v", False, n, "anna", "quarantine", "wrong prices")
    return decide_verdict(word, find_verdicts([spec(1)], log.entries, 1), **more)


def test_what_goes_to_quarantine_is_all_that_waits_from_there_with_what_was_aborted_between() -> None:
    """S7.8: up to the newest that is complete; barriers of later ones are none of it."""
    log = Log().fence(1).complete(1).complete(2).complete(4).complete(5)
    log.add("approve", checkpoint_id=1)
    outcome = to_quarantine(4, log)
    assert isinstance(outcome, AppendVerdict) and outcome.withheld == WithheldRange(2, (4, 5), "anna", "wrong prices")
    assert [n for n in range(8) if outcome.withheld.covers(n)] == [3, 4, 5]
    assert [outcome.withheld.checkpoint_of(n) for n in (3, 4, 5)] == [4, 4, 5]
    assert to_quarantine(4, log, closing=True).code == "job_ends"  # type: ignore[union-attr]
    log.add("reject", checkpoint_id=4, then="quarantine", **outcome.withheld.to_json())
    after = find_verdicts([spec(1)], log.entries, 1)
    assert after.waiting == (2,) and after.uncommitted == (1, 2) and after.quarantined == {4, 5} and not after.rejected
    assert after.withheld == (outcome.withheld,) and {4, 5} <= after.unapproved
    log.complete(6).add("approve", checkpoint_id=6).add("committed", checkpoint_id=6)
    assert find_verdicts([spec(1)], log.entries, 1).uncommitted == ()


def test_subtasks_hear_of_it_before_any_later_permit() -> None:
    """S7.8: at once when all run, else as soon as they do."""
    withheld = WithheldRange(1, (2,))
    d = gated(line=[1, 2], waiting=[1, 2])
    assert of(d.send(ev.CheckpointQuarantined(withheld)), ev.SendQuarantine) == [ev.SendQuarantine(withheld)]
    early = Driver(interval_ms=None, gate=CommitGate(2, [1, 2], [1, 2]))
    assert early.send(ev.CheckpointQuarantined(withheld)) == []
    early.send(ev.CheckpointApproved(1, 9))
    early.start()
    sent = [a for a in early.actions if isinstance(a, ev.SendQuarantine | ev.SendPermit | PauseSources)]
    assert sent == [ev.SendQuarantine(withheld), ev.SendPermit(1, 9)]


def test_a_job_that_is_ending_is_seen_in_its_newest_snapshot() -> None:
    """S7.8: a stop-savepoint, or all operators finished. That of an earlier submission is gone on from, but where
    everything had finished nothing runs again: what it staged could not be moved away by anybody (seed 264)."""
    topology = Topology(1, (ChainShape(0, ("in", "out"), (), True, True),))
    for data, closing in (
        ({"kind": "checkpoint"}, False),
        ({"kind": "checkpoint", "finished_operators": ["in"]}, False),
        ({"kind": "checkpoint", "finished_operators": ["in", "out"]}, True),
        ({"kind": "final"}, True),
        ({"kind": "stop-savepoint"}, True),
    ):
        log = Log().fence(1).complete(1)
        log.entries[-1] = replace(log.entries[-1], data={**log.entries[-1].data, **data})
        assert ends_lineage(find_verdicts([spec(1)], log.entries, 1), log.entries, topology) is closing, data
        log.fence(2)
        verdicts = find_verdicts([spec(1), spec(2, RestoreFrom("latest"))], log.entries, 2)
        assert verdicts.line == (1,)
        assert ends_lineage(verdicts, log.entries, topology) is (data.get("finished_operators") == ["in", "out"]), data
    assert not ends_lineage(find_verdicts([spec(1)], [], 1), [], topology)
