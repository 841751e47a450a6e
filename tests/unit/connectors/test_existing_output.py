"""What a fresh start does where files lie already: `if_exists` of the file sinks, in whole jobs (S7.4, S7.8)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest

from tidegate import Csv, DataGen, JsonLines, Parquet, Pipeline
from tidegate.connectors.transactions import SinkContext
from tidegate.coordinator import events as ev
from tidegate.errors import OptionError, PipelineError
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

SCHEMA = pa.schema([("n", pa.int64()), ("third", pa.int64())])
SINKS: dict[str, Callable[..., Any]] = {"parquet": Parquet, "csv": Csv, "jsonl": JsonLines}
READERS: dict[str, Callable[..., Any]] = {"parquet": pq.read_table, "csv": pa_csv.read_csv, "jsonl": pa_json.read_json}


def made(numbers: Any) -> dict[str, Any]:
    return {"n": numbers, "third": numbers % 3}


def job(folder: Path, kind: str, lineage: str, rows: int = 60, job_id: str = "job", **sink: Any) -> InProcessJob:
    def build() -> Pipeline:
        p = Pipeline()
        numbers = p.read(DataGen(made, SCHEMA, rows=rows, splits=2, batch_rows=5), uid="numbers")
        numbers.write(SINKS[kind](folder, **sink), uid="out")
        return p

    return InProcessJob(build, {"parallelism": 2}, job_id=job_id, lineage=lineage)


def numbers_in(folder: Path, kind: str) -> list[int]:
    files = [path for path in folder.rglob(f"*.{kind}") if "_tidegate" not in path.parts]
    return sorted(n for path in files for n in READERS[kind](str(path)).column("n").to_pylist())


@pytest.mark.parametrize("partition_by", [(), ("third",)])
@pytest.mark.parametrize("kind", SINKS)
def test_a_second_fresh_start_into_a_folder_does_not_double_it(
    kind: str, partition_by: tuple[str, ...], tmp_path: Path
) -> None:
    job(tmp_path, kind, "l1", partition_by=partition_by).submit().to_end()
    with pytest.raises(PipelineError) as caught:
        job(tmp_path, kind, "l2", partition_by=partition_by).submit().to_end()
    assert "the folder of the sink already holds files" in str(caught.value) and "part-job--l1--out" in str(
        caught.value
    )
    assert 'if_exists="append"' in str(caught.value) and 'if_exists="overwrite"' in str(caught.value)
    assert numbers_in(tmp_path, kind) == list(range(60))


def test_files_that_tidegate_did_not_write_count_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "third": [1]}), tmp_path / "mine.parquet")
    with pytest.raises(PipelineError, match="already holds files.*mine.parquet"):
        job(tmp_path, "parquet", "l1").submit()


@pytest.mark.parametrize("name", ["old.json", "old.ndjson", "old.JSONL.gz"])
def test_files_that_readers_take_for_the_format_count_whatever_their_suffix(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(PipelineError, match=f"already holds files.*{name}"):
        job(tmp_path, "jsonl", "l1").submit()


def test_what_is_no_file_of_the_format_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "README.txt").write_text("mine")
    (tmp_path / "_SUCCESS.parquet").write_text("")
    job(tmp_path, "parquet", "l1").submit().to_end()
    (tmp_path / "_SUCCESS.parquet").unlink()
    assert numbers_in(tmp_path, "parquet") == list(range(60))


@pytest.mark.parametrize("kind", SINKS)
def test_append_keeps_what_is_there(kind: str, tmp_path: Path) -> None:
    job(tmp_path, kind, "l1").submit().to_end()
    job(tmp_path, kind, "l2", if_exists="append").submit().to_end()
    assert numbers_in(tmp_path, kind) == sorted([*range(60), *range(60)])


@pytest.mark.parametrize("partition_by", [(), ("third",)])
@pytest.mark.parametrize("kind", SINKS)
def test_overwrite_replaces_what_is_there(kind: str, partition_by: tuple[str, ...], tmp_path: Path) -> None:
    job(tmp_path, kind, "l1", rows=90).submit().to_end()
    (tmp_path / "README.txt").write_text("mine")
    job(tmp_path, kind, "l2", if_exists="overwrite", partition_by=partition_by).submit().to_end()
    assert numbers_in(tmp_path, kind) == list(range(60))
    assert (tmp_path / "README.txt").read_text() == "mine"


def test_overwrite_by_a_job_without_results_leaves_none(tmp_path: Path) -> None:
    job(tmp_path, "parquet", "l1").submit().to_end()
    job(tmp_path, "parquet", "l2", rows=0, if_exists="overwrite").submit().to_end()
    assert numbers_in(tmp_path, "parquet") == []


def test_a_start_that_fails_before_its_first_commit_has_removed_nothing(tmp_path: Path) -> None:
    job(tmp_path, "parquet", "l1", rows=90).submit().to_end()
    again = job(tmp_path, "parquet", "l2", if_exists="overwrite")
    run = again.submit()
    run.pump(6)
    run.crash()
    assert numbers_in(tmp_path, "parquet") == list(range(90))
    again.rerun().to_end()
    assert numbers_in(tmp_path, "parquet") == list(range(60))


def committed_once(a_job: InProcessJob) -> InProcessRun:
    run = a_job.submit()
    run.pump(4)
    answer = run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
    assert answer is not None and answer.ok
    run.until(lambda: any(d.kind == "committed" for d in a_job.log.read()))
    return run


@pytest.mark.parametrize("if_exists", ["error", "overwrite"])
def test_a_restart_spares_what_the_job_has_committed(if_exists: str, tmp_path: Path) -> None:
    if if_exists == "overwrite":
        job(tmp_path, "parquet", "l1", rows=90).submit().to_end()
    a_job = job(tmp_path, "parquet", "l2", if_exists=if_exists)
    committed_once(a_job).crash()
    assert 0 < len(numbers_in(tmp_path, "parquet")) < 60
    a_job.rerun().to_end()
    assert numbers_in(tmp_path, "parquet") == list(range(60))


def test_what_others_add_after_the_first_commit_stays(tmp_path: Path) -> None:
    job(tmp_path, "parquet", "l1", rows=90).submit().to_end()
    a_job = job(tmp_path, "parquet", "l2", if_exists="overwrite")
    run = committed_once(a_job)
    job(tmp_path, "parquet", "l3", rows=10, job_id="beside", if_exists="append").submit().to_end()
    run.to_end()
    assert numbers_in(tmp_path, "parquet") == sorted([*range(60), *range(10)])


def test_two_sinks_of_a_job_may_replace_one_folder_together(tmp_path: Path) -> None:
    job(tmp_path, "parquet", "l1", rows=90).submit().to_end()

    def build() -> Pipeline:
        p = Pipeline()
        numbers = p.read(DataGen(made, SCHEMA, rows=60, batch_rows=5), uid="numbers")
        numbers.write(Parquet(tmp_path, if_exists="overwrite"), uid="one")
        numbers.write(Parquet(tmp_path, if_exists="overwrite"), uid="other")
        return p

    InProcessJob(build, {"parallelism": 2}, lineage="l2").submit().to_end()
    assert numbers_in(tmp_path, "parquet") == sorted([*range(60), *range(60)])


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(OptionError, match="if_exists='replace' is unknown"):
        Parquet("out", if_exists="replace")  # type: ignore[arg-type]


def test_subtasks_that_commit_at_once_replace_the_folder_together(tmp_path: Path) -> None:
    """Every subtask of a real job commits in a process of its own, all with the first checkpoint."""
    job(tmp_path, "parquet", "l1", rows=90).submit().to_end()
    sink = Parquet(tmp_path, if_exists="overwrite")
    sink.check_fresh_start(SinkContext("job", "l2", "out", 0, 1, 1, "", SCHEMA))
    subtasks = range(8)
    handles = []
    for subtask in subtasks:
        writer = sink.create_writer(SinkContext("job", "l2", "out", subtask, 8, 1, "r", SCHEMA))
        writer.write(pa.record_batch([[subtask], [0]], schema=SCHEMA))
        handles.append((writer, writer.prepare_commit(1)()))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: one[0].commit(one[1]), handles))
    assert numbers_in(tmp_path, "parquet") == list(subtasks)


def test_a_restore_with_overwrite_removes_nothing_of_a_job_that_appended(tmp_path: Path) -> None:
    """The files were accepted when the job started."""
    job(tmp_path, "parquet", "l1", rows=90).submit().to_end()
    appending = job(tmp_path, "parquet", "l2", if_exists="append")
    committed_once(appending).crash()
    appending.build = job(tmp_path, "parquet", "l2", if_exists="overwrite").build
    appending.rerun().to_end()
    assert numbers_in(tmp_path, "parquet") == sorted([*range(90), *range(60)])


def test_a_restore_under_another_id_removes_nothing_of_the_original(tmp_path: Path) -> None:
    """The restored state continues that output; only a fresh start replaces what is there."""
    original = job(tmp_path, "parquet", "l1", rows=90)
    run = original.submit()
    run.pump(4)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    run.to_end()
    [path] = [
        d.data["path"] for d in original.log.read() if d.kind == "complete" and d.data["kind"] == "stop-savepoint"
    ]
    before = numbers_in(tmp_path, "parquet")
    assert 0 < len(before) < 90
    successor = job(tmp_path, "parquet", "l2", rows=90, job_id="successor", if_exists="overwrite")
    successor.root, successor.store = original.root, original.store
    successor.submit(RestoreFrom("savepoint", path=path)).to_end()
    assert numbers_in(tmp_path, "parquet") == list(range(90))


def test_a_fork_does_not_double_what_is_there_in_silence(tmp_path: Path) -> None:
    original = job(tmp_path / "live", "parquet", "l1", rows=90)
    run = original.submit()
    run.pump(4)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="saved"))
    assert answer is not None and answer.ok
    restore = RestoreFrom("savepoint", path=answer.data["path"], fork_of="job")
    for lineage in ("l2", "l3"):
        fork = job(tmp_path / "again", "parquet", lineage, rows=90, job_id=f"fork-{lineage}")
        fork.root, fork.store = original.root, original.store
        if lineage == "l2":
            fork.submit(restore).to_end()
        else:
            with pytest.raises(PipelineError, match="already holds files"):
                fork.submit(restore)
