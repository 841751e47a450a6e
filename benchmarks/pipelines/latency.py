"""The pipeline of `benchmarks/latency.py`: paced sources, a hash exchange, one keyed operator, and a sink that records
the arrival of each result.

It is one file, so that it can be pinned as the job's artifact. Arguments: `rows`, `rate` (rows per second over all
slots), `keys`, `slots` and `warm_up_s` (numbers), `work` (see `build`), and `report`, a local folder in which each sink
subtask writes its figures.
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

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64()), pa.field("due", pa.timestamp("us"))])
WINDOW = "100 ms"
RESULT = pa.schema([pa.field("k", pa.int64()), pa.field("total", pa.int64()), pa.field("due", pa.timestamp("us"))])


class Rows:
    """Computes rows with the time at which each was due, so that the delay of a slow source counts as latency, too.

    A slot has one split, which holds `of_split` consecutive numbers: its first row is due at the first call.
    """

    def __init__(self, rate: float, keys: int, slots: int, of_split: int) -> None:
        self._us_per_row = 1e6 * slots / rate
        self._keys = keys
        self._of_split = of_split
        self._first: dict[int, tuple[int, float]] = {}

    def __call__(self, numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Convert row numbers to columns."""
        first = int(numbers[0])
        number, start_us = self._first.setdefault(first // self._of_split, (first, time.time_ns() / 1000))
        due_us = (start_us + (numbers - number) * self._us_per_row).astype(np.int64)
        return {"k": numbers % self._keys, "v": np.ones(len(numbers), np.int64), "due": due_us}


class Totals(tidegate.KeyedProcess):
    """Computes the running total of each row's key."""

    states = (tidegate.reducing_state("total", {"v": "sum"}),)

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Add a batch, emit a result for each row."""
        totals = ctx.merging("total")
        totals.add(rows.keys, rows.owners, pa.record_batch([rows.batch["v"]], names=["v"]))
        found = totals.get(rows.keys).columns["v"].take(pa.array(rows.owners))
        yield pa.record_batch([rows.batch["k"], found, rows.batch["due"]], schema=RESULT)


class LatencySink(Sink):
    """Records how long after its row's time each result arrived, and the greatest total of each key.

    Args:
        due: columns of times; a result was due at the latest of them.
        value: column of totals.
    """

    two_phase = False

    def __init__(self, keys: int, warm_up_s: float, report: str, due: Sequence[str], value: str) -> None:
        self.keys, self.warm_up_s, self.report = keys, warm_up_s, report
        self.due, self.value = tuple(due), value

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
        self._measured_from_us = 0.0
        self._totals = np.zeros(sink.keys, np.int64)
        self._sum = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Compare the clock with the time at which each row was due."""
        now_us = time.time_ns() // 1000
        due_us = batch.column(self._sink.due[0]).to_numpy().view(np.int64)
        for other in self._sink.due[1:]:
            due_us = np.maximum(due_us, batch.column(other).to_numpy().view(np.int64))
        if self._first_s is None:
            self._first_s = float(due_us.min()) / 1e6
            self._measured_from_us = (self._first_s + self._sink.warm_up_s) * 1e6
        self._last_s = now_us / 1e6
        self._measured.append(now_us - due_us[due_us >= self._measured_from_us])
        self._rows += batch.num_rows
        values = batch.column(self._sink.value).to_numpy()
        self._sum += int(values.sum())
        if self._sink.keys:
            np.maximum.at(self._totals, batch.column("k").to_numpy(), values)

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
            "sum": self._sum,
            "first_s": self._first_s,
            "last_s": self._last_s,
            "totals": self._totals.tolist(),
        }
        np.save(os.path.join(self._sink.report, self._name), np.concatenate([np.zeros(0, np.int64), *self._measured]))
        with open(os.path.join(self._sink.report, f"{self._name}.json"), "w", encoding="utf-8") as file:
            json.dump(facts, file)


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """Build the pipeline of the argument `work`: "total", a running total per key with the state API; "window", windows
    of 0.1 s per key; or "join", a join of two streams with half of the rows each.
    """
    rows, rate, keys, slots = int(args["rows"]), float(args["rate"]), int(args["keys"]), int(args["slots"])
    p = tidegate.Pipeline()

    def read(uid: str, share: int, keys: int) -> tidegate.Stream:
        made = Rows(rate / share, keys, slots, rows // share // slots)
        return p.read(tidegate.DataGen(made, SCHEMA, rows=rows // share, splits=slots, rate=rate / share), uid=uid)

    def sink(keys: int, due: Sequence[str], value: str) -> LatencySink:
        return LatencySink(keys, float(args["warm_up_s"]), str(args["report"]), due, value)

    work = str(args["work"])
    if work == "total":
        totals = read("rows", 1, keys).group_by("k").process(Totals(), schema=RESULT, uid="totals")
        totals.write(sink(keys, ["due"], "total"), uid="latency")
    elif work == "window":
        timed = read("rows", 1, keys).with_watermark("due", "0 s").group_by("k")
        counts = timed.window(tidegate.tumbling(WINDOW)).agg(n=tidegate.count(), uid="windows")
        # The last row of a window was due when the window ended, at the latest.
        counts.write(sink(0, ["window_end"], "n"), uid="latency")
    else:
        # Rows of equal numbers, one of each side. A result was due with the later of its rows.
        left, right = (
            read(side, 2, rows).with_watermark("due", "0 s", uid=f"time-{side}") for side in ("left", "right")
        )
        pairs = left.join(right, on="k", ttl="2 s", suffix="_right", uid="pairs")
        pairs.write(sink(0, ["due", "due_right"], "v"), uid="latency")
    return p
