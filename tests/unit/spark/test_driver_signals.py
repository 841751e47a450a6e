"""A driver that is terminated before Spark is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.jobs.client.job_client import JobClient
from tidegate.spark.driver import Driver

PIPELINE = """
import os
import signal
import threading


def build(args):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(60)
"""


pytestmark = pytest.mark.usefixtures("own_signal_handlers")


def test_sigterm_while_the_pipeline_is_built_ends_the_driver_at_once_with_a_status(tmp_path: Path) -> None:
    """S9.2: the fence is there by then, so somebody has to say how its generation_log ended."""
    (tmp_path / "slow.py").write_text(PIPELINE)
    client = JobClient(str(tmp_path / "jobs"), "slow")
    client.submit(pipeline=f"{tmp_path / 'slow.py'}:build")
    command = client.send("savepoint", issued_by="test")
    assert Driver(client.root, "slow", spec_number=1, launch=1, storage_options={}).run() == 143
    view = client.view()
    assert view.status.value == "FAILED"
    assert "SIGTERM" in view.reason and "the pipeline was not built yet" in view.reason
    result = client.result(command.command_id)
    assert result is not None and result.code == "job_failed"
