"""Exchanges in whole jobs: every record arrives where it should, once, through crashes, rescales and unaligned
checkpoints."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate import count, tumbling
from tidegate.api.pipeline import Pipeline
from tidegate.api.stream import Stream
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.plan.execution_plan import make_execution_plan
from tidegate.state.keys.key_hash import partition_hash
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 12_000
BATCH_ROWS = 250
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
Exchange = Callable[[Stream], Stream]
_sinks = itertools.count()


def rows(numbers: Any) -> dict[str, Any]:
    return {"k": numbers % 7, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms"))}


def by_remainder(batch: pa.RecordBatch, n: int) -> Any:
    return batch["v"].to_numpy() % 5 % n


EXCHANGES: dict[str, Exchange] = {
    "rebalance": lambda stream: stream.rebalance(),
    "hash": lambda stream: stream.repartition("k"),
    "custom": lambda stream: stream.partition_by(by_remainder),
    "broadcast": lambda stream: stream.broadcast_all(),
}


def exchanged(name: str, exchange: Exchange, rows_in_all: int | None = ROWS) -> Pipeline:
    """Behind the exchange a sink that sees the records, and windows that need the watermark."""
    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=rows_in_all, splits=3, batch_rows=BATCH_ROWS)
    stream = exchange(p.read(source, uid="numbers").with_watermark("ts", "0 s"))
    stream.write(CollectSink(f"{name}-rows"), uid="out")
    windows = stream.group_by("k").window(tumbling("1 s")).agg(n=count(), uid="windows")
    windows.write(CollectSink(f"{name}-windows"), uid="counts")
    return p


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"exchanges-{next(_sinks)}"
    yield name
    for end in ("rows", "windows"):
        clear_collected(f"{name}-{end}")


def arrived(sink: str) -> Counter[int]:
    return Counter(collected(f"{sink}-rows").table()["v"].to_pylist())


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_record_arrives_once_through_crashes_and_rescales(
    sink: str, exchange: str, unaligned: bool, seed: int
) -> None:
    """S3.7, S4.4, S9.1: also none is late behind the exchange, as each split is in order."""
    rng = random.Random(seed)
    options = {"checkpoint_interval": "1 s", "unaligned_checkpoints": unaligned, "channel_capacity": "64 KiB"}
    job = InProcessJob(lambda: exchanged(sink, EXCHANGES[exchange]), {"parallelism": 2, **options})
    run = job.submit()
    for crash in range(4):
        for _ in range(rng.randint(10, 60)):
            run.pump()
            if rng.random() < 0.3:
                run.tick(rng.randint(1, 700))
        if run.outcome is not None:
            break
        run.crash()
        if crash == 1 and exchange != "broadcast":  # of those copies have been committed, at the old parallelism
            done = [d.data["path"] for d in job.log.read() if d.kind == "complete"]
            if done:
                job.options = {**job.options, "parallelism": rng.choice([1, 3, 4])}
                run = job.submit(RestoreFrom("checkpoint", path=done[-1]))
                continue
        run = job.rerun()
    assert isinstance(run.to_end(), RunEnded)
    copies = 2 if exchange == "broadcast" else 1
    assert arrived(sink) == Counter(dict.fromkeys(range(ROWS), copies))
    assert sum(collected(f"{sink}-windows").table()["n"].to_pylist()) == copies * ROWS


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_records_come_to_the_subtask_that_the_exchange_says(sink: str, exchange: str, parallelism: int) -> None:
    job = InProcessJob(lambda: exchanged(sink, EXCHANGES[exchange]), {"parallelism": parallelism})
    run = job.submit()
    (chain,) = (
        c.chain_id
        for c in make_execution_plan(exchanged(sink, EXCHANGES[exchange]).build(), parallelism, 128).chains
        if c.inputs and c.inputs[0].exchange == exchange and c.name.startswith("numbers.")
    )
    run.to_end()
    found = {s.subtask[1]: s.rows_in for s in run.slot.metrics().subtasks if s.subtask[0] == chain}
    numbers = np.arange(ROWS)
    batch = pa.record_batch({"k": numbers % 7})
    wanted = {
        "hash": lambda: [p.num_rows if p else 0 for p in partition_hash(batch, ["k"], parallelism, 128)],
        "custom": lambda: np.bincount(numbers % 5 % parallelism, minlength=parallelism).tolist(),
        "broadcast": lambda: [ROWS] * parallelism,
        "rebalance": lambda: [ROWS // parallelism] * parallelism,
    }[exchange]()
    assert [found[i] for i in range(parallelism)] == wanted


def test_a_checkpoint_aligns_behind_a_partitioner_of_the_users_own_and_a_broadcast(sink: str) -> None:
    """S3.7: its records in flight could not be given to other subtasks."""

    overtakes = {}
    for exchange in EXCHANGES:
        job = InProcessJob(lambda x=exchange: exchanged(sink, EXCHANGES[x], None), {"unaligned_checkpoints": True})
        run = job.submit()
        overtakes[exchange] = next(s._overtakes for s in run.slot._subtasks if s.subtask == (1, 0))
        run.crash()
    assert overtakes == {"rebalance": True, "hash": True, "custom": False, "broadcast": False}
