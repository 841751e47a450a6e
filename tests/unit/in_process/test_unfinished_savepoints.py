"""S2.3: what a savepoint wrote that never completed is deleted: by its driver, by the next one, and what slow writers
write after that. Whole jobs in one thread."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.api.aggregates import count
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.testing.collect_sink import CollectSink
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

_names = itertools.count()


def build() -> Pipeline:
    p = Pipeline()
    source = DataGen(lambda n: {"k": n % 7}, pa.schema([("k", pa.int64())]), splits=3, batch_rows=16)
    counts = p.read(source, uid="numbers").group_by("k").agg(n=count(), uid="counts")
    counts.write(CollectSink(f"unfinished-{next(_names)}"), uid="out")
    return p


class Job:
    """A job whose savepoints go to a folder of people's choice."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.people = folder / "sp"
        self.people.mkdir()
        (self.people / "notes.txt").write_text("of people")
        places = {"savepoint_directory": str(self.people), "state_size_threshold": "0 B"}
        self.job = InProcessJob(build, {"parallelism": 2, **places, **options}, root=str(folder / "jobs"))

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.people)) for path in self.people.rglob("*") if path.is_file())

    def half_written(self, kind: Any = "savepoint") -> InProcessRun:
        """A savepoint is on its way; some of its parts lie in its folder, the others with slow writers."""
        run = self.job.submit()
        run.pump(5)
        run.writers.held = True
        stop = {"stop": "suspend"} if kind == "stop-savepoint" else {}
        run.run.handle_command(ev.SnapshotRequest(kind, request_id="sp", **stop))
        run.pump(500)
        written = run.writers._waiting[:2]
        del run.writers._waiting[:2]
        for work in written:
            work()
        assert len(self.files()) == 3
        return run


@pytest.mark.parametrize("kind", ["savepoint", "stop-savepoint"])
def test_an_aborted_savepoint_leaves_nothing_in_a_folder_of_people(tmp_path: Path, kind: Any) -> None:
    job = Job(tmp_path)
    run = job.half_written(kind)
    run.tick(600_000)
    assert not job.job.answers["sp"].ok
    assert job.files() == ["notes.txt"]


@pytest.mark.parametrize("late", [False, True])
def test_the_next_driver_deletes_what_a_savepoint_of_a_dead_one_wrote(tmp_path: Path, late: bool) -> None:
    """`late`: its own driver had deleted the folder, and slow writers wrote after that."""
    job = Job(tmp_path)
    run = job.half_written()
    if late:
        run.tick(600_000)
    run.writers.release()
    assert len(job.files()) > 1
    job.job.relaunch()
    reigning = job.job.last_job
    assert reigning is not None
    (left,) = reigning.garbage()
    assert not left.without_grace, "zombies may be writing"
    reigning.delete_snapshot(left.path)
    assert job.files() == ["notes.txt"] and reigning.garbage() == ()


def test_a_completed_savepoint_is_not_deleted_whoever_asks(tmp_path: Path) -> None:
    job = Job(tmp_path)
    run = job.job.submit()
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert answer is not None and answer.ok
    before = job.files()
    job.job.relaunch()
    assert job.job.last_job is not None
    assert job.job.last_job.garbage() == ()
    job.job.last_job.delete_snapshot(answer.data["path"])
    assert job.files() == before and len(before) > 2
