"""The pipeline of `benchmarks/latency.py`: a paced source, a hash exchange, one reducing state per key, and a sink that
records the arrival of each result.

It is one file, so that it can be pinned as the job's artifact. Arguments: `rows`, `rate` (rows per second over all
slots), `keys`, `slots` and `warm_up_s` (numbers), and `report`, a local folder in which each sink subtask writes its
figures.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import tidegate
from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.transactions import Committable, SinkContext

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64()), pa.field("due_us", pa.int64())])
RESULT = pa.schema([pa.field("k", pa.int64()), pa.field("total", pa.int64()), pa.field("due_us", pa.int64())])


class Rows:
    """Computes rows with the time at which each was due, so that the delay of a slow source counts as latency, too.

    A slot has one split, which holds consecutive numbers: its first row is due at the first call.
    """

    def __init__(self, rate: float, keys: int, slots: int) -> None:
        self._us_per_row = 1e6 * slots / rate
        self._keys = keys
        self._first: tuple[int, float] | None = None

    def __call__(self, numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Convert row numbers to columns."""
        if self._first is None:
            self._first = int(numbers[0]), time.time_ns() / 1000
        number, start_us = self._first
        due_us = (start_us + (numbers - number) * self._us_per_row).astype(np.int64)
        return {"k": numbers % self._keys, "v": np.ones(len(numbers), np.int64), "due_us": due_us}


class Totals(tidegate.KeyedProcess):
    """Computes the running total of each row's key."""

    states = (tidegate.reducing_state("total", {"v": "sum"}),)

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Add a batch, emit a result for each row."""
        totals = ctx.merging("total")
        totals.add(rows.keys, rows.owners, pa.record_batch([rows.batch["v"]], names=["v"]))
        found = totals.get(rows.keys).columns["v"].take(pa.array(rows.owners))
        yield pa.record_batch([rows.batch["k"], found, rows.batch["due_us"]], schema=RESULT)


class LatencySink(Sink):
    """Records how long after its row's time each result arrived, and the greatest total of each key."""

    two_phase = False

    def __init__(self, keys: int, warm_up_s: float, report: str) -> None:
        self.keys, self.warm_up_s, self.report = keys, warm_up_s, report

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer for each subtask."""
        return LatencyWriter(self, ctx)


class LatencyWriter(SinkWriter):
    """Writes its figures when it is closed. After a restart, one subtask would have two reports, which the benchmark
    refuses."""

    def __init__(self, sink: LatencySink, ctx: SinkContext) -> None:
        self._sink = sink
        self._name = f"sink-{ctx.subtask}-{ctx.run_id}"
        self._first_s: float | None = None
        self._last_s = 0.0
        self._measured: list[npt.NDArray[np.int64]] = []
        self._rows = 0
        self._totals = np.zeros(sink.keys, np.int64)

    def write(self, batch: pa.RecordBatch) -> None:
        """Compare the clock with the time at which each row was due."""
        now_us = time.time_ns() // 1000
        due_us = batch.column("due_us").to_numpy()
        if self._first_s is None:
            self._first_s = float(due_us.min()) / 1e6
        self._last_s = now_us / 1e6
        self._measured.append(now_us - due_us[due_us >= (self._first_s + self._sink.warm_up_s) * 1e6])
        self._rows += batch.num_rows
        np.maximum.at(self._totals, batch.column("k").to_numpy(), batch.column("total").to_numpy())

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Return nothing to commit."""
        return tuple

    def commit(self, committables: Sequence[Committable]) -> None:
        """Do nothing: there is nothing to commit."""

    def abort(self, committables: Sequence[Committable]) -> None:
        """Do nothing: there is nothing to commit."""

    def close(self) -> None:
        """Write the report."""
        facts = {
            "rows": self._rows,
            "first_s": self._first_s,
            "last_s": self._last_s,
            "totals": self._totals.tolist(),
        }
        np.save(os.path.join(self._sink.report, self._name), np.concatenate([np.zeros(0, np.int64), *self._measured]))
        with open(os.path.join(self._sink.report, f"{self._name}.json"), "w", encoding="utf-8") as file:
            json.dump(facts, file)


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    rows, rate, keys, slots = int(args["rows"]), float(args["rate"]), int(args["keys"]), int(args["slots"])
    p = tidegate.Pipeline()
    source = tidegate.DataGen(Rows(rate, keys, slots), SCHEMA, rows=rows, splits=slots, rate=rate)
    totals = p.read(source, uid="rows").group_by("k").process(Totals(), schema=RESULT, uid="totals")
    totals.write(LatencySink(keys, float(args["warm_up_s"]), str(args["report"])), uid="latency")
    return p
