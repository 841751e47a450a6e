"""The memory of RocksDB state is bounded by what it was given, not by the state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import numpy as np, pyarrow as pa
from tidegate.state.keyed_state import BackendContext, StateDescriptor
from tidegate.state.rocksdb.rocksdb_backend import RocksDBBackend

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

keys = pa.schema([("k", pa.int64())])
backend = RocksDBBackend()
backend.open(BackendContext("rides", keys, ("k",), 128, range(128), lambda: 0, sys.argv[1], 16 * 2**20))
state = backend.value(StateDescriptor("v", "value", pa.schema([("v", pa.binary())])))
rng = np.random.default_rng(1)
offsets = pa.py_buffer(np.arange(0, 10_001 * 200, 200, dtype=np.int32))

def put(first):
    column = pa.Array.from_buffers(pa.binary(), 10_000, [None, offsets, pa.py_buffer(rng.bytes(2_000_000))])
    state.put(backend.keys(pa.record_batch({"k": range(first, first + 10_000)})), pa.record_batch({"v": column}))

def get(keys):
    assert state.get(backend.keys(pa.record_batch({"k": rng.integers(0, keys, 10_000)}))).present.all()

for first in range(0, 100_000, 10_000):
    put(first)
get(100_000)
before, most = resident_bytes(), 0
for first in range(100_000, 500_000, 10_000):
    put(first)
    most = max(most, resident_bytes())
for _ in range(5):
    get(500_000)
    most = max(most, resident_bytes())
backend.snapshot(1)()
print(max(most, resident_bytes()) - before)
backend.close()
"""


def test_resident_memory_does_not_grow_with_the_state(tmp_path: Path) -> None:
    """S5.2: 100 MB of rows with 16 MiB. The first 20 MB fill what is bounded: caches, write buffers, allocators."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=200
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 32 * 2**20
