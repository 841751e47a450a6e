"""Windows of 10 s per key over generated rows (W1, see `w1_workload.py`), to Parquet.

Arguments: `rows`, `keys`, `output` (folder), `source_only` (drop all rows behind the source), `slots` (default 2): each
slot reads rows of the whole time, as in W1, so that windows hold equally many rows with any number of slots.

With `skewed`, other rows that are harder for checkpoints: keys by Zipf's law, times out of order by up to 4 s, windows
of 2 s, so that several windows are open at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import tidegate

SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("k", "v", "ts_ms")])
_INT64S = numba.int64[::1]
SKEWED_KEYS = 1 << 22
"""Length of the table of keys by Zipf's law."""
ZIPF_EXPONENT = 1.1
DISORDER_MS = 4_000


def make_generator(rows: int, keys: int, slots: int = 2) -> Callable[[npt.NDArray[np.int64]], pa.RecordBatch]:
    """Return a generator that is compiled for these numbers."""
    k_mod, part, parts = np.uint64(keys), np.uint64(rows // slots), np.uint64(slots)
    multiplier, v_mod, rows_per_ms = np.uint64(2_654_435_761), np.uint64(1_000), np.uint64(500)

    def fill(numbers: Any, k: Any, v: Any, ts_ms: Any) -> None:
        for j in range(len(numbers)):
            i = np.uint64(numbers[j])
            k[j] = np.int64((i * multiplier) % k_mod)
            v[j] = np.int64(i % v_mod)
            ts_ms[j] = np.int64((i % part) * parts // rows_per_ms)

    compiled = numba.njit([numba.void(_INT64S, _INT64S, _INT64S, _INT64S)], nogil=True)(fill)

    def generate(numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
        columns = [np.empty(len(numbers), dtype=np.int64) for _ in SCHEMA]
        compiled(numbers, *columns)
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)

    return generate


def make_skewed_generator(rows: int, keys: int, slots: int = 2) -> Callable[[npt.NDArray[np.int64]], pa.RecordBatch]:
    """Return a generator of the rows with `skewed`, compiled for these numbers."""
    part, parts, rows_per_ms = np.uint64(rows // slots), np.uint64(slots), np.uint64(500)
    spread, mask, span = np.uint64(11_400_714_819_323_198_485), np.uint64(SKEWED_KEYS - 1), np.uint64(DISORDER_MS + 1)
    weights = np.cumsum(1 / np.arange(1, keys + 1) ** ZIPF_EXPONENT)
    draws = np.random.default_rng(1).random(SKEWED_KEYS) * weights[-1]
    of_hash = np.searchsorted(weights, draws).astype(np.int64)

    def fill(numbers: Any, k: Any, v: Any, ts_ms: Any, table: Any) -> None:
        for j in range(len(numbers)):
            i = np.uint64(numbers[j])
            hashed = (i * spread) >> np.uint64(20)
            k[j] = table[hashed & mask]
            v[j] = np.int64(i % np.uint64(1_000))
            late_ms = np.int64((hashed >> np.uint64(22)) % span)
            ts_ms[j] = np.int64((i % part) * parts // rows_per_ms) + DISORDER_MS - late_ms

    compiled = numba.njit([numba.void(_INT64S, _INT64S, _INT64S, _INT64S, _INT64S)], nogil=True)(fill)

    def generate(numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
        columns = [np.empty(len(numbers), dtype=np.int64) for _ in SCHEMA]
        compiled(numbers, *columns, of_hash)
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)

    return generate


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    rows, keys = int(args["rows"]), int(args["keys"])
    p = tidegate.Pipeline()
    skewed = bool(args.get("skewed", False))
    generate = (make_skewed_generator if skewed else make_generator)(rows, keys, int(args.get("slots", 2)))
    stream = p.read(tidegate.DataGen(generate, SCHEMA, rows=rows), uid="rows")
    if args["source_only"]:
        stream.write(tidegate.Discard(), uid="discard")
        return p
    delay, window = (f"{DISORDER_MS} ms", "2 s") if skewed else ("0 s", "10 s")
    windows = stream.with_watermark("ts_ms", delay, unit="ms").group_by("k").window(tidegate.tumbling(window))
    totals = windows.agg(n=tidegate.count(), total=tidegate.sum("v"), uid="windows")
    totals.write(tidegate.Parquet(str(args["output"])), uid="out")
    return p
