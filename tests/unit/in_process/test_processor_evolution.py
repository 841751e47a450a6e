"""StatefulProcessors whose states change as those of Spark's own test classes do: a column goes, a declared state is
deleted, a text is a row of one column (S5.5). Whole jobs in one thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import tidegate as td
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import PipelineError, SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.snapshot.reader import SnapshotReader
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
RESULT = "k BIGINT, n BIGINT, seen BIGINT, entries BIGINT, gone STRING"
ROWS, KEYS = 400, 5


class Wide(StatefulProcessor):
    """Counts rows; each state has a column that is of no use later."""

    COUNT, SEEN, ENTRY = "n BIGINT, note STRING", "note STRING, v BIGINT", "n BIGINT, at TIMESTAMP"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", self.COUNT)
        self.seen = handle.getListState("seen", self.SEEN)
        self.entries = handle.getMapState("entries", "name STRING", self.ENTRY)

    def rows(self, n: int, v: int) -> tuple[Any, Any, Any]:
        return (n, "noted"), ("noted", v), (n, None)

    def number(self) -> int:
        held = self.count.get()
        return 0 if held is None else int(held[0])

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            count, seen, entry = self.rows(self.number() + 1, row.v)
            self.count.update(count)
            self.seen.appendValue(seen)
            self.entries.updateValue((f"name {row.v % 3}",), entry)
        assert self.entries.containsKey((f"name {row.v % 3}",))
        lists, maps = list(self.seen.get()), list(self.entries.iterator())
        assert len(self.count.get()) == len(count)
        yield Row(k=key[0], n=self.number(), seen=len(lists), entries=len(maps), gone=None)


class Narrow(Wide):
    """Without them; a list keeps what came after the column that is gone."""

    COUNT, SEEN, ENTRY = "n BIGINT", "v BIGINT", "n BIGINT"

    def rows(self, n: int, v: int) -> tuple[Any, Any, Any]:
        return (n,), (v,), (n,)


class DeclaresAndDeletes(Wide):
    """The state is declared and deleted, as in Spark's own tests."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self.temporary = handle.getValueState("temporary", "x INT")
        handle.deleteIfExists("temporary")


class UsesIt(DeclaresAndDeletes):
    """And used nevertheless."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.temporary.update((1,))
        return iter([])


class OtherKey(Wide):
    """Its map has another key: that is no column that may go."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n BIGINT")
        self.seen = handle.getListState("seen", "v BIGINT")
        self.entries = handle.getMapState("entries", "other STRING", "n BIGINT")


def pipeline(processor: StatefulProcessor, sink: str) -> td.Pipeline:
    p = td.Pipeline()
    source = td.DataGen(lambda n: {"k": n % KEYS, "v": n}, SCHEMA, rows=ROWS, splits=1, batch_rows=20)
    grouped = p.read(source, uid="rows").group_by("k")
    grouped.transform_with_state(processor, RESULT, "Update", "None", uid="counts").write(CollectSink(sink), uid="out")
    return p


def last(sink: str) -> Counter[tuple[Any, ...]]:
    """The newest row of each key."""
    newest: dict[Any, tuple[Any, ...]] = {}
    for row in sorted(collected(sink).table().to_pylist(), key=lambda row: row["n"]):
        newest[row["k"]] = (row["n"], row["seen"], row["entries"])
    return Counter(newest.values())


EXPECTED = Counter({(ROWS // KEYS, ROWS // KEYS, 3): KEYS})


def snapshot_of(job: InProcessJob, kind: Any) -> str:
    run = job.submit()
    run.pump(6)
    answer = run.ask(ev.SnapshotRequest(kind, request_id="now"))
    assert answer is not None and answer.ok
    run.crash()
    return str(answer.data["path"])


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("heap", "heap", "checkpoint"),
        ("memory", "memory", "checkpoint"),
        ("rocksdb", "rocksdb", "checkpoint"),
        ("rocksdb", "heap", "savepoint"),
        ("heap", "rocksdb", "savepoint"),
        ("rocksdb", "rocksdb", "savepoint"),
    ],
)
def test_a_column_that_a_state_does_not_declare_any_more_is_dropped(
    before: str, after: str, kind: str, parallelism: int, sink: str, tmp_path: Path
) -> None:
    """S5.5: of value, list and map states; what else they hold stays."""
    current: list[StatefulProcessor] = [Wide()]
    options = {"parallelism": 2, "state_backend": before}
    job = InProcessJob(lambda: pipeline(current[0], sink), options, scratch=str(tmp_path / "before"))
    path = snapshot_of(job, kind)
    current[0] = Narrow()
    job.options, job.scratch = {"parallelism": parallelism, "state_backend": after}, str(tmp_path / "after")
    where = RestoreFrom("savepoint", path=path) if kind == "savepoint" else RestoreFrom("latest")
    assert job.submit(where).to_end() == RunEnded(None, None, None, None)
    assert last(sink) == EXPECTED


def test_a_key_column_is_never_dropped(sink: str) -> None:
    current: list[StatefulProcessor] = [Wide()]
    job = InProcessJob(lambda: pipeline(current[0], sink), {"parallelism": 2})
    path = snapshot_of(job, "savepoint")
    current[0] = OtherKey()
    with pytest.raises(SnapshotError, match="'map:name' is no longer declared"):
        job.submit(RestoreFrom("savepoint", path=path))


def test_a_state_that_is_declared_and_deleted_is_not_kept(sink: str) -> None:
    """As Spark's own test class does it: the rest of the processor works, and the state is in no snapshot."""
    job = InProcessJob(lambda: pipeline(DeclaresAndDeletes(), sink), {"parallelism": 2})
    path = snapshot_of(job, "savepoint")
    assert job.submit(RestoreFrom("savepoint", path=path)).to_end() == RunEnded(None, None, None, None)
    assert last(sink) == EXPECTED
    assert "temporary" not in {state.name for state in SnapshotReader(f"{job.root}/{path}").states("counts")}


def test_whoever_uses_a_deleted_state_is_refused_by_its_name_and_line(sink: str) -> None:
    with pytest.raises(
        OperatorFailure, match="update of a state failed: deleteIfExists has deleted state 'temporary'"
    ) as failed:
        InProcessJob(lambda: pipeline(UsesIt(), sink), {"parallelism": 2}).submit().to_end()
    assert __file__.rsplit("/", 1)[-1] in str(failed.value)


class TextKeys(StatefulProcessor):
    """Hands texts where rows of one text column are meant."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.map = handle.getMapState("m", "name STRING", "n INT")
        self.value = handle.getValueState("v", "name STRING")
        self.list = handle.getListState("l", "name STRING")
        self.two = handle.getMapState("two", "a STRING, b STRING", "n INT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            self.map.updateValue("k", (1,))
            self.map.updateValue("key1", (2,))
            self.value.update("x")
            self.list.put(["y", "long"])
        assert self.map.getValue("key1") == Row(n=2) and self.map.containsKey(("k",))
        assert sorted(self.map.keys()) == [("k",), ("key1",)] and self.value.get() == ("x",)
        assert list(self.list.get()) == [("y",), ("long",)]
        self.map.removeKey("k")
        with pytest.raises(PipelineError, match="map key of state 'two'"):
            self.two.updateValue("ab", (1,))
        yield Row(k=key[0], n=1, seen=2, entries=len(list(self.map.keys())), gone=None)


def test_a_text_stands_for_a_row_of_one_text_column(sink: str) -> None:
    """PySpark takes one of a single character; of two columns it would make the row of its letters."""
    run = InProcessJob(lambda: pipeline(TextKeys(), sink), {"parallelism": 2}).submit()
    assert run.to_end() == RunEnded(None, None, None, None)
    assert last(sink) == Counter({(1, 2, 1): KEYS})
