"""A job whose state is larger than memory: it writes a value for every key, and later checks all values.

Row i < keys writes key p(i), where p is a permutation. Row i >= keys reads p'(i - keys), with another permutation,
compares the value with the written one, and replaces it by the next value, which is stored nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate import DataGen, KeyedProcess, KeyedRows, Parquet, Pipeline, ProcessContext, value_state

VALUE_BYTES = 216
BATCH_ROWS = 16 * 1024
SCHEMA = pa.schema([("k", pa.int64()), ("reads", pa.bool_())])
RESULT = pa.schema([("rows", pa.int64()), ("written", pa.int64()), ("right", pa.int64()), ("wrong", pa.int64())])


def shuffled(numbers: npt.NDArray[np.int64], keys: int, step: int) -> npt.NDArray[np.int64]:
    """Return a permutation of 0..keys - 1. Args: step: a prime that does not divide `keys`."""
    return (numbers * step + 12_345) % keys


def payload(keys: npt.NDArray[np.int64], turn: int) -> pa.Array:
    """Return VALUE_BYTES that hardly compress, and that identify key and turn."""
    words = VALUE_BYTES // 8
    seeds = (keys.astype(np.uint64)[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64)) * np.uint64(2)
    mixed = (seeds + np.uint64(turn) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    data = pa.py_buffer(np.ascontiguousarray(mixed))
    return pa.Array.from_buffers(pa.binary(VALUE_BYTES), len(keys), [None, data]).cast(pa.binary())


class Remembers(KeyedProcess):
    """Writes or reads a batch; emits (rows, written, right, wrong) for it."""

    states = (value_state("payload", {"bytes": pa.binary()}),)

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        state, keys = ctx.value("payload"), rows.keys
        k = keys.columns()["k"].to_numpy()
        reads = bool(rows.batch["reads"][0].as_py())
        right = wrong = 0
        if reads:
            held = state.get(keys)
            same = pc.fill_null(pc.equal(held.columns["bytes"], payload(k, 0)), False)
            right = int((held.present & same.to_numpy(zero_copy_only=False)).sum())
            wrong = keys.size - right
        state.put(keys, pa.record_batch([payload(k, 1 if reads else 0)], names=["bytes"]))
        told = [len(rows.owners), 0 if reads else len(rows.owners), right, wrong]
        yield pa.record_batch([pa.array([n]) for n in told], schema=RESULT)


def build(args: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline. Arguments: keys, out (folder), rate (rows per second; 0: no limit)."""
    keys = int(args["keys"])

    def rows(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
        reads = numbers >= keys
        k = np.where(reads, shuffled(numbers - keys, keys, 7_368_787), shuffled(numbers, keys, 15_485_863))
        return {"k": k, "reads": reads}

    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=2 * keys, splits=1, batch_rows=BATCH_ROWS, rate=float(args["rate"]) or None)
    (
        p.read(source, uid="numbers")
        .group_by("k")
        .process(Remembers(), schema=RESULT, uid="remembers")
        .write(Parquet(str(args["out"])), uid="out")
    )
    return p
