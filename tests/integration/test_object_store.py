"""A job whose directory lies in an object store: S3 through s3fs, against moto's server on loopback."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import RealJob
from moto.server import ThreadedMotoServer
from pipelines.counting import expected

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import RestoreFrom

ROWS = 60_000
"""Enough for a kill and a stop before the end, on a busy machine."""


@pytest.fixture
def s3_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealJob]:
    """A job below s3://tides/jobs; the keys travel as references, never as values."""
    import boto3

    monkeypatch.setenv("TIDES_KEY", "moto-key")
    monkeypatch.setenv("TIDES_SECRET", "moto-secret")
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    s3 = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="moto-key",
        aws_secret_access_key="moto-secret",
    )
    s3.create_bucket(Bucket="tides")
    options = {
        "endpoint_url": endpoint,
        "key": "secret:env/TIDES_KEY",
        "secret": "secret:env/TIDES_SECRET",
    }
    job = RealJob(tmp_path, "local[2]")
    job.root = "s3://tides/jobs"
    job.client = JobClient(job.root, "counting", options)
    yield job
    job.end()
    server.stop()


@pytest.mark.slow
def test_a_job_in_an_object_store_survives_a_kill_a_stop_and_a_restore(s3_job: RealJob) -> None:
    s3_job.start(rows=ROWS, rate=3_000.0)
    s3_job.completed(2)
    os.kill(s3_job.slot_pids()[0], signal.SIGKILL)
    s3_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
    command = s3_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = s3_job.client.wait_result(command.command_id, "60 s")
    assert result.ok, result
    s3_job.until_status("STOPPED")
    s3_job.start(rows=ROWS, rate=100_000.0, restore=RestoreFrom("latest"))
    view = s3_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert s3_job.output() == expected(ROWS)
    assert "moto-secret" not in s3_job.logs()
