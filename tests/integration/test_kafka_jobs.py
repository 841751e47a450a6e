"""Whole jobs in this process that read a real broker: added partitions, crashes, rescales, watermarks (S4, S5.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from builders.kafka_fakes import Numbers
from builders.sinks import forget_sinks, new_sink_name
from kafka_broker import KafkaBroker

from tidegate import Kafka, tumbling
from tidegate import count as counting
from tidegate.api.pipeline import Pipeline
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.testing import run as run_pipeline
from tidegate.testing.batch import run_batch
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

_numbers = count()


class Ledger:
    """Writes to a topic, and knows what it has written: partition and number of each record."""

    def __init__(self, kafka: KafkaBroker, partitions: int) -> None:
        self.kafka, self.topic = kafka, kafka.create_topic(f"jobs-{next(_numbers)}", partitions)
        self.written: list[tuple[int, int]] = []
        self._next: dict[int, int] = {}

    def write(self, partition: int, records: int) -> None:
        first = self._next.get(partition, 0)
        self._next[partition] = first + records
        self.kafka.produce(self.topic, [b"%d" % n for n in range(first, first + records)], partition)
        self.written += [(partition, n) for n in range(first, first + records)]


class Job:
    """Copies a topic into a sink."""

    def __init__(self, ledger: Ledger, **options: Any) -> None:
        self.ledger, self.sink = ledger, new_sink_name()
        self.job = InProcessJob(self._build, {"parallelism": 2, **options})

    def _build(self) -> Pipeline:
        p = Pipeline()
        source = Kafka(
            self.ledger.topic,
            servers=self.ledger.kafka.servers,
            value=Numbers("n"),
            with_columns=["partition"],
            discover_every="100 ms",
        )
        p.read(source, uid="kafka").write(CollectSink(self.sink), uid="out")
        return p

    def committed(self) -> list[tuple[int, int]]:
        return sorted((row["partition"], row["n"]) for row in collected(self.sink).table().to_pylist())

    def catches_up(self, run: InProcessRun) -> None:
        """Until everything that was written is committed, and nothing else."""
        numbers = count()

        def is_there() -> bool:
            run.run.handle_command(ev.SnapshotRequest("checkpoint", request_id=f"c{next(numbers)}"))
            assert run.outcome is None, run.outcome
            return len(self.committed()) >= len(self.ledger.written)

        until(run, is_there)
        assert self.committed() == sorted(self.ledger.written)


def until(run: InProcessRun, condition: Callable[[], bool]) -> None:
    """Let a job work, and ask every few rounds, while the consumer's thread receives."""
    for _ in range(2_000):
        for _ in range(100):
            if not run.pump():
                run.tick(1)
        if condition():
            return
    raise AssertionError("the job does not get there")


@pytest.fixture(autouse=True)
def sinks() -> Iterator[None]:
    yield
    forget_sinks("sink")


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_each_record_is_read_once_over_added_partitions_a_crash_and_a_rescale(
    kafka: KafkaBroker, before: int, after: int
) -> None:
    """S4.3, S5.5, S9.1."""
    ledger = Ledger(kafka, 2)
    ledger.write(0, 500)
    job = Job(ledger, parallelism=before)
    run = job.job.submit()
    ledger.write(1, 500)
    job.catches_up(run)
    kafka.add_partitions(ledger.topic, 4)
    ledger.write(3, 300)
    ledger.write(0, 200)
    job.catches_up(run)
    ledger.write(2, 400)
    until(run, lambda: job.committed() != [] and collected(job.sink).rows_written > len(ledger.written) - 300)
    run.crash()
    ledger.write(1, 100)
    run = job.job.rerun()
    job.catches_up(run)
    ledger.write(2, 100)
    assert run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend")) is None or run.outcome
    ledger.write(3, 50)
    kafka.add_partitions(ledger.topic, 5)
    ledger.write(4, 70)
    job.job.options = {**job.job.options, "parallelism": after}
    run = job.job.submit(RestoreFrom(kind="latest"))
    job.catches_up(run)
    run.crash()


def test_the_slowest_partition_holds_the_watermark_back(kafka: KafkaBroker) -> None:
    """S4.4: one reader has three partitions; each has a watermark of its own, also one without records."""
    topic, sink = kafka.create_topic(f"jobs-{next(_numbers)}", 3), new_sink_name()

    def build() -> Pipeline:
        p = Pipeline()
        source = Kafka(topic, servers=kafka.servers, with_columns=["timestamp", "partition"])
        timed = p.read(source, uid="kafka").with_watermark("timestamp", "0 s")
        timed.group_by("partition").window(tumbling("1 s")).agg(n=counting(), uid="w").write(CollectSink(sink), uid="o")
        return p

    def fired() -> list[int]:
        return sorted(row["partition"] for row in collected(sink).table().to_pylist())

    def read() -> int:
        return sum(s.source_input.records for s in run._subtasks if s.source_input is not None)

    base_ms = 1_700_000_000_000
    kafka.produce(topic, [b"x"], 0, timestamp_ms=base_ms)
    kafka.produce(topic, [b"x"], 0, timestamp_ms=base_ms + 9_000)
    kafka.produce(topic, [b"x"], 1, timestamp_ms=base_ms + 500)
    run = InProcessJob(build, {"parallelism": 1}).submit()
    until(run, lambda: read() == 3)
    assert collected(sink).rows_written == 0, "partition 2 has no record yet"
    kafka.produce(topic, [b"x"], 2, timestamp_ms=base_ms + 3_000)
    until(run, lambda: read() == 4)
    assert collected(sink).rows_written == 0, "the watermark is 0.5 s, of partition 1"
    kafka.produce(topic, [b"x"], 1, timestamp_ms=base_ms + 2_500)
    until(run, lambda: collected(sink).rows_written == 2)
    run.run.handle_command(ev.SnapshotRequest("checkpoint", request_id="c"))
    until(run, lambda: fired() == [0, 1])
    run.crash()


def test_a_bounded_topic_gives_the_same_rows_in_both_modes(kafka: KafkaBroker) -> None:
    """S8.2, with columns that nothing uses left out."""
    ledger = Ledger(kafka, 3)
    for partition in range(3):
        ledger.write(partition, 100)

    def build(sink: str) -> Pipeline:
        p = Pipeline()
        source = Kafka(
            ledger.topic,
            servers=kafka.servers,
            until="latest",
            value=Numbers("n"),
            with_columns=["partition", "offset", "headers"],
        )
        p.read(source, uid="kafka").select("partition", "n").write(CollectSink(sink), uid="out")
        return p

    streamed = run_pipeline(lambda: build(new_sink_name()), {})["out"]
    sinks = new_sink_name(), new_sink_name()
    assert isinstance(InProcessJob(lambda: build(sinks[0]), {"parallelism": 2}).submit().to_end(), RunEnded)
    run_batch(lambda: build(sinks[1]), {"parallelism": 2})
    for rows in (streamed, *(collected(sink).table().to_pylist() for sink in sinks)):
        assert sorted((row["partition"], row["n"]) for row in rows) == sorted(ledger.written)
