"""What waits in the queues is processed before sources add to it, however many parts each poll makes (S4.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from builders.batches import numbered_rows
from builders.sinks import new_sink_name

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.coordinator import events as ev
from tidegate.operators.stream_operator import MERGED_BYTES
from tidegate.subtask.subtask import GATHERED_POLLS
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
BATCH_ROWS = 40


class Seen(Sink):
    """Counts what came."""

    two_phase = False

    def __init__(self) -> None:
        self.rows = 0

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        return SeenWriter(self)


class SeenWriter(SinkWriter):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def write(self, batch: pa.RecordBatch) -> None:
        self._seen.rows += batch.num_rows

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        return tuple

    def commit(self, committables: Sequence[Committable]) -> None: ...

    def abort(self, committables: Sequence[Committable]) -> None: ...


def exchanged(sink: Sink, *, total: int | None = None) -> Pipeline:
    p = Pipeline()
    numbers = p.read(DataGen(numbered_rows(101, "k", "v"), SCHEMA, rows=total, batch_rows=BATCH_ROWS), uid="numbers")
    numbers.repartition("k").map_in_arrow(lambda batches: batches, schema=SCHEMA, uid="same").write(sink, uid="out")
    return p


def as_on_spark(pipeline: Callable[[], Pipeline], **options: Any) -> InProcessJob:
    """A job whose slot drains its inputs as one on Spark does."""
    job = InProcessJob(pipeline, {"parallelism": 4, **options})
    job.input_steps = 64
    job.gathered_part_bytes = MERGED_BYTES
    return job


def produced(run: InProcessRun) -> int:
    return sum(s.source.details["rows"] for s in run.slot.metrics().subtasks if s.source is not None)


def test_batches_that_were_split_do_not_pile_up_in_the_queues() -> None:
    """Each of four sources sends each of four subtasks a part of some polls in a round: all of them are taken."""
    sink = Seen()
    run = as_on_spark(lambda: exchanged(sink)).submit()
    run.pump(20)
    for _ in range(100):
        run.pump()
        assert sink.rows > 0
        waiting = produced(run) - sink.rows
        added = 4 * BATCH_ROWS * GATHERED_POLLS
        assert waiting <= 2 * added, f"{waiting} rows wait: more than what sources add in two rounds"


def test_a_trigger_does_not_wait_for_a_whole_queue() -> None:
    """A message of the driver ends a subtask's turn."""
    job = as_on_spark(lambda: exchanged(Seen()))
    run = job.submit()
    run.pump(20)
    taken = 0
    receiver = next(s for s in run._subtasks if s.source_input is None)
    step = receiver.step

    def counted() -> bool:
        nonlocal taken
        taken += 1
        run.slot.post(lambda: None)
        return step()

    receiver.step = counted  # type: ignore[method-assign]
    run.slot.run_round()
    assert taken == 1


@pytest.mark.parametrize("rounds", range(1, 28, 3))
def test_snapshots_of_drained_inputs_hold_each_row_once(rounds: int) -> None:
    """S3.1, S3.2: barriers are aligned in the middle of a turn."""
    name = new_sink_name()
    total = 25 * 4 * BATCH_ROWS * GATHERED_POLLS  # some rounds of four sources
    job = as_on_spark(lambda: exchanged(CollectSink(name), total=total))
    run = job.submit()
    run.pump(rounds)
    assert run.ask(ev.SnapshotRequest("checkpoint", request_id="c")) is not None
    if run.outcome is None:
        run.pump(2)
        run.crash()
        job.rerun().to_end()
    collected(name).assert_exactly([(n % 101, n) for n in range(total)])
