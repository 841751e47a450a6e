"""Discard: a sink that counts rows and forgets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.transactions import Committable, SinkContext


class Discard(Sink):
    """Takes any records and keeps none; for benchmarks and for pipelines run for their side effects."""

    two_phase = False

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """A counting writer."""
        return DiscardWriter()


class DiscardWriter(SinkWriter):
    """Counts rows in `rows`; has nothing to commit."""

    def __init__(self) -> None:
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Count."""
        self.rows += batch.num_rows

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Nothing to commit."""
        return tuple

    def commit(self, committables: Sequence[Committable]) -> None:
        """Nothing to do."""

    def abort(self, committables: Sequence[Committable]) -> None:
        """Nothing to do."""
