"""S5.5: another class under the uid of a source, a sink or an operator; what it would read is another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidegate as td
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.restore.compatibility import RestoreTarget, SnapshotFacts, check_compatibility
from tidegate.plan.graph_document import graph_document
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.collect_sink import CollectSink
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64())])


@pytest.fixture
def files(tmp_path: Path) -> str:
    pq.write_table(
        pa.table({"k": list(range(100)), "t": list(range(100))}, schema=SCHEMA),
        tmp_path / "in.parquet",
        row_group_size=5,
    )
    return str(tmp_path / "in.parquet")


class MyFiles(td.Files):
    """One of a user's own, which reads on where `Files` was."""


class Renamed(td.DataGen):
    """Had another name."""

    former_names = ("Generated",)


class Generated(td.DataGen):
    """Its former name."""


def replay(files: str) -> td.Source:
    return td.Replay(files, time_column="t", batch_rows=10, splits=2)


def plain_files(files: str) -> td.Source:
    return td.Files(files)


def generated(files: str, cls: Any = td.DataGen) -> td.Source:
    source: td.Source = cls(lambda n: {"k": n, "t": n}, SCHEMA, rows=400, batch_rows=10)
    return source


def pipeline(source: td.Source, sink: Any) -> td.Pipeline:
    p = td.Pipeline()
    p.read(source, uid="rows").write(sink, uid="out")
    return p


def stopped(source: td.Source, sink: Any) -> tuple[InProcessJob, str]:
    """A job with a savepoint from its middle."""
    job = InProcessJob(lambda: pipeline(source, sink), {"parallelism": 2})
    run = job.submit()
    run.pump(0 if isinstance(source, td.Files) else 4)  # whose one batch would be all
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok
    run.crash()
    return job, str(answer.data["path"])


@pytest.mark.parametrize(("before", "now"), [(replay, plain_files), (plain_files, replay), (generated, plain_files)])
def test_another_source_class_is_refused_by_uid_and_both_names(before: Any, now: Any, files: str) -> None:
    """Before a reader is made; its positions are not the other's."""
    job, path = stopped(before(files), td.Discard())
    job.build = lambda: pipeline(now(files), td.Discard())
    was, is_now = type(before(files)).__name__, type(now(files)).__name__
    said = f"source 'rows' was a {was} in the snapshot, but is a {is_now} in the pipeline"
    with pytest.raises(SnapshotError, match=said) as refused:
        job.submit(RestoreFrom("savepoint", path=path))
    assert f"Use {was} again" in refused.value.remedy and "new uid" in refused.value.remedy


def test_a_derived_class_and_one_that_was_renamed_go_on(files: str) -> None:
    for before, now in (
        (td.Files(files), MyFiles(files)),
        (MyFiles(files), td.Files(files)),
        (generated(files, Generated), generated(files, Renamed)),
    ):
        job, path = stopped(before, td.Discard())
        job.build = lambda now=now: pipeline(now, td.Discard())  # type: ignore[misc]
        assert isinstance(job.submit(RestoreFrom("savepoint", path=path)).to_end(), RunEnded)


def test_another_sink_class_is_refused_by_uid_and_both_names(files: str, tmp_path: Path) -> None:
    """Its transactions wait for a commit that the other cannot do."""
    out = str(tmp_path / "out")
    job, path = stopped(generated(files), td.Parquet(out))
    for sink in (CollectSink("another-class"), td.Discard(), td.Csv(out)):
        job.build = lambda sink=sink: pipeline(generated(files), sink)  # type: ignore[misc]
        said = f"sink 'out' was a Parquet in the snapshot, but is a {type(sink).__name__}"
        with pytest.raises(SnapshotError, match=said) as refused:
            job.submit(RestoreFrom("savepoint", path=path))
        assert "Use Parquet again" in refused.value.remedy


def test_a_fork_may_write_elsewhere(files: str, tmp_path: Path) -> None:
    """S7.4: it commits none of its original's transactions. A preflight that does not know of it says so."""
    job, path = stopped(generated(files), td.Parquet(str(tmp_path / "out")))
    job.build, job.lineage = lambda: pipeline(generated(files), CollectSink("of-a-fork")), "lineage-of-a-fork"
    assert isinstance(job.submit(RestoreFrom("savepoint", path=path)).to_end(), RunEnded)


class Counts(td.KeyedProcess):
    """Has one state."""

    states = (td.value_state("seen", {"n": pa.int64()}),)

    def process(self, rows: td.KeyedRows, ctx: td.ProcessContext) -> None:
        column = pa.array([1] * rows.keys.size, pa.int64())
        ctx.value("seen").put(rows.keys, pa.record_batch([column], names=["n"]))


class Lists(td.KeyedProcess):
    """Has another kind of state by the same name."""

    states = (td.list_state("seen", {"n": pa.int64()}),)

    def process(self, rows: td.KeyedRows, ctx: td.ProcessContext) -> None:
        """Nothing."""


def keyed(what: str) -> td.Pipeline:
    p = td.Pipeline()
    rows = p.read(td.DataGen(lambda n: {"k": n % 9, "t": n}, SCHEMA, rows=400, batch_rows=10), uid="rows")
    grouped = rows.group_by("k")
    if what == "sums":
        stream = grouped.agg(n=td.count(), uid="op")
    else:
        stream = grouped.process({"counts": Counts, "lists": Lists}[what](), schema=SCHEMA, uid="op")
    stream.write(td.Discard(), uid="out")
    return p


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ("sums", "'op' was a process and is a"),
        ("lists", "'seen' of operator 'op' does not fit.*the state was value, now list"),
    ],
)
def test_another_kind_of_operator_or_state_is_refused_by_name(now: str, said: str) -> None:
    job = InProcessJob(lambda: keyed("counts"), {"parallelism": 2})
    run = job.submit()
    run.pump(4)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok
    run.crash()
    job.build = lambda: keyed(now)
    with pytest.raises(SnapshotError, match=said):
        job.submit(RestoreFrom("savepoint", path=str(answer.data["path"])))


def test_an_operator_that_does_not_tell_its_states_is_refused_by_both_kinds() -> None:
    """As from a pinned graph whose kinds alone are known."""

    def graph(kind: str) -> dict[str, Any]:
        told = {"uid": "op", "kind": kind, "stateful": True, "schema": "", "inputs": [], "exchanges": []}
        return {"version": 3, "operators": [{**told, "states": None}]}

    handle = {"path": "f", "size_bytes": 1, "sha256": "x", "kinds": ["keyed"]}
    subtasks = [{"index": 0, "finished": False, "handle": handle}]
    operators = [{"uid": "op", "status": "running", "subtasks": subtasks}]
    body = {"parallelism": 1, "max_parallelism": 128, "operators": operators, "graph": graph("window")}
    verdict = check_compatibility(SnapshotFacts.from_body(body), RestoreTarget(graph("process"), 1, 128))
    (finding,) = verdict.refused
    assert finding.code == "operator" and "'op' was a window in the snapshot, but is a process" in finding.what


def test_a_snapshot_that_does_not_name_classes_ends_in_an_error_that_says_so(
    files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version wrote it: the reader finds out, and names uid, class and split."""
    from tidegate.plan import graph_document as module

    monkeypatch.setattr(module, "_connector", lambda node: None)
    job, path = stopped(replay(files), td.Discard())
    assert graph_document(pipeline(replay(files), td.Discard()).build())["operators"][0]["connector"] is None
    job.build = lambda: pipeline(td.Files(files), td.Discard())
    run = job.submit(RestoreFrom("savepoint", path=path))
    with pytest.raises(OperatorFailure, match="'rows' subtask 0.*source 'rows' cannot continue from split") as refused:
        run.to_end()
    assert "another source class or version" in str(refused.value)
