"""What restores have committed, as views tell it (S7.4, S7.8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import pytest
from test_job_status import Story, spec

from tidegate.jobs.records import RestoreFrom

LATEST = RestoreFrom("latest")


class Line(Story):
    """A job with a sink that commits."""

    def submission(self, restore: RestoreFrom | None = None, *, gated: bool = False, lineage: str = "l") -> Self:
        options = {"commit": "on_request" if gated else "automatic"}
        made = spec(len(self.specs) + 1, restore)
        self.specs.append(replace(made, options=options, lineage=lineage))
        self.fence().status("WAITING_FOR_SLOTS")
        return self

    def take(self, *ids: int, kind: str = "checkpoint", sinks: tuple[str, ...] = ("out",)) -> Self:
        for n in ids:
            self.claim(n, kind)
            path = self.decisions[-1].data["path"]
            self.add("complete", checkpoint_id=n, kind=kind, path=path, metrics={}, sinks=dict.fromkeys(sinks, ""))
        return self

    def runs(self, restored_from: str | None = None) -> Self:
        more = {} if restored_from is None else {"restored_from": restored_from}
        self.status("RUNNING", run_id="r", **more)
        return self

    @property
    def committed(self) -> list[int]:
        return [view.checkpoint_id for view in self.view.checkpoints if view.committed]

    @property
    def now(self) -> int:
        """Number of the newest entry."""
        return self.decisions[-1].number

    def by(self, n: int) -> int:
        view = self.view.checkpoint(n)
        assert view is not None
        return view.committed_by


def chk(n: int) -> str:
    return f"job/checkpoints/chk-{n}-g1"


def sp(n: int) -> str:
    return f"job/savepoints/{n}"


def stopped(*, gated: bool = False) -> Line:
    """Its stop-savepoint 3 is complete, and nothing was committed when it ended."""
    story = Line().submission(gated=gated).runs().take(1, 2).take(3, kind="stop-savepoint")
    story.status("FAILED", reason="no disk")
    return story


def test_what_a_job_is_restored_from_is_committed_when_it_runs() -> None:
    """S7.4: before any subtask runs; also when the run dies before it commits anything else."""
    story = stopped().submission(LATEST)
    assert story.committed == []
    story.runs(sp(3))
    running = story.now
    story.status("FAILED", reason="no disk")
    assert story.committed == [1, 2, 3] and [story.by(n) for n in (1, 2, 3)] == [running] * 3
    assert all(view.is_published for view in story.view.checkpoints)


def test_a_submission_that_fails_before_it_runs_has_committed_nothing() -> None:
    story = stopped().submission(LATEST)
    story.add("failure", message="no such bucket").status("FAILED")
    assert story.committed == []
    story.submission(LATEST).runs(sp(3))
    assert story.committed == [1, 2, 3] and story.by(3) == story.now


def test_an_abandoned_line_is_not_committed_by_what_was_restored_in_front_of_it() -> None:
    """S7.4, S9.3: what it had staged is removed."""
    story = stopped().submission(RestoreFrom("checkpoint", path=chk(1), checkpoint_id=1)).runs(chk(1))
    assert story.committed == [1]
    story.take(4).add("committed", checkpoint_id=4).status("FAILED")
    story.submission(LATEST).runs("job/checkpoints/chk-4-g1")
    assert story.committed == [1, 4]


def test_a_line_of_several_submissions_is_committed_by_each_restore() -> None:
    story = stopped().submission(LATEST).runs(sp(3))
    first = story.now
    story.take(4, 5).status("FAILED")
    assert story.committed == [1, 2, 3]
    story.submission(LATEST).runs(chk(5))
    assert story.committed == [1, 2, 3, 4, 5] and (story.by(3), story.by(5)) == (first, story.now)


def test_a_restart_commits_what_it_begins_from_and_no_savepoint_behind_that() -> None:
    """S7.4, S2.4: within one submission, too."""
    story = Line().submission().runs().take(1, 2).take(3, kind="savepoint")
    story.status("RESTARTING").runs(chk(2))
    assert story.committed == [1, 2] and story.by(1) == story.now
    story.take(4).status("RESTARTING").runs(chk(4))
    assert story.committed == [1, 2, 4], "an intermediate savepoint is no recovery point"


def test_a_savepoint_that_is_restored_is_committed_with_what_is_in_front_of_it() -> None:
    """S7.4: restoring a savepoint in its own lineage permits what it holds."""
    story = Line().submission().runs().take(1).take(2, kind="savepoint").take(3).status("FAILED")
    story.submission(RestoreFrom("savepoint", path=sp(2), checkpoint_id=2)).runs(sp(2))
    assert story.committed == [1, 2]


def test_the_earliest_entry_that_says_so_counts() -> None:
    """A watcher that has told what an entry says does not tell it once more for a later one."""
    story = Line().submission().runs().take(1).add("committed", checkpoint_id=1)
    told = story.now
    story.status("FAILED").submission(LATEST).runs(chk(1)).take(2).add("committed", checkpoint_id=2)
    assert (story.by(1), story.by(2)) == (told, story.now)
    other = Line().submission().runs().take(1).status("FAILED")
    other.submission(LATEST).runs(chk(1)).add("committed", checkpoint_id=1)
    assert other.by(1) == other.now - 1


def test_what_another_job_was_restored_from_commits_nothing_here() -> None:
    """S7.4: a fork leaves its original's transactions alone."""
    fork = RestoreFrom("savepoint", path="other/savepoints/1", fork_of="other")
    story = Line().submission().runs().take(1).status("FAILED")
    story.submission(fork, lineage="m").runs("other/savepoints/1")
    assert story.committed == []


def test_a_start_in_another_lineage_commits_nothing_of_this_one() -> None:
    """S7.4."""
    story = stopped().submission(RestoreFrom("savepoint", path=sp(3)), lineage="m").runs(sp(3))
    assert story.committed == []


def test_behind_a_gate_a_restore_commits_nothing_that_nobody_approved() -> None:
    """S7.8."""
    story = stopped(gated=True).submission(LATEST, gated=True).runs(sp(3))
    assert story.committed == [] and story.view.waiting == (1, 2, 3)
    assert not any(view.is_published for view in story.view.checkpoints)
    story.submission(LATEST).runs(sp(3))
    assert story.committed == [], "nor does one without a gate, which the driver refuses"


def test_behind_a_gate_what_is_approved_is_committed_when_the_log_says_so() -> None:
    """S7.8: at the entry that says it, not at the one before."""
    story = stopped(gated=True)
    story.add("approve", checkpoint_id=2, by="anna", command=None)
    story.submission(LATEST, gated=True).runs(sp(3))
    assert story.committed == []
    story.add("committed", checkpoint_id=2)
    assert story.committed == [1, 2] and story.by(2) == story.now and story.view.waiting == (3,)


@pytest.mark.parametrize("approved_first", [True, False])
def test_what_was_approved_behind_a_gate_is_committed_by_a_restore_without_one(approved_first: bool) -> None:
    """S7.8: the approval has to be in front of the entry that says that the job runs."""
    story = stopped(gated=True)
    if approved_first:
        story.add("approve", checkpoint_id=3, by="anna", command=None)
    story.submission(LATEST).runs(sp(3))
    running = story.now
    if not approved_first:
        story.add("approve", checkpoint_id=3, by="anna", command=None)
    assert story.committed == ([1, 2, 3] if approved_first else [])
    assert story.by(3) == (running if approved_first else 0)


def test_a_gate_before_a_later_submission_takes_nothing_back() -> None:
    """S7.8: what a run without a gate has committed stays so, for whoever looks with one."""
    story = stopped().submission(LATEST).runs(sp(3))
    running = story.now
    story.status("FAILED").submit()
    story.specs[-1] = replace(story.specs[-1], restore=LATEST, options={"commit": "on_request"})
    story.fence()
    assert story.committed == [1, 2, 3] and story.by(3) == running and story.view.waiting == ()


def test_a_gate_that_is_new_records_what_its_restore_committed() -> None:
    """S7.4: of all that the submission without a gate had completed."""
    story = stopped().submission(LATEST, gated=True).runs(sp(3))
    story.add("committed", checkpoint_id=3)
    told = story.now
    assert story.committed == [1, 2, 3] and [story.by(n) for n in (1, 2, 3)] == [told] * 3
    story.submission(LATEST).runs(sp(3))
    assert story.committed == [1, 2, 3], "also when a later one has none again"


def test_a_gate_does_not_commit_the_own_part_of_a_savepoint() -> None:
    """S7.8: it waits for the verdict on a later checkpoint."""
    story = Line().submission().runs().take(1).take(2, kind="savepoint").status("FAILED")
    story.submission(RestoreFrom("savepoint", path=sp(2), checkpoint_id=2), gated=True).runs(sp(2))
    assert 2 not in story.committed


def test_what_was_rejected_stays_uncommitted_whatever_was_restored() -> None:
    """S7.8."""
    story = stopped(gated=True)
    story.add("approve", checkpoint_id=1, by="anna", command=None)
    story.add("reject", checkpoint_id=2, then="stop", by="anna", reason="", command=None)
    story.submission(LATEST).runs(chk(1))
    assert story.committed == [1]


def test_a_sink_that_a_restore_may_have_left_out_is_not_said_to_have_committed() -> None:
    """S5.5: state without an operator is dropped where that is allowed, staged data with it."""
    story = stopped().submission(RestoreFrom("latest", allow_non_restored_state=True)).runs(sp(3))
    assert story.committed == []
    story.take(4).status("RESTARTING").runs(chk(4))
    assert story.committed == [4], "its own sinks are those that it had"


def test_without_sinks_there_is_nothing_to_commit() -> None:
    story = Line().submission().runs().take(1, sinks=()).status("FAILED")
    story.submission(LATEST).runs(chk(1))
    assert story.committed == []


def test_what_sinks_took_back_is_not_committed_by_the_restore_before() -> None:
    """S9.3."""
    story = stopped().submission(LATEST).runs(sp(3)).status("FAILED")
    story.submission(RestoreFrom("checkpoint", checkpoint_id=1, on_committed_after="rewind"))
    story.add("rewind", checkpoint_id=1, sinks=["out"])
    story.runs(chk(1))
    assert story.committed == [1]
