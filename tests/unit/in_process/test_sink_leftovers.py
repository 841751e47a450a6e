"""S2.3, S7.4: nobody asks for what `tidegate gc --sinks` removes: after it every restore publishes what it would
have."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.files.sink.marker_packs import MarkerPacks
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.transactions import SinkContext
from tidegate.coordinator import events as ev
from tidegate.coordinator.garbage.abandoned_checkpoints import claimed_savepoints
from tidegate.coordinator.garbage.sink_leftovers import (
    ReferencedTransactions,
    SinkLeftovers,
    SinkLineage,
    collect_leftovers,
    lineages_of,
    referenced_transactions,
    stable_referenced_transactions,
)
from tidegate.errors import SnapshotError, TidegateError
from tidegate.jobs.history.checkpoints import CheckpointView, checkpoint_views
from tidegate.jobs.history.rewinds import rewound_checkpoints
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.records import RestoreFrom
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

SCHEMA = pa.schema([("v", pa.int64())])
EVER = datetime.max.replace(tzinfo=UTC)
PHASES = (Phase.explicit, Phase.generate)
ROWS = 600
ACTIONS = (
    "pump",
    "checkpoint",
    "checkpoint",
    "savepoint",
    "crash",
    "staged only",
    "fresh",
    "restore",
    "forget",
    "collect",
)


@dataclass
class World:
    """A job, its root and its output, all below one folder."""

    folder: Path
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job = InProcessJob(self.build, {"parallelism": 2, **self.options}, root=str(self.folder / "root"))
        self._requests = 0

    def build(self) -> Pipeline:
        p = Pipeline()
        source = DataGen(lambda numbers: {"v": numbers}, SCHEMA, rows=ROWS, splits=2, batch_rows=4)
        p.read(source, uid="numbers").write(Parquet(self.folder / "out", target_file_rows=8), uid="out")
        return p

    def start(self) -> World:
        self.run: InProcessRun = self.job.submit()
        return self

    def copy(self, name: str) -> World:
        """As it is now, elsewhere; no run goes on in it."""
        folder = self.folder.parent / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)
        made = World(folder, self.options)
        made.job.specs[:], made.job._spec_number = self.job.specs, self.job._spec_number
        made.job.lineage, made.job.now_ms = self.job.lineage, self.job.now_ms
        made.job.log = made.job._open_log()
        made._requests = self._requests
        return made

    def snapshot(self, kind: Any = "checkpoint") -> int:
        self._requests += 1
        request = ev.SnapshotRequest(kind, request_id=f"r{self._requests}")
        self.run.run.handle_command(request)
        self.run.until(lambda: request.request_id in self.job.answers or self.run.outcome is not None)
        answer = self.job.answers.get(request.request_id)
        self.run.pump(4)
        return int(answer.data["checkpoint_id"]) if answer is not None and answer.ok else 0

    def fresh(self) -> None:
        self.run.crash()
        self.job.lineage = f"lineage-{len(self.job.specs) + 1}"
        self.start()

    def restore(self, view: CheckpointView, how: Any = "accept_duplicates") -> None:
        """In the lineage that took the snapshot."""
        self.job.lineage = next(spec.lineage for spec in self.job.specs if spec.number == view.spec)
        kind: Any = "savepoint" if view.kind == "savepoint" else "checkpoint"
        restore = RestoreFrom(kind, path=view.path, checkpoint_id=view.checkpoint_id, on_committed_after=how)
        self.run = self.job.submit(restore)

    def there(self) -> list[CheckpointView]:
        """Snapshots that can be restored, if nothing else is in the way."""
        entries = entries_by_submission(self.job.log.read())
        gone = rewound_checkpoints(self.job.specs, entries)
        views = [v for v in checkpoint_views(entries, ended=False) if v.status == "completed"]
        there = [v for v in views if self.job.store.exists(f"{v.path}/_metadata")]
        return [v for v in there if v.checkpoint_id not in gone]

    def collect(
        self,
        *,
        dry_run: bool = False,
        begun: Callable[[], None] = lambda: None,
        asking: Callable[[], None] = lambda: None,
    ) -> SinkLeftovers:
        """As `tidegate gc --sinks` does, of any age. `begun`, `asking`: what others do when it has read the log, and
        while it reads snapshots."""
        specs, decisions = list(self.job.specs), self.job._open_log().read()
        graph = self.build().build()
        ctx = SinkContext("job", "", "out", 0, 1, 0, "gc", SCHEMA)
        (sink,) = [node.sink for node in graph.nodes if node.sink is not None]
        owned = claimed_savepoints(decisions, specs)
        lineages = lineages_of(decisions, specs)
        begun()

        def ask(lineage: SinkLineage) -> ReferencedTransactions:
            asking()
            return referenced_transactions(lineage, self.job.store, list(self.job.specs), owned, ())

        return collect_leftovers(
            [(sink, ctx)],
            lineages,
            lambda lineage: stable_referenced_transactions(
                lineage, lambda: lineages_of(self.job._open_log().read(), list(self.job.specs)), ask
            ),
            EVER,
            dry_run=dry_run,
        )

    @property
    def staged(self) -> list[Path]:
        return sorted((self.folder / "out").rglob("*.staged"))

    @property
    def rows(self) -> list[int]:
        return sorted(n for f in (self.folder / "out").glob("*.parquet") for n in pq.read_table(f)["v"].to_pylist())


def outcome(world: World, view: CheckpointView, how: str) -> tuple[str, list[int]]:
    """What a restore, run to its end, shows in the end; or says."""
    try:
        world.restore(view, how)
        world.run.to_end()
    except (TidegateError, OperatorFailure) as error:
        return str(error).replace(str(world.folder), ""), world.rows
    return str(type(world.run.outcome).__name__), world.rows


def test_what_was_rejected_goes_behind_a_fresh_start_and_nothing_of_the_run(tmp_path: Path) -> None:
    """S7.8: then=stop leaves it staged, for a restore that never comes."""
    world = World(tmp_path / "w", {"commit": "on_request"}).start()
    world.run.pump(6)
    assert world.snapshot() == 1
    world.run.run.handle_command(ev.Verdict("no", False, 1, "the auditor", "stop"))
    world.run.pump(20)
    world.job.generation_log.append("status", {"status": "STOPPED", "reason": "rejected"})
    world.job.store.delete_folder(world.there()[0].path)
    world.fresh()
    world.run.pump(6)
    world.snapshot()
    rejected = [file for file in world.staged if "lineage-1" in file.parts]
    own = [file for file in world.staged if file not in rejected]
    assert rejected and own
    would = world.collect(dry_run=True)
    assert {one.path for _, one in would.found} == {str(file) for file in rejected} and world.staged
    assert world.collect() == would and world.staged == own and would.size_bytes > 0
    assert would.found[0][0].startswith("Parquet(")
    world.run.run.handle_command(ev.Verdict("yes", True, None, "the auditor", "stop"))
    world.run.pump(20)
    assert world.rows and len(world.rows) == len(set(world.rows))


def savepoint_before_a_crash(world: World) -> CheckpointView:
    """Of data that no run has committed since; then the job is started fresh."""
    world.run.pump(6)
    n = world.snapshot("savepoint")
    world.fresh()
    return next(view for view in world.there() if view.checkpoint_id == n)


def test_what_a_savepoint_holds_stays_and_is_committed_when_it_is_restored(tmp_path: Path) -> None:
    """S7.4: by id or by path, in its own lineage, long after a fresh start."""
    world = World(tmp_path / "w").start()
    view = savepoint_before_a_crash(world)
    held = world.staged
    world.run.pump(6)
    world.snapshot()
    assert held and world.collect() != SinkLeftovers() and set(held) <= set(world.staged)
    world.run.crash()
    world.restore(view)
    world.run.to_end()
    assert set(range(ROWS)) <= set(world.rows)


def test_a_savepoint_that_is_not_in_its_place_keeps_all_that_it_may_hold(tmp_path: Path) -> None:
    """S7.4: it may have been moved, and be restored from there; gc says so. One that cannot be read, too."""
    world = World(tmp_path / "w").start()
    view = savepoint_before_a_crash(world)
    held = world.staged
    (tmp_path / "kept").mkdir()
    shutil.move(tmp_path / "w" / "root" / view.path, tmp_path / "kept" / "sp")
    told = world.collect()
    assert world.staged == held and told.kept == (
        f"lineage lineage-1: savepoint {view.checkpoint_id} was moved or deleted, and a moved copy may still need the "
        "data",
    )
    world.job.store.create(f"{view.path}/_metadata", b"{")
    assert "cannot be read" in world.collect().kept[0] and world.staged == held
    world.run.crash()
    world.job.lineage = "lineage-1"
    world.run = world.job.submit(RestoreFrom("savepoint", path=str(tmp_path / "kept" / "sp")))
    world.run.to_end()
    assert world.rows == list(range(ROWS))


def test_a_rewind_behind_a_collection_still_finds_what_readers_took(tmp_path: Path) -> None:
    """S9.3: markers of all that a snapshot may go back past are known; older ones are not."""
    world = World(tmp_path / "w", {"retained_checkpoints": 1}).start()
    for kind in ("checkpoint", "savepoint", "checkpoint", "checkpoint"):
        world.run.pump(6)
        world.snapshot(kind)
    saved = next(view for view in world.there() if view.kind == "savepoint")
    assert world.collect().found and not list((tmp_path / "w" / "out" / "_tidegate" / "commits").iterdir())
    world.run.crash()
    packs = MarkerPacks(LocalFileSystem(), str(tmp_path / "w/out/_tidegate/committed/job/lineage-1/out"))
    known = set(packs.between(0, 99)["checkpoint_id"].to_pylist())
    assert known == {n for n in (1, 2, 3, 4) if n >= saved.checkpoint_id}
    next((tmp_path / "w" / "out").glob("part-*--4--0.parquet")).unlink()
    with pytest.raises(SnapshotError, match=r"1 files that were published after this checkpoint were moved or removed"):
        world.restore(saved, "rewind")


def test_a_job_that_has_ended_keeps_only_what_a_snapshot_holds(tmp_path: Path) -> None:
    """S2.3: also of its last lineage; nothing comes to clean it up, and a restore would."""
    world = World(tmp_path / "w", {"commit": "on_request"}).start()
    world.run.pump(6)
    world.snapshot()
    world.run.pump(6)
    newest = world.snapshot()
    world.run.crash()
    assert world.staged and not any(one.why == "staged" for _, one in world.collect().found)
    world.job.generation_log.append("status", {"status": "FAILED", "reason": "x"})
    held = world.staged
    assert world.collect() == SinkLeftovers() and world.staged == held, "both wait for a verdict"
    world.job.store.delete_folder(world.job.layout.checkpoint(newest, 1))
    assert [one.why for _, one in world.collect().found] == ["staged"] * len({*held} - {*world.staged})
    assert world.staged and world.staged != held


def test_what_a_run_takes_over_while_it_is_collected_stays(tmp_path: Path) -> None:
    """S7.8: behind the first reading of the log a run begins, and deletes what it was restored from, since its own
    checkpoint holds the same."""
    world = World(tmp_path / "w", {"commit": "on_request"}).start()
    world.run.pump(6)
    first = world.snapshot()
    world.run.crash()
    world.job.generation_log.append("status", {"status": "FAILED", "reason": "x"})
    world.collect()
    held = world.staged
    assert held

    def restart() -> None:
        view = next(view for view in world.there() if view.checkpoint_id == first)
        world.restore(view)
        world.run.pump(6)
        assert world.snapshot() > first
        world.job.store.delete_folder(view.path)

    told = world.collect(begun=restart)
    assert set(held) <= set(world.staged)
    assert told.kept == (
        "lineage lineage-1: a run of this lineage has begun during the collection. Repeat the command later",
    )


def test_snapshots_are_read_again_when_a_run_completes_one_meanwhile(tmp_path: Path) -> None:
    """S7.4: those read have gone, and what is there asks for markers that they would have kept."""
    world = World(tmp_path / "w").start()
    world.run.pump(6)
    world.snapshot()
    steps = iter((True,))

    def go_on() -> None:
        if next(steps, False):
            old = world.there()
            world.run.pump(6)
            world.snapshot("savepoint")
            world.snapshot()
            for view in old:
                world.job.store.delete_folder(view.path)

    world.collect(asking=go_on)
    packs = MarkerPacks(LocalFileSystem(), str(tmp_path / "w/out/_tidegate/committed/job/lineage-1/out"))
    saved = next(view for view in world.there() if view.kind == "savepoint").checkpoint_id
    world.run.crash()
    assert set(packs.between(0, 99)["checkpoint_id"].to_pylist()) >= {saved}


def act(world: World, action: str, number: int) -> None:
    """One step of a history."""
    there = world.there()
    if world.run.outcome is not None and action not in ("fresh", "restore", "collect"):
        return
    match action:
        case "pump":
            world.run.pump(1 + number)
        case "checkpoint" | "savepoint":
            world.run.pump(1 + number)
            world.snapshot(action)
        case "staged only":
            world.run.pump(3)
            world.run.run.handle_command(
                ev.SnapshotRequest("checkpoint", request_id=f"half-{world.job.log.read()[-1].number}")
            )
            world.run.pump(number)
            world.run.crash()
            world.run = world.job.relaunch()
        case "crash":
            world.run.crash()
            world.run = world.job.relaunch()
        case "fresh":
            world.fresh()
        case "restore" if there:
            world.run.crash()
            world.restore(there[number % len(there)])
        case "forget" if len(there) > 1:
            world.job.store.delete_folder(there[0].path)
        case "collect":
            world.collect()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("leftovers")


@settings(max_examples=12, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5)), min_size=3, max_size=14), st.integers(0, 20))
def test_after_a_collection_every_restore_publishes_what_it_would_have(
    place: Path, script: list[tuple[str, int]], which: int
) -> None:
    """S2.3, S7.4, S9.3: random histories of checkpoints, savepoints, failures, fresh starts, restores and collections
    beside the run; then a snapshot is restored, with a rewind or without, as it is and behind a collection."""
    shutil.rmtree(place / "w", ignore_errors=True)
    world = World(place / "w", {"retained_checkpoints": 2}).start()
    try:
        for action, number in script:
            act(world, action, number)
    except (TidegateError, OperatorFailure):
        pass  # what it would go on from has been deleted: so be it, from here
    if world.run.outcome is None:
        world.run.crash()
    there = world.there()
    if not there:
        return
    view = there[which % len(there)]
    how = ("rewind", "accept_duplicates")[which % 2]
    plain, collected = world.copy("plain"), world.copy("collected")
    collected.collect()
    collected.collect()
    assert outcome(collected, view, how) == outcome(plain, view, how)
