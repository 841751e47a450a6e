"""S5.5: what the documents of graphs say of states is what operators write."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate as td
from tidegate.coordinator import events as ev
from tidegate.jobs.restore.compatibility import chains_of
from tidegate.jobs.restore.state_shapes import OWNER_COLUMN, StateShape
from tidegate.plan.execution_plan import make_execution_plan
from tidegate.plan.graph_document import graph_document
from tidegate.snapshot.reader import SnapshotReader
from tidegate.testing.collect_sink import CollectSink, clear_collected
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema(
    [("k", pa.int32()), ("s", pa.string()), ("f", pa.float32()), ("u", pa.uint64()), ("ts", pa.timestamp("ms"))]
)
NAMES = pa.schema([("k", pa.int32()), ("name", pa.string())])
_sinks = itertools.count()


def rows(n: Any) -> dict[str, Any]:
    times = pa.array(n).cast(pa.timestamp("ms"))
    texts = pa.array([str(i % 3) for i in n.tolist()])
    return {"k": pa.array(n % 5, pa.int32()), "s": texts, "f": pa.array(n, pa.float32()), "u": n, "ts": times}


def pipeline(sink: str, time: str = "event") -> td.Pipeline:
    p = td.Pipeline()
    names = p.read(td.DataGen(lambda n: {"k": n, "name": n.astype(str)}, NAMES, rows=5), uid="names")
    stream = p.read(td.DataGen(rows, SCHEMA, rows=500, splits=2, batch_rows=20), uid="rows").with_watermark("ts", "0 s")
    joined = stream.join(names.broadcast(), on="k", uid="join")
    windows = {
        "event": td.tumbling("1 h"),
        "processing": td.tumbling("1 h", time="processing"),
        "sliding": td.sliding("1 h", "10 min"),
        "sliding over processing time": td.sliding("1 h", "10 min", time="processing"),
        "calendar": td.tumbling("1 day", timezone="Europe/Berlin"),
        "calendar over processing time": td.tumbling("1 month", timezone="Europe/Berlin", time="processing"),
        "session": td.session("1 h"),
        "session over processing time": td.session("1 h", time="processing"),
    }
    aggregates: dict[str, Any] = {"n": td.count(), "s": td.sum("f"), "total": td.sum("k"), "m": td.mean("k")}
    aggregates |= {"low": td.min("u"), "high": td.max("f"), "first": td.min("ts"), "c": td.count("name")}
    aggregates |= {"v": td.var("k"), "d": td.count_distinct("name"), "l": td.collect("u"), "b": td.max_by("f", by="k")}
    groups = joined.select("k", "f", "u", "ts", "name").group_by("name", "k")
    grouped: Any = groups.window(windows[time]) if time in windows else groups
    grouped.agg(uid="windows", **aggregates).write(CollectSink(sink), uid="out")
    return p


@pytest.mark.parametrize(
    "time",
    [
        "event",
        "processing",
        "sliding",
        "sliding over processing time",
        "calendar",
        "calendar over processing time",
        "session",
        "session over processing time",
        "running",
    ],
)
def test_every_state_is_declared_with_the_columns_that_it_is_written_with(tmp_path: Path, time: str) -> None:
    sink = f"declared-{next(_sinks)}"
    job = InProcessJob(lambda: pipeline(sink, time), {"parallelism": 2}, root=str(tmp_path))
    run = job.submit()
    run.pump(8)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok
    reader = SnapshotReader(f"{tmp_path}/{answer.data['path']}")
    operators = {operator["uid"]: operator for operator in reader.metadata.graph["operators"]}
    compared = 0
    for uid, operator in operators.items():
        declared = {s.name: s for s in map(StateShape.from_json, operator["states"])}
        for state in reader.states(uid):
            shape = declared[state.name]
            assert (shape.kind, StateShape.from_json(shape.to_json())) == (state.kind, shape)
            if shape.columns:
                # Rows that wait in the join lack the column that nothing reads; the declared state keeps it.
                unread = {"s"} if state.name == "buffered" else set()
                mine = tuple((c.name, c.type) for c in shape.columns if c.name not in unread)
                assert mine == tuple(column for column in state.columns if column[0] != OWNER_COLUMN)
                compared += 1
    assert compared == 3, "both sides of the join, and the windows"
    run.crash()
    clear_collected(sink)


def test_a_document_tells_the_chains_that_a_plan_cuts() -> None:
    graph = pipeline("none").build()
    chains = [[graph.nodes[n].uid for n in chain.nodes] for chain in make_execution_plan(graph, 2, 128).chains]
    assert chains_of(graph_document(graph)) == chains and len(chains) > 2
