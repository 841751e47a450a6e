"""A state of every kind with some contents, to be compared after a restore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_suites.plain_states import PlainBackend, Row, plain
from tidegate.state.keyed_state import StateDescriptor

LATEST = 2**62


def joined(accumulators: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """A merge over Arrow arrays: joins texts, adds numbers."""
    texts = accumulators.column("text").to_pylist()
    together = ["".join(texts[start:end]) for start, end in zip(offsets, offsets[1:])]
    sums = np.add.reduceat(accumulators.column("n").to_numpy(), offsets[:-1]) if together else np.zeros(0, np.int64)
    return pa.RecordBatch.from_arrays([pa.array(together, pa.string()), pa.array(sums)], schema=accumulators.schema)


VALUE = StateDescriptor("value", "value", pa.schema([("n", pa.int64()), ("s", pa.string()), ("f", pa.float64())]))
LIST = StateDescriptor("list", "list", pa.schema([("v", pa.list_(pa.int64()))]))
MAP = StateDescriptor("map", "map", pa.schema([("v", pa.int64())]), map_key=pa.schema([("m", pa.string())]))
REDUCING = StateDescriptor(
    "reducing",
    "reducing",
    pa.schema([("total", pa.int32()), ("most", pa.float64()), ("rows", pa.string()), ("first", pa.string())]),
    reductions=("sum", "max", "count", "first"),
)
AGGREGATING = StateDescriptor(
    "aggregating", "aggregating", pa.schema([("text", pa.string()), ("n", pa.int64())]), merge=joined
)
DESCRIPTORS = (VALUE, LIST, MAP, REDUCING, AGGREGATING)


class Everything:
    """All kinds of state in one back end."""

    def __init__(self, backend: PlainBackend) -> None:
        """Declares the states."""
        self.backend = backend
        self.value = backend.value(VALUE)
        self.list = backend.list(LIST)
        self.map = backend.map(MAP)
        self.reducing = backend.merging(REDUCING)
        self.aggregating = backend.merging(AGGREGATING)
        self.event = backend.timers("event")
        self.processing = backend.timers("processing")

    def write(self, keys: Sequence[Row], salt: int) -> None:
        """Put something into every state of these keys; other things for another `salt`. The first key gets no value,
        the last no list."""
        numbered = [(key, salt * 1_000 + i) for i, key in enumerate(keys)]
        texts = ["", None, f"text {salt}"]
        self.value.put([(key, (n, texts[n % 3], n / 2 if n % 5 else None)) for key, n in numbered[1:]])
        self.list.append([(key, ([n] * (n % 3),)) for key, n in numbered[:-1] for _ in range(n % 4)])
        self.map.put([(key, (at,), (n,)) for key, n in numbered for at in ("same", f"of {salt}", None)])
        self.reducing.add([(key, (n, float(n), texts[n % 3], texts[n % 2])) for key, n in numbered for _ in range(2)])
        self.aggregating.add([(key, (f"{n},", 1)) for key, n in numbered])
        self.event.register([(key, n) for key, n in numbered] + [(key, -n) for key, n in numbered[::2]])
        self.processing.register([(key, 7) for key, _ in numbered[::3]])

    def wipe(self, keys: Sequence[Row]) -> None:
        """Take everything of these keys away."""
        for state in (self.value, self.list, self.map, self.reducing, self.aggregating):
            state.clear(keys)
        for timers in (self.event, self.processing):
            timers.delete([(key, time_us) for key, times in zip(keys, timers.of(keys)) for time_us in times])

    def read(self, keys: Sequence[Row]) -> dict[str, Any]:
        """Everything these keys have."""
        kept = {
            "value": self.value.get(keys),
            "list": self.list.get(keys),
            "map": self.map.entries(keys),
            "reducing": self.reducing.get(keys),
            "aggregating": self.aggregating.get(keys),
            "event": self.event.of(keys),
            "processing": self.processing.of(keys),
        }
        return {name: dict(zip([repr(plain(key)) for key in keys], found)) for name, found in kept.items()}

    def all_keys(self) -> dict[str, set[bytes]]:
        """The keys of every state."""
        return {descriptor.name: self.backend.all_keys(descriptor) for descriptor in DESCRIPTORS}
