"""Aggregates single batches of windows before they are sent to the subtasks of their keys, in streaming mode."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.aggregates.keyed_aggregates import AggregateLayout, KeyedAggregates
from tidegate.operators.batch_sizes import concat_batches
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.operators.time.late_rows import MAX_TIME_US, MIN_TIME_US
from tidegate.operators.windows.pane_groups import PaneGroups
from tidegate.operators.windows.window_grid import FixedGrid
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.partial_rows import ROWS_COLUMN

MIN_ROWS = 16_384
"""Smallest batch that is aggregated. The fixed cost (about 0.3 ms) is more than a smaller batch can save."""
SAMPLE = 8
"""Part of a batch that is aggregated first: one in this many rows. It decides whether the rest is aggregated."""
MIN_SAMPLE_ROWS_PER_ENTRY = 1.5
"""Rows of the sample that share a key and a pane, on average. If keys are equally frequent, seven rows of the whole
batch then share them."""
MIN_ROWS_PER_ENTRY = 6
"""Rows of a batch that share a key and a pane, on average. With four it costs as much as to send all rows."""
MIN_ROWS_PER_PANE = 256
"""Rows that share a pane, on average. Each pane has a fixed cost."""
BATCHES_AS_THEY_ARE = 63
"""Batches that are sent as they are, after a sample whose keys hardly repeat."""


class WindowPreAggregate:
    """Turns a batch of rows into partial rows: one for each key and pane, with the state of the aggregates.

    The operator of the windows merges them. A batch stays as it is if that is cheaper, or if the operator has to count
    or refuse some of its rows. So only the operator counts rows and raises errors. No row is kept for a later batch, so
    neither snapshots nor latency change. No clock decides, so the same batches give the same partial rows.
    """

    def __init__(self, spec: WindowAggSpec) -> None:
        """Args: spec: of the operator, see `pre_aggregated_windows`."""
        assert spec.time_column is not None, "windows over processing time depend on when rows arrive"
        aggregates, results = spec.aggregates, spec.schema
        counted = next((agg for agg in aggregates if agg.function == "count" and not agg.columns), None)
        if counted is None:
            counted = BoundAggregate(_unused(ROWS_COLUMN, results.names), "count")
            aggregates, results = (*aggregates, counted), results.append(pa.field(counted.name, pa.int64()))
        self._layout = AggregateLayout(spec.keys, aggregates, spec.input_schema, results)
        self._schema = spec.partial_schema
        state = [field.name for field in self._layout.state_fields()]
        self._rows_at = 1 + state.index(f"count:{counted.name}")  # the first column is the start of the pane
        self._time = EventTimeColumn(spec.time_column, spec.time_unit)
        self._grid = FixedGrid(spec.size_us, spec.step_us, spec.offset_us)
        self._groups = PaneGroups(self._time, self._grid)
        self._expected = 0
        self._as_they_are = 0
        self._needs_sample = True

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch as partial rows, or the batch itself."""
        if batch.num_rows < MIN_ROWS:
            return batch
        if self._as_they_are:
            self._as_they_are -= 1
            return batch
        panes: dict[int, KeyedAggregates] = {}
        sample = batch.num_rows // SAMPLE if self._needs_sample else 0
        try:
            if sample:
                if not self._add(batch.slice(0, sample), panes):
                    return batch
                self._decide(sample, panes, MIN_SAMPLE_ROWS_PER_ENTRY)
                if self._as_they_are:
                    return batch
            if not self._add(batch.slice(sample), panes):
                return batch
        except Exception:  # sums overflow, and aggregates of other packages may raise anything
            # The operator adds the same rows. It decides whether that is an error, and the error names it.
            self._send_as_they_are()
            return batch
        self._decide(batch.num_rows, panes, MIN_ROWS_PER_ENTRY)
        return concat_batches(list(self._partial_rows(panes)))

    def _decide(self, rows: int, panes: dict[int, KeyedAggregates], rows_per_entry: float) -> None:
        """Send the next batches as they are if too few of these rows share a key and a pane."""
        entries = sum(pane.size for pane in panes.values())
        self._needs_sample = False
        if rows < entries * rows_per_entry:
            self._send_as_they_are()

    def _send_as_they_are(self) -> None:
        """Send the next batches as they are, and then try a sample."""
        self._as_they_are, self._needs_sample = BATCHES_AS_THEY_ARE, True

    def _add(self, batch: pa.RecordBatch, panes: dict[int, KeyedAggregates]) -> bool:
        """Add rows to their panes. Return False if the batch has to be sent as it is."""
        times, nulls = self._time.times(batch)
        if nulls:  # the operator counts them
            return False
        low_us, high_us = self._time.to_us(int(times.min())), self._time.to_us(int(times.max()))
        if low_us < MIN_TIME_US or high_us > MAX_TIME_US:  # the operator refuses them
            return False
        grouped = self._groups.group(times if self._groups.whole_steps else self._time.as_us(times))
        if len(grouped.runs) * MIN_ROWS_PER_PANE > batch.num_rows:
            self._send_as_they_are()
            return False
        if grouped.order is not None:
            batch = batch.select(self._layout.used_columns).take(pa.array(grouped.order))
        rows = self._layout.read(batch)
        for number, start, stop in grouped.runs:
            pane = panes.get(number)
            if pane is None:
                pane = panes[number] = KeyedAggregates(self._layout, 0, self._expected)
            pane.add(rows, start, stop)
        return True

    def _partial_rows(self, panes: dict[int, KeyedAggregates]) -> Iterator[pa.RecordBatch]:
        for number, pane in panes.items():
            self._expected = pane.size
            starts_us = pa.repeat(self._grid.pane_start(number), pane.size)
            arrays = [starts_us, *pane.keys(0, pane.size).columns, *pane.state(slice(0, pane.size))]
            arrays = [*arrays[: len(self._schema) - 1], arrays[self._rows_at]]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _unused(name: str, names: Collection[str]) -> str:
    """Return `name`, or a similar one that users have not chosen for a column."""
    while name in names:
        name += "_"
    return name
