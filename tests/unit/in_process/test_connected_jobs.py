"""S5: whole jobs with processes of two streams: crashed, restored and rescaled, they give what a plain calculation
gives. The clock is the test's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from process_jobs import run_with_accidents, suspended

from tidegate import (
    BroadcastProcess,
    CoProcess,
    FiredTimers,
    KeyedBroadcastProcess,
    KeyedCoProcess,
    KeyedProcess,
    KeyedRows,
    ProcessContext,
    RawOutput,
    Rows,
    SideOutput,
    SubtaskContext,
    broadcast_state,
    keyed_raw_state,
    list_state,
    operator_list_state,
    reducing_state,
)
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.snapshot.metadata import read_metadata
from tidegate.snapshot.reader import SnapshotReader
from tidegate.spark.batch import stage_task
from tidegate.state.keyed_state import StateDescriptor
from tidegate.testing.batch import run_batch
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 400
KEYS = 13


def numbers(p: Pipeline, uid: str, rows: int | None = ROWS, key: str = "k", **options: Any) -> Any:
    schema = pa.schema([(key, pa.int64()), ("v", pa.int64())])
    given: dict[str, Any] = {"splits": 3, "batch_rows": 8, "rate": 2_000, **options}
    return p.read(DataGen(lambda n: {key: n % KEYS, "v": n}, schema, rows=rows, **given), uid=uid)


PAIRED = pa.schema([("what", pa.string()), ("k", pa.int64()), ("left", pa.int64()), ("right", pa.int64())])


class Balance(KeyedCoProcess):
    """Sums of both sides per key; a timer of each side for each of its rows, of which it counts what fires."""

    states = (
        reducing_state("left", {"total": "sum"}),
        reducing_state("right", {"total": "sum"}),
        reducing_state("fired", {"n": "count"}),
        operator_list_state("batches", {"side": pa.string(), "rows": pa.int64()}),
    )

    def process_left(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        self._add("left", rows, ctx)

    def process_right(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        assert rows.batch.schema.names == ["id", "v"] and rows.keys.columns().schema.names == ["k"]
        self._add("right", rows, ctx)

    def _add(self, side: str, rows: KeyedRows, ctx: ProcessContext) -> None:
        ctx.merging(side).add(rows.keys, rows.owners, pa.record_batch([rows.batch["v"]], names=["total"]))
        ctx.event_timers.register(rows.keys, rows.owners, rows.event_time_us.to_numpy() + (side == "right"))
        ctx.operator_list("batches").append(pa.record_batch([[side], [rows.batch.num_rows]], names=["side", "rows"]))

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> None:
        ones = pa.record_batch([pa.array(np.ones(len(due.owners), np.int64))], names=["n"])
        ctx.merging("fired").add(due.keys, due.owners, ones)

    def end_right(self, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([["end_right"], [None], [None], [None]], schema=PAIRED)

    def finish(self, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        for keys in ctx.all_keys("left", 4):
            totals = [ctx.merging(side).get(keys).columns["total"] for side in ("left", "right")]
            k, fired = keys.columns()["k"], ctx.merging("fired").get(keys).columns["n"]
            yield pa.record_batch([pa.array(["sums"] * keys.size), k, *totals], schema=PAIRED)
            yield pa.record_batch([pa.array(["fired"] * keys.size), k, fired, fired], schema=PAIRED)
        for row in ctx.operator_list("batches").get().to_pylist():
            rows = [row["rows"] if row["side"] == side else 0 for side in ("left", "right")]
            yield pa.record_batch([["rows"], [None], *([n] for n in rows)], schema=PAIRED)


def balance(sink: str) -> Pipeline:
    p = Pipeline()
    left = numbers(p, "left").with_watermark("v", "0 s", unit="ms")
    right = numbers(p, "right", ROWS // 2, "id").with_watermark("v", "0 s", unit="ms")
    both = left.connect(right).group_by("k", right="id").process(Balance(), schema=PAIRED, uid="balance")
    both.write(CollectSink(sink), uid="out")
    return p


@pytest.mark.parametrize("back_end", ["heap", "rocksdb"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_two_streams_share_state_and_timers_per_key_through_crashes_and_rescales(
    sink: str, seed: int, back_end: str, tmp_path: Path
) -> None:
    """S5.1, S5.5, S9.1."""
    run_with_accidents(lambda: balance(sink), f"co-{seed}", scratch=str(tmp_path), state_backend=back_end)
    rows = collected(sink).rows()
    left = {k: sum(v for v in range(ROWS) if v % KEYS == k) for k in range(KEYS)}
    right = {k: sum(v for v in range(ROWS // 2) if v % KEYS == k) for k in range(KEYS)}
    assert {row[1:] for row in rows if row[0] == "sums"} == {(k, left[k], right[k]) for k in range(KEYS)}
    fired = Counter(v % KEYS for v in range(ROWS)) + Counter(v % KEYS for v in range(ROWS // 2))
    assert {k: n for what, k, n, _ in rows if what == "fired"} == fired
    assert [sum(row[i] for row in rows if row[0] == "rows") for i in (2, 3)] == [ROWS, ROWS // 2]
    assert "end_right" in {row[0] for row in rows}


def test_a_drained_savepoint_of_a_process_that_hears_of_its_inputs_end_asks_for_leave(sink: str) -> None:
    """S7.5."""
    a_job = InProcessJob(lambda: balance(sink))
    run = a_job.submit()
    run.pump(20)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="drain"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    assert read_metadata(a_job.store, outcome.path).drained_operators == ("balance",)


class Merges(CoProcess):
    """Rows of both sides as they are, in one list state until the end."""

    states = (operator_list_state("rows", {"side": pa.string(), "v": pa.int64()}),)

    def process_left(self, rows: Rows, ctx: SubtaskContext) -> None:
        self._keep("left", rows, ctx)

    def process_right(self, rows: Rows, ctx: SubtaskContext) -> None:
        self._keep("right", rows, ctx)

    def _keep(self, side: str, rows: Rows, ctx: SubtaskContext) -> None:
        sides = pa.array([side] * rows.batch.num_rows)
        ctx.operator_list("rows").append(pa.record_batch([sides, rows.batch["v"]], names=["side", "v"]))

    def finish(self, ctx: SubtaskContext) -> list[pa.RecordBatch]:
        return ctx.operator_list("rows").get().to_batches()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_two_streams_without_keys_share_the_state_of_a_subtask(sink: str, seed: int) -> None:
    """S5.1, S5.5."""

    def build() -> Pipeline:
        p = Pipeline()
        both = numbers(p, "left").connect(numbers(p, "right", ROWS // 2, "id", splits=2))
        schema = pa.schema([("side", pa.string()), ("v", pa.int64())])
        both.process(Merges(), schema=schema, uid="merges").write(CollectSink(sink), uid="out")
        return p

    run_with_accidents(build, f"merges-{seed}")
    collected(sink).assert_exactly([("left", v) for v in range(ROWS)] + [("right", v) for v in range(ROWS // 2)])


RULE = pa.schema([("kind", pa.int64()), ("price", pa.int64())])
KINDS = 5
VERSIONS = 60
PRICED = pa.schema([("what", pa.string()), ("k", pa.int64()), ("n", pa.int64())])
PRICES = {"kind": pa.int64()}, {"price": pa.int64()}


def rules(p: Pipeline, rows: int | None = VERSIONS) -> Any:
    """Rules come again and again with other prices; the last of a kind holds."""
    source = DataGen(lambda n: {"kind": n % KINDS, "price": n}, RULE, rows=rows, splits=1, batch_rows=4, rate=300)
    return p.read(source, uid="rules")


class Prices(KeyedBroadcastProcess):
    """Rows per key and kind, priced at the end; keyed raw state counts the rows of each key group."""

    states = (
        broadcast_state("prices", *PRICES),
        list_state("kinds", {"kind": pa.int64()}),
        keyed_raw_state("rows"),
    )

    def open(self, ctx: ProcessContext) -> None:
        self.rows: Counter[int] = Counter()

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        kinds = pa.array(rows.batch["v"].to_numpy() % KINDS)
        ctx.list("kinds").append(rows.keys, rows.owners, pa.record_batch([kinds], names=["kind"]))
        self.rows.update(rows.keys.groups[rows.owners].tolist())
        found = ctx.broadcast("prices").get(pa.record_batch([kinds], names=["any name"]))
        assert found.present.all() or len(ctx.broadcast("prices")) < KINDS

    def process_broadcast(self, rows: Rows, ctx: ProcessContext) -> None:
        ctx.broadcast("prices").put(rows.batch)

    def finish(self, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        for keys in ctx.all_keys("kinds"):
            kinds = ctx.list("kinds").get(keys)
            prices = ctx.broadcast("prices").get(kinds.columns)
            assert prices.present.all()
            totals = np.add.reduceat(prices.columns["price"].to_numpy(), kinds.offsets[:-1])
            what = pa.array(["price"] * keys.size)
            yield pa.record_batch([what, keys.columns()["k"], pa.array(totals)], schema=PRICED)
        yield pa.record_batch([["rows"], [None], [sum(self.rows.values())]], schema=PRICED)
        assert set(self.rows) <= set(ctx.key_groups)

    def write_raw(self, name: str, out: RawOutput) -> None:
        for group, rows in sorted(self.rows.items(), reverse=True):
            out.start(group)
            out.write(str(rows).encode())

    def read_raw(self, name: str, pieces: Any) -> None:
        self.rows = Counter({piece.key_group: int(piece.read()) for piece in pieces})


def priced(sink: str) -> Pipeline:
    p = Pipeline()
    rows = numbers(p, "rows").with_watermark("v", "0 s", unit="ms")
    connected = rows.group_by("k").connect(rules(p).broadcast())
    connected.process(Prices(), schema=PRICED, uid="prices").write(CollectSink(sink), uid="out")
    return p


@pytest.mark.parametrize("back_end", ["heap", "rocksdb"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_every_subtask_has_what_is_broadcast_through_crashes_and_rescales(
    sink: str, seed: int, back_end: str, tmp_path: Path
) -> None:
    """S5.1, S5.5: broadcast state, keyed state and keyed raw state."""
    run_with_accidents(lambda: priced(sink), f"prices-{seed}", scratch=str(tmp_path), state_backend=back_end)
    rows = collected(sink).rows()
    price = {n % KINDS: n for n in range(VERSIONS)}
    wanted = Counter[int]()
    for v in range(ROWS):
        wanted[v % KEYS] += price[v % KINDS]
    assert {k: n for what, k, n in rows if what == "price"} == wanted
    assert sum(n for what, _, n in rows if what == "rows") == ROWS


class Fires(KeyedBroadcastProcess):
    """A timer at each row's time; what fires is told with the price of that moment."""

    states = (broadcast_state("prices", *PRICES),)

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        ctx.event_timers.register(rows.keys, rows.owners, rows.event_time_us.to_numpy())

    def process_broadcast(self, rows: Rows, ctx: ProcessContext) -> None:
        ctx.broadcast("prices").put(rows.batch)

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        keys = due.keys.columns()["k"].take(pa.array(due.owners))
        what = pa.array(["fired"] * len(due.owners))
        yield pa.record_batch([what, keys, pa.array(due.times_us // 1000)], schema=PRICED)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_unbounded_rules_without_watermarks_hold_no_timer_back_and_come_back_whole(sink: str, parallelism: int) -> None:
    """S4.4, S5.5."""

    def build() -> Pipeline:
        p = Pipeline()
        rows = numbers(p, "rows", None, splits=1).with_watermark("v", "0 s", unit="ms")
        connected = rows.group_by("k").connect(rules(p, None).broadcast())
        connected.process(Fires(), schema=PRICED, uid="fires").write(CollectSink(sink), uid="out")
        return p

    a_job = InProcessJob(build, {"parallelism": 2})
    run = a_job.submit()
    run.until(lambda: run.owner.now_ms >= 1_700_000_000_300)
    path = suspended(run, 0)
    assert path is not None
    fired = [n for _, _, n in collected(sink).rows()]
    assert fired and sorted(fired) == list(range(len(fired)))
    table = pa.concat_tables(SnapshotReader(path, root=a_job.store).tables("fires", "prices"))
    assert sorted(table["kind"].to_pylist()) == list(range(KINDS))
    a_job.options = {"parallelism": parallelism}
    run = a_job.submit(RestoreFrom("savepoint", path=path))
    run.until(lambda: run.owner.now_ms >= 1_700_000_000_600)
    path = suspended(run, 1)
    assert path is not None
    fired = [n for _, _, n in collected(sink).rows()]
    assert sorted(fired) == list(range(len(fired)))
    reader = SnapshotReader(path, root=a_job.store)
    held = [pa.concat_tables(reader.tables("fires", "prices", [i])).sort_by("kind") for i in range(parallelism)]
    assert all(one.equals(held[0]) for one in held) and held[0].num_rows == KINDS


class Labels(BroadcastProcess):
    states = (broadcast_state("prices", *PRICES),)

    def __init__(self, wrong: bool = False) -> None:
        self.wrong = wrong

    def process(self, rows: Rows, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        if self.wrong:
            ctx.broadcast("prices").clear()
        yield pa.record_batch([pa.array(["row"] * rows.batch.num_rows), *rows.batch.columns], schema=PRICED)

    def process_broadcast(self, rows: Rows, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        ctx.broadcast("prices").put(rows.batch)
        yield from ()

    def end_broadcast(self, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        kept = ctx.broadcast("prices").entries()
        ctx.broadcast("prices").clear()
        yield pa.record_batch([pa.array(["price"] * kept.num_rows), *kept.columns], schema=PRICED)


def labelled(sink: str, *, wrong: bool = False) -> Pipeline:
    p = Pipeline()
    connected = numbers(p, "rows").connect(rules(p).broadcast())
    connected.process(Labels(wrong), schema=PRICED, uid="labels").write(CollectSink(sink), uid="out")
    return p


@pytest.mark.parametrize("seed", range(3))
def test_a_broadcast_process_without_keys_hears_of_the_end_of_what_is_broadcast(sink: str, seed: int) -> None:
    run_with_accidents(lambda: labelled(sink), f"labels-{seed}", rescales=False)
    prices = {(n % KINDS, n) for n in range(VERSIONS - KINDS, VERSIONS)}
    expected: list[tuple[Any, ...]] = [("row", v % KEYS, v) for v in range(ROWS)]
    collected(sink).assert_exactly(expected + 2 * [("price", *price) for price in prices])


def test_broadcast_state_is_read_only_beside_it(sink: str) -> None:
    run = InProcessJob(lambda: labelled(sink, wrong=True)).submit()
    with pytest.raises(Exception, match=r"operator 'labels' subtask 0: .*only in process_broadcast"):
        run.pump(100)


class Sorted(CoProcess):
    """Both sides, each to an output of its own."""

    def process_left(self, rows: Rows, ctx: SubtaskContext) -> Iterator[SideOutput]:
        yield SideOutput("left", rows.batch.select(["v"]))

    def process_right(self, rows: Rows, ctx: SubtaskContext) -> Iterator[pa.RecordBatch | SideOutput]:
        yield rows.batch.select(["v"])
        yield SideOutput("nobody", rows.batch)

    def finish(self, ctx: SubtaskContext) -> list[SideOutput]:
        return [SideOutput("left", pa.record_batch([[-1]], names=["v"]))]


def test_a_process_of_two_streams_gives_rows_to_side_outputs(sink: str) -> None:
    def build() -> Pipeline:
        p = Pipeline()
        right = numbers(p, "right", ROWS // 2)
        schema = pa.schema([("v", pa.int64())])
        sides = {"left": schema, "nobody": right.schema}
        both = numbers(p, "left").connect(right).process(Sorted(), schema=schema, side_outputs=sides, uid="sorts")
        both.write(CollectSink(sink), uid="out")
        both.side_output("left").write(CollectSink(f"{sink}-left"), uid="left-out")
        return p

    try:
        run_with_accidents(build, "sides")
        collected(sink).assert_exactly([(v,) for v in range(ROWS // 2)])
        left = Counter(v for (v,) in collected(f"{sink}-left").rows())
        assert left.pop(-1) > 0 and left == Counter(range(ROWS))
    finally:
        clear_collected(f"{sink}-left")


class Keeps(KeyedProcess):
    """One state; `states` is what a test makes of it."""

    def __init__(self, *states: Any) -> None:
        self.states = states

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        if any(isinstance(state, StateDescriptor) for state in self.states):
            ctx.list("kept").append(rows.keys, rows.owners, rows.batch.select(["v"]))
        elif self.states:
            ctx.operator_list("kept").append(rows.batch.select(["v"]))


KEPT = {"keyed": list_state("kept", {"v": pa.int64()}), "subtask": operator_list_state("kept", {"v": pa.int64()})}


@pytest.mark.parametrize("back_end", ["heap", "memory", "rocksdb"])
@pytest.mark.parametrize("was", KEPT)
@pytest.mark.parametrize("now", [*KEPT, "gone"])
def test_a_state_that_goes_from_keys_to_the_subtask_or_away_is_refused(
    sink: str, was: str, now: str, back_end: str, tmp_path: Path
) -> None:
    """S5.5."""

    def build(*states: Any) -> Pipeline:
        p = Pipeline()
        kept = numbers(p, "rows").group_by("k").process(Keeps(*states), schema=PAIRED, uid="keeps")
        kept.write(CollectSink(sink), uid="out")
        return p

    a_job = InProcessJob(lambda: build(KEPT[was]), {"state_backend": back_end}, scratch=str(tmp_path))
    run = a_job.submit()
    run.until(lambda: run.owner.now_ms >= 1_700_000_000_100)
    path = suspended(run, 0)
    assert path is not None
    a_job.build = lambda: build(*([KEPT[now]] if now in KEPT else []))
    if was == now:
        a_job.submit(RestoreFrom("savepoint", path=path)).to_end()
        return
    with pytest.raises(SnapshotError, match="kept"):
        a_job.submit(RestoreFrom("savepoint", path=path))


def test_in_batch_the_same_processes_give_the_same_rows(sink: str) -> None:
    """S8.2: state of keys, of subtasks, and what is broadcast."""
    run_batch(lambda: balance(sink), {"parallelism": 2})
    rows = collected(sink).rows()
    left = {k: sum(v for v in range(ROWS) if v % KEYS == k) for k in range(KEYS)}
    right = {k: sum(v for v in range(ROWS // 2) if v % KEYS == k) for k in range(KEYS)}
    assert {row[1:] for row in rows if row[0] == "sums"} == {(k, left[k], right[k]) for k in range(KEYS)}
    assert [sum(row[i] for row in rows if row[0] == "rows") for i in (2, 3)] == [ROWS, ROWS // 2]
    clear_collected(sink)
    run_batch(lambda: priced(sink), {"parallelism": 2})
    rows = collected(sink).rows()
    price = {n % KINDS: n for n in range(VERSIONS)}
    wanted = Counter[int]()
    for v in range(ROWS):
        wanted[v % KEYS] += price[v % KINDS]
    assert {k: n for what, k, n in rows if what == "price"} == wanted
    clear_collected(sink)
    run_batch(lambda: labelled(sink), {"parallelism": 2})
    assert Counter(what for what, _, _ in collected(sink).rows()) == {"row": ROWS, "price": 2 * KINDS}


def test_in_batch_state_of_a_subtask_is_not_cut_by_blocks_of_keys(sink: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S8.1: a process that keeps state by key alone begins anew after every block of rows."""
    monkeypatch.setattr(stage_task, "BLOCK_ROWS", 50)
    run_batch(lambda: balance(sink), {"parallelism": 2})
    assert [row[0] for row in collected(sink).rows()].count("end_right") == 2
