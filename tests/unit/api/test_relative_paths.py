"""Relative paths of a job mean one place, in whatever folder its drivers, slots and restores run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.errors import PipelineError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import RelativePaths, RestoreFrom, Spec

CODE = """
import pyarrow as pa
from tidegate import DataGen, Parquet, Pipeline

def build(args):
    p = Pipeline()
    numbers = p.read(DataGen(lambda n: {"n": n}, pa.schema([("n", pa.int64())]), rows=3), uid="numbers")
    numbers.write(Parquet(args["out"]), uid="out")
    return p
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "relative_job.py").write_text(CODE)
    return tmp_path / "code"


def sink_of(code: Path, out: str, paths: RelativePaths | None) -> str:
    graph = load_pipeline(str(code), "relative_job:build", {"out": out}, check_sinks=False, paths=paths)
    return next(node.sink.describe() for node in graph.nodes if node.sink is not None)


def test_a_relative_path_lies_below_the_recorded_folder(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = RelativePaths("/data/team")
    assert sink_of(code, "out", recorded) == "Parquet('/data/team/out')"
    assert sink_of(code, "../out/x", recorded) == "Parquet('/data/out/x')"
    assert sink_of(code, "/elsewhere", recorded) == "Parquet('/elsewhere')"
    assert sink_of(code, "memory://out", recorded) == "Parquet('memory://out')"
    assert sink_of(code, "out", None) == f"Parquet('{tmp_path}/out')", "submissions from before it was recorded"


def test_a_job_from_airflow_does_not_leave_the_dag_bundle(code: Path) -> None:
    beside_the_dag = RelativePaths("/bundle/dags", "/bundle")
    assert sink_of(code, "out", beside_the_dag) == "Parquet('/bundle/dags/out')"
    assert sink_of(code, "../data", beside_the_dag) == "Parquet('/bundle/data')"
    for wrong in ("../../data", "../../bundle-of-others/data"):
        with pytest.raises(PipelineError, match="leads out of the DAG bundle.*Use an absolute path"):
            sink_of(code, wrong, beside_the_dag)


def test_without_a_folder_that_lasts_a_relative_path_is_refused(code: Path) -> None:
    with pytest.raises(PipelineError, match="path 'out' is relative.*Use an absolute path or a URL"):
        sink_of(code, "out", RelativePaths(None))
    assert sink_of(code, "/out", RelativePaths(None)) == "Parquet('/out')"


@pytest.fixture
def first(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[JobClient, Spec]:
    """A job that was submitted in the folder `morning`, and has ended with a checkpoint."""
    (tmp_path / "morning").mkdir()
    (tmp_path / "evening").mkdir()
    monkeypatch.chdir(tmp_path / "morning")
    client = JobClient(str(tmp_path / "jobs"), "j")
    return client, client.submit(pipeline=f"{code}/relative_job.py:build", arguments={"out": "out"})


def test_a_submission_records_its_working_directory(first: tuple[JobClient, Spec], tmp_path: Path) -> None:
    assert first[1].relative_paths == RelativePaths(str(tmp_path / "morning"))


def test_a_restore_from_another_folder_keeps_the_recorded_one(
    first: tuple[JobClient, Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, spec = first
    generation_log = client.log.begin_generation(spec=1, launch=1)
    generation_log.append("status", {"status": "RUNNING"})
    data = {"checkpoint_id": 1, "kind": "checkpoint", "path": client.layout.checkpoint(1, 1)}
    generation_log.append("claim", {**data, "triggered_at": "now"})
    body = b'{"record":"snapshot","body":{"job_id":"j","lineage":"%s"}}' % spec.lineage.encode()
    client.store.create(client.layout.metadata(data["path"]), body)
    generation_log.append("complete", {**data, "metrics": {}, "parent": None})
    generation_log.append("status", {"status": "FAILED"})
    monkeypatch.chdir(tmp_path / "evening")
    kept = RelativePaths(str(tmp_path / "morning"))
    assert client.submit(restore=RestoreFrom("latest")).relative_paths == kept
    client.log.begin_generation(spec=2, launch=1).append("status", {"status": "FAILED"})
    given = client.submit(restore=RestoreFrom("latest"), arguments={"out": "other"})
    assert given.relative_paths == kept, "other arguments alone move nothing"
    client.log.begin_generation(spec=3, launch=1).append("status", {"status": "FAILED"})
    asked = RelativePaths("/dags", "/dags")
    assert client.submit(restore=RestoreFrom("latest"), relative_paths=asked).relative_paths == kept
    client.log.begin_generation(spec=4, launch=1).append("status", {"status": "FAILED"})
    again = client.submit(restore=RestoreFrom("latest"), arguments={"out": "o"}, relative_paths=asked)
    assert again.relative_paths == asked
