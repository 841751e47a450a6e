"""Whole jobs on files that are not as they should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.api.aggregates import count
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.files.source.files import Files
from tidegate.coordinator import events as ev
from tidegate.errors import PipelineError
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob


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
