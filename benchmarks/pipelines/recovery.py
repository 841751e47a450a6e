"""A running total for each of 1,000 keys, 20,000 rows per second; see `benchmarks/recovery.py`.

Argument: `report`, a local folder. Each writer notes its process and the time of its first row in it, in
a file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import tidegate
from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.transactions import Committable, SinkContext

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
ROWS, RATE, KEYS = 10_000_000, 20_000.0, 1_000


def make_rows(numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return the rows of these numbers."""
    return pa.RecordBatch.from_arrays([pa.array(numbers % KEYS), pa.array(numbers)], schema=SCHEMA)


class FirstRows(Sink):
    """Discards rows, and notes the first one of each writer."""

    two_phase = False

    def __init__(self, report: str) -> None:
        self._report = report

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer for each subtask."""
        return FirstRowsWriter(self._report, ctx.subtask)


class FirstRowsWriter(SinkWriter):
    """See `FirstRows`."""

    def __init__(self, report: str, subtask: int) -> None:
        self._path = os.path.join(report, f"{subtask}-{os.getpid()}-{time.time_ns()}.json")
        self._subtask = subtask
        self._noted = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Note the first row."""
        if not self._noted and batch.num_rows:
            self._noted = True
            with open(self._path + "~", "w", encoding="utf-8") as file:
                json.dump({"subtask": self._subtask, "pid": os.getpid(), "first_s": time.time()}, file)
            os.replace(self._path + "~", self._path)

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Return nothing to commit."""
        return tuple

    def commit(self, committables: Sequence[Committable]) -> None:
        """Do nothing: there is nothing to commit."""

    def abort(self, committables: Sequence[Committable]) -> None:
        """Do nothing: there is nothing to commit."""

    def close(self) -> None:
        """Do nothing."""


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    p = tidegate.Pipeline()
    rows = p.read(tidegate.DataGen(make_rows, SCHEMA, rows=ROWS, rate=RATE), uid="rows")
    totals = rows.with_watermark("v", "0 s", unit="ms").group_by("k").window(tidegate.tumbling("1 s"))
    totals.agg(n=tidegate.count(), total=tidegate.sum("v"), uid="totals").write(
        FirstRows(str(args["report"])), uid="out"
    )
    return p
