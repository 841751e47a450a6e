"""Two-phase sinks in the midst of a graph, in chains, behind exchanges and in branches that end at different times:
whole jobs in one thread (S6.1, S7.3, S7.4)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.api.aggregates import count
from tidegate.api.pipeline import Pipeline
from tidegate.api.stream import Stream
from tidegate.api.windows import tumbling
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import PipelineError
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

ROWS = 240
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
_names = itertools.count()
Build = Callable[[str], Pipeline]


def rows(numbers: Any) -> dict[str, Any]:
    return {"k": numbers % 5, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms"))}


def numbers(p: Pipeline, uid: str = "numbers", total: int | None = ROWS) -> Stream:
    return p.read(DataGen(rows, SCHEMA, rows=total, splits=3, batch_rows=16), uid=uid)


def chain(stages: int, total: int | None = ROWS) -> Build:
    """Source and all stages in one chain of subtasks."""

    def build(name: str) -> Pipeline:
        p = Pipeline()
        stream = numbers(p, total=total)
        for n in range(stages):
            stream = stream.write_through(CollectSink(f"{name}-{n}"), uid=f"stage-{n}")
        return p

    return build


def shuffled(stages: int, total: int | None = ROWS) -> Build:
    """Each stage a chain of its own: two read the stage before, one of them the next, in other subtasks."""

    def build(name: str) -> Pipeline:
        p = Pipeline()
        stream = numbers(p, total=total)
        for n in range(stages):
            written = stream.write_through(CollectSink(f"{name}-{n}"), uid=f"stage-{n}")
            stream = written.union(written.filter(pc.field("v") < 0))
        stream.filter(pc.field("v") < 0).write(CollectSink(f"{name}-none"), uid="none")
        return p

    return build


def windowed(name: str) -> Pipeline:
    """A stage in front of a window and one behind it, whose exchange shuffles in between."""
    p = Pipeline()
    (
        numbers(p)
        .write_through(CollectSink(f"{name}-0"), uid="raw")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("100 ms"))
        .agg(n=count(), uid="windows")
        .write_through(CollectSink(f"{name}-w"), uid="daily")
        .filter(pc.field("n") > 0)
        .write(CollectSink(f"{name}-x"), uid="out")
    )
    return p


def branches(name: str, short: int = 32, long: int | None = ROWS) -> Pipeline:
    """Two branches with two stages each, of which one ends long before the other, and a stage behind their union."""
    p = Pipeline()
    parts = []
    for branch, total in (("short", short), ("long", long)):
        stream = numbers(p, branch, total)
        for n in range(2):
            stream = stream.write_through(CollectSink(f"{name}-{branch}-{n}"), uid=f"{branch}-{n}")
        parts.append(stream)
    parts[0].union(parts[1]).write_through(CollectSink(f"{name}-both"), uid="both")
    return p


class Chained:
    """A job whose pipeline writes to sinks of its own."""

    def __init__(self, build: Build, **options: Any) -> None:
        self.name = f"chained-{next(_names)}"
        self.job = InProcessJob(lambda: build(self.name), {"parallelism": 2, **options})

    def rows(self, stage: object) -> list[tuple[Any, ...]]:
        """Committed values of a stage, sorted."""
        return sorted(row[1] for row in collected(f"{self.name}-{stage}").rows())  # type: ignore[type-var]

    def assert_all(self, stages: Sequence[object], total: int = ROWS) -> None:
        """Every stage committed rows 0..total once, and left nothing staged."""
        for stage in stages:
            assert self.rows(stage) == list(range(total)), stage
            of_stage = collected(f"{self.name}-{stage}")
            assert not of_stage.staged and set(of_stage.publications.values()) <= {1}, stage

    @property
    def completes(self) -> list[str]:
        return [d.data["kind"] for d in self.job.log.read() if d.kind == "complete"]


def checkpoint(run: InProcessRun, name: str = "c") -> None:
    answer = run.ask(ev.SnapshotRequest("checkpoint", request_id=name))
    assert answer is not None and answer.ok, answer


@pytest.mark.parametrize("interval", [None, "1 h"])
@pytest.mark.parametrize("stages", [1, 3, 6])
@pytest.mark.parametrize("shape", [chain, shuffled])
def test_a_chain_of_any_number_of_stages_ends_with_one_final_snapshot_started_at_once(
    shape: Callable[[int], Build], stages: int, interval: str | None
) -> None:
    """S7.3: all wait in parallel, also with no interval set; no time passes, so nothing waited for a checkpoint."""
    chained = Chained(shape(stages), **({"checkpoint_interval": interval} if interval else {}))
    run = chained.job.submit()
    started_ms = chained.job.now_ms
    while run.outcome is None:
        assert run.pump(), "stuck without time passing"
    assert run.outcome == RunEnded(None, None, None, None) and chained.job.now_ms == started_ms
    assert chained.completes == ["final"]
    chained.assert_all(range(stages))


@pytest.mark.parametrize("stop", ["suspend", "drain"])
@pytest.mark.parametrize("shape", [chain, shuffled])
def test_a_stop_of_a_chain_needs_its_savepoint_alone_and_commits_every_stage(
    shape: Callable[..., Build], stop: Any
) -> None:
    """S7.2, S7.3, S7.5: all stages have committed the same rows, and a restore adds the rest."""
    chained = Chained(shape(3))
    run = chained.job.submit()
    run.pump(4)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop=stop))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    assert chained.completes == ["stop-savepoint"]
    assert 0 < len(chained.rows(0)) < ROWS
    assert chained.rows(0) == chained.rows(1) == chained.rows(2)
    chained.job.submit(RestoreFrom("savepoint", path=outcome.path, allow_drained=stop == "drain")).to_end()
    assert chained.completes == ["stop-savepoint", "final"]
    chained.assert_all(range(3))


def test_stages_in_front_of_a_window_and_behind_it_commit_with_the_same_checkpoint() -> None:
    """S7.4: what is passed on is what was written, through the exchange and past watermarks."""
    chained = Chained(windowed)
    chained.job.submit().to_end()
    assert chained.completes == ["final"]
    chained.assert_all([0])
    made = collected(f"{chained.name}-w").rows()
    assert made and sorted(made, key=str) == sorted(collected(f"{chained.name}-x").rows(), key=str)
    assert sum(int(str(row[-1])) for row in made) == ROWS


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("build", [chain(3), shuffled(3), branches], ids=["chain", "shuffled", "branches"])
def test_crashes_at_random_moments_lose_and_repeat_nothing_in_any_stage(build: Build, seed: int) -> None:
    """S7.4, S9.1."""
    rng = random.Random(seed)
    chained = Chained(build, checkpoint_interval="1 s")
    run = chained.job.submit()
    for _ in range(4):
        for _ in range(rng.randint(0, 30)):
            run.pump()
            if rng.random() < 0.3:
                run.tick(rng.randint(1, 700))
            if run.outcome is not None:
                break
        if run.outcome is not None:
            break
        run.crash()
        run = chained.job.relaunch() if rng.random() < 0.5 else chained.job.rerun()
    run.to_end()
    if build is branches:
        chained.assert_all(["short-0", "short-1"], 32)
        chained.assert_all(["long-0", "long-1"])
    else:
        chained.assert_all(range(3))


def test_branches_that_end_at_different_times_share_one_final_snapshot() -> None:
    """S6.1, S7.3."""
    chained = Chained(branches)
    chained.job.submit().to_end()
    assert chained.completes == ["final"]
    chained.assert_all(["short-0", "short-1"], 32)
    chained.assert_all(["long-0", "long-1"])
    assert sorted(chained.rows("both")) == sorted([*range(32), *range(ROWS)])


def test_a_branch_that_has_ended_is_committed_by_the_next_checkpoint_and_finishes() -> None:
    """S6.1, S7.3, S7.4: a checkpoint that starts after its end is enough; the other branch goes on, and so do
    checkpoints; after a crash the finished chain commits nothing twice."""
    chained = Chained(lambda name: branches(name, long=None))
    run = chained.job.submit()
    run.until(lambda: any(d.kind == "end_of_data" for d in chained.job.log.read()))
    checkpoint(run, "one")
    run.until(lambda: sum(s.is_finished for s in run.slot._subtasks) >= 2)
    chained.assert_all(["short-0", "short-1"], 32)
    checkpoint(run, "two")
    run.crash()
    again = chained.job.rerun()
    again.pump(30)
    checkpoint(again, "three")
    again.pump(10)
    chained.assert_all(["short-0", "short-1"], 32)
    assert chained.rows("long-0") == chained.rows("long-1") and len(chained.rows("long-0")) > 32


def test_what_a_finished_stage_had_not_committed_is_committed_after_the_restore() -> None:
    """S6.2, S7.4: the crash comes between "complete" and the commits; every operator of the chain has finished."""
    chained = Chained(chain(3))
    run = chained.job.submit()
    run.until(lambda: run.run.coordinator.pending_ids != ())
    run.writers.held = True  # the final snapshot: acknowledged, its commits never come
    while not any(d.kind == "complete" for d in chained.job.log.read()):
        run.pump()
        run.writers.release()
        run.writers.held = True
    run.pump()
    assert chained.rows(0) == []
    run.crash()
    assert chained.job.rerun().to_end() == RunEnded(None, None, None, None)
    chained.assert_all(range(3))


def test_a_suspended_chain_is_restored_at_another_parallelism() -> None:
    """S5.5, S7.4."""
    chained = Chained(shuffled(2))
    run = chained.job.submit()
    run.pump(4)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    chained.job.options = {"parallelism": 3}
    chained.job.submit(RestoreFrom("savepoint", path=outcome.path)).to_end()
    chained.assert_all(range(2))


def one_phase_end(name: str) -> Pipeline:
    p = Pipeline()
    staged = numbers(p).write_through(CollectSink(f"{name}-0"), uid="staged")
    staged.write(CollectSink(f"{name}-1", two_phase=False), uid="out")
    return p


def test_a_two_phase_sink_is_found_where_the_last_one_writes_at_once() -> None:
    """S3.3, S7.3, S7.8: the refusal of checkpoint_mode="off", the final snapshot and the gate look at every sink."""
    with pytest.raises(PipelineError, match="sinks staged"):
        Chained(one_phase_end, checkpoint_mode="off").job.submit()
    chained = Chained(one_phase_end)
    chained.job.submit().to_end()
    assert chained.completes == ["final"]
    chained.assert_all(range(2))
    gated = Chained(one_phase_end, commit="on_request")
    outcome = gated.job.submit().to_end()
    assert isinstance(outcome, RunEnded) and outcome.uncommitted == (1,)
    assert gated.rows(0) == [] and gated.rows(1) == list(range(ROWS))
