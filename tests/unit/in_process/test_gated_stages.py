"""Two-phase sinks in the midst of a graph behind the commit gate: a word holds for all stages alike (S7.3, S7.8)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from test_commit_gate_jobs import Gated
from test_commit_pending import commit, ended, view, word

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, collected

SCHEMA = pa.schema([("v", pa.int64())])


def stages(sink: str) -> Pipeline:
    """Two, the second in other subtasks than the first."""
    p = Pipeline()
    numbers = p.read(DataGen(lambda n: {"v": n}, SCHEMA, splits=2, batch_rows=8), uid="numbers")
    first = numbers.write_through(CollectSink(sink), uid="first")
    first.union(first.filter(pc.field("v") < 0)).write(CollectSink(f"{sink}-2"), uid="second")
    return p


def of_both(job: Gated, where: str) -> list[int]:
    """The rows that both stages have there: the same ones, none twice."""
    found = []
    for name in (job.sink, f"{job.sink}-2"):
        transactions = getattr(collected(name), where)
        found.append(sorted(n for batches in transactions.values() for b in batches for n in b.column("v").to_pylist()))
    assert found[0] == found[1] and len(found[0]) == len(set(found[0]))
    return found[0]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("parallelism", [2, 1, 3])
def test_what_is_approved_and_what_is_in_quarantine_is_the_same_in_every_stage(crash: bool, parallelism: int) -> None:
    """S7.8: over a crash between the word and the move, at another parallelism, and with no job running."""
    job = Gated(stages, retained_checkpoints=5)
    one, two = job.checkpoint(), job.checkpoint()
    job.approve(one)
    shown = of_both(job, "committed")
    job.run.writers.held = crash
    assert job.say(False, two, "quarantine").ok
    job.run.crash()
    job.job.options = {**job.job.options, "parallelism": parallelism}
    job.again(RestoreFrom("latest"))
    kept = of_both(job, "quarantined")
    assert shown and kept and of_both(job, "committed") == shown
    three, _ = job.checkpoint(), job.checkpoint()
    job.stop()
    ended(job)
    commit(job, word(three))
    assert len(of_both(job, "committed")) > len(shown) and of_both(job, "quarantined") == kept
    last = max(view(job).waiting)
    commit(job, word(last, "quarantine"))
    commit(job, word(None))
    everything = sorted([*of_both(job, "committed"), *of_both(job, "quarantined")])
    assert view(job).uncommitted == () and len(everything) == len(set(everything))
    splits = [[n for n in everything if n % 2 == k] for k in (0, 1)]
    assert all(found == list(range(k, k + 2 * len(found), 2)) for k, found in enumerate(splits)), "no row is lost"


def test_every_stage_goes_back_in_front_of_what_was_approved() -> None:
    """S9.3, S7.8: past approved, quarantined and waiting checkpoints at once."""
    job = Gated(stages, retained_checkpoints=9)
    one = job.checkpoint()
    job.approve(one)
    shown = of_both(job, "committed")
    two, three = job.checkpoint(), job.checkpoint()
    job.approve(two)
    assert job.say(False, three, "quarantine").ok
    four = job.checkpoint()
    job.approve(four)
    job.checkpoint()
    assert len(of_both(job, "committed")) > len(shown)
    job.run.crash()
    job.again(RestoreFrom("checkpoint", checkpoint_id=one, on_committed_after="rewind"))
    assert of_both(job, "committed") == shown and job.view.waiting == ()
    job.approve(job.checkpoint())
    again = of_both(job, "committed")
    assert set(shown) < set(again)
    splits = [[n for n in again if n % 2 == k] for k in (0, 1)]
    assert all(found == list(range(k, k + 2 * len(found), 2)) for k, found in enumerate(splits)), "all of it, once"
