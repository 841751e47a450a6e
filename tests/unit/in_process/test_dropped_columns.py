"""A KeyedProcess whose states declare fewer columns than a snapshot holds (S5.5). Whole jobs in one thread."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as td
from tidegate import KeyedProcess, KeyedRows, ProcessContext, list_state, map_state, reducing_state, value_state
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS, KEYS = 400, 5
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
RESULT = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("seen", pa.int64()), ("entries", pa.int64())])
NOTE = {"note": pa.string()}
N, V = {"n": pa.int64()}, {"v": pa.int64()}


class Counting(KeyedProcess):
    """Counts rows in every kind of state; the columns named `note` are of no use later."""

    map_key = "r"

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        keys, owners = rows.keys, rows.owners
        held = ctx.value("count").get(keys)
        before = np.where(held.present, held.columns["n"].fill_null(0).to_numpy(), 0)
        ctx.value("count").put(keys, self.columns("count", before + np.bincount(owners, minlength=keys.size)))
        ctx.list("seen").append(keys, owners, self.columns("seen", rows.batch["v"]))
        pairs = np.unique(np.stack([owners, rows.batch["v"].to_numpy() % 3]), axis=1)
        remainders = pa.record_batch([pa.array(pairs[1])], names=[self.map_key])
        ctx.map("entries").put(keys, pairs[0].astype(np.int32), remainders, self.columns("entries", pairs[1]))
        sums = pa.record_batch([rows.batch["v"]] * len(self.sums), names=list(self.sums))
        ctx.merging("sums").add(keys, owners, sums)

    def columns(self, state: str, numbers: object) -> pa.RecordBatch:
        (declared,) = [one for one in self.states if one.name == state]
        array = pa.array(numbers)
        notes = pa.array(["noted"] * len(array), pa.string())
        names = declared.columns.names
        return pa.record_batch([notes if name == "note" else array for name in names], names=names)

    @property
    def sums(self) -> list[str]:
        return list(next(one for one in self.states if one.name == "sums").columns.names)

    def finish(self, ctx: ProcessContext) -> Iterable[pa.RecordBatch]:
        for keys in ctx.all_keys("count"):
            seen, entries = ctx.list("seen").get(keys), ctx.map("entries").entries(keys)
            n = ctx.value("count").get(keys).columns["n"]
            total = ctx.merging("sums").get(keys).columns["total"]
            totals = np.add.reduceat(seen.columns["v"].to_numpy(), seen.offsets[:-1])
            assert totals.tolist() == total.to_pylist()
            yield pa.record_batch(
                [keys.columns()["k"], n, pa.array(np.diff(seen.offsets)), pa.array(np.diff(entries.offsets))],
                schema=RESULT,
            )


class Wide(Counting):
    states = (
        value_state("count", {**N, **NOTE}),
        list_state("seen", {**NOTE, **V}),
        map_state("entries", {"r": pa.int64()}, {**N, **NOTE}),
        reducing_state("sums", {"total": "sum"}),
    )


class Narrow(Counting):
    states = (
        value_state("count", N),
        list_state("seen", V),
        map_state("entries", {"r": pa.int64()}, N),
        reducing_state("sums", {"total": "sum"}),
    )


class OtherSums(Narrow):
    states = (*Narrow.states[:3], reducing_state("sums", {"total": "sum", "least": "min"}))


class OtherMapKey(Narrow):
    map_key = "other"
    states = (*Narrow.states[:2], map_state("entries", {"other": pa.int64()}, N), Narrow.states[3])


def pipeline(process: KeyedProcess, sink: str) -> td.Pipeline:
    p = td.Pipeline()
    source = td.DataGen(lambda n: {"k": n % KEYS, "v": n}, SCHEMA, rows=ROWS, splits=2, batch_rows=8, rate=2_000)
    grouped = p.read(source, uid="rows").group_by("k")
    grouped.process(process, schema=RESULT, uid="counts").write(CollectSink(sink), uid="out")
    return p


def snapshot_of(job: InProcessJob, kind: Any) -> str:
    run = job.submit()
    run.pump(6)
    answer = run.ask(ev.SnapshotRequest(kind, request_id="now"))
    assert answer is not None and answer.ok
    run.crash()
    return str(answer.data["path"])


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("heap", "heap", "checkpoint"),
        ("memory", "memory", "checkpoint"),
        ("rocksdb", "rocksdb", "checkpoint"),
        ("rocksdb", "heap", "savepoint"),
        ("heap", "rocksdb", "savepoint"),
    ],
)
def test_a_column_that_a_keyed_process_does_not_declare_any_more_is_dropped(
    before: str, after: str, kind: Any, parallelism: int, sink: str, tmp_path: Path
) -> None:
    """S5.5: of value, list and map states, as of those of a StatefulProcessor; what else they hold stays."""
    current: list[KeyedProcess] = [Wide()]
    options = {"parallelism": 2, "state_backend": before}
    job = InProcessJob(lambda: pipeline(current[0], sink), options, scratch=str(tmp_path / "before"))
    path = snapshot_of(job, kind)
    current[0] = Narrow()
    job.options, job.scratch = {"parallelism": parallelism, "state_backend": after}, str(tmp_path / "after")
    where = RestoreFrom("savepoint", path=path) if kind == "savepoint" else RestoreFrom("latest")
    assert job.submit(where).to_end() == RunEnded(None, None, None, None)
    assert sorted(collected(sink).rows()) == [(k, ROWS // KEYS, ROWS // KEYS, 3) for k in range(KEYS)]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (Wide, OtherMapKey, "'map:r' is no longer declared"),
        (OtherSums, Narrow, "the state was reducing by sum, min, now reducing by sum"),
    ],
)
def test_a_column_of_a_map_key_and_one_that_is_reduced_are_never_dropped(
    before: type[KeyedProcess], after: type[KeyedProcess], why: str, sink: str
) -> None:
    """S5.5."""
    current: list[KeyedProcess] = [before()]
    job = InProcessJob(lambda: pipeline(current[0], sink), {"parallelism": 2})
    path = snapshot_of(job, "savepoint")
    current[0] = after()
    with pytest.raises(SnapshotError, match=why):
        job.submit(RestoreFrom("savepoint", path=path))
