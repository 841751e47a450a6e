"""S5.5: a state that a process does not declare any more is refused, or dropped where that is allowed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate as td
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
ONE, OTHER = td.value_state("last", {"n": pa.int64()}), td.value_state("other", {"n": pa.int64()})


class Remembers(td.KeyedProcess):
    """Writes the newest number of each key into all its states."""

    def __init__(self, *states: Any) -> None:
        self.states = states

    def process(self, rows: td.KeyedRows, ctx: td.ProcessContext) -> None:
        newest = dict(zip(rows.owners.tolist(), rows.batch["n"].to_pylist(), strict=True))
        column = pa.array([newest[i] for i in range(rows.keys.size)])
        for state in self.states:
            columns = [column, *(pa.nulls(len(column), type_) for type_ in state.columns.types[1:])]
            ctx.value(state.name).put(rows.keys, pa.record_batch(columns, schema=state.columns))


def pipeline(*states: Any) -> td.Pipeline:
    p = td.Pipeline()
    rows = p.read(td.DataGen(lambda n: {"k": n % 9, "n": n}, SCHEMA, rows=900, batch_rows=30), uid="rows")
    process = Remembers(*states)
    rows.group_by("k").process(process, schema=SCHEMA, uid="remembers").write(td.Discard(), uid="out")
    return p


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_state_that_is_gone_is_dropped_only_with_its_word(parallelism: int) -> None:
    job = InProcessJob(lambda: pipeline(ONE, OTHER), {"parallelism": 2})
    run = job.submit()
    run.pump(6)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok
    run.crash()
    path = str(answer.data["path"])
    job.build, job.options = lambda: pipeline(ONE), {"parallelism": parallelism}
    with pytest.raises(SnapshotError, match="'remembers' does not declare state 'other'.*allow_non_restored_state"):
        job.submit(RestoreFrom("savepoint", path=path))
    run = job.submit(RestoreFrom("savepoint", path=path, allow_non_restored_state=True))
    assert isinstance(run.to_end(), RunEnded)


def test_a_state_that_is_new_begins_empty() -> None:
    job = InProcessJob(lambda: pipeline(ONE), {"parallelism": 1})
    run = job.submit()
    run.pump(6)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok
    run.crash()
    job.build = lambda: pipeline(ONE, OTHER)
    assert isinstance(job.submit(RestoreFrom("savepoint", path=str(answer.data["path"]))).to_end(), RunEnded)


def test_what_a_checkpoint_in_files_of_rocksdb_cannot_become_the_driver_refuses(tmp_path: Path) -> None:
    """S5.2, S5.5: before any slot is deployed; a savepoint of the same moment is rows, and becomes all of it."""
    job = InProcessJob(lambda: pipeline(ONE, OTHER), {"state_backend": "rocksdb"}, scratch=str(tmp_path))
    run = job.submit()
    run.pump(6)
    paths = {}
    for kind in ("checkpoint", "savepoint"):
        answer = run.ask(ev.SnapshotRequest(kind, request_id=kind))
        assert answer is not None and answer.ok
        paths[kind] = str(answer.data["path"])
    run.crash()
    fewer = RestoreFrom("savepoint", path=paths["savepoint"], allow_non_restored_state=True)
    for states, back_end, told in (
        ((ONE, OTHER), "heap", "has its state in files of rocksdb, which 'heap' cannot read.*take a savepoint"),
        ((ONE,), "rocksdb", "state 'other', which is in the snapshot .*in files of rocksdb. Take a savepoint"),
    ):
        job.build, job.options = lambda states=states: pipeline(*states), {"state_backend": back_end}
        with pytest.raises(SnapshotError, match=told):
            job.submit(replace(fewer, kind="checkpoint", path=paths["checkpoint"]))
    assert isinstance(job.submit(fewer).to_end(), RunEnded)


def test_a_checkpoint_in_files_of_rocksdb_is_gone_on_from_with_columns_that_have_grown(tmp_path: Path) -> None:
    """S5.5: the preflight lets it pass, and the restore reads the files as rows."""
    job = InProcessJob(lambda: pipeline(ONE, OTHER), {"state_backend": "rocksdb"}, scratch=str(tmp_path))
    run = job.submit()
    run.pump(6)
    answer = run.ask(ev.SnapshotRequest("checkpoint", request_id="now"))
    assert answer is not None and answer.ok
    run.crash()
    grown = td.value_state("other", {"number": pa.int64(), "text": pa.string()}, renamed={"n": "number"})
    job.build = lambda: pipeline(ONE, grown)
    assert isinstance(job.submit(RestoreFrom("checkpoint", path=str(answer.data["path"]))).to_end(), RunEnded)
