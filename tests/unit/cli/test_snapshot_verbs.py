"""`tidegate snapshot inspect` and `read`, and `tidegate.read_state`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_caller import Caller

import tidegate as td
from tidegate.cli.snapshots import state_rows
from tidegate.coordinator import events as ev
from tidegate.errors import OptionError, SnapshotError
from tidegate.state.state_reader import spark_schema, state_batches
from tidegate.testing.collect_sink import CollectSink, clear_collected
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
NAMES = pa.schema([("k", pa.int64()), ("name", pa.string())])
ROWS, KEYS = 640, 7
_sinks = itertools.count()


def numbers(n: Any) -> dict[str, Any]:
    return {"k": n % KEYS, "v": n, "ts": pa.array(n).cast(pa.timestamp("ms"))}


def names(n: Any) -> dict[str, Any]:
    return {"k": n, "name": pa.array([f"key-{i}" for i in n.tolist()])}


@pytest.fixture
def savepoint(tmp_path: Path) -> Iterator[str]:
    """Folder of a savepoint of a job with windows, a join, two sources and a sink, at parallelism 2."""
    sink = f"snapshot-verbs-{next(_sinks)}"

    def build() -> td.Pipeline:
        p = td.Pipeline()
        known = p.read(td.DataGen(names, NAMES, rows=KEYS, batch_rows=4), uid="names")
        stream = p.read(td.DataGen(numbers, SCHEMA, rows=ROWS, splits=2, batch_rows=32), uid="numbers")
        joined = stream.with_watermark("ts", "0 s").join(known.broadcast(), on="k", uid="join")
        grouped = joined.group_by("name").window(td.tumbling("1 h"))
        grouped.agg(n=td.count(), total=td.sum("v"), uid="hourly").write(CollectSink(sink), uid="out")
        return p

    job = InProcessJob(build, {"parallelism": 2}, root=str(tmp_path / "root"))
    run = job.submit()
    run.pump(6)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok, answer
    yield f"{job.root}/{answer.data['path']}"
    run.crash()
    clear_collected(sink)


def test_inspect_shows_operators_states_positions_and_origin(tidegate: Caller, savepoint: str) -> None:
    answer = tidegate("snapshot", "inspect", savepoint, "--json", root=False)
    assert answer.code == 0, answer.err
    found = answer.document
    assert (found["kind"], found["job_id"], found["parallelism"], found["lineage"]) == (
        "savepoint",
        "job",
        2,
        "lineage-1",
    )
    operators = {operator["uid"]: operator for operator in found["operators"]}
    states = {(uid, state["name"]): state for uid, found in operators.items() for state in found["states"]}
    assert [s for s in states if s[0] != "out"] == [
        ("names", "splits"),
        ("numbers", "splits"),
        (next(uid for uid in operators if "watermark" in uid), "progress"),
        ("join", "build"),
        ("join", "buffered"),
        ("join", "progress"),
        ("join", "held"),
        ("hourly", "windows"),
        ("hourly", "progress"),
    ]
    windows = states["hourly", "windows"]
    assert windows["kind"] == "keyed" and windows["rows"] == KEYS and windows["subtasks"] == 2
    assert {"name": "key:name", "type": "string"} in windows["columns"]
    assert states["join", "build"]["rows"] == KEYS, "every subtask holds the same rows: counted once"
    assert operators["names"]["status"] == "finished"
    assert operators["hourly"]["watermark_us"] == found["watermark_us"] > 0
    positions = [split["position"] for split in operators["numbers"]["splits"]]
    assert len(positions) == 2 and all(position for position in positions)


def test_inspect_is_readable_for_people(tidegate: Caller, savepoint: str) -> None:
    answer = tidegate("snapshot", "inspect", savepoint, root=False)
    lines = answer.out.splitlines()
    assert answer.code == 0 and lines[0].startswith("savepoint 1 of job job")
    assert "hourly (window): running, watermark 1970-01-01T00:00:00" in answer.out
    assert any(line.split()[:3] == ["windows", "keyed", str(KEYS)] for line in lines)


def test_read_shows_rows_as_a_table_and_says_that_there_are_more(tidegate: Caller, savepoint: str) -> None:
    answer = tidegate(
        "snapshot", "read", savepoint, "--uid", "hourly", "--state", "windows", "--limit", "3", root=False
    )
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == 4 and "there are more rows" in answer.err
    answer = tidegate("snapshot", "read", savepoint, "--uid", "hourly", "--state", "windows", root=False)
    assert len(answer.out.splitlines()) == 1 + KEYS and "more rows" not in answer.err


@pytest.mark.parametrize(("limit", "more"), [(KEYS - 1, True), (KEYS, False)])
def test_more_rows_are_noticed_within_the_last_batch(
    limit: int, more: bool, tidegate: Caller, savepoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_rows, "state_batches", lambda *given: one_batch(state_batches(*given)))
    chosen = ("--uid", "hourly", "--state", "windows", "--limit", str(limit))
    answer = tidegate("snapshot", "read", savepoint, *chosen, root=False)
    assert len(answer.out.splitlines()) == 1 + limit and ("more rows" in answer.err) == more


def one_batch(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """All rows in one batch."""
    return pa.RecordBatchReader.from_batches(reader.schema, reader.read_all().combine_chunks().to_batches())


def test_times_of_a_state_are_shown_as_times_to_people_and_as_stored_to_programs(
    tidegate: Caller, savepoint: str
) -> None:
    words = ("snapshot", "read", savepoint, "--uid", "hourly", "--state", "windows")
    out = tidegate(*words, root=False).out
    assert "1970-01-01T00:00:00.000Z" in out.splitlines()[1].split()
    rows = tidegate(*words, "--format", "json", root=False).out.splitlines()
    assert json.loads(rows[0])["window_start_us"] == 0


def test_a_run_that_was_never_restored_has_a_previous_snapshot_at_most(tidegate: Caller, savepoint: str) -> None:
    out = tidegate("snapshot", "inspect", savepoint, root=False).out
    assert "previous snapshot none" in out and "restored from" not in out


def test_read_gives_rows_as_json(tidegate: Caller, savepoint: str) -> None:
    words = ("snapshot", "read", savepoint, "--uid", "join", "--state", "build")
    lines = tidegate(*words, "--format", "json", root=False).out.splitlines()
    rows = [json.loads(line) for line in lines]
    assert sorted(rows, key=lambda row: row["k"]) == [{"k": k, "name": f"key-{k}"} for k in range(KEYS)]
    document = tidegate(*words, "--json", "--limit", "1", root=False).document
    assert document == {
        "uid": "join",
        "state": "build",
        "columns": {"k": "int64", "name": "string"},
        "rows": rows[:1],
    }


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_read_writes_files(tidegate: Caller, savepoint: str, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"rows.{ending}"
    words = ("snapshot", "read", savepoint, "--uid", "hourly", "--state", "windows", "--out", str(out))
    answer = tidegate(*words, root=False)
    assert (answer.code, answer.out) == (0, f"{out}: {KEYS} rows\n"), answer.err
    found = pq.read_table(out) if ending == "parquet" else pa.ipc.open_file(out).read_all()
    assert found.equals(td.read_state(savepoint, "hourly", "windows"))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--uid", "hurly", "--state", "windows"), "Did you mean 'hourly'?"),
        (("--uid", "hourly", "--state", "window"), "Did you mean 'windows'?"),
        (("--uid", "hourly", "--state", "windows", "--out", "rows.csv"), ".parquet or .arrow"),
        (("--uid", "hourly", "--state", "windows", "--limit", "-1"), "0 or more"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(
    tidegate: Caller, savepoint: str, flags: tuple[str, ...], told: str
) -> None:
    answer = tidegate("snapshot", "read", savepoint, *flags, root=False)
    assert answer.code == 2 and told in answer.err


def test_a_folder_that_is_no_snapshot_is_refused(tidegate: Caller, tmp_path: Path) -> None:
    answer = tidegate("snapshot", "inspect", str(tmp_path), root=False)
    assert answer.code == 10 and "no _metadata" in answer.err


def test_a_path_may_be_relative_to_the_root(tidegate: Caller, savepoint: str) -> None:
    tidegate.root, _, relative = savepoint.partition("/job/")
    answer = tidegate("snapshot", "inspect", f"job/{relative}")
    assert answer.code == 0, answer.err


def test_read_state_gives_a_table_or_batches(savepoint: str) -> None:
    table = td.read_state(savepoint, "hourly", "windows")
    assert sorted(table["key:name"].to_pylist()) == [f"key-{k}" for k in range(KEYS)]
    assert td.read_state_batches(savepoint, "hourly", "windows").read_all().equals(table)
    with pytest.raises(OptionError, match="the operator has no state 'windoes'"):
        td.read_state(savepoint, "hourly", "windoes")


def test_a_savepoint_that_was_moved_is_read_where_it_is(savepoint: str, tmp_path: Path) -> None:
    table = td.read_state(savepoint, "hourly", "windows")
    moved = Path(savepoint).rename(tmp_path / "elsewhere")
    assert td.read_state(str(moved), "hourly", "windows").equals(table)
    with pytest.raises(SnapshotError, match="no _metadata"):
        td.read_state(savepoint, "hourly", "windows")


def test_spark_gets_signed_types_that_hold_all_values() -> None:
    given = pa.schema([("a", pa.uint8()), ("b", pa.uint16()), ("c", pa.uint32()), ("d", pa.uint64()), ("e", pa.int8())])
    assert spark_schema(given).types == [pa.int16(), pa.int32(), pa.int64(), pa.decimal128(20, 0), pa.int8()]
