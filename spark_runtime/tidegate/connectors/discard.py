"""Discard: a sink that counts rows and drops them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.transactions import Committable, SinkContext


class Discard(Sink):
    """Sink that accepts any records and stores none, for benchmarks and for pipelines run for their side effects."""

    two_phase = False

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer that counts rows."""
        return DiscardWriter()


class DiscardWriter(SinkWriter):
    """Writer that counts rows in `rows` and has nothing to commit."""

    def __init__(self) -> None:
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Count the rows of the batch."""
        self.rows += batch.num_rows

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Return a function that yields no handles: there is nothing to commit."""
        return tuple

    def commit(self, committables: Sequence[Committable]) -> None:
        """Do nothing."""

    def abort(self, committables: Sequence[Committable]) -> None:
        """Do nothing."""
