"""Counts of sources that had ended before a snapshot are part of it (S4.2, S6.2)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.files.source import text_records
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.replay import Replay
from tidegate.coordinator import events as ev
from tidegate.jobs.records import RestoreFrom
from tidegate.subtask.subtask import Subtask
from tidegate.testing.collect_sink import CollectSink, clear_collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

_sinks = itertools.count()


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"ended-counts-{next(_sinks)}"
    yield name
    for end in ("files", "played"):
        clear_collected(f"{name}-{end}")


def job_of(folder: Path, sink: str, parallelism: int = 1) -> InProcessJob:
    """A source that ends, with bad records, beside one that does not."""
    (folder / "ends").mkdir()
    (folder / "ends" / "a.jsonl").write_text('{"n": 1}\nbad\n{"n": 2}\nbad\n')
    (folder / "ends" / "b.jsonl").write_text('{"n": 3, "new": 1}\nbad\n')
    (folder / "plays.csv").write_text("t\n1\n2\n")

    def build() -> Pipeline:
        p = Pipeline()
        p.read(Files(folder / "ends", on_bad_record="skip"), uid="ends").write(
            CollectSink(f"{sink}-files"), uid="files"
        )
        p.read(Replay(folder / "plays.csv", time_column="t", at_end="idle"), uid="plays").write(
            CollectSink(f"{sink}-played"), uid="played"
        )
        return p

    return InProcessJob(build, {"parallelism": parallelism})


def ended(run: InProcessRun) -> list[Subtask]:
    """Subtasks of the source that are over."""
    sources = [s for s in run._subtasks if s.source_input is not None and s.source_input.uid == "ends"]
    return [s for s in sources if s.is_finished]


def snapshot(run: InProcessRun, kind: str, number: int) -> ev.CommandAnswer:
    run.pump(2)
    answer = run.ask(ev.SnapshotRequest(kind, request_id=f"{kind}-{number}"))  # type: ignore[arg-type]
    assert answer is not None and answer.ok, answer
    return answer


COUNTED = {"bad_records": 3, "new_fields": 1}


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_counts_of_a_source_that_had_ended_are_shown_after_every_restore(
    tmp_path: Path, sink: str, kind: str, parallelism: int
) -> None:
    """In the snapshot with which it ends, in those after that, and in those of runs that were restored from them."""
    job = job_of(tmp_path, sink, parallelism)
    run = job.submit()
    for restart in range(3):
        run.until(lambda run=run: run.counters().get("ends") == COUNTED)  # type: ignore[misc]
        for number in range(3):
            answer = snapshot(run, kind, 10 * restart + number)
            assert run.counters()["ends"] == COUNTED
            run.pump(10)
        assert kind == "savepoint" or len(ended(run)) == job.options["parallelism"]
        run.crash()
        job.options = {"parallelism": 3 - parallelism if restart else parallelism}
        run = job.submit(RestoreFrom("savepoint", path=answer.data["path"]))
        assert run.counters()["ends"] == COUNTED


def test_counts_of_a_subtask_that_had_ended_before_the_others_are_not_lost(
    tmp_path: Path, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part of the source is in no snapshot then; at another parallelism the positions of the others move."""
    monkeypatch.setattr(text_records.text_chunks, "__kwdefaults__", {"block_bytes": 200})
    job = job_of(tmp_path, sink, 2)
    (tmp_path / "ends" / "b.jsonl").write_text(("\n".join(['{"n": 4, "new": 1}'] * 9 + ["bad"]) + "\n") * 100)
    run = job.submit()
    for number in range(20):
        path = snapshot(run, "checkpoint", number).data["path"]
        if len(ended(run)) == 1:
            break
    path = snapshot(run, "checkpoint", 1000).data["path"]
    assert len(ended(run)) == 1 and run.counters()["ends"]["bad_records"] < 102
    run.crash()
    for parallelism in (2, 1, 3):
        job.options = {"parallelism": parallelism}
        run = job.submit(RestoreFrom("savepoint", path=path))
        run.until(lambda run=run: len(ended(run)) == job.options["parallelism"] or not run.pump())  # type: ignore[misc]
        assert run.counters()["ends"] == {"bad_records": 102, "new_fields": 1}
        run.crash()
