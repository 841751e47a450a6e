"""S3.3, S7.3: jobs without snapshots, and pipelines that cannot run without them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from builders.sinks import new_sink_name

from tidegate.api.pipeline import Pipeline
from tidegate.cli.pipeline_validation import validate_pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import PipelineError
from tidegate.jobs.options import JobOptions
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("n", pa.int64())])
OFF = {"checkpoint_mode": "off"}

MODULE = """
import pyarrow as pa

from tidegate.connectors.datagen import DataGen
from tidegate.api.pipeline import Pipeline
from tidegate.testing.collect_sink import CollectSink


def build(args):
    p = Pipeline()
    source = DataGen(lambda n: {"n": n}, pa.schema([("n", pa.int64())]), rows=10)
    p.read(source, uid="numbers").write(CollectSink("checked"), uid="out")
    return p
"""


def pipeline(sink: str, two_phase: bool, rows: int | None = 100) -> Pipeline:
    p = Pipeline()
    source = DataGen(lambda numbers: {"n": numbers}, SCHEMA, rows=rows, splits=2, batch_rows=8)
    p.read(source, uid="numbers").write(CollectSink(sink, two_phase=two_phase), uid="out")
    return p


def job(two_phase: bool, rows: int | None = 100, options: Any = OFF) -> tuple[InProcessJob, str]:
    sink = new_sink_name()
    return InProcessJob(lambda: pipeline(sink, two_phase, rows), options), sink


def test_a_job_without_snapshots_ends_without_a_final_one() -> None:
    """S7.3."""
    without, sink = job(two_phase=False)
    outcome = without.submit().to_end()
    assert isinstance(outcome, RunEnded)
    assert sorted(row[0] for row in collected(sink).rows()) == list(range(100))
    assert {entry.kind for entry in without.log.read()} == {"fence", "end_of_data"}


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint", "stop-savepoint"])
def test_a_running_job_without_snapshots_refuses_every_request_with_what_to_do(kind: Any) -> None:
    """S1.2."""
    without, _ = job(two_phase=False, rows=None)
    run = without.submit()
    run.pump(20)
    answer = run.ask(ev.SnapshotRequest(kind, request_id="asked", stop="suspend" if kind == "stop-savepoint" else None))
    assert answer is not None and (answer.ok, answer.code) == (False, "checkpointing_off")
    assert "checkpoint_mode" in answer.message and run.outcome is None


def test_a_two_phase_sink_without_snapshots_is_refused_at_the_start_by_name() -> None:
    """S7.3."""
    with pytest.raises(PipelineError, match="checkpoint_mode is 'off'.*sinks out.*never becomes visible"):
        job(two_phase=True)[0].submit()
    job(two_phase=True, options={"checkpoint_mode": "at_least_once"})[0].submit()


def test_a_two_phase_sink_without_snapshots_is_refused_before_it_is_submitted(tmp_path: Any) -> None:
    """S7.3."""
    (tmp_path / "two_phase_pipeline.py").write_text(MODULE)
    target = f"{tmp_path / 'two_phase_pipeline.py'}:build"
    validate_pipeline(target, None, {}, JobOptions())
    with pytest.raises(PipelineError, match="sinks out"):
        validate_pipeline(target, None, {}, JobOptions.from_mapping(OFF))
