"""StatefulProcessors as anybody would write them for Spark, after the ideas of its own tests of transformWithState.

Nothing here knows which of the two engines runs it, but for `pipeline` and its source, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tidegate import Parquet, Pipeline
from tidegate.connectors.interface import Boundedness, PollResult, Source, SourceContext, SourceReader, Split

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
INPUT = pa.schema([("k", pa.string()), ("item", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
INITIAL = pa.schema([("owner", pa.string()), ("balance", pa.int64())])


def row(k: str | None, item: str, n: int | None, second: int) -> dict[str, Any]:
    """One record."""
    return {"k": k, "item": item, "n": n, "t": EPOCH + timedelta(seconds=second)}


class RunningCount(StatefulProcessor):
    """How many rows a key has had, with each batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """One value."""
        self.count = handle.getValueState("count", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Count."""
        before = self.count.get()
        n = (before[0] if before is not None else 0) + sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(k=key[0], n=n)


class Sessions(StatefulProcessor):
    """Rows of a key that are at most ten seconds apart are a session; it is told when the watermark says it is over."""

    GAP_MS = 10_000

    def init(self, handle: StatefulProcessorHandle) -> None:
        """The session that is open, by its own times."""
        self.handle = handle
        self.open = handle.getValueState("open", "first BIGINT, last BIGINT, rows INT, items ARRAY<STRING>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """The session goes on."""
        for row in sorted(rows, key=lambda row: row.t):
            at = int(row.t.timestamp() * 1000)
            first, last, n, items = self.open.get() or (at, at, 0, [])
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            self.open.update((min(first, at), max(last, at), n + 1, sorted({*items, row.item})))
            self.handle.registerTimer(max(last, at) + self.GAP_MS)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """It is over."""
        first, last, n, items = self.open.get()
        self.open.clear()
        assert expiredTimerInfo.getExpiryTimeInMs() == last + self.GAP_MS <= timerValues.getCurrentWatermarkInMs()
        yield Row(k=key[0], first=first, last=last, rows=n, items=items)


class Basket(StatefulProcessor):
    """The last three numbers of a key, and how often each item came; an item with number 0 is taken out."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """A list and a map."""
        self.last = handle.getListState("last", "n BIGINT")
        self.items = handle.getMapState("items", "item STRING", StructType([StructField("item", IntegerType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Both, with each batch."""
        for row in rows:
            if row.n == 0:
                self.items.removeKey((row.item,))
                continue
            self.last.appendValue((row.n,))
            held = self.items.getValue((row.item,))
            self.items.updateValue((row.item,), ((held.item if held is not None else 0) + 1,))
        latest = [n for (n,) in self.last.get()][-3:]
        if latest:
            self.last.put([(n,) for n in latest])
        if self.items.containsKey(("clear",)):
            self.items.clear()
            self.last.clear()
        items = sorted(f"{item}={n}" for (item,), (n,) in self.items.iterator())
        yield Row(k=key[0], last=latest, items=items, any=self.items.exists() or self.last.exists())


class Forgetful(StatefulProcessor):
    """One state that lives for a millisecond, and one for a day: what is left of both in the next batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Of each kind."""
        number = StructType([StructField("n", LongType())])
        self.short = handle.getValueState("short", number, 1)
        self.long = handle.getValueState("long", number, 86_400_000)
        self.short_list = handle.getListState("short_list", number, 1)
        self.long_list = handle.getListState("long_list", number, 86_400_000)
        self.short_map = handle.getMapState("short_map", number, number, 1)
        self.long_map = handle.getMapState("long_map", number, number, 86_400_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """What was there, and what is now."""
        held = (self.short.get(), self.long.get(), *(state.exists() for state in self._others()))
        for row in rows:
            for value in (self.short, self.long):
                value.update((row.n,))
            for elements in (self.short_list, self.long_list):
                elements.appendValue((row.n,))
            for entries in (self.short_map, self.long_map):
                entries.updateValue((row.n,), (row.n,))
        lengths = [len(list(self.short_list.get())), len(list(self.long_list.get()))]
        lengths += [len(list(self.short_map.keys())), len(list(self.long_map.keys()))]
        yield Row(k=key[0], held=str(held), now=f"{self.short.get()} {self.long.get()} {lengths}")

    def _others(self) -> Sequence[Any]:
        return self.short_list, self.long_list, self.short_map, self.long_map


class Account(StatefulProcessor):
    """A balance that begins with what the initial state says, and the movements of the last batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """One value."""
        self.balance = handle.getValueState("balance", "n BIGINT, from_start BOOLEAN")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        """May come several times for a key."""
        before = self.balance.get()
        self.balance.update(((before[0] if before else 0) + initialState.balance, True))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add up."""
        before, from_start = self.balance.get() or (0, False)
        moved = sum(row.n or 0 for row in rows)
        self.balance.update((before + moved, from_start))
        yield Row(k=key[0], n=before + moved, what=f"{'begun' if from_start else 'new'} {before}{moved:+d}")


class MeanInPandas(StatefulProcessor):
    """The mean of all numbers of a key, from frames, and the last time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Sum and count."""
        self.held = handle.getValueState("held", "total DOUBLE, n INT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """A frame with each batch."""
        import pandas as pd

        total, n = self.held.get() or (0.0, 0)
        types: list[str] = []
        last = None
        for frame in rows:
            total, n = total + frame["n"].sum(), n + frame["n"].count()
            types = [f"{name} {type_}" for name, type_ in frame.dtypes.items()]
            last = frame["t"].max()
        self.held.update((total, n))
        yield pd.DataFrame({"last": [last], "k": key, "not declared": [1], "mean": [total / n], "types": [str(types)]})


@dataclass(frozen=True)
class Case:
    """A processor with its input, batch by batch, and what it is called with."""

    processor: StatefulProcessor
    output: str | StructType
    mode: str
    batches: Sequence[Sequence[Mapping[str, Any]]]
    initial: Sequence[Mapping[str, Any]] | None = None
    pandas: bool = False
    output_mode: str = "Append"


PLAIN = [
    [row("a", "x", 1, 1), row("b", "y", 2, 2), row("a", "y", 3, 3), row("c", "x", 5, 4), row(None, "z", 1, 5)],
    [row("a", "x", 7, 5), row("b", "y", 0, 6), row("b", "x", 9, 7), row(None, "z", 2, 8), row("a", "z", 11, 8)],
    [row("a", "clear", 4, 9), row("c", "x", 6, 9)],
    [row("a", "x", 8, 10)],
]
TWO = PLAIN[:2]
"""Enough where one batch has to find what the one before has left; each costs Spark a second."""
IN_TIME = [
    [row("a", "x", 1, 12), row("a", "y", 1, 5), row("b", "x", 1, 8)],
    [row("b", "y", 1, 17), row("c", "z", 1, 20), row("a", "x", 1, 21)],
    [row("c", "z", 1, 50)],
    [row("d", "q", 1, 70), row("d", "r", 1, 75)],
    [row("end", "x", 1, 500)],
]
"""No row comes to a key whose timer the watermark has reached: Spark would hand it the row first, and fire then."""
CASES = {
    "running count": Case(RunningCount(), "k STRING, n BIGINT", "None", TWO, output_mode="Update"),
    "sessions": Case(
        Sessions(),
        "k STRING, first BIGINT, last BIGINT, rows INT, items ARRAY<STRING>",
        "EventTime",
        IN_TIME,
    ),
    "list and map": Case(Basket(), "k STRING, last ARRAY<BIGINT>, items ARRAY<STRING>, any BOOLEAN", "None", PLAIN),
    "ttl": Case(Forgetful(), "k STRING, held STRING, now STRING", "ProcessingTime", TWO),
    "initial state": Case(
        Account(),
        StructType([StructField("k", StringType()), StructField("n", LongType()), StructField("what", StringType())]),
        "None",
        TWO,
        initial=[{"owner": "a", "balance": 100}, {"owner": "zz", "balance": 5}, {"owner": "a", "balance": 11}],
    ),
    "pandas": Case(MeanInPandas(), "k STRING, mean DOUBLE, types STRING, last TIMESTAMP", "None", TWO, pandas=True),
}


@dataclass(frozen=True)
class Delivered(Source):
    """Batches that are given one after another, some milliseconds apart; ends with them."""

    rows: Sequence[Sequence[Mapping[str, Any]]]
    columns: pa.Schema

    @property
    def boundedness(self) -> Boundedness:
        """It ends."""
        return "bounded"

    def schema(self) -> pa.Schema:
        """As given."""
        return self.columns

    def discover(self, parallelism: int) -> Sequence[Split]:
        """One."""
        return [Split("all", {})]

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """See `DeliveredReader`."""
        return DeliveredReader(self)


class DeliveredReader(SourceReader):
    """Its position is the number of batches that were given."""

    def __init__(self, source: Delivered) -> None:
        self._source = source
        self._next: int | None = None
        self._not_before_ms = 0

    def add_splits(self, splits: Sequence[Split]) -> None:
        """At most the one."""
        for split in splits:
            self._next = int(split.position or 0)

    def poll(self, now_ms: int) -> PollResult:
        """The next batch."""
        if self._next is None or self._next >= len(self._source.rows):
            return PollResult(state="end")
        if now_ms < self._not_before_ms:
            return PollResult(state="nothing_now", retry_at_ms=self._not_before_ms)
        self._not_before_ms = now_ms + 5
        self._next += 1
        rows = pa.RecordBatch.from_pylist(list(self._source.rows[self._next - 1]), schema=self._source.columns)
        return PollResult(rows, "all")

    def snapshot(self) -> Sequence[Split]:
        """The position."""
        return [] if self._next is None else [Split("all", {}, self._next, self._next >= len(self._source.rows))]


def pipeline(case: Case, sink: Any) -> Pipeline:
    """The case as a pipeline."""
    p = Pipeline()
    rows = p.read(Delivered(case.batches, INPUT), uid="rows")
    if case.mode == "EventTime":
        rows = rows.with_watermark("t", "0 s")
    initial = None
    if case.initial is not None:
        initial = p.read(Delivered([case.initial], INITIAL), uid="initial").group_by("owner")
    grouped = rows.group_by("k")
    call = grouped.transform_with_state_in_pandas if case.pandas else grouped.transform_with_state
    result = call(case.processor, case.output, case.output_mode, case.mode, initial, uid="processor")
    result.write(sink, uid="out")
    return p


def sessions(args: Mapping[str, Any]) -> Pipeline:
    """That case, into files. Args: out."""
    return pipeline(CASES["sessions"], Parquet(args["out"]))
