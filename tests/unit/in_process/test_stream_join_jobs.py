"""S5: whole jobs with joins of two streams: crashed, restored and rescaled, they give what DuckDB gives."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from process_jobs import run_with_accidents, suspended

import tidegate as td
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.snapshot.metadata import read_metadata
from tidegate.snapshot.reader import SnapshotReader
from tidegate.testing.batch import InProcessBatch
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 400
LEFT = pa.schema([("k", pa.string()), ("ms", pa.int64()), ("x", pa.int64())])
RIGHT = pa.schema([("k", pa.string()), ("ms", pa.int64()), ("y", pa.int64())])
BOUNDS: dict[str, tuple[dict[str, Any], str]] = {
    "interval": ({"between": ("-20 ms", "35 ms")}, "r.ms between l.ms - 20 and l.ms + 35"),
    "window": ({"window": td.tumbling("25 ms")}, "l.ms // 25 = r.ms // 25"),
    "ttl": ({"ttl": "15 ms"}, "abs(r.ms - l.ms) <= 15"),
    "any time": ({"where": pc.field("x") > pc.field("y")}, "l.x > r.y"),
    "sessions": ({"window": td.session("12 ms")}, ""),
}
"""Arguments of the join and its condition; of sessions `test_every_operator` has it."""
_sinks = itertools.count()


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"joins-{next(_sinks)}"
    yield name
    clear_collected(name)


def left(n: Any) -> dict[str, Any]:
    return {"k": np.array([f"key {i % 9}" for i in n]), "ms": n + (n * 7919) % 11, "x": n}


def right(n: Any) -> dict[str, Any]:
    return {"k": np.array([f"key {i * 5 % 11}" for i in n]), "ms": n + (n * 104729) % 17, "y": n}


def pipeline(sink: str, bounds: str, how: Any, rate: float | None = 2_000) -> td.Pipeline:
    p = td.Pipeline()
    mine = p.read(DataGen(left, LEFT, rows=ROWS, splits=2, batch_rows=8, rate=rate), uid="left")
    theirs = p.read(DataGen(right, RIGHT, rows=ROWS, splits=3, batch_rows=6, rate=rate), uid="right")
    mine, theirs = mine.with_watermark("ms", "11 ms", unit="ms"), theirs.with_watermark("ms", "17 ms", unit="ms")
    if bounds == "as of":
        joined = mine.join_as_of(theirs, "k", how, suffix="_r", uid="join")
    else:
        joined = mine.join(theirs, "k", how, suffix="_r", uid="join", **BOUNDS[bounds][0])
    names = [name for name in joined.schema.names if not name.startswith("window_")]
    joined.select(*names).write(CollectSink(sink), uid="out")
    return p


def expected(bounds: str, how: str) -> Counter[tuple[Any, ...]]:
    numbers = np.arange(ROWS)
    l, r = pa.table(left(numbers)), pa.table(right(numbers))  # noqa: E741, F841
    if bounds == "as of":  # of versions of one time any may have come last
        found = duckdb.sql(
            "select l.k, l.ms, l.x, max(r.ms) from l asof left join r on l.k = r.k and l.ms >= r.ms group by all"
        )
        return Counter(found.fetchall())
    picked = "l.*" if how in ("semi", "anti") else "coalesce(l.k, r.k), l.ms, l.x, r.ms, r.y"
    return Counter(duckdb.sql(f"select {picked} from l {how} join r on l.k = r.k and {BOUNDS[bounds][1]}").fetchall())


@pytest.mark.parametrize(
    ("bounds", "how", "back_end"),
    [
        ("interval", "inner", "heap"),
        ("interval", "full", "heap"),
        ("interval", "left", "rocksdb"),
        ("interval", "anti", "heap"),
        ("window", "full", "memory"),
        ("window", "semi", "rocksdb"),
        ("ttl", "right", "heap"),
        ("any time", "full", "heap"),
        ("any time", "inner", "rocksdb"),
        ("as of", "left", "heap"),
        ("as of", "left", "rocksdb"),
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_crashes_restores_and_rescales_at_random_moments_change_no_result(
    sink: str, bounds: str, how: str, back_end: str, seed: int, tmp_path: Path
) -> None:
    """S5.1, S5.5, S9.1."""
    run_with_accidents(
        lambda: pipeline(sink, bounds, how),
        f"{bounds}-{how}-{seed}",
        scratch=str(tmp_path),
        state_backend=back_end,
        unaligned_checkpoints=seed % 2 == 1,
    )
    rows = collected(sink).rows()
    found = Counter(row[:4] if bounds == "as of" else row for row in rows)
    assert found == expected(bounds, how)


@pytest.mark.parametrize(
    ("bounds", "how"),
    [
        *itertools.product(("interval", "window", "any time"), ("inner", "left", "right", "full", "semi", "anti")),
        ("as of", "left"),
    ],
)
def test_batch_mode_gives_the_same_rows(sink: str, bounds: str, how: str) -> None:
    """S8.2."""
    job = InProcessBatch(lambda: pipeline(sink, bounds, how, rate=None), {"parallelism": 3})
    job.run()
    job.commit()
    found = Counter(row[:4] if bounds == "as of" else row for row in collected(sink).rows())
    assert found == expected(bounds, how)


@pytest.mark.parametrize(
    ("bounds", "how"), [("interval", "left"), ("any time", "inner"), ("as of", "inner"), ("sessions", "inner")]
)
def test_a_drained_savepoint_names_a_join_that_its_end_has_changed_and_asks_for_leave(
    sink: str, bounds: str, how: str
) -> None:
    """S7.5."""
    a_job = InProcessJob(lambda: pipeline(sink, bounds, how))
    run = a_job.submit()
    run.pump(20)
    path = suspended(run, 0, "drain")
    assert path is not None and read_metadata(a_job.store, path).drained_operators == ("join",)
    with pytest.raises(SnapshotError, match=r"join \(join\)"):
        a_job.submit(RestoreFrom("savepoint", path=path))


def test_an_inner_join_goes_on_after_a_drain_as_if_there_had_been_none(sink: str) -> None:
    """S7.5: nothing comes out at the end that would not have come out anyway."""
    a_job = InProcessJob(lambda: pipeline(sink, "interval", "inner"))
    run = a_job.submit()
    run.pump(30)
    path = suspended(run, 0, "drain")
    assert path is not None and read_metadata(a_job.store, path).drained_operators == ()
    assert isinstance(a_job.submit(RestoreFrom("savepoint", path=path)).to_end(), RunEnded)
    assert Counter(collected(sink).rows()) == expected("interval", "inner")


@pytest.mark.parametrize(
    ("bounds", "how"),
    [("interval", "full"), ("window", "semi"), ("any time", "anti"), ("as of", "left"), ("sessions", "full")],
)
def test_the_states_of_a_join_are_declared_as_they_are_written(
    sink: str, bounds: str, how: str, tmp_path: Path
) -> None:
    """S5.5."""
    a_job = InProcessJob(lambda: pipeline(sink, bounds, how), {"parallelism": 2}, root=str(tmp_path))
    run = a_job.submit()
    run.pump(30)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok
    reader = SnapshotReader(f"{tmp_path}/{answer.data['path']}")
    (told,) = (operator for operator in reader.metadata.graph["operators"] if operator["uid"] == "join")
    declared = {shape.name: shape for shape in map(StateShape.from_json, told["states"])}
    written = {state.name: state for state in reader.states("join")}
    assert declared.keys() == written.keys() and {"left", "right"} <= written.keys()
    for name, shape in declared.items():
        assert shape.kind == written[name].kind
        if shape.columns:
            assert tuple((c.name, c.type) for c in shape.columns) == tuple(written[name].columns)
    run.crash()
