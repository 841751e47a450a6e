"""The same pipeline in streaming and in batch gives the same rows as an independent calculation (S8.2)."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import (
    DataGen,
    Files,
    FiredTimers,
    KeyedProcess,
    KeyedRows,
    Pipeline,
    PipelineError,
    ProcessContext,
    SideOutput,
    batch_sensitive,
    count,
    max,
    mean,
    reducing_state,
    sum,
    tumbling,
)
from tidegate.testing.batch import InProcessBatch, run_batch
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

Row = tuple[object, ...]
TIME = pa.timestamp("ms")
EVENTS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", TIME)])
NAMES = pa.schema([("k", pa.string()), ("name", pa.string())])
LATE = "10 min"
_names = iter(range(10**9))


def in_both_modes(
    draw: Callable[[Pipeline, str], None], scratch: str = "", **options: Any
) -> tuple[Counter[Row], Counter[Row]]:
    """The rows of a pipeline that ends in `CollectSink(name)`, as a multiset: in streaming and in batch."""
    found = []
    for mode in ("streaming", "batch"):
        name = f"batch-{mode}-{next(_names)}"

        def build(name: str = name) -> Pipeline:
            p = Pipeline()
            draw(p, name)
            return p

        if mode == "streaming":
            InProcessJob(build, {"parallelism": 2, **options}, scratch=scratch).submit().to_end()
        else:
            job = InProcessBatch(build, {"parallelism": 3, **options}, scratch=scratch)
            job.run()
            job.commit()
        found.append(Counter(collected(name).rows()))
    return found[0], found[1]


def write(folder: Path, table: pa.Table, files: int) -> str:
    """The rows in some files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        pq.write_table(
            table.take(pa.array(range(number, table.num_rows, files), pa.int64())), folder / f"{number}.parquet"
        )
    return str(folder)


def events(rows: Sequence[tuple[str | None, int | None, int]]) -> pa.Table:
    """Rows of (key, value, milliseconds)."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    times = pa.array(columns[2], pa.int64()).cast(TIME)
    return pa.table([pa.array(columns[0], pa.string()), pa.array(columns[1], pa.int64()), times], schema=EVENTS)


drawn = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from("abcdefgh")),
        st.one_of(st.none(), st.integers(-1000, 1000)),
        st.integers(0, 500_000),
    ),
    min_size=1,
    max_size=120,
)


@settings(max_examples=15, deadline=None)
@given(rows=drawn, files=st.integers(1, 3))
def test_windows_are_those_of_duckdb_in_both_modes(
    rows: list[tuple[str | None, int | None, int]], files: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = events(rows)
    path = write(tmp_path_factory.mktemp("in"), table, files)

    def draw(p: Pipeline, name: str) -> None:
        (
            p.read(Files(path), uid="events")
            .with_watermark("ts", LATE)
            .filter(pc.field("v") > -900)
            .group_by("k")
            .window(tumbling("1 min"))
            .agg(n=count(), total=sum("v"), top=max("v"), average=mean("v"), uid="per-minute")
            .write(CollectSink(name), uid="out")
        )

    streaming, batch = in_both_modes(draw)
    query = """select k, time_bucket(interval 1 minute, ts) as s, s + interval 1 minute, count(*), sum(v)::bigint,
        max(v), avg(v) from events where v > -900 group by k, s"""
    assert batch == streaming == Counter(duckdb.connect().register("events", table).execute(query).fetchall())


@settings(max_examples=10, deadline=None)
@given(rows=drawn, names=st.lists(st.sampled_from("abcdef"), max_size=8))
def test_a_broadcast_join_and_a_union_are_those_of_duckdb_in_both_modes(
    rows: list[tuple[str | None, int | None, int]], names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = events(rows)
    sides = pa.table([pa.array(names, pa.string()), pa.array([n.upper() for n in names], pa.string())], schema=NAMES)
    path, names_path = write(tmp_path_factory.mktemp("in"), table, 2), write(tmp_path_factory.mktemp("n"), sides, 1)

    def draw(p: Pipeline, name: str) -> None:
        read = p.read(Files(path), uid="events")
        low, high = read.filter(pc.field("v") < 0), read.filter(pc.field("v") >= 0)
        named = p.read(Files(names_path), uid="names")
        both = low.union(high).join(named.broadcast(), on="k", how="left", uid="named")
        both.write(CollectSink(name), uid="out")

    streaming, batch = in_both_modes(draw)
    query = "select e.k, v, ts, name from events e left join names using (k) where v is not null"
    connection = duckdb.connect().register("events", table).register("names", sides)
    assert batch == streaming == Counter(connection.execute(query).fetchall())


class Sums(KeyedProcess):
    """The sum of each key, given when its timer fires."""

    states = (reducing_state("sum", {"total": "sum"}),)
    schema = pa.schema([("k", pa.string()), ("total", pa.int64())])

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        """Add up; a timer far away."""
        ctx.merging("sum").add(rows.keys, rows.owners, pa.record_batch([rows.batch["v"]], names=["total"]))
        every = np.arange(rows.keys.size, dtype=np.int32)
        ctx.event_timers.register(rows.keys, every, np.full(rows.keys.size, 10**15))

    def on_timers(self, fired: FiredTimers, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        """One row for each key."""
        totals = ctx.merging("sum").get(fired.keys).columns["total"]
        yield pa.RecordBatch.from_arrays([fired.keys.columns()["k"], totals], schema=self.schema)


@pytest.mark.parametrize("back_end", ["heap", "rocksdb"])
def test_a_keyed_process_gives_the_same_in_both_modes(back_end: str, tmp_path: Path) -> None:
    rows = [(f"k{i % 37}", i, i * 7) for i in range(3000)]
    path = write(tmp_path / "in", events(rows), 2)

    def draw(p: Pipeline, name: str) -> None:
        summed = p.read(Files(path), uid="events").with_watermark("ts", LATE).group_by("k")
        summed.process(Sums(), schema=Sums.schema, uid="sums").write(CollectSink(name), uid="out")

    streaming, batch = in_both_modes(draw, str(tmp_path), state_backend=back_end)
    expected: Counter[Row] = Counter()
    for key, value, _ in rows:
        expected[key,] += value
    assert batch == streaming == Counter((*key, total) for key, total in expected.items())


def split_by_sign(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | SideOutput]:
    """Negative values go to another output."""
    for batch in batches:
        yield batch.filter(pc.field("v") >= 0)
        yield SideOutput("negative", batch.filter(pc.field("v") < 0))


def mod(batch: pa.RecordBatch, n: int) -> Any:
    """A partitioner."""
    return batch["v"].to_numpy() % n


def test_side_outputs_and_exchanges_of_every_kind_give_the_same_in_both_modes(tmp_path: Path) -> None:
    rows = [(f"k{i % 7}", i - 100, i * 7) for i in range(300)]
    path = write(tmp_path / "in", events(rows), 2)

    def draw(p: Pipeline, name: str) -> None:
        read = p.read(Files(path), uid="events").with_watermark("ts", LATE)
        halves = read.map_in_arrow(split_by_sign, EVENTS, side_outputs={"negative": EVENTS}, uid="split")
        negative = halves.side_output("negative").rebalance()
        both = halves.partition_by(mod).union(negative).repartition("k")
        sums = both.group_by("k").process(Sums(), schema=Sums.schema, uid="sums")
        everywhere = sums.broadcast_all().filter(pc.field("total") < -(10**9))
        sums.union(everywhere).write(CollectSink(name), uid="out")

    streaming, batch = in_both_modes(draw)
    expected: Counter[Row] = Counter()
    for key, value, _ in rows:
        expected[key,] += value
    assert batch == streaming == Counter((*key, total) for key, total in expected.items())


def test_an_asynchronous_function_gives_the_same_in_both_modes(tmp_path: Path) -> None:
    path = write(tmp_path / "in", events([("a", i, i) for i in range(50)]), 2)

    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, "v", pc.multiply(batch["v"], 2))

    def draw(p: Pipeline, name: str) -> None:
        asked = p.read(Files(path), uid="events").map_async(twice, EVENTS, uid="twice")
        asked.select("v").write(CollectSink(name), uid="out")

    streaming, batch = in_both_modes(draw)
    assert batch == streaming == Counter((2 * i,) for i in range(50))


def test_rows_behind_a_sink_and_several_sinks_are_staged_and_committed(tmp_path: Path) -> None:
    path = write(tmp_path / "in", events([("a", 1, 0), ("b", 2, 0)]), 1)

    def build() -> Pipeline:
        p = Pipeline()
        written = p.read(Files(path), uid="events").write_through(CollectSink("first"), uid="one")
        written.filter(pc.field("v") > 1).write(CollectSink("second"), uid="two")
        return p

    job = InProcessBatch(build)
    job.run()
    assert collected("first").rows() == []
    assert collected("first").staged_table().num_rows == 2
    job.commit()
    at = datetime.datetime(1970, 1, 1)
    collected("first").assert_exactly([("a", 1, at), ("b", 2, at)])
    collected("second").assert_exactly([("b", 2, at)])


def numbers(places: np.ndarray) -> dict[str, Any]:
    """Rows by number."""
    return {"k": places.astype(str), "v": places, "ts": pa.array(places).cast(TIME)}


def test_an_unbounded_source_is_refused_by_name() -> None:
    def build() -> Pipeline:
        p = Pipeline()
        p.read(DataGen(numbers, EVENTS), uid="endless").write(CollectSink("x"), uid="out")
        return p

    with pytest.raises(PipelineError, match=r"only bounded sources \[source 'endless' at .*test_batch_jobs.py:\d+\]"):
        run_batch(build)


def build_by_the_clock(name: str) -> Callable[[], Pipeline]:
    """Windows over processing time."""

    def build() -> Pipeline:
        p = Pipeline()
        windows = p.read(DataGen(numbers, EVENTS, rows=100), uid="numbers").group_by("k")
        windows.window(tumbling("1 min", time="processing")).agg(n=count(), uid="by-clock").write(
            CollectSink(name), uid="out"
        )
        return p

    return build


def test_windows_over_processing_time_ask_for_an_opt_in() -> None:
    with pytest.raises(PipelineError, match="'by-clock': its windows are over processing time"):
        run_batch(build_by_the_clock("never"))
    run_batch(build_by_the_clock("clock"), {"allow_mode_dependent": True})
    assert len({row[1] for row in collected("clock").rows()}) == 1, "the clock stands still"
    assert collected("clock").table().num_rows == 100


def test_a_function_that_is_marked_asks_for_an_opt_in() -> None:
    @batch_sensitive
    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)

    def build() -> Pipeline:
        p = Pipeline()
        p.read(DataGen(numbers, EVENTS, rows=100), uid="numbers").map_in_arrow(first, EVENTS, uid="first").write(
            CollectSink("first-of"), uid="out"
        )
        return p

    with pytest.raises(PipelineError, match="marked batch_sensitive"):
        run_batch(build)
    run_batch(build, {"allow_mode_dependent": True})


class AsksTheClock(Sums):
    """Looks at the clock where it has none."""

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        """Ask."""
        assert ctx.now_ms


def test_an_operator_that_asks_the_clock_is_stopped_by_name() -> None:
    def build() -> Pipeline:
        p = Pipeline()
        rows = p.read(DataGen(numbers, EVENTS, rows=100), uid="numbers").group_by("k")
        rows.process(AsksTheClock(), schema=Sums.schema, uid="asks").write(CollectSink("x"), uid="out")
        return p

    with pytest.raises(Exception, match="'asks' uses processing time"):
        run_batch(build)
