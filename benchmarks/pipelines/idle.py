"""The pipeline of `benchmarks/idle.py`: a running sum for each key, over an unbounded source that gets no rows.

The source is a push source whose thread waits, as a callback of a message broker does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

import tidegate
from tidegate.connectors.interface import Boundedness, Split
from tidegate.connectors.push import PushContext, Pusher, PushSource

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])


class Silence(Pusher):
    """Emits nothing."""

    def run(self, push: PushContext) -> None:
        """Wait until the run is over."""
        push.idle()
        push.wait_until_closed()


class SilentSource(PushSource):
    """One split that never has rows."""

    @property
    def boundedness(self) -> Boundedness:
        """Unbounded: rows could arrive at any time."""
        return "unbounded"

    def schema(self) -> pa.Schema:
        """Return keys and values."""
        return SCHEMA

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return one split for each subtask."""
        return [Split(str(number), {}) for number in range(parallelism)]

    def create_pusher(self, ctx: Any) -> Pusher:
        """Return a pusher that waits."""
        return Silence()


class Totals(tidegate.KeyedProcess):
    """Emits the total of each row's key."""

    states = (tidegate.reducing_state("total", {"v": "sum"}),)

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Add a batch, and emit a result for each row."""
        totals = ctx.merging("total")
        totals.add(rows.keys, rows.owners, pa.record_batch([rows.batch["v"]], names=["v"]))
        found = totals.get(rows.keys).columns["v"].take(pa.array(rows.owners))
        yield pa.record_batch([rows.batch["k"], found], schema=SCHEMA)


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    p = tidegate.Pipeline()
    rows = p.read(SilentSource(), uid="rows")
    rows.group_by("k").process(Totals(), schema=SCHEMA, uid="totals").write(tidegate.Discard(), uid="out")
    return p
