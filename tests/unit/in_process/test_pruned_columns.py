"""Jobs whose operators leave columns unread: the same results, less that is read and sent, and snapshots of both kinds.

Whole jobs in one thread. `whole_rows` plans jobs as versions before column pruning did."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tidegate as td
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.plan import batch_plan, execution_plan
from tidegate.plan.batch_plan import plan_batch
from tidegate.subtask.chain import OperatorFailure
from tidegate.subtask.router import OutputEdge
from tidegate.testing.batch import InProcessBatch
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 600
SCHEMA = pa.schema(
    [("k", pa.int64()), ("v", pa.int64()), ("f", pa.float64()), ("ts", pa.timestamp("ms")), ("flag", pa.bool_())]
    + [(f"text{n}", pa.string()) for n in range(4)]
)


def rows(numbers: Any) -> dict[str, Any]:
    """Out of order by up to 7 ms; some values and texts are null."""
    texts = [None if number % 11 == 0 else f"text {number % 7}" for number in numbers.tolist()]
    values = [None if number % 13 == 0 else number for number in numbers.tolist()]
    times = pa.array(numbers * 10 + numbers * 5 % 7).cast(pa.timestamp("ms"))
    return {
        "k": numbers % 5,
        "v": values,
        "f": numbers / 4,
        "ts": times,
        "flag": pa.array(numbers % 3 == 0),
        **{f"text{n}": texts for n in range(4)},
    }


def names(numbers: Any) -> dict[str, Any]:
    return {"k": numbers, "name": [f"name {number}" for number in numbers.tolist()], "more": numbers * 2}


NAMES = pa.schema([("k", pa.int64()), ("name", pa.string()), ("more", pa.int64())])


@contextmanager
def whole_rows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution_plan, "prune_columns", lambda graph: graph)
        yield


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


class First(td.KeyedProcess):
    """A user's process; it emits two columns of its rows."""

    def process(self, rows: td.KeyedRows, ctx: td.ProcessContext) -> Iterator[pa.RecordBatch]:
        yield rows.batch.select(["k", "v"])


Draw = Callable[[td.Stream, td.Stream], td.Stream]
OPERATORS: dict[str, Draw] = {
    "filter": lambda x, y: x.filter(pc.field("flag")).select("k", "v"),
    "select": lambda x, y: x.select("k", "text0", double=pc.field("v") * 2).select("double", "k"),
    "with_columns": lambda x, y: x.with_columns(w=pc.field("f") + 1).select("w", "text1"),
    "union": lambda x, y: x.union(x.filter(pc.field("flag"))).select("v", "k"),
    "rebalance": lambda x, y: x.rebalance().select("v"),
    "repartition": lambda x, y: x.repartition("text2").select("v"),
    "partition_by": lambda x, y: x.partition_by(lambda batch, n: batch["k"].to_numpy() % n).select("v"),
    "map_in_arrow": lambda x, y: x.map_in_arrow(same, schema=SCHEMA).select("v", "text3"),
    "aggregate": lambda x, y: x.group_by("k").agg(n=td.count(), s=td.sum("v"), output="final", uid="agg"),
    "aggregate of all rows": lambda x, y: x.agg(n=td.count(), output="final", uid="agg"),
    "window": lambda x, y: (
        x.group_by("text0", "k").window(td.tumbling("1 s")).agg(n=td.count("v"), m=td.mean("f"), uid="agg")
    ),
    "sliding window": lambda x, y: x.group_by("k").window(td.sliding("1 s", "500 ms")).agg(s=td.sum("v"), uid="agg"),
    "session": lambda x, y: x.group_by("k").window(td.session("40 ms")).agg(b=td.max_by("v", by="f"), uid="agg"),
    "result of a window of which a part is read": lambda x, y: (
        x.group_by("k").window(td.tumbling("1 s")).agg(s=td.sum("v"), n=td.count(), uid="agg").select("n")
    ),
    "deduplicate": lambda x, y: x.deduplicate("v", uid="once").select("v"),
    "deduplicate within": lambda x, y: x.deduplicate("v", within="1 s", uid="once").select("v"),
    "process": lambda x, y: x.group_by("k").process(First(), schema=SCHEMA_OF_FIRST, uid="process").select("v"),
    "broadcast join": lambda x, y: x.join(y.broadcast(), on="k", uid="join").select("v", "name"),
    "left broadcast join": lambda x, y: x.join(
        y.filter(pc.field("k") < 3).broadcast(), on="k", how="left", uid="join"
    ).select("more", "text0"),
    "broadcast join with a condition": lambda x, y: x.join(
        y.broadcast(), on="k", where=pc.field("v") > pc.field("more"), uid="join"
    ).select("k"),
    "semi broadcast join": lambda x, y: x.join(
        y.filter(pc.field("k") < 3).broadcast(), on="k", how="semi", uid="join"
    ).select("v"),
    "join": lambda x, y: x.join(y, on="k", uid="join").select("v", "name"),
    "semi join": lambda x, y: x.join(y.filter(pc.field("k") < 3), on="k", how="semi", uid="join").select("v"),
    "anti join": lambda x, y: x.join(y.filter(pc.field("k") < 3), on="k", how="anti", uid="join").select("v"),
    "join in sessions": lambda x, y: x.join(
        x.filter(pc.field("flag")).with_columns(other=pc.field("v")).select("k", "ts", "other"),
        on="k",
        suffix="_r",
        window=td.session("40 ms"),
        uid="join",
    ).select("v", "other"),
}
SCHEMA_OF_FIRST = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def pipeline(draw: Draw, sink: str, batch_rows: int = 37) -> Callable[[], td.Pipeline]:
    def build() -> td.Pipeline:
        p = td.Pipeline()
        few = p.read(td.DataGen(names, NAMES, rows=5, splits=1), uid="names")
        source = td.DataGen(rows, SCHEMA, rows=ROWS, splits=2, batch_rows=batch_rows)
        stream = p.read(source, uid="rows").with_watermark("ts", "10 ms")
        draw(stream, few).write(CollectSink(sink), uid="out")
        few.write(td.Discard(), uid="names-out")
        return p

    return build


def results(sink: str) -> Counter[tuple[Any, ...]]:
    """Committed rows, which are then forgotten."""
    table = collected(sink).table()
    clear_collected(sink)
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize("name", OPERATORS)
def test_results_are_the_same_with_unread_columns_and_without(name: str, sink: str) -> None:
    """Also through a checkpoint of the one kind of plan and a restore with the other (S5.5, S9.1)."""
    rng = random.Random(name)
    build = pipeline(OPERATORS[name], sink, rng.randint(5, 80))
    with whole_rows():
        InProcessJob(build, {"parallelism": 2}).submit().to_end()
    wanted = results(sink)
    assert wanted, "proves nothing"
    InProcessJob(build, {"parallelism": 2}).submit().to_end()
    assert results(sink) == wanted
    job = InProcessJob(build, {"parallelism": 2, "unaligned_checkpoints": True, "aligned_checkpoint_timeout": "0 s"})
    with whole_rows():
        run = job.submit()
        run.pump(rng.randint(1, 6))
        answer = run.ask(ev.SnapshotRequest("checkpoint", request_id="now"))
        assert answer is not None and answer.ok
        run.crash()
    assert isinstance(job.relaunch().to_end(), RunEnded)
    assert results(sink) == wanted


@pytest.mark.parametrize("name", OPERATORS)
def test_batch_gives_the_same_results_with_unread_columns_and_without(
    name: str, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S8.1."""

    def run() -> Counter[tuple[Any, ...]]:
        options = {"parallelism": 2, "allow_mode_dependent": True}
        job = InProcessBatch(pipeline(OPERATORS[name], sink), options, batch_rows=23)
        job.run()
        job.commit()
        return results(sink)

    pruned = run()
    monkeypatch.setattr(batch_plan, "with_used_columns", lambda graph: graph)
    assert pruned == run() != Counter()


# ------------------------------------------------------------ what is read and sent


@pytest.fixture
def wide_file(tmp_path: Path) -> str:
    """A Parquet file of 20 columns: k, v and 18 others."""
    numbers = np.arange(1_000)
    columns = {"k": numbers % 7, "v": numbers, **{f"c{n}": [f"text {n}"] * len(numbers) for n in range(18)}}
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=400)
    return str(path)


@pytest.fixture
def read_columns(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the columns that are decoded from Parquet."""
    found: set[str] = set()
    original = pq.ParquetFile.iter_batches

    def noted(self: Any, *args: Any, columns: Any = None, **more: Any) -> Any:
        found.update(self.schema_arrow.names if columns is None else columns)
        return original(self, *args, columns=columns, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    return found


@pytest.fixture
def sent_columns(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[tuple[str, ...]]]:
    """Columns of batches as channels receive them, by the exchange's kind."""
    found: dict[str, set[tuple[str, ...]]] = {"hash": set(), "other": set()}
    original = OutputEdge.send

    def noted(self: OutputEdge, element: Any) -> None:
        kind = "hash" if self.partition is not None else "other"
        for channel in self.channels:
            forward = channel.send

            def spy(part: Any, forward: Any = forward) -> None:
                if isinstance(part, pa.RecordBatch):
                    found[kind].add(tuple(part.schema.names))
                forward(part)

            channel.send = spy  # type: ignore[method-assign]
        original(self, element)
        for channel in self.channels:
            del channel.send  # type: ignore[attr-defined]

    monkeypatch.setattr(OutputEdge, "send", noted)
    return found


def sums_of(path: str, sink: str, **options: Any) -> Callable[[], td.Pipeline]:
    def build() -> td.Pipeline:
        p = td.Pipeline()
        totals = p.read(td.Files(path, **options), uid="rows").group_by("k").agg(s=td.sum("v"), output="final", uid="s")
        totals.write(CollectSink(sink), uid="out")
        return p

    return build


def test_an_unused_column_is_neither_read_from_parquet_nor_sent(
    wide_file: str, sink: str, read_columns: set[str], sent_columns: dict[str, set[tuple[str, ...]]]
) -> None:
    InProcessJob(sums_of(wide_file, sink), {"parallelism": 2}).submit().to_end()
    assert read_columns == {"k", "v"}
    assert sent_columns["hash"] == {("k", "v")}
    assert results(sink) == Counter({(k, sum(range(k, 1_000, 7))): 1 for k in range(7)})


def test_batch_neither_reads_nor_sends_an_unused_column(wide_file: str, sink: str, read_columns: set[str]) -> None:
    job = InProcessBatch(sums_of(wide_file, sink), {"parallelism": 2})
    job.run()
    job.commit()
    assert read_columns == {"k", "v"}
    assert results(sink) == Counter({(k, sum(range(k, 1_000, 7))): 1 for k in range(7)})


def test_batch_sends_each_reader_its_own_columns() -> None:
    """S8.1: the source is read once, and each exchange carries the columns of its reader, with the event time."""

    def draw(x: td.Stream, y: td.Stream) -> td.Stream:
        last = x.group_by("text0").agg(last=td.max_by("v", by="f"), output="final", uid="last")
        last.write(td.Discard(), uid="last-out")
        return x.group_by("k").process(First(), schema=SCHEMA_OF_FIRST, uid="process").select("v")

    plan = plan_batch(pipeline(draw, "unused")().build(), 2, 128, allow_mode_dependent=True)
    by_reader = {plan.graph.nodes[stage.nodes[0]].uid: stage.inputs for stage in plan.stages if stage.inputs}
    ((given,), (whole,)) = by_reader["last"], by_reader["process"]
    assert given.exchange == whole.exchange == "hash"
    assert whole.schema.names == SCHEMA.names
    assert given.schema.names == ["v", "f", "ts", "text0"]
    assert given.event_time == ("ts", "ms")


def test_a_source_that_reads_all_columns_sends_the_used_ones(
    sink: str, sent_columns: dict[str, set[tuple[str, ...]]]
) -> None:
    draw = OPERATORS["aggregate"]
    InProcessJob(pipeline(draw, sink), {"parallelism": 2}).submit().to_end()
    assert sent_columns["hash"] == {("k", "v")}


def test_a_position_means_the_same_rows_with_and_without_unread_columns(wide_file: str, sink: str) -> None:
    """S4.2: both ways round, in the middle of a file."""
    wanted = Counter({(k, sum(range(k, 1_000, 7))): 1 for k in range(7)})
    for whole_first in (True, False):
        job = InProcessJob(sums_of(wide_file, sink), {"parallelism": 1})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tidegate.connectors.files.source.file_formats.MAX_BATCH_ROWS", 64)
            with pytest.MonkeyPatch.context() as first:
                if whole_first:
                    first.setattr(execution_plan, "prune_columns", lambda graph: graph)
                run = job.submit()
                run.until(lambda run=run: 0 < run.slot._subtasks[-1].rows_out < 900)  # type: ignore[misc]
                answer = run.ask(ev.SnapshotRequest("checkpoint", request_id="now"))
                assert answer is not None and answer.ok
                run.crash()
            if whole_first:
                run = job.relaunch()
            else:
                with whole_rows():
                    run = job.relaunch()
            run.to_end()
        assert results(sink) == wanted


# ------------------------------------------------------------ snapshots with rows that lack columns


def joined(sink: str, *columns: str, rate: float | None = 0.001) -> Callable[[], td.Pipeline]:
    """Rows wait in the join, because its build side is never complete at this rate."""

    def build() -> td.Pipeline:
        p = td.Pipeline()
        few = p.read(td.DataGen(names, NAMES, rows=5, splits=1, rate=rate), uid="names")
        stream = p.read(td.DataGen(rows, SCHEMA, rows=ROWS, splits=2, batch_rows=50), uid="rows")
        stream.join(few.broadcast(), on="k", uid="join").select(*columns).write(CollectSink(sink), uid="out")
        return p

    return build


def waiting(sink: str, *columns: str) -> InProcessJob:
    """A job with a savepoint whose rows wait in the join."""
    job = InProcessJob(joined(sink, *columns), {"parallelism": 2})
    run = job.submit()
    run.pump(5)
    answer = run.ask(ev.SnapshotRequest("checkpoint", request_id="now"))
    assert answer is not None and answer.ok
    run.crash()
    return job


@pytest.mark.parametrize("parallelism", [2, 3])
def test_rows_that_wait_are_restored_by_a_pipeline_that_reads_fewer_columns(sink: str, parallelism: int) -> None:
    """S5.5."""
    job = waiting(sink, "v", "text0", "name")
    job.build = joined(sink, "v", "name", rate=None)
    job.options = {**job.options, "parallelism": parallelism}
    job.submit(RestoreFrom("latest")).to_end()
    wanted = zip(rows(np.arange(ROWS))["v"], [f"name {number % 5}" for number in range(ROWS)], strict=True)
    assert results(sink) == Counter(wanted)


@pytest.mark.parametrize("parallelism", [2, 3])
def test_rows_that_wait_without_a_column_that_is_now_read_are_refused(sink: str, parallelism: int) -> None:
    """S5.5: never filled with nulls, as the column of a newer version would be."""
    job = waiting(sink, "v", "name")
    job.build = joined(sink, "v", "text0", "name")
    job.options = {**job.options, "parallelism": parallelism}
    with pytest.raises((OperatorFailure, SnapshotError), match="rows without column 'text0', which the pipeline now"):
        job.submit(RestoreFrom("latest"))
