"""S5: whole jobs with processes of the user's own that have no keys: crashed, restored and rescaled, they give what a
plain calculation gives. The clock is the test's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from process_jobs import run_with_accidents, suspended

from tidegate import (
    Process,
    RawInput,
    RawOutput,
    Rows,
    SubtaskContext,
    operator_list_state,
    raw_state,
    union_list_state,
)
from tidegate.api.pipeline import Pipeline
from tidegate.channel.elements import MAX_WATERMARK
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.errors import PipelineError, SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.restore.state_shapes import StateShape, compare_states
from tidegate.plan.graph_document import graph_document
from tidegate.snapshot.metadata import read_metadata
from tidegate.snapshot.reader import SnapshotReader
from tidegate.testing.batch import run_batch
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 600
SOURCE = pa.schema([("k", pa.int64()), ("v", pa.int64())])
RESULT = pa.schema([("what", pa.string()), ("v", pa.int64())])


def result(what: str, values: Any) -> pa.RecordBatch:
    values = pa.array(values, pa.int64())
    return pa.record_batch([pa.array([what] * len(values)), values], schema=RESULT)


class Sorts(Process):
    """Keeps rows until the watermark has passed them, and gives them in order; counts in raw state, a piece for each
    hundred."""

    states: Sequence[Any] = (operator_list_state("waiting", {"v": pa.int64()}), raw_state("tally"))

    def __init__(self) -> None:
        self.tally = 0

    def process(self, rows: Rows, ctx: SubtaskContext) -> None:
        self.tally += rows.batch.num_rows
        times = rows.event_time_us.to_numpy()
        assert (times == rows.batch["v"].to_numpy() * 1000).all()
        ctx.operator_list("waiting").append(rows.batch.select(["v"]))

    def on_watermark(self, watermark_us: int, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        assert ctx.watermark_us == watermark_us
        waiting = ctx.operator_list("waiting").get()["v"].combine_chunks().to_numpy()
        due = waiting * 1000 <= watermark_us
        ctx.operator_list("waiting").put(pa.record_batch([waiting[~due]], names=["v"]))
        yield result("row", np.sort(waiting[due]))

    def finish(self, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        assert ctx.watermark_us == MAX_WATERMARK and not ctx.operator_list("waiting").get().num_rows
        yield result("tally", [self.tally])

    def write_raw(self, name: str, out: RawOutput) -> None:
        left = self.tally
        while left > 0:
            out.start()
            out.write(json.dumps(min(left, 100)).encode())
            left -= 100

    def read_raw(self, name: str, pieces: Sequence[RawInput]) -> None:
        assert all(piece.key_group is None for piece in pieces)
        self.tally = sum(json.loads(piece.read()) for piece in pieces)


def sorting(sink: str, process: Process | None = None, rate: float | None = 2_000) -> Pipeline:
    p = Pipeline()
    source = DataGen(lambda n: {"k": n % 7, "v": n}, SOURCE, rows=ROWS, splits=3, batch_rows=8, rate=rate)
    numbers = p.read(source, uid="numbers").with_watermark("v", "0 s", unit="ms")
    numbers.process(process or Sorts(), schema=RESULT, uid="sorts").write(CollectSink(sink), uid="out")
    return p


@pytest.mark.parametrize("seed", range(8))
def test_crashes_restores_and_rescales_at_random_moments_change_no_result(sink: str, seed: int) -> None:
    """S5.1, S5.5, S9.1: list and raw state of subtasks."""
    run_with_accidents(lambda: sorting(sink), f"unkeyed-{seed}")
    rows = collected(sink).rows()
    assert Counter(v for what, v in rows if what == "row") == Counter(range(ROWS))
    assert sum(v for what, v in rows if what == "tally") == ROWS


class InTwelves(Process):
    """Gives rows by the clock, and the rest at the end."""

    states = (operator_list_state("waiting", {"v": pa.int64()}),)
    every = "30 ms"

    def process(self, rows: Rows, ctx: SubtaskContext) -> None:
        ctx.operator_list("waiting").append(rows.batch.select(["v"]))

    def on_processing_time(self, now_ms: int, ctx: SubtaskContext) -> list[pa.RecordBatch]:
        assert now_ms == ctx.now_ms
        ctx.count("flushes")
        return [self._all(ctx, "by the clock")]

    def finish(self, ctx: SubtaskContext) -> list[pa.RecordBatch]:
        return [self._all(ctx, "at the end")]

    def _all(self, ctx: SubtaskContext, what: str) -> pa.RecordBatch:
        waiting = ctx.operator_list("waiting").get()["v"].combine_chunks()
        ctx.operator_list("waiting").clear()
        return result(what, waiting)


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_is_called_by_the_clock_loses_nothing(sink: str, seed: int) -> None:
    """S5.5, S7.6: what waits for the clock lies in list state."""
    run_with_accidents(lambda: sorting(sink, InTwelves()), f"clock-{seed}")
    rows = collected(sink).rows()
    assert Counter(v for _, v in rows) == Counter(range(ROWS))
    assert "by the clock" in {what for what, _ in rows}


class Knows(Process):
    """Each subtask learns at a restore what all had written."""

    states = (union_list_state("seen", {"v": pa.int64()}),)

    def __init__(self) -> None:
        self.learnt = -1

    def process(self, rows: Rows, ctx: SubtaskContext) -> None:
        ctx.union_list("seen").append(rows.batch.select(["v"]))

    def restored(self, ctx: SubtaskContext) -> None:
        own, everybody = ctx.union_list("seen").get(), ctx.union_list("seen").restored()
        assert own.num_rows < everybody.num_rows
        self.learnt = pc.sum(everybody["v"]).as_py()

    def finish(self, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        yield result("learnt", [self.learnt])
        yield result("seen", ctx.union_list("seen").get()["v"].combine_chunks())


@pytest.mark.parametrize("parallelism", [2, 3])
def test_union_state_tells_every_subtask_what_all_had(sink: str, parallelism: int) -> None:
    """S5.1, S5.5."""
    a_job = InProcessJob(lambda: sorting(sink, Knows()), {"parallelism": 2})
    run = a_job.submit()
    run.until(lambda: run.owner.now_ms >= 1_700_000_000_050)
    path = suspended(run, 0)
    assert path is not None
    table = pa.concat_tables(SnapshotReader(path, root=a_job.store).tables("sorts", "seen"))
    assert 0 < table.num_rows < ROWS
    a_job.options = {"parallelism": parallelism}
    a_job.submit(RestoreFrom("savepoint", path=path)).to_end()
    rows = collected(sink).rows()
    assert [v for what, v in rows if what == "learnt"] == [pc.sum(table["v"]).as_py()] * parallelism
    assert Counter(v for what, v in rows if what == "seen") == Counter(range(ROWS))


def saved(sink: str, process: Process) -> tuple[InProcessJob, str]:
    a_job = InProcessJob(lambda: sorting(sink, process), {"parallelism": 2})
    run = a_job.submit()
    run.until(lambda: run.owner.now_ms >= 1_700_000_000_050)
    path = suspended(run, 0)
    assert path is not None
    return a_job, path


def test_snapshots_name_the_states_of_subtasks_and_can_be_read(sink: str) -> None:
    """S5.3, S5.5: the declaration is what the operator writes."""
    a_job, path = saved(sink, Sorts())
    graph = read_metadata(a_job.store, path).graph
    (told,) = (operator for operator in graph["operators"] if operator["uid"] == "sorts")
    declared = {shape.name: shape for shape in map(StateShape.from_json, told["states"])}
    assert {name: (shape.kind, shape.form) for name, shape in declared.items()} == {
        "waiting": ("list", "operator list"),
        "tally": ("list", "raw"),
        "watermark:passed": ("list", ""),
    }
    reader = SnapshotReader(path, root=a_job.store)
    for shape in reader.states("sorts"):
        columns = tuple((column.name, column.type) for column in declared[shape.name].columns)
        assert shape.kind == declared[shape.name].kind and (shape.columns == columns or shape.name[-6:] == "passed")
    pieces = [table["bytes"].to_pylist() for table in reader.tables("sorts", "tally")]
    assert sum(int(piece) for of_subtask in pieces for piece in of_subtask) > 0


class Wider(Sorts):
    """A column more, and one with another name."""

    states = (
        operator_list_state("waiting", {"value": pa.int64(), "new": pa.string()}, renamed={"v": "value"}),
        raw_state("tally"),
    )

    def process(self, rows: Rows, ctx: SubtaskContext) -> None:
        new = pa.array(["new"] * rows.batch.num_rows)
        self.tally += rows.batch.num_rows
        ctx.operator_list("waiting").append(pa.record_batch([rows.batch["v"], new], names=["value", "new"]))

    def on_watermark(self, watermark_us: int, ctx: SubtaskContext) -> None:
        return None

    def finish(self, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        for what, value in (("new", pc.is_valid), ("old", pc.is_null)):
            waiting = ctx.operator_list("waiting").get()
            yield result(what, waiting.filter(value(waiting["new"]))["value"].combine_chunks())


def test_operator_state_grows_as_keyed_state_does(sink: str) -> None:
    """S5.5."""
    a_job, path = saved(sink, Sorts())
    waiting = pa.concat_tables(SnapshotReader(path, root=a_job.store).tables("sorts", "waiting"))["v"].to_pylist()
    before = [v for _, v in collected(sink).rows()]
    a_job.build = lambda: sorting(sink, Wider())
    a_job.submit(RestoreFrom("savepoint", path=path)).to_end()
    rows = collected(sink).rows()[len(before) :]
    assert sorted(v for what, v in rows if what == "old") == sorted(waiting) != []
    assert Counter(before + [v for _, v in rows]) == Counter(range(ROWS))


class Raw(Sorts):
    states = (operator_list_state("tally", {"n": pa.int64()}), operator_list_state("waiting", {"v": pa.int64()}))


class Without(Sorts):
    states = (raw_state("tally"),)


@pytest.mark.parametrize(
    ("later", "says"),
    [(Raw(), r"the state was raw, now operator list"), (Without(), "waiting.*not declare|not declare.*waiting")],
)
def test_a_restore_refuses_another_kind_and_a_state_that_is_gone(sink: str, later: Process, says: str) -> None:
    """S5.5."""
    a_job, path = saved(sink, Sorts())
    a_job.build = lambda: sorting(sink, later)
    with pytest.raises(SnapshotError, match=says):
        a_job.submit(RestoreFrom("savepoint", path=path))


@pytest.mark.parametrize("later", [Sorts(), Wider(), Raw(), Without()], ids=["same", "wider", "kind", "gone"])
def test_a_preflight_says_beforehand_what_the_restore_says(sink: str, later: Process) -> None:
    """S5.5: from the documents alone."""
    a_job, path = saved(sink, Sorts())
    old = read_metadata(a_job.store, path).graph
    new = graph_document(sorting(sink, later).build())
    (was,), (now,) = ([op["states"] for op in graph["operators"] if op["uid"] == "sorts"] for graph in (old, new))
    verdict = compare_states(*([StateShape.from_json(state) for state in states] for states in (was, now)))
    a_job.build = lambda: sorting(sink, later)
    if verdict.refused or verdict.undeclared:
        with pytest.raises(SnapshotError):
            a_job.submit(RestoreFrom("savepoint", path=path))
    else:
        a_job.submit(RestoreFrom("savepoint", path=path))
    assert [state for state, _ in verdict.refused] == (["tally"] if isinstance(later, Raw) else [])
    assert verdict.undeclared == (("waiting",) if isinstance(later, Without) else ())
    assert {state for state, _ in verdict.changes} == ({"waiting"} if isinstance(later, Wider) else set())


def test_raw_state_that_cannot_be_written_names_the_operator_and_the_users_line(sink: str) -> None:
    class Breaks(Sorts):
        def write_raw(self, name: str, out: RawOutput) -> None:
            raise ZeroDivisionError("of the user")  # their line

    run = InProcessJob(lambda: sorting(sink, Breaks()), {"checkpoint_interval": "20 ms"}).submit()
    with pytest.raises(Exception, match="operator 'sorts' subtask 0: ZeroDivisionError: of the user") as failed:
        for _ in range(200):
            run.pump()
            run.tick(5)
    assert "# their line" in failed.value.traceback


class Ends(Sorts):
    """Keeps everything to the end, and says which subtasks have come to it."""

    ended: ClassVar[list[int]] = []

    def on_watermark(self, watermark_us: int, ctx: SubtaskContext) -> None:
        return None

    def finish(self, ctx: SubtaskContext) -> Iterator[pa.RecordBatch]:
        yield result("row", ctx.operator_list("waiting").get()["v"].combine_chunks())
        yield result("tally", [self.tally])
        self.ended.append(ctx.subtask)


@pytest.mark.parametrize("parallelism", [2, 3])
def test_what_a_subtask_has_emitted_at_its_end_is_not_emitted_again_by_others(sink: str, parallelism: int) -> None:
    """S6.2: one of two subtasks had finished when the snapshot was taken; its state stays behind."""
    Ends.ended.clear()
    a_job = InProcessJob(lambda: sorting(sink, Ends(), rate=None), {"parallelism": 2})
    run = a_job.submit()
    run.until(lambda: bool(Ends.ended))
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="half"))
    assert answer is not None and answer.ok and len(Ends.ended) == 1
    run.crash()
    a_job.options = {"parallelism": parallelism}
    a_job.submit(RestoreFrom("savepoint", path=answer.data["path"])).to_end()
    rows = collected(sink).rows()
    assert Counter(v for what, v in rows if what == "row") == Counter(range(ROWS))
    assert sum(v for what, v in rows if what == "tally") == ROWS


def test_in_batch_a_process_without_keys_gives_the_same_rows(sink: str) -> None:
    """S8.2: all rows wait for the end."""
    run_batch(lambda: sorting(sink), {"parallelism": 2})
    rows = collected(sink).rows()
    assert Counter(v for what, v in rows if what == "row") == Counter(range(ROWS))
    assert sum(v for what, v in rows if what == "tally") == ROWS


def test_in_batch_a_process_that_is_called_by_the_clock_asks_for_leave(sink: str) -> None:
    """S8.2."""
    with pytest.raises(PipelineError, match="'sorts': it is called by the clock"):
        run_batch(lambda: sorting(sink, InTwelves()))
    run_batch(lambda: sorting(sink, InTwelves()), {"allow_mode_dependent": True})
    assert Counter(collected(sink).rows()) == Counter(("at the end", v) for v in range(ROWS))
