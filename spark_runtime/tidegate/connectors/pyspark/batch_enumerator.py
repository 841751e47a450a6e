"""Enumerator of a `DataSourceStreamReader`: one batch of partitions after the other, as Spark plans them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tidegate.connectors.interface import Discovery, Split, SplitEnumerator
from tidegate.connectors.pyspark.offsets import plain_offset
from tidegate.connectors.pyspark.partitions import partitions_of


class BatchEnumerator(SplitEnumerator):
    """Plans the next batch when all partitions of the batches before are read (`ContinuousDiscovery.after_finished`).

    Its state: `batch`, number of the next batch; `offset`, where it begins; `finished`, the offset up to which all
    partitions had been read at the last search, None: nothing was read.
    """

    def __init__(self, reader: Any, state: Mapping[str, Any] | None, where: str) -> None:
        """Args: reader: the data source's reader, used here only. where: name of the data source, for errors."""
        self._reader, self._where = reader, where
        self._state = state
        self._committed: Any = None if state is None else state["finished"]
        latest = inspect.signature(reader.latestOffset).parameters
        self._knows_limits = len(latest) > 0

    def discover(self) -> Discovery:
        """Plan one batch."""
        if self._state is None:
            self._state = {
                "batch": 0,
                "offset": plain_offset(self._where, self._reader.initialOffset()),
                "finished": None,
            }
        number, start = self._state["batch"], self._state["offset"]
        # Called only when everything that was planned has been read.
        finished = start if number else None
        end = plain_offset(self._where, self._latest(start))
        if end == start:
            self._state = {"batch": number, "offset": start, "finished": finished}
            return Discovery([], self._state)
        planned = partitions_of(self._reader, self._where, start, end)
        splits = [
            Split(f"{number}-{i}", {"start": start, "end": end, "index": i, "of": len(planned)})
            for i in range(len(planned))
        ]
        self._state = {"batch": number + 1, "offset": end, "finished": finished}
        return Discovery(splits, self._state, more=bool(splits))

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        """Commit the offset up to which the checkpoint contains all rows."""
        offset = None if state is None else state["finished"]
        if offset is not None and offset != self._committed:
            self._reader.commit(offset)
            self._committed = offset

    def close(self) -> None:
        """Stop the data source's reader."""
        self._reader.stop()

    def _latest(self, start: Any) -> Any:
        if not self._knows_limits:  # data sources written for PySpark 4.0 and 4.1
            return self._reader.latestOffset()
        return self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
