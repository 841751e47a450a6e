"""Whole jobs on files that are not as they should be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.api.aggregates import count
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.files.source.files import OPEN_FILES, Files
from tidegate.coordinator import events as ev
from tidegate.errors import OptionError, PipelineError
from tidegate.jobs.records import RestoreFrom
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun


def by_country(folder: Path, sink: str) -> InProcessJob:
    def build() -> Pipeline:
        p = Pipeline()
        p.read(Files(folder), uid="orders").group_by("country").agg(n=count(), uid="counts").write(
            CollectSink(sink), uid="out"
        )
        return p

    return InProcessJob(build)


def copied(path: Path, sink: str) -> InProcessJob:
    def build() -> Pipeline:
        p = Pipeline()
        p.read(Files(path), uid="numbers").write(CollectSink(sink), uid="out")
        return p

    return InProcessJob(build)


def test_rows_of_a_file_without_the_key_do_not_fall_into_the_null_key(tmp_path: Path, sink: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"country": "DE", "n": 1}\n' * 10)
    (tmp_path / "b.jsonl").write_text('{"n": 1}\n' * 2_000)
    with pytest.raises(PipelineError, match=r"no column 'country'.*b\.jsonl"):
        by_country(tmp_path, sink).submit().to_end()


def test_namibia_is_a_country(tmp_path: Path, sink: str) -> None:
    (tmp_path / "a.csv").write_text("country,n\nNA,1\nDE,1\nNA,1\n")
    by_country(tmp_path, sink).submit().to_end()
    assert {row[0]: row[1] for row in collected(sink).rows()} == {"DE": 1, "NA": 2}


def test_a_bad_record_fails_the_job_with_file_and_offset(tmp_path: Path, sink: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n\n" + "1\n" * 3_000_000 + "oops\n")
    with pytest.raises(OperatorFailure, match=r"'numbers' subtask 0: PipelineError.*a\.csv, offset 6,000,002"):
        copied(path, sink).submit().to_end()


def test_a_file_that_changes_between_two_runs_fails_the_second_with_its_name(tmp_path: Path, sink: str) -> None:
    """S4.2: positions of the snapshot would be places in another text."""
    path = tmp_path / "a.csv"
    path.write_text("n\n" + "1\n" * 3_000_000)
    job = copied(path, sink)
    run = job.submit()
    run.until(lambda: run.slot._subtasks[0].rows_in > 0)
    run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
    run.crash()
    before_ns = path.stat().st_mtime_ns
    path.write_text("n\n" + "2\n" * 3_000_000)
    os.utime(path, ns=(before_ns + 10**9, before_ns + 10**9))
    with pytest.raises(OperatorFailure, match=r"changed after the job had started.*a\.csv"):
        job.rerun().to_end()


def on_demand(folder: Path, sink: str) -> Pipeline:
    p = Pipeline()
    source = Files(folder, schema=pa.schema([("n", pa.int64())]), assign="on_demand")
    p.read(source, uid="numbers").write(CollectSink(sink), uid="out")
    return p


@pytest.mark.parametrize("rounds", [3, 8, 20])
def test_files_that_are_assigned_on_demand_are_read_once_over_crashes_and_rescales(
    tmp_path: Path, sink: str, rounds: int
) -> None:
    """S4.3."""
    for n in range(400):
        (tmp_path / f"{n:03d}.jsonl").write_text("".join(f'{{"n": {n * 10 + i}}}\n' for i in range(n % 7 + 1)))
    job = InProcessJob(lambda: on_demand(tmp_path, sink), {"parallelism": 3})
    run = job.submit()
    for at in range(3):
        run.pump(rounds)
        run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{at}"))
        run.pump(rounds)
        run.crash()
        run = job.rerun()
    run.pump(rounds)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    run.to_end()
    (tmp_path / "later.jsonl").write_text('{"n": 99999}\n')
    job.options["parallelism"] = 2
    job.submit(RestoreFrom("latest")).to_end()
    found = sorted(row["n"] for row in collected(sink).table().to_pylist())
    assert found == [n * 10 + i for n in range(400) for i in range(n % 7 + 1)]


def test_a_reader_has_the_split_that_it_reads_and_the_next(tmp_path: Path, sink: str) -> None:
    """S4.3: what no reader has is in the snapshot, so that any reader can get it."""
    for n in range(30):
        (tmp_path / f"{n:02d}.jsonl").write_text('{"n": 1}\n' * 5)
    job = InProcessJob(lambda: on_demand(tmp_path, sink), {"parallelism": 2})
    run = job.submit()
    run.until(lambda: bool(waiting(run)))
    assert len(waiting(run)) >= 30 - 2 * OPEN_FILES - 2
    run.to_end()
    assert collected(sink).table().num_rows == 150


def waiting(run: InProcessRun) -> Sequence[object]:
    """The splits that no reader has."""
    [enumeration] = run.run.enumerations._by_uid.values()
    return list(enumeration._waiting)


def test_on_demand_does_not_fit_event_time_and_a_watch(tmp_path: Path, sink: str) -> None:
    """S4.4: a split that no reader has holds no watermark back."""
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    p = Pipeline()
    source = Files(tmp_path, schema=pa.schema([("at", pa.timestamp("us"))]), assign="on_demand")
    rows = p.read(source, uid="numbers").with_watermark("at", "1 s", uid="times")
    rows.write(CollectSink(sink), uid="out")
    with pytest.raises(PipelineError, match=r"'numbers' .*, watermark 'times'\]: a split that no reader has"):
        InProcessJob(lambda: p).submit()
    with pytest.raises(OptionError, match="always assigned on demand"):
        Files(tmp_path, watch="1 s", assign="on_demand")
    with pytest.raises(OptionError, match="assign='later' is unknown"):
        Files(tmp_path, assign="later")  # type: ignore[arg-type]
