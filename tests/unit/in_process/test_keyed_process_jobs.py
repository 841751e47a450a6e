"""S5: whole jobs with a process of the user's own: crashed, restored and rescaled, they give what a plain calculation
gives. The clock is the test's."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from process_jobs import run_with_accidents, suspended
from state_suites.model_backend import ModelBackend

from tidegate import (
    FiredTimers,
    KeyedProcess,
    KeyedRows,
    ProcessContext,
    aggregating_state,
    list_state,
    map_state,
    reducing_state,
    value_state,
)
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators import keyed_backend
from tidegate.snapshot.metadata import read_metadata
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 600
WINDOW_MS = 50
BACK_ENDS = ("model", "heap", "memory", "rocksdb")
KEYS = {
    "whole numbers": lambda n: {"k": n % 7 + 1},
    "texts": lambda n: {"k": np.array([f"key {i % 11}" for i in n])},
    "pairs": lambda n: {"k": n % 5, "k2": np.array([f"{i % 3}" for i in n])},
}
KEY_TYPES = {
    "whole numbers": [("k", pa.int64())],
    "texts": [("k", pa.string())],
    "pairs": [("k", pa.int64()), ("k2", pa.string())],
}
_sinks = itertools.count()


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"processes-{next(_sinks)}"
    yield name
    clear_collected(name)


@pytest.fixture(params=BACK_ENDS)
def back_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a back end for the option; the model stands in the place of the default."""
    if request.param != "model":
        return str(request.param)
    monkeypatch.setattr(keyed_backend, "new_backend", lambda name: ModelBackend())
    return "heap"


def squares(accumulators: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Adds up, for each key."""
    totals = np.add.reduceat(accumulators["squares"].to_numpy(), offsets[:-1])
    return pa.record_batch([pa.array(totals)], names=["squares"])


class Ledger(KeyedProcess):
    """Every kind of state, and a window made by hand of a map state and event timers.

    Gives (`what`, key, a, b, c): of each window its end, rows and total; at the end of each key count, sum of squares,
    smallest and largest, total of the list, and how often the map saw each remainder.
    """

    states = (
        value_state("count", {"n": pa.int64()}),
        list_state("seen", {"v": pa.int64()}),
        map_state("windows", {"end_us": pa.int64()}, {"n": pa.int64(), "total": pa.int64()}),
        reducing_state("range", {"least": "min", "most": "max", "total": "sum"}),
        aggregating_state("squares", {"squares": pa.int64()}, squares),
    )

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        keys, owners = rows.keys, rows.owners
        v = rows.batch["v"]
        count = ctx.value("count")
        held = count.get(keys)
        before = np.where(held.present, held.columns["n"].fill_null(0).to_numpy(), 0)
        count.put(keys, pa.record_batch([before + np.bincount(owners, minlength=keys.size)], names=["n"]))
        ctx.list("seen").append(keys, owners, pa.record_batch([v], names=["v"]))
        ctx.merging("range").add(keys, owners, pa.record_batch([v, v, v], names=["least", "most", "total"]))
        squared = pa.array(v.to_numpy() ** 2)
        ctx.merging("squares").add(keys, owners, pa.record_batch([squared], names=["squares"]))
        self._to_windows(rows, ctx)

    def _to_windows(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        size_us = WINDOW_MS * 1000
        ends = (rows.event_time_us.to_numpy() // size_us + 1) * size_us
        pairs, row_pair = np.unique(np.stack([rows.owners, ends]), axis=1, return_inverse=True)
        row_pair = row_pair.reshape(-1)
        owners, ends = pairs[0].astype(np.int32), pairs[1]
        map_keys = pa.record_batch([pa.array(ends)], names=["end_us"])
        held = ctx.map("windows").get(rows.keys, owners, map_keys)
        n, total = (np.where(held.present, held.columns[c].fill_null(0).to_numpy(), 0) for c in ("n", "total"))
        n = n + np.bincount(row_pair, minlength=len(ends))
        total = total + np.bincount(row_pair, rows.batch["v"].to_numpy(), len(ends)).astype(np.int64)
        ctx.map("windows").put(rows.keys, owners, map_keys, pa.record_batch([n, total], names=["n", "total"]))
        ctx.event_timers.register(rows.keys, owners, ends)

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        map_keys = pa.record_batch([pa.array(due.times_us)], names=["end_us"])
        found = ctx.map("windows").get(due.keys, due.owners, map_keys)
        assert found.present.all(), "a window fired twice"
        ctx.map("windows").remove(due.keys, due.owners, map_keys)
        keys = due.keys.columns().take(pa.array(due.owners))
        yield self._result("window", keys, pa.array(due.times_us), found.columns["n"], found.columns["total"])

    def finish(self, ctx: ProcessContext) -> Iterable[pa.RecordBatch]:
        for keys in ctx.all_keys("count", 3):
            ranges = ctx.merging("range").get(keys).columns
            seen = ctx.list("seen").get(keys)
            totals = np.add.reduceat(seen.columns["v"].to_numpy(), seen.offsets[:-1])
            n, squared = ctx.value("count").get(keys).columns["n"], ctx.merging("squares").get(keys).columns["squares"]
            assert (totals == ranges["total"].to_numpy()).all()
            yield self._result("count", keys.columns(), n, pa.array(np.diff(seen.offsets)), squared)
            yield self._result("range", keys.columns(), ranges["least"], ranges["most"], ranges["total"])

    def _result(self, what: str, keys: pa.RecordBatch, *columns: pa.Array) -> pa.RecordBatch:
        return pa.record_batch([pa.array([what] * keys.num_rows), *keys.columns, *columns], schema=self.schema)


def ledger(sink: str, kind: str, rate: float | None = 2_000) -> Pipeline:
    names = [name for name, _ in KEY_TYPES[kind]]
    source = pa.schema([*KEY_TYPES[kind], ("v", pa.int64())])
    result = pa.schema([("what", pa.string()), *KEY_TYPES[kind], *((c, pa.int64()) for c in "abc")])
    p = Pipeline()
    (
        p.read(
            DataGen(lambda n: {**KEYS[kind](n), "v": n}, source, rows=ROWS, splits=3, batch_rows=8, rate=rate),
            uid="numbers",
        )
        .with_watermark("v", "0 s", unit="ms")
        .group_by(*names)
        .process(Ledger(result), schema=result, uid="ledger")
        .write(CollectSink(sink), uid="out")
    )
    return p


def expected(kind: str) -> Counter[tuple[Any, ...]]:
    """The same by plain dicts."""
    numbers = np.arange(ROWS)
    columns = [list(column) for column in KEYS[kind](numbers).values()]
    of_key: dict[tuple[Any, ...], list[int]] = {}
    windows: dict[tuple[Any, ...], list[int]] = {}
    for v, *key in zip(range(ROWS), *columns, strict=True):
        own = tuple(part.item() if isinstance(part, np.generic) else part for part in key)
        of_key.setdefault(own, []).append(v)
        windows.setdefault((*own, (v // WINDOW_MS + 1) * WINDOW_MS * 1000), []).append(v)
    rows: list[tuple[Any, ...]] = [("window", *key, len(v), sum(v)) for key, v in windows.items()]
    rows += [("count", *key, len(v), len(v), sum(x * x for x in v)) for key, v in of_key.items()]
    rows += [("range", *key, min(v), max(v), sum(v)) for key, v in of_key.items()]
    return Counter(rows)


def found(sink: str) -> Counter[tuple[Any, ...]]:
    return Counter(collected(sink).rows())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KEYS)
def test_crashes_restores_and_rescales_at_random_moments_change_no_result(
    sink: str, back_end: str, kind: str, seed: int, tmp_path: Path
) -> None:
    """S5.1, S5.5, S9.1: every kind of state and event timers, against plain dicts."""
    run_with_accidents(
        lambda: ledger(sink, kind),
        f"{kind}-{seed}",
        scratch=str(tmp_path),
        state_backend=back_end,
        unaligned_checkpoints=seed % 2 == 1,
        state_size_threshold="0 B" if seed == 2 else "20 KiB",
    )
    assert found(sink) == expected(kind)


def test_a_drained_savepoint_names_a_process_with_timers_and_asks_for_leave(sink: str, back_end: str) -> None:
    """S7.5."""
    a_job = InProcessJob(lambda: ledger(sink, "pairs"), {"state_backend": back_end})
    run = a_job.submit()
    run.pump(20)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="drain"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    metadata = read_metadata(a_job.store, outcome.path)
    assert metadata.drained_operators == ("ledger",)
    with pytest.raises(SnapshotError, match=r"ledger \(process\)"):
        a_job.submit(RestoreFrom("savepoint", path=outcome.path))


def test_snapshots_name_the_states_that_a_process_declares(sink: str, back_end: str) -> None:
    """S5.3, S5.5."""
    a_job = InProcessJob(lambda: ledger(sink, "pairs"), {"state_backend": back_end})
    run = a_job.submit()
    run.pump(20)
    path = suspended(run, 1)
    assert path is not None
    graph = read_metadata(a_job.store, path).graph
    (told,) = (operator for operator in graph["operators"] if operator["uid"] == "ledger")
    assert told["kind"] == "process"
    shapes = {shape.name: shape for shape in map(StateShape.from_json, told["states"])}
    assert {name: shape.form for name, shape in shapes.items()} == {
        "count": "value",
        "seen": "list",
        "windows": "map",
        "range": "reducing by min, max, sum",
        "squares": "aggregating",
        "timers:event": "timers",
        "timers:processing": "timers",
        "watermark:passed": "",
    }
    columns = [column.name for column in shapes["windows"].columns]
    assert columns[:4] == ["__key_group", "key:k", "key:k2", "map:end_us"]


def test_what_the_users_code_raises_fails_the_run_with_operator_subtask_and_their_line(
    sink: str, back_end: str
) -> None:
    class Breaks(Ledger):
        def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
            raise ZeroDivisionError("of the user")  # their line

    def build() -> Pipeline:
        p = Pipeline()
        numbers = p.read(
            DataGen(lambda n: {"k": n, "v": n}, pa.schema([("k", pa.int64()), ("v", pa.int64())])), uid="n"
        )
        schema = pa.schema([("k", pa.int64())])
        numbers.group_by("k").process(Breaks(schema), schema=schema, uid="breaks").write(CollectSink(sink), uid="out")
        return p

    run = InProcessJob(build, {"state_backend": back_end}).submit()
    with pytest.raises(Exception, match="operator 'breaks' subtask 0: ZeroDivisionError: of the user") as failed:
        run.pump(100)
    assert "# their line" in failed.value.traceback
