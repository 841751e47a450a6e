"""S5, S8: whole jobs with a PySpark StatefulProcessor: crashed, restored and rescaled, they give what a plain
calculation gives."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from process_jobs import run_with_accidents, suspended
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from rocksdict import Options, Rdict

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.snapshot.metadata import read_metadata
from tidegate.snapshot.reader import SnapshotReader
from tidegate.testing.batch import InProcessBatch, run_batch
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 400
KEYS = 7
STARTS = 30
WINDOW_MS = 50
END_MS = 10**9
RESULT = "what STRING, k BIGINT, a BIGINT, b BIGINT, c BIGINT"
BACK_ENDS = ("heap", "memory", "rocksdb")


class Ledger(StatefulProcessor):
    """Every kind of state, and windows made by hand of a map and timers. At the end of the input a timer far away tells
    count, sum of the list and the initial state of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n BIGINT, begun BIGINT")
        self.seen = handle.getListState("seen", "v BIGINT")
        self.windows = handle.getMapState("windows", "end_ms BIGINT", "n BIGINT, total BIGINT")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        n, begun = self.count.get() or (0, 0)
        assert n == 0, "a row came before the initial state"
        self.count.update((0, begun + initialState.v))
        self.handle.registerTimer(END_MS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> None:
        n, begun = self.count.get() or (0, 0)
        for row in rows:
            n += 1
            self.seen.appendValue((row.v,))
            end_ms = (row.v // WINDOW_MS + 1) * WINDOW_MS
            held = self.windows.getValue((end_ms,)) or (0, 0)
            self.windows.updateValue((end_ms,), (held[0] + 1, held[1] + row.v))
            self.handle.registerTimer(end_ms)
        self.handle.registerTimer(END_MS)
        self.count.update((n, begun))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        if time_ms == END_MS:
            (n, begun), seen = self.count.get(), [v for (v,) in self.seen.get()]
            assert seen == sorted(seen), "rows of a split come in order"
            yield Row(what="end", k=key[0], a=n, b=sum(seen), c=begun)
            return
        held = self.windows.getValue((time_ms,))
        self.windows.removeKey((time_ms,))
        yield Row(what="window", k=key[0], a=time_ms, b=held.n, c=held.total)


class Old(Ledger):
    """As it was before: with a state more."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.old = handle.getListState("old", "x BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> None:
        self.old.appendValue((1,))
        super().handleInputRows(key, rows, timerValues)


class Forgets(Ledger):
    """Wants no more of it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        handle.deleteIfExists("old")


def ledger(sink: str, processor: StatefulProcessor | None = None, *, starts: bool = True) -> Pipeline:
    p = Pipeline()
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    numbers = DataGen(lambda n: {"k": n % KEYS, "v": n}, schema, rows=ROWS, splits=1, batch_rows=8, rate=2_000)
    first = DataGen(lambda n: {"k": n % (KEYS + 1), "v": n * n}, schema, rows=STARTS, splits=2, batch_rows=4, rate=500)
    (
        p.read(numbers, uid="numbers")
        .with_watermark("v", "0 s", unit="ms")
        .group_by("k")
        .transform_with_state(
            processor or Ledger(),
            RESULT,
            "Append",
            "EventTime",
            initialState=p.read(first, uid="starts").group_by("k") if starts else None,
            uid="ledger",
        )
        .write(CollectSink(sink), uid="out")
    )
    return p


def expected(*, starts: bool = True) -> Counter[tuple[Any, ...]]:
    """The same by plain Python."""
    rows: list[tuple[Any, ...]] = []
    for key in range(KEYS + starts):
        mine = range(key, ROWS, KEYS) if key < KEYS else range(0)
        begun = sum(n * n for n in range(key, STARTS, KEYS + 1)) if starts else 0
        rows.append(("end", key, len(mine), sum(mine), begun))
        for end_ms in {(v // WINDOW_MS + 1) * WINDOW_MS for v in mine}:
            window = [v for v in mine if end_ms - WINDOW_MS <= v < end_ms]
            rows.append(("window", key, end_ms, len(window), sum(window)))
    return Counter(rows)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_crashes_restores_and_rescales_of_a_processor_change_no_result(
    sink: str, back_end: str, seed: int, tmp_path: Path
) -> None:
    """S5.1, S5.5, S9.1: states, timers and the initial state, against plain Python."""
    run_with_accidents(
        lambda: ledger(sink),
        f"{back_end}-{seed}",
        scratch=str(tmp_path),
        state_backend=back_end,
        unaligned_checkpoints=seed % 2 == 1,
    )
    assert Counter(collected(sink).rows()) == expected()


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("back_end", ["heap", "rocksdb"])
def test_batch_mode_gives_the_same_rows(sink: str, back_end: str, starts: bool, tmp_path: Path) -> None:
    """S8.2: all rows of a key before its first timer; without an initial state key by key."""
    options = {"parallelism": 3, "state_backend": back_end}
    job = InProcessBatch(lambda: ledger(sink, starts=starts), options, scratch=str(tmp_path), batch_rows=50)
    job.run()
    job.commit()
    assert Counter(collected(sink).rows()) == expected(starts=starts)


def test_a_processor_that_asks_for_the_clock_in_batch_mode_is_told_what_to_do(sink: str) -> None:
    """S8.2: whether it does is seen when it does."""

    class Asks(Ledger):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> None:
            self.count.update((timerValues.getCurrentProcessingTimeInMs(), 0))

    with pytest.raises(Exception, match="uses processing time, which batch mode does not support"):
        run_batch(lambda: ledger(sink, Asks(), starts=False))
    run_batch(lambda: ledger(sink, Asks(), starts=False), {"allow_mode_dependent": True})


def test_snapshots_name_the_states_of_a_processor_and_a_drain_asks_for_leave(sink: str) -> None:
    """S5.3, S7.5."""
    a_job = InProcessJob(lambda: ledger(sink))
    run = a_job.submit()
    run.pump(20)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="drain"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    metadata = read_metadata(a_job.store, outcome.path)
    (told,) = (operator for operator in metadata.graph["operators"] if operator["uid"] == "ledger")
    shapes = {shape.name: shape for shape in map(StateShape.from_json, told["states"])}
    assert {name: shape.form for name, shape in shapes.items()} == {
        "count": "value",
        "seen": "list",
        "windows": "map",
        "timers:event": "timers",
        "timers:processing": "timers",
        "watermark:passed": "",
        "initial:complete": "",
        "initial:waiting": "",
    }
    columns = [column.name for column in shapes["windows"].columns]
    assert columns == ["__key_group", "key:k", "map:end_ms", "value:n", "value:total"]
    written = SnapshotReader(f"{a_job.root}/{outcome.path}").states("ledger")
    assert len(written) >= 7 and {state.name for state in written} <= set(shapes)
    for state in written:
        declared = tuple((column.name, column.type) for column in shapes[state.name].columns)
        assert state.kind == "keyed" and declared in ((), state.columns)
    with pytest.raises(SnapshotError, match=r"ledger \(transform_with_state\)"):
        a_job.submit(RestoreFrom("savepoint", path=outcome.path))


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_a_processor_may_forget_a_state_that_a_checkpoint_holds(
    sink: str, back_end: str, parallelism: int, tmp_path: Path
) -> None:
    """`deleteIfExists`, of a checkpoint in the back end's own format too: its files do not keep the state for ever."""
    options = {"parallelism": 2, "checkpoint_interval": "20 ms", "state_backend": back_end}
    current: list[StatefulProcessor] = [Old()]
    a_job = InProcessJob(lambda: ledger(sink, current[0]), options, scratch=str(tmp_path / "before"))
    run = a_job.submit()

    def counted() -> bool:
        run.tick(2)
        done = [decision for decision in a_job.log.read() if decision.kind == "complete"]
        return len(done) > 2 and run.watermarks()["numbers"] > 100_000

    run.until(counted)
    run.crash()
    current[0] = Forgets()
    a_job.options, a_job.scratch = {**options, "parallelism": parallelism}, str(tmp_path / "after")
    run = a_job.submit(RestoreFrom("latest"))
    run.pump(5)
    databases = [str(path.parent) for path in (tmp_path / "after").rglob("CURRENT")]
    assert bool(databases) is (back_end == "rocksdb")
    tables = {table for path in databases for table in Rdict.list_cf(path, Options(raw_mode=True))}
    assert "old" not in tables and tables >= ({"count", "windows"} if databases else set())
    assert isinstance(run.to_end(), RunEnded)
    assert Counter(collected(sink).rows()) == expected()


def test_a_processor_may_forget_a_state_that_a_savepoint_holds(sink: str) -> None:
    """`deleteIfExists`, through the preflight too; a state that is merely gone is refused (S5.5)."""
    current: list[StatefulProcessor] = [Old()]
    a_job = InProcessJob(lambda: ledger(sink, current[0]))
    run = a_job.submit()
    run.pump(20)
    path = suspended(run, 1)
    current[0] = Ledger()
    with pytest.raises(SnapshotError, match="'old'"):
        a_job.submit(RestoreFrom("savepoint", path=path))
    current[0] = Forgets()
    assert isinstance(a_job.submit(RestoreFrom("savepoint", path=path)).to_end(), RunEnded)
    assert Counter(collected(sink).rows()) == expected()


def test_what_a_processor_raises_fails_the_run_with_operator_subtask_and_its_line(sink: str) -> None:
    class Breaks(Ledger):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> None:
            raise ZeroDivisionError("of the user")  # their line

    run = InProcessJob(lambda: ledger(sink, Breaks())).submit()
    with pytest.raises(Exception, match="operator 'ledger' subtask 0: ZeroDivisionError: of the user") as failed:
        run.until(lambda: False)
    assert "# their line" in failed.value.traceback


def test_a_processor_follows_another_by_the_event_time_of_what_it_gives(sink: str) -> None:
    """`eventTimeColumnName`: no row of the first is late for the second."""

    class Ends(StatefulProcessor):
        """Gives a row with the time of its timer."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle, self.n = handle, handle.getValueState("n", "n BIGINT")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> None:
            for row in rows:
                self.n.update(((self.n.get() or (0,))[0] + 1,))
                self.handle.registerTimer(row.v // 100 * 100 + 99)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            at = np.datetime64(expiredTimerInfo.getExpiryTimeInMs() * 1000, "us").item()
            yield Row(at=at, n=self.n.get()[0], one="all")
            self.n.clear()

    class Sums(Ends):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> None:
            for row in rows:
                self.n.update(((self.n.get() or (0,))[0] + row.n,))
                self.handle.registerTimer(int(row.at.timestamp() * 1000))

    def build() -> Pipeline:
        p = Pipeline()
        schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
        numbers = DataGen(lambda n: {"k": n % KEYS, "v": n}, schema, rows=ROWS, splits=1, batch_rows=4)
        columns = "at TIMESTAMP, n BIGINT, one STRING"
        (
            p.read(numbers, uid="numbers")
            .with_watermark("v", "0 s", unit="ms")
            .group_by("k")
            .transform_with_state(Ends(), columns, "Append", "EventTime", eventTimeColumnName="at", uid="ends")
            .group_by("one")
            .transform_with_state(Sums(), columns, "Append", "EventTime", uid="sums")
            .write(CollectSink(sink), uid="out")
        )
        return p

    run = InProcessJob(build, {"parallelism": 2}).submit()
    assert isinstance(run.to_end(), RunEnded)
    rows = sorted((row[0].timestamp() * 1000, row[1]) for row in collected(sink).rows())  # type: ignore[attr-defined]
    assert rows == [(99, 100), (199, 100), (299, 100), (399, 100)]


class Keys(StatefulProcessor):
    """Tells each key by its rows, and again by its timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle, self.n = handle, handle.getValueState("n", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            assert key == (row.word, row.day, row.at, row.price)
            self.n.update(((self.n.get() or (0,))[0] + 1,))
        self.handle.registerTimer(END_MS)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(**dict(zip(("word", "day", "at", "price"), key, strict=True)), n=self.n.get()[0])


def test_a_key_of_several_columns_is_the_same_for_rows_and_timers(sink: str) -> None:
    """Nulls in it, and types of every kind."""
    schema = pa.schema(
        [
            ("word", pa.string()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(6, 2)),
            ("v", pa.int64()),
        ]
    )
    day = dt.date(2024, 2, 29)

    def row(n: int) -> dict[str, Any]:
        at = dt.datetime(2024, 3, 31, 1, n % 3, tzinfo=dt.UTC) if n % 3 else None
        price = Decimal(n % 5) / 4 if n % 5 else None
        return {"word": [None, "", "a"][n % 3], "day": day if n % 2 else None, "at": at, "price": price, "v": n}

    def columns(numbers: Any) -> dict[str, Any]:
        rows = pa.RecordBatch.from_pylist([row(int(n)) for n in numbers], schema=schema)
        return dict(zip(schema.names, rows.columns, strict=True))

    def build() -> Pipeline:
        p = Pipeline()
        (
            p.read(DataGen(columns, schema, rows=ROWS, splits=2, batch_rows=16), uid="rows")
            .with_watermark("v", "0 s", unit="ms")
            .group_by("word", "day", "at", "price")
            .transform_with_state(
                *(Keys(), "word STRING, day DATE, at TIMESTAMP, price DECIMAL(6, 2), n BIGINT", "Append", "EventTime"),
                uid="keys",
            )
            .write(CollectSink(sink), uid="out")
        )
        return p

    assert isinstance(InProcessJob(build, {"parallelism": 3}).submit().to_end(), RunEnded)
    keys = Counter((r["word"], r["day"], r["at"], r["price"]) for r in map(row, range(ROWS)))
    assert Counter(collected(sink).rows()) == Counter((*key, n) for key, n in keys.items())
