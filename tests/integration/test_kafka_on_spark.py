"""S4.3, S9.1 on real Spark: a topic that keeps filling, while slots, drivers and the broker are killed."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from conftest import RealJob
from kafka_broker import PASSWORD_VARIABLE, USER, KafkaBroker
from ledger import compared

from tidegate.cli.job_output import view_lines
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.status import JobView

FROM_KAFKA = Path(__file__).parent / "pipelines" / "from_kafka.py"
_numbers = count()


class Ledger:
    """What was written to the topic, beside what readers of the output see."""

    def __init__(self, job: RealJob, kafka: KafkaBroker, partitions: int, **source: Any) -> None:
        self._job, self._kafka = job, kafka
        self.topic = kafka.create_topic(f"spark-{next(_numbers)}", partitions)
        self.written: Counter[tuple[int, int]] = Counter()
        self._next: Counter[int] = Counter()
        place = Path(job.out).parent / "kafka.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"topics": self.topic, "servers": kafka.servers, **source}))

    def write(self, records: int, *partitions: int) -> None:
        for partition in partitions:
            numbers = range(self._next[partition], self._next[partition] + records)
            self._next[partition] += records
            self._kafka.produce(self.topic, [b"%d" % n for n in numbers], partition)
            self.written.update((partition, n) for n in numbers)

    def committed(self) -> Counter[tuple[int, int]]:
        table = ds.dataset(self._job.out, format="parquet").to_table()
        return Counter(zip(*(table[name].to_pylist() for name in ("partition", "n")))) if table.num_rows else Counter()

    def until_committed(self) -> None:
        wanted = self.written.total()
        self._job.until(lambda _: self.committed().total() >= wanted, f"{wanted} records")
        assert self.committed() == self.written


def stopped(job: RealJob, mode: str) -> Any:
    command = job.client.send("stop", {"mode": mode}, issued_by="test")
    result = job.client.wait_result(command.command_id, "60 s")
    assert result.ok, result
    return result.data["path"]


def test_a_killed_slot_and_an_added_partition_leave_each_record_once(local_job: RealJob, kafka: KafkaBroker) -> None:
    """S4.3, S9.1; and the job directory has no secret."""
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": kafka.password,
    }
    ledger = Ledger(local_job, kafka, 2, settings=settings, servers=kafka.secured_servers)
    ledger.write(20_000, 0, 1)
    local_job.start(rows=0, rate=0.0, pipeline=FROM_KAFKA)
    local_job.completed(1)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    kafka.add_partitions(ledger.topic, 3)
    ledger.write(10_000, 0, 2)
    local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
    ledger.until_committed()
    stopped(local_job, "drain")
    assert compared("Kafka, Parquet", ledger.written.elements(), ledger.committed().elements()) == (0, 0)
    secret = os.environ[PASSWORD_VARIABLE].encode()
    assert not [path for path in Path(local_job.root).rglob("*") if path.is_file() and secret in path.read_bytes()]


@pytest.mark.slow
def test_a_job_without_a_cluster_names_the_outage_and_continues_after_it(
    local_job: RealJob, kafka: KafkaBroker
) -> None:
    """S4.3, S9.1: at the start, when the search for partitions fails, and later, when readers wait."""
    ledger = Ledger(local_job, kafka, 2)
    ledger.write(1_000, 0, 1)

    def outage(view: JobView) -> Any:
        return next((source.details.get("outage") for source in view.sources), None)

    kafka.kill()
    local_job.start(rows=0, rate=0.0, pipeline=FROM_KAFKA)
    at_start = outage(local_job.until(outage, "the outage at the start"))
    assert at_start["until"] is None and at_start["cause"].startswith("Kafka did not describe topics")
    kafka.start()
    local_job.completed(1)
    ledger.until_committed()
    local_job.until(lambda view: not outage(view), "the end of the outage")
    kafka.kill()
    view = local_job.until(outage, "the outage of a running job")
    assert view.status.value == "RUNNING" and outage(view)["since"] < outage(view)["until"]
    assert [line for line in view_lines(view) if "waits since" in line and "source kafka" in line]
    kafka.start()
    ledger.write(1_000, 0)
    ledger.until_committed()
    local_job.until(lambda view: not outage(view), "the end of the outage")
    assert local_job.client.view().restarts == 0


@pytest.mark.slow
def test_each_record_is_read_once_over_killed_slots_drivers_and_brokers_and_a_rescale(
    local_job: RealJob, kafka: KafkaBroker
) -> None:
    """S4.3, S5.5, S9.1, S9.2."""
    ledger = Ledger(local_job, kafka, 3, group="spark")
    ledger.write(50_000, 0, 1)
    local_job.start(rows=0, rate=0.0, pipeline=FROM_KAFKA)
    local_job.completed(1)
    ledger.write(20_000, 0, 1, 2)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    ledger.write(20_000, 1)
    local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
    ledger.write(20_000, 0, 2)
    kafka.kill()
    kafka.start()
    ledger.write(20_000, 0, 1, 2)
    kafka.add_partitions(ledger.topic, 5)
    ledger.write(5_000, 3)
    ledger.until_committed()
    ledger.write(20_000, 0, 4)
    os.kill(local_job.driver_pid(), signal.SIGKILL)
    ledger.write(10_000, 1, 3)
    kafka.restart()
    local_job.relaunch()
    ledger.write(10_000, 2)
    ledger.until_committed()
    ledger.write(30_000, 0, 1, 2, 3, 4)
    path = stopped(local_job, "suspend")
    local_job.until_status("STOPPED")
    ledger.write(100, 0, 4)
    local_job.master = "local[3]"
    local_job.start(rows=0, rate=0.0, pipeline=FROM_KAFKA, restore=RestoreFrom("savepoint", path=path), parallelism=3)
    ledger.until_committed()
    stopped(local_job, "drain")
    assert compared("Kafka, Parquet", ledger.written.elements(), ledger.committed().elements()) == (0, 0)
