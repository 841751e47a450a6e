"""Workload W1 as a tidegate pipeline; see `benchmarks/w1_workload.py` for its definition and README.md for the rules.

It is one file, so that it can be pinned as the job's artifact. Arguments: `rows`, `keys` (integers) and `report`, a
local folder in which each source and sink subtask writes one small JSON file: the times of its first and last record,
and a fingerprint of the result rows that it discarded.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import tidegate
from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.transactions import Committable, SinkContext

SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("k", "v", "ts_ms")])
_INT64S = numba.int64[::1]
_READ_ONLY = numba.types.Array(numba.int64, 1, "C", readonly=True)
# Explicit signatures, so that both kernels are compiled when the pipeline is built, not at the first record.


def make_generator(rows: int, keys: int) -> Callable[..., None]:
    """Return W1's generator, compiled for these numbers, as Spark compiles the same expressions with the same
    constants.

    The function fills the columns k, v and ts_ms for any row numbers, row by row.
    """
    k_mod, half = np.uint64(keys), np.uint64(rows // 2)
    multiplier, v_mod, rows_per_ms = np.uint64(2_654_435_761), np.uint64(1_000), np.uint64(250)

    def generate(numbers: Any, k: Any, v: Any, ts_ms: Any) -> None:
        for j in range(len(numbers)):
            i = np.uint64(numbers[j])
            k[j] = np.int64((i * multiplier) % k_mod)
            v[j] = np.int64(i % v_mod)
            ts_ms[j] = np.int64((i % half) // rows_per_ms)

    compiled: Callable[..., None] = numba.njit([numba.void(_INT64S, _INT64S, _INT64S, _INT64S)], nogil=True)(generate)
    return compiled


@numba.njit([numba.uint64(_READ_ONLY, _READ_ONLY, _READ_ONLY, _READ_ONLY)], nogil=True)
def fingerprint(
    k: npt.NDArray[np.int64],
    start_us: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    total: npt.NDArray[np.int64],
) -> Any:
    """Return the sum over result rows, modulo 2^64, of a 64-bit hash of the whole row.

    Equal multisets of rows give equal sums, in any order and batches; in practice different ones give different sums.
    """
    answer = np.uint64(0)
    for j in range(len(k)):
        h = np.uint64(0x9E3779B97F4A7C15)
        for part in (k[j], start_us[j], rows[j], total[j]):
            h = (h ^ np.uint64(part)) * np.uint64(0xFF51AFD7ED558CCD)
            h ^= h >> np.uint64(32)
        answer += h
    return answer


class W1Rows:
    """The generator; records the time of its first call in the process, which makes its subtask's first record."""

    def __init__(self, rows: int, keys: int, report: str) -> None:
        self._generate = make_generator(rows, keys)
        self._report = report
        self._started = False
        pa.array(np.zeros(1, dtype=np.int64))  # the first such call of a process imports pandas, for a second or more

    def __call__(self, numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Convert row numbers to records."""
        if not self._started and len(numbers):
            self._started = True
            _leave(self._report, f"source-{int(numbers[0])}", {"first_s": time.time()})
        columns = [np.empty(len(numbers), dtype=np.int64) for _ in SCHEMA]
        self._generate(numbers, *columns)
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)


class FingerprintSink(Sink):
    """Discards its records after adding them to a fingerprint, a row count and the sums of both aggregates."""

    two_phase = False

    def __init__(self, report: str) -> None:
        self._report = report

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer for each subtask."""
        return FingerprintWriter(self._report, ctx)


class FingerprintWriter(SinkWriter):
    """Writes its report when it is closed. After a restart, one subtask would have two reports of different runs, which
    the benchmark refuses."""

    def __init__(self, report: str, ctx: SinkContext) -> None:
        self._report = report
        self._name = f"sink-{ctx.subtask}-{ctx.generation}-{ctx.run_id}"
        self._result_rows = self._counted = self._total = 0
        self._fingerprint = 0
        self._last_s = 0.0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows to the sums, and discard them."""
        k, rows, total = (batch.column(name).to_numpy() for name in ("k", "rows", "total"))
        start_us = batch.column("window_start").cast(pa.int64()).to_numpy()
        self._result_rows += len(k)
        self._counted += int(rows.sum())
        self._total += int(total.sum())
        self._fingerprint = (self._fingerprint + int(fingerprint(k, start_us, rows, total))) % 2**64
        self._last_s = time.time()

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Return nothing to commit."""
        return tuple

    def commit(self, committables: Sequence[Committable]) -> None:
        """Do nothing: there is nothing to commit."""

    def abort(self, committables: Sequence[Committable]) -> None:
        """Do nothing: there is nothing to commit."""

    def close(self) -> None:
        """Write the report."""
        _leave(
            self._report,
            self._name,
            {
                "last_s": self._last_s,
                "result_rows": self._result_rows,
                "counted": self._counted,
                "total": self._total,
                "fingerprint": self._fingerprint,
            },
        )


def _leave(folder: str, name: str, facts: Mapping[str, Any]) -> None:
    with open(os.path.join(folder, f"{name}.json"), "w", encoding="utf-8") as file:
        json.dump(facts, file)


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """Build W1: generate, window, count and sum, discard."""
    rows, keys, report = int(args["rows"]), int(args["keys"]), str(args["report"])
    p = tidegate.Pipeline()
    (
        p.read(tidegate.DataGen(W1Rows(rows, keys, report), SCHEMA, rows=rows), uid="rows")
        .with_watermark("ts_ms", "0 s", unit="ms")
        .group_by("k")
        .window(tidegate.tumbling("10 s"))
        .agg(rows=tidegate.count(), total=tidegate.sum("v"), uid="per-key")
        .write(FingerprintSink(report), uid="discard")
    )
    return p
