"""Spark settings that refer to a secret: Spark gets the value, and no command line has it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from conftest import RealJob

SECRET = "hunter2-of-a-setting"


def test_a_secret_setting_is_on_no_command_line(local_job: RealJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark puts the settings that it knows before the start of the JVM on its command line."""
    monkeypatch.setenv("SETTING_PASSWORD", SECRET)
    conf = {"spark.executorEnv.SLOT_PASSWORD": "secret:env/SETTING_PASSWORD", "spark.app.name": "visible-name"}
    local_job.start(rows=20_000, rate=500.0, conf=conf)
    local_job.completed(1)
    driver = psutil.Process(local_job.driver_pid())
    family = {process.pid: command_line(process) for process in (driver, *driver.children(recursive=True))}
    assert any("visible-name" in word for command in family.values() for word in command), "the JVM's settings"
    assert not [pid for pid, command in family.items() if SECRET in " ".join(command)]
    held = [pid for pid in family if f"SLOT_PASSWORD={SECRET}".encode() in environment(pid)]
    assert held, "Spark passes the setting to the slots"
    assert SECRET not in local_job.logs()


def command_line(process: psutil.Process) -> list[str]:
    """Command line of a process; empty if it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def environment(pid: int) -> bytes:
    """Environment of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
