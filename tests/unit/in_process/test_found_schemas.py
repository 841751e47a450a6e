"""Whole jobs on files without a declared schema: what was found belongs to the job, not to the files of the day
(S5.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.api.aggregates import count
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.interface import Source
from tidegate.connectors.replay import Replay
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.coordinator.recovery.source_schemas import schemas_in_effect
from tidegate.errors import PipelineError, SnapshotError
from tidegate.jobs.artifacts.pinned_graph import read_pinned_graph
from tidegate.jobs.records import RestoreFrom, encode
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

ROWS = 120_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One file of whole numbers, of several batches."""
    (tmp_path / "b.csv").write_text("k,n\n" + "".join(f"{i % 3},{i}\n" for i in range(ROWS)))
    return tmp_path


def counting(source: Callable[[], Source], sink: str, **options: Any) -> InProcessJob:
    def build() -> Pipeline:
        p = Pipeline()
        p.read(source(), uid="numbers").group_by("k").agg(rows=count(), uid="counts").write(
            CollectSink(sink), uid="out"
        )
        return p

    return InProcessJob(build, options)


def begun(job: InProcessJob) -> InProcessRun:
    """A run that has read some, not all."""
    run = job.submit()
    run.until(lambda: sum(subtask.rows_in for subtask in run.slot._subtasks) > 0)
    return run


def arrives_first(folder: Path, content: str = "k,n\nx,y\n") -> None:
    """A file that sorts before all others, with other types."""
    (folder / "a.csv").write_text(content)


def results(sink: str) -> dict[Any, int]:
    return {row[0]: row[1] for row in collected(sink).rows()}


def test_a_file_that_sorts_first_and_arrives_between_two_runs_changes_no_type(folder: Path, sink: str) -> None:
    job = counting(lambda: Files(folder), sink)
    run = begun(job)
    run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
    run.crash()
    arrives_first(folder)
    assert isinstance(job.relaunch().to_end(), RunEnded)
    assert results(sink) == {0: ROWS // 3, 1: ROWS // 3, 2: ROWS // 3}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_savepoint_is_restored_with_the_types_of_the_run_that_took_it(
    folder: Path, sink: str, parallelism: int
) -> None:
    job = counting(lambda: Files(folder), sink)
    begun(job).ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    arrives_first(folder)
    job.options = {"parallelism": parallelism}
    assert isinstance(job.submit(RestoreFrom("latest")).to_end(), RunEnded)
    assert results(sink) == {0: ROWS // 3, 1: ROWS // 3, 2: ROWS // 3}


def test_a_fork_has_the_types_of_its_original(folder: Path, sink: str) -> None:
    job = counting(lambda: Files(folder), sink)
    answer = begun(job).ask(ev.SnapshotRequest("savepoint", request_id="s"))
    assert answer is not None and answer.ok
    arrives_first(folder)
    fork = InProcessJob(job.build, {}, job_id="fork", lineage="lineage-2", root=job.root)
    assert isinstance(fork.submit(RestoreFrom("savepoint", path=answer.data["path"])).to_end(), RunEnded)
    assert set(results(sink)) == {0, 1, 2}


def test_a_job_that_starts_again_without_a_checkpoint_keeps_its_types(folder: Path, sink: str) -> None:
    """The new file is one of its files then, and differs from the schema as any later file may."""
    job = counting(lambda: Files(folder, on_bad_record="skip"), sink)
    begun(job).crash()
    arrives_first(folder)
    run = job.relaunch()
    assert isinstance(run.to_end(), RunEnded)
    assert results(sink) == {0: ROWS // 3, 1: ROWS // 3, 2: ROWS // 3}
    assert run.counters()["numbers"] == {"bad_records": 1}


def test_a_job_whose_first_file_has_other_types_now_refuses_that_file_by_name(folder: Path, sink: str) -> None:
    job = counting(lambda: Files(folder), sink)
    begun(job).crash()
    arrives_first(folder, "n\n1\n")
    with pytest.raises(PipelineError, match=r"no column 'k'.*a\.csv, compared with .*b\.csv"):
        job.relaunch()


def test_a_replay_keeps_its_types_too(folder: Path, sink: str) -> None:
    job = counting(lambda: Replay(folder, time_column="n", at_end="end", batch_rows=1000), sink)
    run = begun(job)
    run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
    run.crash()
    arrives_first(folder)
    assert isinstance(job.relaunch().to_end(), RunEnded)
    assert set(results(sink)) == {0, 1, 2}


def test_a_declared_schema_wins_and_is_refused_by_name_where_it_does_not_fit(folder: Path, sink: str) -> None:
    declared: list[pa.Schema | None] = [None]
    job = counting(lambda: Files(folder, schema=declared[0]), sink)
    begun(job).ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    declared[0] = pa.schema([("k", pa.string()), ("n", pa.string())])
    with pytest.raises(SnapshotError, match="operator 'counts'"):
        job.submit(RestoreFrom("latest"))
    declared[0] = pa.schema([("k", pa.int64()), ("n", pa.int32())])
    assert isinstance(job.submit(RestoreFrom("latest")).to_end(), RunEnded)
    assert results(sink) == {0: ROWS // 3, 1: ROWS // 3, 2: ROWS // 3}


def test_a_file_of_another_format_does_not_keep_a_job_from_its_restore(folder: Path, sink: str) -> None:
    """Only a fresh start lists the files."""
    job = counting(lambda: Files(folder), sink)
    run = begun(job)
    run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
    run.crash()
    (folder / "notes.txt").write_text("read me")
    assert isinstance(job.relaunch().to_end(), RunEnded)
    assert sum(results(sink).values()) == ROWS


def test_a_restored_job_needs_no_file_that_it_has_read(tmp_path: Path, sink: str) -> None:
    """The schema came from a file that is gone since, and that no split needs any more."""
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"k": list(range(200_000))}), tmp_path / "b.parquet")
    job = counting(lambda: Files(tmp_path), sink)
    run = job.submit()
    run.until(lambda: sum(subtask.rows_in for subtask in run.slot._subtasks) > 2)
    run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
    run.crash()
    (tmp_path / "a.parquet").unlink()
    pq.write_table(pa.table({"k": ["x"]}), tmp_path / "a0.parquet")
    assert isinstance(job.relaunch().to_end(), RunEnded)
    assert sum(results(sink).values()) == 200_002


def test_a_job_of_an_earlier_version_keeps_what_its_newest_snapshot_holds(folder: Path, sink: str) -> None:
    """Its submission was pinned without schemas, and a pinned graph is never written again."""
    job = counting(lambda: Files(folder), sink)
    run = begun(job)
    run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
    run.crash()
    pinned = read_pinned_graph(job.store, job.layout, 1)
    assert pinned is not None
    operators = [{**operator, "found_schema": None} for operator in pinned.graph["operators"]]
    job.store.replace(job.layout.graph(1), encode(replace(pinned, graph={"version": 4, "operators": operators})))
    arrives_first(folder)
    assert isinstance(job.relaunch().to_end(), RunEnded)
    assert sum(results(sink).values()) == ROWS


def test_a_finished_job_asks_for_no_snapshot_that_may_be_gone(folder: Path, sink: str) -> None:
    job = counting(lambda: Files(folder), sink)
    assert isinstance(job.submit().to_end(), RunEnded)
    job.generation_log.append("status", {"status": "FINISHED"})
    job.store.delete_folder(job.layout.checkpoints)
    job.store.delete(job.layout.graph(1))
    assert schemas_in_effect(job.store, job.layout, job.specs[0], job.specs, job.log) == {}
