"""Whole jobs into a topic of a real broker: gated, crashed, rescaled, in batch mode, and on real Spark (S7.4)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from committed_records import CommittedRecords
from conftest import RealJob
from kafka_broker import KafkaBroker
from ledger import compared
from pipelines.into_kafka import KEYS, build
from pyarrow import dataset

from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.batch import run_batch
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

INTO_KAFKA = Path(__file__).parent / "pipelines" / "into_kafka.py"
ROWS = 24_000
FEW_ROWS = 600
PARTITIONS = 3


def found_in(broker: KafkaBroker, topic: str) -> list[int]:
    """Numbers that readers of committed records see, each with the key that belongs to it, if it has one."""
    reader = CommittedRecords(broker.servers, topic)
    try:
        messages = reader.read()
    finally:
        reader.close()
    keyed = [message for message in messages if message.key() is not None]
    assert all(int(m.key()) == int(m.value()) % KEYS for m in keyed)
    by_key: dict[bytes, set[int]] = {}
    for message in keyed:
        by_key.setdefault(message.key(), set()).add(message.partition())
    assert all(len(partitions) == 1 for partitions in by_key.values()), "a key has one partition"
    return [int(message.value()) for message in messages]


class Gated:
    """A job with a commit gate in this process, which stages in its own directory."""

    def __init__(self, root: Path, out: str) -> None:
        # With keys, a commit waits for the one of another subtask, which has the same thread here.
        self.args = {"rows": FEW_ROWS, "rate": 0, "batch_rows": 8, "keyed": False, "out": out}
        self.job = InProcessJob(lambda: build(self.args), self.options(3), root=str(root))
        self.run: InProcessRun = self.job.submit()

    @staticmethod
    def options(parallelism: int) -> dict[str, object]:
        return {"parallelism": parallelism, "commit": "on_request", "max_uncommitted_checkpoints": 8}

    def checkpoint(self, name: str) -> int:
        self.run.pump(2)
        answer = self.run.ask(ev.SnapshotRequest("checkpoint", request_id=name))
        assert answer is not None and answer.ok, answer
        self.run.pump(5)
        return int(answer.data["checkpoint_id"])

    def approve(self, checkpoint_id: int) -> None:
        request_id = f"approve-{checkpoint_id}"
        self.run.run.handle_command(ev.Verdict(request_id, True, checkpoint_id, "the auditor", "stop"))
        self.run.pump(10)
        assert self.job.answers[request_id].ok


def test_a_gated_job_that_crashes_and_is_rescaled_publishes_what_is_approved_once(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    """S5.5, S7.4, S7.8: staged records wait in the job's directory, and no transaction is open meanwhile."""
    topic = kafka.create_topic("gated", PARTITIONS)
    gated = Gated(tmp_path, f"{kafka.servers} {topic}")
    first, second = gated.checkpoint("one"), gated.checkpoint("two")
    assert found_in(kafka, topic) == [] and kafka.read(topic, committed=False) == []
    staged = [str(path) for path in (tmp_path / "job" / "sinks").rglob("*--1--0.arrow.staged")]
    values = dataset.dataset(staged, format="arrow").to_table()["value"].to_pylist()
    gated.approve(first)
    approved = found_in(kafka, topic)
    assert sorted(approved) == sorted(map(int, values)) != []
    gated.run.crash()
    gated.run = gated.job.relaunch()
    gated.run.pump(2)
    assert sorted(found_in(kafka, topic)) == sorted(approved)
    gated.run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = gated.run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    gated.job.options = gated.options(2)
    gated.run = gated.job.submit(RestoreFrom("savepoint", path=outcome.path))
    third = gated.checkpoint("three")
    gated.approve(third)
    assert len(found_in(kafka, topic)) > len(approved)
    gated.run.crash()
    gated.run = gated.job.relaunch()
    gated.run.pump(2)
    gated.job.options = {"parallelism": 4}
    gated.run = gated.job.submit(RestoreFrom("latest"))
    assert isinstance(gated.run.to_end(), RunEnded)
    assert second < third
    assert compared("DataGen, KafkaSink", range(FEW_ROWS), found_in(kafka, topic)) == (0, 0)
    assert not list((tmp_path / "job" / "sinks").rglob("*.staged"))


def test_a_batch_job_publishes_every_row_once(kafka: KafkaBroker) -> None:
    """S8.1: one commit, in the driver, for all subtasks."""
    topic = kafka.create_topic("batch", PARTITIONS)
    arguments = {"rows": FEW_ROWS, "rate": 0, "out": f"{kafka.servers} {topic}"}
    run_batch(lambda: build(arguments), {"parallelism": 3})
    assert compared("DataGen, KafkaSink", range(FEW_ROWS), found_in(kafka, topic)) == (0, 0)


@pytest.mark.slow
def test_a_job_survives_the_death_of_slot_driver_and_broker(local_job: RealJob, kafka: KafkaBroker) -> None:
    """S7.4, S9.1, S9.2: on real Spark, with kill -9; an independent consumer counts."""
    topic = kafka.create_topic("survivor", PARTITIONS)
    job = local_job
    job.out = f"{kafka.servers} {topic}"
    job.start(rows=ROWS, rate=2_000.0, pipeline=INTO_KAFKA)
    job.completed(2)
    os.kill(job.slot_pids()[0], signal.SIGKILL)
    view = job.until(lambda v: v.restarts == 1 and v.status.value == "RUNNING", "the restart")
    done = len(view.completed)
    kafka.kill()
    kafka.start()
    job.completed(done + 2)
    os.kill(job.driver_pid(), signal.SIGKILL)
    job.relaunch()
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert compared("DataGen, KafkaSink", range(ROWS), found_in(kafka, topic)) == (0, 0)
    assert not list((Path(job.root) / "counting" / "sinks").rglob("*.staged"))
