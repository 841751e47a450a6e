"""Kafka -> windows per key -> Kafka on real Spark, while everything is killed. DuckDB counts the same records.

`KAFKA_RECORDS` sets the number of records (default 300,000).
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from conftest import RealJob
from kafka_broker import KafkaBroker
from ledger import compared

from tidegate.jobs.records import RestoreFrom

PIPELINE = Path(__file__).parent / "pipelines" / "kafka_windows.py"
RECORDS = int(os.environ.get("KAFKA_RECORDS", "300000"))
TIME_LIMIT_S = 900 + RECORDS // 5_000
"""Ten million records take some minutes more, on two cores."""
PATIENCE_S = 120.0 + RECORDS / 20_000
PIECES = 12
KEYS, VALUES = 500, 997
BEGINS = datetime(2026, 1, 1)
MICROSECONDS = 20
"""From one record to the next, in event time."""


class Topics:
    """The ledger of the generator: record i is made by arithmetic, so that DuckDB makes it, too."""

    def __init__(self, job: RealJob, kafka: KafkaBroker) -> None:
        self._job, self._kafka = job, kafka
        self.source, self.target = kafka.create_topic("windows-in", 2), kafka.create_topic("windows-out", 2)
        self.partitions = 2
        self._written = 0
        self._killed: set[int] = set()
        place = Path(job.out).parent / "kafka.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"source": self.source, "target": self.target, "servers": kafka.servers}))

    def write_piece(self) -> None:
        """The next part of all records, in order of time in each partition."""
        numbers = range(self._written, self._written + RECORDS // PIECES)
        self._written = numbers.stop
        for partition in range(self.partitions):
            self._kafka.produce(self.source, map(_value, numbers[partition :: self.partitions]), partition)

    def add_partition(self) -> None:
        """Records of a partition that no reader knows yet could be late."""
        self.partitions += 1
        self._kafka.add_partitions(self.source, self.partitions)
        self._job.until(lambda _: _facts(self._job, "partitions") == self.partitions, "the new partition")

    def kill_slot(self) -> None:
        """kill -9 of a slot of the present run, and records meanwhile; until the job runs again."""
        self._job.until(lambda _: self._slot() is not None, "a slot that was not killed")
        restarts, pid = self._job.client.view().restarts, self._slot()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self._killed.add(pid)
        self.write_piece()
        self._job.until(lambda view: view.restarts > restarts and view.status.value == "RUNNING", "the restart")

    def _slot(self) -> int | None:
        """A slot that lives. The hint lags by a heartbeat."""
        pids = {slot["pid"] for slot in self._job.hint().get("slots", []) if slot["pid"]} - self._killed
        return next((pid for pid in sorted(pids) if Path(f"/proc/{pid}").exists()), None)

    def kill_driver(self) -> None:
        """kill -9 of the driver, and records meanwhile; another driver continues."""
        os.kill(self._job.driver_pid(), signal.SIGKILL)
        self.write_piece()
        self._job.relaunch()
        self._job.until_status("RUNNING")

    def until_read(self) -> None:
        what = f"{self._written} rows"
        self._job.until(lambda _: _facts(self._job, "rows") == self._written, what, PATIENCE_S)

    def found(self) -> Counter[tuple[Any, ...]]:
        """The windows that readers of committed records see."""
        rows = [json.loads(message.value()) for message in self._kafka.read(self.target)]
        return Counter((r["k"], r["window_start"][:19].replace("T", " "), r["n"], r["total"]) for r in rows)

    def wanted(self) -> Counter[tuple[Any, ...]]:
        """The windows of all records that were written."""
        found = duckdb.sql(
            f"""WITH rows AS (SELECT i, TIMESTAMP '{BEGINS}' + to_microseconds(i * {MICROSECONDS}) AS ts
            FROM range({self._written}) numbers(i))
            SELECT i % {KEYS}, strftime(date_trunc('second', ts), '%Y-%m-%d %H:%M:%S'), count(*),
            sum(i % {VALUES})::BIGINT FROM rows GROUP BY ALL"""
        )
        return Counter(found.fetchall())


def _value(i: int) -> bytes:
    at = BEGINS + timedelta(microseconds=i * MICROSECONDS)
    return b'{"k":%d,"v":%d,"ts":"%s"}' % (i % KEYS, i % VALUES, at.isoformat(timespec="microseconds").encode())


def _facts(job: RealJob, name: str) -> int:
    """A detail of the source, of all its subtasks; -1: not all have reported it."""
    return int(job.hint().get("sources", {}).get("in", {}).get("details", {}).get(name, -1))


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.timeout(TIME_LIMIT_S)
def test_windows_over_a_topic_are_exact_whatever_is_killed(local_job: RealJob, kafka: KafkaBroker) -> None:
    """S4.3, S5.5, S7.4, S9.1, S9.2: kill -9 of five slots, two drivers and the broker; a new partition; a rescale."""
    topics = Topics(local_job, kafka)
    topics.write_piece()
    local_job.start(rows=0, rate=0.0, pipeline=PIPELINE, restart_attempts=50)
    local_job.completed(1)
    for _ in range(3):
        topics.kill_slot()
    topics.add_partition()
    topics.write_piece()
    topics.kill_driver()
    kafka.kill()
    kafka.start()
    topics.write_piece()
    local_job.completed(3)
    topics.kill_driver()
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok, result
    local_job.until_status("STOPPED")
    topics.write_piece()
    local_job.master = "local[3]"
    restore = RestoreFrom("savepoint", path=result.data["path"])
    local_job.start(rows=0, rate=0.0, pipeline=PIPELINE, restore=restore, parallelism=3, restart_attempts=50)
    local_job.until_status("RUNNING")
    for _ in range(2):
        topics.kill_slot()
    topics.write_piece()
    topics.until_read()
    command = local_job.client.send("stop", {"mode": "drain"}, issued_by="test")
    assert local_job.client.wait_result(command.command_id, f"{PATIENCE_S:.0f} s").ok
    local_job.until_status("STOPPED")
    found, wanted = topics.found(), topics.wanted()
    assert compared("Kafka, KafkaSink", wanted.elements(), found.elements()) == (0, 0), list(wanted - found)[:3]
