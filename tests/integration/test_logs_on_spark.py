"""What the driver and its slots log, in the format that the submission names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import RealJob

SECRET = "hunter2-of-the-logs"


def test_driver_and_slots_log_json_with_their_place_and_no_secret(
    local_job: RealJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGS_SECRET", SECRET)
    conf = {"spark.hadoop.fs.s3a.secret.key": "secret:env/LOGS_SECRET"}
    local_job.start(rows=2_000, rate=20_000.0, log_format="json", conf=conf)
    local_job.until_status("FINISHED")
    text = local_job.logs()
    assert SECRET not in text
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert all((line["job"], line["generation"]) == ("counting", 1) for line in lines)
    statuses = [line["message"] for line in lines if line["message"].startswith("status ")]
    assert statuses[-2:] == ["status RUNNING", "status FINISHED"]
    assert {line["slot"] for line in lines if line["message"].startswith("started the slot of run ")} == {0, 1}
    others = [line for line in text.splitlines() if "tidegate." in line and not line.startswith("{")]
    assert others == [], "tidegate logs in no other format"
