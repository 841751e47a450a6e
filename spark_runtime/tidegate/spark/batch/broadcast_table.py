"""Rows of a broadcast input in Spark's own broadcast."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext


@dataclass(frozen=True)
class BroadcastTable:
    """A table in Spark's own broadcast, as an Arrow IPC stream."""

    stream: Broadcast[bytes]

    def batches(self) -> Iterable[pa.RecordBatch]:
        """Yield its rows."""
        with pa.ipc.open_stream(self.stream.value) as reader:
            yield from reader


def broadcast_table(context: SparkContext, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> BroadcastTable:
    """Send rows to all executors. Args: schema: of the rows."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return BroadcastTable(context.broadcast(out.getvalue().to_pybytes()))
