"""The simulator: its first seeds hold, and it is what it says: decided by its seed, faulty in every way it names, and
able to see each thing it looks for."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
import weakref
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from simulator.campaign import Summary, campaign, run_chunk, silence
from simulator.checkers import Checkers, Cut
from simulator.driver_process import DriverProcess
from simulator.faults import KINDS, Faults
from simulator.rows import KEYS, batch_of, row_of, rows_of
from simulator.scheduler import Crashed, Mutex, Process, Scheduler, current_task
from simulator.store import Disk, SimulatedStore
from simulator.world import World, simulate

from tidegate.errors import AlreadyExistsError, StoreError
from tidegate.jobs.codec import encode
from tidegate.jobs.records import Decision

SEEDS = 70


@pytest.fixture(scope="module")
def summary() -> Summary:
    """Some seeds, run once."""
    return run_chunk(0, SEEDS)


def quiet(seed: int) -> World:
    """A world that has been run."""
    world = World(seed)
    with silence():
        world.report = world.run()  # type: ignore[attr-defined]
    return world


# ------------------------------------------------------------ seeds


def test_no_checker_finds_anything_in_the_first_seeds(summary: Summary) -> None:
    """S1.4, S1.5, S2.1, S2.2, S2.3, S2.4, S3.2, S3.7, S4.2, S5.5, S7.3, S7.4, S7.8, S9.1, S9.2, S9.3, S9.4, together
    and under faults; `make sim-mutants` shows that breaking them is noticed."""
    assert summary.violations == []
    assert summary.seeds == SEEDS


def test_seeds_are_not_idle(summary: Summary) -> None:
    assert summary.operators / SEEDS >= 4
    assert summary.recovered / SEEDS >= 0.8
    assert sum(summary.faults.values()) / SEEDS >= 5
    for event in (
        "restores", "rescales", "savepoints", "stops", "drains", "commands", "crashed drivers", "approvals",
        "rejections", "hasty stops", "ways back", "waits for deletions", "splits assigned later",
    ):  # fmt: skip
        assert summary.events[event] > 0, event


def test_every_kind_of_fault_strikes_and_every_checker_looks(summary: Summary) -> None:
    assert set(KINDS) - set(summary.faults) == set()
    looked = {
        "answers", "collection", "commands", "commit implies completed", "committed once", "consistent cut",
        "damage", "deletions", "durable", "ids monotone", "log", "nothing left staged", "nothing unapproved",
        "one attempt", "one end per id", "output", "rejected", "splits", "stop outcomes", "taken back once",
        "timelines", "verdicts", "watermarks",
    }  # fmt: skip
    assert looked - set(summary.evaluated) == set()


def test_a_seed_decides_everything() -> None:
    first, second = (quiet(7) for _ in range(2))
    assert first.scheduler.steps == second.scheduler.steps
    assert first.faults.counts == second.faults.counts
    story = [(d.kind, d.run_id, d.at) for d in first.decisions]
    assert story == [(d.kind, d.run_id, d.at) for d in second.decisions]
    assert story != [(d.kind, d.run_id, d.at) for d in quiet(8).decisions]


def test_a_campaign_that_is_resumed_repeats_nothing(tmp_path: Path) -> None:
    file = tmp_path / "pieces.jsonl"
    first, _ = campaign(0, 2, workers=1, resume=file, tell=lambda text: None)
    document = json.loads(file.read_text())
    document["summary"]["faults"] = {"slot_crash": 1_000_000}
    file.write_text(json.dumps(document) + "\n")
    again, _ = campaign(0, 2, workers=1, resume=file, tell=lambda text: None)
    assert first.seeds == again.seeds == 2
    assert again.faults == Counter(slot_crash=1_000_000)


def test_a_violation_is_told_with_the_line_that_replays_it() -> None:
    found = Summary(seeds=1, violations=[(17, "something is wrong")])
    *_, failed, verdict = found.lines(1.0)
    assert failed == "FAILED seed 17: something is wrong -- replay: make sim SEED=17"
    assert verdict == "sim: 1 seeds, 0 faults, 1 violations"


# ------------------------------------------------------------ processes and the store


class Always(Faults):
    """One kind of fault strikes at every opportunity."""

    def __init__(self, scheduler: Scheduler, *kinds: str) -> None:
        super().__init__(scheduler.random)
        self._kinds = kinds

    def strikes(self, kind: str) -> bool:
        """Of the chosen ones."""
        self.counts[kind] += kind in self._kinds
        return kind in self._kinds


def with_store(*kinds: str) -> tuple[Scheduler, Disk, Process, SimulatedStore]:
    """A driver's store in which faults of these kinds strike always."""
    scheduler, disk = Scheduler(1), Disk()
    process = Process(scheduler, "driver-1.1")
    return scheduler, disk, process, SimulatedStore(disk, process, Always(scheduler, *kinds))


def ran(scheduler: Scheduler) -> None:
    """Everything that is to be done."""
    scheduler.run(lambda: False, limit_ms=100_000, limit_steps=10_000)


def test_a_process_that_crashed_has_no_effects_while_it_unwinds() -> None:
    scheduler, disk, process, store = with_store()
    unwound: list[str] = []

    def work() -> None:
        try:
            process.crash()
        finally:
            unwound.append("here")
            store.create("after", b"death")

    process.spawn(work)
    ran(scheduler)
    assert unwound == ["here"]
    assert disk.objects == {}


def test_a_stalled_process_goes_on_later_without_knowing() -> None:
    scheduler, _, process, store = with_store()
    seen: list[int] = []

    def work() -> None:
        seen.append(scheduler.now_ms)
        process.stalled_until_ms = scheduler.now_ms + 5_000
        store.create("a", b"1")
        seen.append(scheduler.now_ms)

    process.spawn(work)
    ran(scheduler)
    assert seen[1] - seen[0] >= 5_000


def test_a_lost_reply_leaves_the_object_there() -> None:
    scheduler, disk, process, store = with_store("reply_lost")
    met: list[str] = []

    def work() -> None:
        with pytest.raises(StoreError):
            store.create("a", b"1")
        met.append("unclear")

    process.spawn(work)
    ran(scheduler)
    assert met == ["unclear"]
    assert disk.objects == {"a": b"1"}


def test_a_late_write_of_a_dead_process_loses_against_its_successor() -> None:
    scheduler, disk, process, store = with_store("driver_crash", "late_write")
    process.spawn(lambda: store.create("entry", b"old"))
    scheduler.run(lambda: not process.alive, limit_ms=1_000, limit_steps=100)
    assert disk.objects == {}
    disk.put("entry", b"new", scheduler.now_ms, "driver-1.2")
    ran(scheduler)
    assert disk.objects == {"entry": b"new"}


def test_a_write_cut_short_leaves_only_a_part_under_another_name() -> None:
    scheduler, disk, process, store = with_store("driver_crash", "torn_write")
    process.spawn(lambda: store.create("folder/state", b"0123456789"))
    ran(scheduler)
    (name,) = disk.objects
    assert name.startswith("folder/state.") and name.endswith(".tmp")
    assert disk.objects[name] == b"01234"


def test_a_stale_listing_does_not_show_what_is_new() -> None:
    scheduler, _, process, store = with_store("stale_list")
    listed: list[list[str]] = []

    def work() -> None:
        store.create("folder/a", b"1")
        listed.append(store.list("folder"))
        process.stalled_until_ms = scheduler.now_ms + 1_000
        listed.append(store.list("folder"))

    process.spawn(work)
    ran(scheduler)
    assert listed == [[], ["a"]]


def test_of_two_processes_one_creates() -> None:
    scheduler, disk = Scheduler(3), Disk()
    outcomes: list[str] = []
    for name in ("driver-1.1", "driver-1.2"):
        process = Process(scheduler, name)
        store = SimulatedStore(disk, process, Always(scheduler))

        def work(store: SimulatedStore = store, name: str = name) -> None:
            try:
                store.create("entry", name.encode())
                outcomes.append("won")
            except AlreadyExistsError:
                outcomes.append("lost")

        process.spawn(work)
    ran(scheduler)
    assert sorted(outcomes) == ["lost", "won"]


def test_a_simulation_that_is_over_is_forgotten() -> None:
    """A task that is paused for ever would keep all of it in memory: 0.6 MB for each seed of a campaign."""
    worlds = [weakref.ref(quiet(seed)) for seed in range(4)]
    gc.collect()
    assert [world() for world in worlds] == [None] * 4


def test_killing_a_process_from_its_own_task_does_not_return() -> None:
    scheduler, _, process, _ = with_store()
    reached: list[str] = []

    def work() -> None:
        with pytest.raises(Crashed):
            process.crash()
        reached.append("unwinding")

    process.spawn(work)
    ran(scheduler)
    assert reached == ["unwinding"]
    assert not process.alive


def test_tasks_of_one_process_keep_a_mutex_as_threads_keep_a_lock() -> None:
    """Seeds 202 and 742 of a workload: a clean-up read the log between an append and what the appender noted of it."""
    scheduler, _, process, _ = with_store()
    mutex, held = Mutex(), []

    def work(name: str) -> None:
        task = current_task()
        assert task is not None
        with mutex, mutex:
            held.append(f"{name} in")
            task.pause(10)
            held.append(f"{name} out")

    for name in "abc":
        process.spawn(partial(work, name), 1)
    ran(scheduler)
    assert held == ["a in", "a out", "b in", "b out", "c in", "c out"]


# ------------------------------------------------------------ the checkers see what they look for


@pytest.fixture
def world() -> World:
    """A world at rest after a seed without violation, in which a checkpoint completed last."""
    world = next(w for w in map(quiet, range(50)) if checkpoint_came_last(w))
    assert not world.checkers.violations
    return world


def entry(world: World, kind: str, data: dict[str, object], **other: object) -> Decision:
    """The entry that would come next."""
    last = world.decisions[-1]
    fields = {"number": last.number + 1, "generation": last.generation, "run_id": last.run_id, **other}
    return Decision(kind=kind, at=last.at, nonce="x", data=data, **fields)  # type: ignore[arg-type]


def appended(world: World, decision: Decision) -> list[str]:
    """What the checkers say to an entry that appears on the disk."""
    path = f"job/decisions/{len(world.decisions) + 1:08d}.json"
    world.disk.put(path, encode(decision), world.scheduler.now_ms, "driver-9.9")
    return world.checkers.violations


def completed(world: World) -> Decision:
    """The last completion."""
    return next(d for d in reversed(world.decisions) if d.kind == "complete")


def checkpoint_came_last(world: World) -> bool:
    """Of what completed, if anything did."""
    paths = [d.data["path"] for d in world.decisions if d.kind == "complete"]
    return bool(paths) and paths[-1].startswith("job/checkpoints/")


def test_an_entry_of_an_old_generation_is_seen(world: World) -> None:
    late = entry(world, "status", {"status": "RUNNING"}, generation=world.decisions[-1].generation - 1)
    assert appended(world, late)[0].startswith("log: ")


def test_a_second_completion_of_one_id_is_seen(world: World) -> None:
    assert any(
        v.startswith("one end per id") for v in appended(world, entry(world, "complete", dict(completed(world).data)))
    )


def test_an_id_that_goes_back_is_seen(world: World) -> None:
    claim = entry(world, "claim", {"checkpoint_id": 1, "kind": "checkpoint", "path": "job/checkpoints/x"})
    assert appended(world, claim)[0].startswith("ids monotone")


def test_a_completion_without_its_metadata_is_seen(world: World) -> None:
    n = 10_000
    claim = {"checkpoint_id": n, "kind": "checkpoint", "path": "job/checkpoints/chk-10000-g1"}
    assert appended(world, entry(world, "claim", claim)) == []
    assert any(v.startswith("durable") for v in appended(world, entry(world, "complete", claim)))


def test_a_commit_of_what_is_not_complete_is_seen(world: World) -> None:
    assert appended(world, entry(world, "committed", {"checkpoint_id": 10_000}))[0].startswith("commit implies")
    world.checkers.violations.clear()
    world.checkers.published("job,lineage,sink-1,0,10000,99,nobody,1")
    assert world.checkers.violations[0].startswith("commit implies completed")


def test_the_deletion_of_the_recovery_point_is_seen() -> None:
    world = next(w for w in map(quiet, range(50)) if checkpoint_came_last(w))
    world.disk.on_delete(f"{completed(world).data['path']}/_metadata", "driver-9.9")
    assert world.checkers.violations[0].startswith("collection")


def test_a_watermark_that_goes_back_is_seen(world: World) -> None:
    world.checkers.watermark("run", 1, 10)
    world.checkers.watermark("run", 1, 10)
    assert world.checkers.violations[0].startswith("watermarks")


def test_a_lost_and_a_repeated_row_are_seen() -> None:
    world = next(w for w in map(quiet, range(50)) if w.exactly_once and w.two_phase and rows_committed(w))
    external = next(e for e in world.externals.values() if any(b.num_rows for bs in e.committed.values() for b in bs))
    transaction, batches = next((t, bs) for t, bs in external.committed.items() if any(b.num_rows for b in bs))
    external.committed[transaction] = [batch.slice(1) for batch in batches]
    world._check_end()
    assert any("rows lost" in v for v in world.checkers.violations)
    world.checkers.violations.clear()
    external.committed[transaction] = [*batches, batches[0]]
    world._check_end()
    assert any("rows too many" in v for v in world.checkers.violations)


def rows_committed(world: World) -> bool:
    """Some plain row came out."""
    return any(
        row[0] >= 0
        for external in world.externals.values()
        for batches in external.committed.values()
        for batch in batches
        for row in rows_of(batch)
    )


def test_a_cut_that_is_not_consistent_is_seen(world: World) -> None:
    tally = next((n for w in map(quiet, range(80)) for n in w.workload.graph.nodes if n.kind == "tally"), None)
    assert tally is not None, "no tally in 80 graphs"
    world = next(
        w for w in map(quiet, range(80)) if w.exactly_once and any(n.kind == "tally" for n in w.workload.graph.nodes)
    )
    node = next(n for n in world.workload.graph.nodes if n.kind == "tally")
    checkers: Checkers = world.checkers
    checkers.parallelism_of["made-up"] = 1
    checkers.cuts["made-up", 1] = Cut(positions={(0, 0): 20}, tallies={(node.uid, 0): {(0, 0, 0, 0): (10, 3)}})
    checkers._check_cut("made-up", 1, {})
    assert any(v.startswith("consistent cut") for v in checkers.violations)


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_cut_that_loses_or_repeats_a_row_in_flight_is_seen(times: int) -> None:
    """S3.7: what a tally lacks must be in the state of its channels, once."""
    world = next(w for w in map(World, range(80)) if any(n.kind == "tally" for n in w.workload.graph.nodes))
    node = next(n for n in world.workload.graph.nodes if n.kind == "tally")
    positions = {(0, 0): 20}
    held = world.workload.tally_at(node.node_id, world.workload.everything(positions))
    src, split, key, path = missing = next(k for k, (_, count) in held.items() if count > 1)
    last, count = held[missing]
    held[missing] = (last - KEYS, count - 1)
    world.checkers.parallelism_of["made-up"] = 1
    world.checkers.cuts["made-up", 1] = Cut(positions, {(node.uid, 0): held})
    world.checkers._check_cut("made-up", 1, {node.uid: [row_of(src, split, last, path)] * times})
    assert bool(world.checkers.violations) == (times != 1)


# ------------------------------------------------------------ rows


def test_rows_make_a_round_trip() -> None:
    rows = [row_of(1, 2, seq, 77) for seq in range(5)]
    assert rows_of(batch_of(rows)) == rows
    assert rows_of(batch_of([])) == []


def test_a_simulation_reports_itself() -> None:
    with silence():
        report = simulate(1)
    assert (report.seed, report.violations) == (1, [])
    assert report.steps > 0


def test_a_driver_holds_of_the_log_what_is_on_the_disk(world: World) -> None:
    """S2.1: it does not read back what it appends; so nothing it appends may change on the way through JSON."""
    held = world.story.driver._job.generation_log.decisions
    assert len(held) > 5 and list(held) == world.decisions[: len(held)]


def test_a_driver_without_periodic_checkpoints_notices_that_it_was_replaced() -> None:
    """S9.2: it appends nothing, and looks once per heartbeat_timeout."""
    world = next(w for w in map(World, range(50)) if not w.workload.is_bounded)
    world.faults.active, world.story.is_over = False, True
    spec, older = world.specs[-1], world.story.driver
    world.options_of_spec[spec.number] = replace(world.options_of(spec), checkpoint_interval=None)
    newer = DriverProcess(world, spec, 2)

    def is_up() -> bool:
        return bool(world.decisions) and world.decisions[-1].data.get("status") == "RUNNING"

    assert world.scheduler.run(is_up, limit_ms=10_000, limit_steps=10_000)
    newer.start()
    assert world.scheduler.run(lambda: older.ended is not None, limit_ms=400, limit_steps=10_000)
    assert (older.ended, newer.ended) == ("fenced", None)


# ------------------------------------------------------------ mutants


def test_every_mutant_changes_one_place_of_the_runtime() -> None:
    """`make sim-mutants` tries them; here only that none has gone stale."""
    tools = Path(__file__).parents[2] / "tools"
    spec = importlib.util.spec_from_file_location("protocol_mutants", tools / "protocol_mutants.py")
    assert spec is not None and spec.loader is not None
    mutants = importlib.util.module_from_spec(spec)
    sys.modules["protocol_mutants"] = mutants
    spec.loader.exec_module(mutants)
    assert len(mutants.MUTANTS) >= 20
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS)
    for mutant in mutants.MUTANTS:
        source = tools.parent / "spark_runtime" / Path(*mutant.module.split(".")).with_suffix(".py")
        assert source.read_text(encoding="utf-8").count(mutant.before) == 1, mutant.name
        assert mutant.before != mutant.after and (mutant.simulated or mutant.tests), mutant.name
        assert all((tools.parent / "tests" / path).exists() for path in mutant.tests), mutant.name
