"""`tidegate snapshot check`: the verdict that a restore would come to, beforehand (S5.5, S6.4, S7.5)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_caller import Answer, Caller
from deltalake import DeltaTable, write_deltalake

from tidegate.connectors.files.source.files import Files
from tidegate.coordinator import events as ev
from tidegate.coordinator.driver_job import DriverJob
from tidegate.coordinator.recovery.source_positions import check_positions
from tidegate.errors import SnapshotError, StoreError
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.preflight import graph_from, preflight_restore
from tidegate.jobs.records import RestoreFrom, decode
from tidegate.log_format import TextFormatter
from tidegate.testing.collect_sink import clear_collected
from tidegate.testing.in_process_job import InProcessJob

CODE = """
import pyarrow as pa
import tidegate as td
from tidegate.testing.collect_sink import CollectSink

NAMES = pa.schema([("k", pa.int64()), ("name", pa.string())])


def build(args):
    p = td.Pipeline()
    names = p.read(td.DataGen(lambda n: {"k": n, "name": n.astype(str)}, NAMES, rows=5), uid="names")
    rows = p.read(td.Files(args["files"]), uid="rows").with_watermark("ts", "0 s")
    joined = rows.join(names.broadcast(), on="k", uid="join")
    KEY
    grouped = joined.group_by("name").window(td.tumbling("1 h"))
    counted = grouped.agg(n=td.count(), total=td.sum("v"), größe=td.max("v"), uid="hourly")
    counted.write(CollectSink(args["sink"]), uid="out")
    return p
"""
_sinks = itertools.count()


@dataclass
class Case:
    """A savepoint of the job that `CODE` draws, and other versions of the code."""

    tidegate: Caller
    folder: Path
    job: InProcessJob
    path: str
    arguments: dict[str, Any]

    def pipeline(self, *changes: tuple[str, str]) -> str:
        """A file with the code and these replacements."""
        text = CODE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        file = self.folder / "changed_pipeline.py"
        file.write_text(text.replace("KEY", "pass"))
        return f"{file}:build"

    def check(self, pipeline: str, *flags: str) -> Answer:
        words = ("snapshot", "check", f"{self.job.root}/{self.path}", pipeline)
        return self.tidegate(*words, "--args-json", json.dumps(self.arguments), "--json", *flags, root=False)

    def submitted(self) -> tuple[DriverJob, Any]:
        """A driver's job that restores it, before its first run, and what it found for that."""
        run = self.job.submit(RestoreFrom("savepoint", path=self.path))
        run.crash()
        return run._job, run._job.find_restore()

    def restored(self, pipeline: str, **options: Any) -> None:
        """Restore it, in this process, with the code that was checked; raises what a job would fail with."""
        space: dict[str, Any] = {}
        exec(compile(Path(pipeline.partition(":")[0]).read_text(), "changed", "exec"), space)
        self.job.build = lambda: space["build"](self.arguments)
        self.job.options = options
        self.job.submit(RestoreFrom("savepoint", path=self.path)).to_end()


@pytest.fixture
def case(tidegate: Caller, tmp_path: Path) -> Iterator[Case]:
    files = tmp_path / "input"
    files.mkdir()
    for part in range(3):
        numbers = range(part * 100_000, part * 100_000 + 100_000)
        times = pa.array(numbers, pa.int64()).cast(pa.timestamp("ms"))
        table = pa.table({"k": [n % 5 for n in numbers], "v": pa.array(numbers, pa.int32()), "ts": times})
        pq.write_table(table, files / f"{part}.parquet")
    arguments = {"files": str(files), "sink": f"preflight-{next(_sinks)}"}
    space: dict[str, Any] = {}
    exec(compile(CODE.replace("KEY", "pass"), "original", "exec"), space)
    job = InProcessJob(lambda: space["build"](arguments), root=str(tmp_path / "root"))
    run = job.submit()
    run.pump(5)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok, answer
    run.crash()
    yield Case(tidegate, tmp_path, job, answer.data["path"], arguments)
    clear_collected(arguments["sink"])


def told(answer: Answer, verdict: str = "refused") -> list[tuple[str, str | None]]:
    return [(f["code"], f["uid"]) for f in answer.document["findings"] if f["verdict"] == verdict]


def test_the_pipeline_that_took_it_fits(case: Case) -> None:
    answer = case.check(case.pipeline())
    assert (answer.code, answer.document["fits"]) == (0, True), answer.out
    assert told(answer, "fits") == [("source", "rows")] and told(answer, "unknown") == []


def test_files_that_have_come_since_change_no_verdict(case: Case) -> None:
    """S5.5: the check builds the pipeline with the schema that the job found, as the restore does."""
    pq.write_table(pa.table({"k": ["x"], "v": ["y"], "ts": ["z"]}), case.folder / "input" / "0-first.parquet")
    answer = case.check(case.pipeline())
    assert (answer.code, answer.document["fits"]) == (0, True), answer.out
    case.restored(case.pipeline())


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ([('total=td.sum("v")', 'total=td.sum("v"), more=td.max("v")')], ("state", "hourly")),
        ([('total=td.sum("v"), ', "")], ("state", "hourly")),
        ([('td.tumbling("1 h")', 'td.tumbling("2 h")')], ("state", "hourly")),
        ([('group_by("name")', 'group_by("k")')], ("state", "hourly")),
        ([('uid="hourly"', 'uid="renamed"')], ("lost_operator", "hourly")),
        ([('("name", pa.string())', '("name", pa.string()), ("city", pa.string())')], None),
        ([("n=td.count()", "rows=td.count()"), ('uid="hourly"', 'uid="hourly", renamed={"n": "rows"}')], None),
        ([('("name", pa.string())', '("name", pa.large_string())')], ("state", "join")),
    ],
)
def test_the_verdict_is_that_of_the_restore(
    case: Case, changes: list[tuple[str, str]], refused: tuple[str, str] | None
) -> None:
    """S5.5: what is refused here is refused there, with the same words, and what fits runs to its end."""
    pipeline = case.pipeline(*[(old, new) for old, new in changes])
    if "city" in str(changes):
        pipeline = case.pipeline(*changes, ('"name": n.astype(str)}', '"name": n.astype(str), "city": n.astype(str)}'))
    answer = case.check(pipeline)
    if refused is None:
        assert answer.code == 0 and told(answer, "changes"), answer.out
        case.restored(pipeline)
        return
    assert answer.code == 10 and refused in told(answer), answer.out
    what = next(f["what"] for f in answer.document["findings"] if f["verdict"] == "refused")
    with pytest.raises(SnapshotError) as error:
        case.restored(pipeline)
    assert error.value.what == what


def test_a_wider_key_and_a_wider_value_fit_and_the_job_goes_on(case: Case) -> None:
    pipeline = case.pipeline(("KEY", 'joined = joined.with_columns(v=wide("v"))'))
    text = Path(pipeline.partition(":")[0]).read_text()
    wide = "\n\ndef wide(column):\n    import pyarrow.compute as pc\n    return pc.field(column).cast(pa.int64())\n"
    Path(pipeline.partition(":")[0]).write_text(text + wide)
    assert case.check(pipeline).code == 0
    case.restored(pipeline)


def test_numbers_of_the_job_are_compared(case: Case) -> None:
    answer = case.check(case.pipeline(), "--option", "max_parallelism=64")
    assert answer.code == 10 and told(answer) == [("max_parallelism", None)]
    answer = case.check(case.pipeline(), "--option", "parallelism=3")
    assert answer.code == 0 and told(answer, "changes") == [("parallelism", None)]


def test_state_may_be_dropped(case: Case) -> None:
    answer = case.check(case.pipeline(('uid="hourly"', 'uid="renamed"')), "--allow-non-restored-state")
    assert answer.code == 0 and ("lost_operator", "hourly") in told(answer, "changes")


@pytest.mark.parametrize("change", ["gone", "longer"])
def test_a_file_that_is_not_there_as_it_was_is_named(case: Case, change: str) -> None:
    file = Path(case.arguments["files"]) / "2.parquet"
    if change == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b"x")
    answer = case.check(case.pipeline())
    assert answer.code == 10 and told(answer) == [("source", "rows")], answer.out
    cause = answer.document["findings"][0]["cause"]
    assert "2.parquet" in cause and ("missing" if change == "gone" else "changed") in cause
    job, found = case.submitted()
    with pytest.raises(SnapshotError) as error:
        job.check_sources(*found)
    assert (error.value.what, error.value.cause) == (answer.document["findings"][0]["what"], cause)


def test_files_that_were_read_to_their_end_may_be_gone(case: Case) -> None:
    """S4.3: nothing is read of them any more."""
    (Path(case.arguments["files"]) / "0.parquet").unlink()
    job, (_, restore) = case.submitted()
    splits = restore.metadata.splits
    read = {"rows": [{**s, "finished": "0.parquet" in s["split_id"]} for s in splits["rows"]]}
    check_positions(job.graph, restore, read)
    with pytest.raises(SnapshotError) as error:
        check_positions(job.graph, restore, splits)
    assert "0.parquet" in error.value.cause


@pytest.mark.parametrize("error", [TimeoutError("slow"), StoreError("no answer"), RuntimeError("a client's own")])
def test_an_outage_is_no_refusal_of_the_restore(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """S9.1: the run finds out, and tries again."""
    job, found = case.submitted()

    def away(*_: object) -> None:
        raise error

    monkeypatch.setattr(Files, "unavailable_splits", away)
    job.check_sources(*found)
    (record,) = caplog.records
    assert record.message.startswith("the source's positions in the snapshot cannot be checked before the run")
    assert "operator=rows" in TextFormatter({}).format(record)


FOLLOWING = """
import tidegate as td
from tidegate.testing.collect_sink import CollectSink


def build(args):
    p = td.Pipeline()
    p.read(td.DeltaTable(args["table"], follow="1 s"), uid="rows").write(CollectSink(args["sink"]), uid="out")
    return p
"""


def test_input_that_was_not_discovered_yet_and_is_gone_is_named(tidegate: Caller, tmp_path: Path) -> None:
    """S4.3, S9.3: log entries after the snapshot are no splits of it, but the restored job would need them."""
    table = tmp_path / "table"
    append = lambda: write_deltalake(table, pa.table({"n": [1]}), mode="append")  # noqa: E731
    append()
    arguments = {"table": str(table), "sink": f"preflight-{next(_sinks)}"}
    file = tmp_path / "following.py"
    file.write_text(FOLLOWING)
    space: dict[str, Any] = {}
    exec(compile(FOLLOWING, "following", "exec"), space)
    job = InProcessJob(lambda: space["build"](arguments), root=str(tmp_path / "root"))
    run = job.submit()
    run.pump(5)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok, answer
    run.crash()

    def check() -> Answer:
        words = ("snapshot", "check", f"{job.root}/{answer.data['path']}", f"{file}:build")
        return tidegate(*words, "--args-json", json.dumps(arguments), "--json", root=False)

    assert check().code == 0
    append()
    append()
    DeltaTable(table).create_checkpoint()
    for version in range(2):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    refused = check()
    assert refused.code == 10 and told(refused) == [("source", "rows")], refused.out
    run = job.submit(RestoreFrom("savepoint", path=answer.data["path"]))
    run.crash()
    found = run._job.find_restore()
    assert found is not None
    with pytest.raises(SnapshotError) as error:
        run._job.check_sources(*found)
    assert error.value.cause == refused.document["findings"][0]["cause"] and "cleaned up" in error.value.cause
    clear_collected(arguments["sink"])


def test_the_check_is_for_new_submissions(case: Case) -> None:
    """S5.5: after a checkpoint of its own a submission's sources are for its runs to judge."""
    run = case.job.submit(RestoreFrom("savepoint", path=case.path))
    run.pump(5)
    assert run.ask(ev.SnapshotRequest("checkpoint", request_id="own")) is not None
    run.crash()
    (Path(case.arguments["files"]) / "2.parquet").unlink()
    found = run._job.find_restore()
    assert found is not None and found[0].location != case.path
    run._job.check_sources(*found)


def test_the_graph_can_be_written_for_a_preflight_without_the_runtime(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "graph.json"
    assert case.check(case.pipeline(), "--write-graph", str(out)).code == 0
    pinned = decode(out.read_bytes(), PinnedGraph)
    assert [o["uid"] for o in pinned.graph["operators"]][-2:] == ["hourly", "out"] and pinned.max_parallelism == 128


@pytest.mark.parametrize("changed", [(), ('uid="hourly"', 'uid="other"')])
def test_a_preflight_without_the_runtime_says_the_same(case: Case, tmp_path: Path, changed: tuple[str, ...]) -> None:
    """As Airflow's: from the graph's document and `_metadata`, but for the sources."""
    out = tmp_path / "graph.json"
    answer = case.check(case.pipeline(*([(changed[0], changed[1])] if changed else [])), "--write-graph", str(out))
    graph = graph_from(str(out), {})
    found = preflight_restore(JobClient(case.job.root, "job"), RestoreFrom("savepoint", path=case.path), graph)
    told = [f for f in answer.document["findings"] if f["code"] != "source"]
    assert found.verdict.to_json() == {"fits": answer.document["fits"], "findings": told}
    assert found.path == case.path and found.verdict.fits is not bool(changed)


def test_people_read_what_is_wrong_and_what_to_do(case: Case) -> None:
    words = ("snapshot", "check", f"{case.job.root}/{case.path}", case.pipeline(('uid="hourly"', 'uid="renamed"')))
    answer = case.tidegate(*words, "--args-json", json.dumps(case.arguments), root=False)
    assert answer.code == 10 and "does not fit" in answer.out.splitlines()[0]
    assert "refused: the pipeline has no operator for the state of 'hourly'" in answer.out
    assert "Give the operator the uid 'hourly' again" in answer.out
