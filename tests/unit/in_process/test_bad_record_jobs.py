"""Bad records in whole jobs: counted once and emitted once, through crashes, restores and in batch."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Literal

import pytest

from tidegate.api.aggregates import count
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.files.source import text_records
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.interface import Source
from tidegate.connectors.replay import Replay
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import PipelineError
from tidegate.jobs.records import RestoreFrom
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.testing.batch import InProcessBatch
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS, EVERY = 400, 7
BAD = [n for n in range(ROWS) if n % EVERY == 0]
GOOD = [n for n in range(ROWS) if n % EVERY]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files; small blocks, so that there are many positions."""
    monkeypatch.setattr(text_records.text_chunks, "__kwdefaults__", {"block_bytes": 200})
    monkeypatch.setattr(text_records, "ISOLATED_RECORDS", 2)
    lines = [f"bad {n}" if n % EVERY == 0 else json.dumps({"n": n}) for n in range(ROWS)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines[: ROWS // 2]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join(lines[ROWS // 2 :]))
    return tmp_path


def column(sink: str, name: str) -> list[Any]:
    table = collected(sink).table()
    return sorted(table[name].to_pylist()) if table.num_rows else []


def files(folder: Path, then: Literal["fail", "skip", "dead_letter"]) -> Source:
    return Files(folder, on_bad_record=then)


def replay(folder: Path, then: Literal["fail", "skip", "dead_letter"]) -> Source:
    return Replay(folder, time_column="n", at_end="end", batch_rows=16, on_bad_record=then)


def drawn(source: Source, sink: str, *, letters: bool) -> Pipeline:
    p = Pipeline()
    numbers = p.read(source, uid="numbers")
    numbers.write(CollectSink(f"{sink}-main"), uid="out")
    if letters:
        numbers.side_output("bad_records").write(CollectSink(f"{sink}-side"), uid="letters")
    return p


@pytest.mark.parametrize("make", [files, replay])
@pytest.mark.parametrize("then", ["skip", "dead_letter"])
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_any_moment_counts_and_emits_each_bad_record_once(
    folder: Path, sink: str, make: Any, then: Any, seed: int
) -> None:
    """S4.1, S4.2: the count is part of the position. A record that is skipped again after a crash counts once."""
    rng = random.Random(seed)
    letters = then == "dead_letter"
    options = {"parallelism": 2, "checkpoint_interval": "1 s"}
    job = InProcessJob(lambda: drawn(make(folder, then), sink, letters=letters), options)
    run = job.submit()
    for crash in range(4):
        for _ in range(rng.randint(1, 40)):
            run.pump()
            if rng.random() < 0.3:
                run.tick(rng.randint(1, 700))
        if run.outcome is not None:
            break
        if crash == 2 and any(decision.kind == "complete" for decision in job.log.read()):
            run.crash()
            job.options = {**job.options, "parallelism": 3}
            run = job.submit(RestoreFrom("latest"))
        else:
            run.crash()
            run = job.relaunch() if rng.random() < 0.5 else job.rerun()
    assert isinstance(run.to_end(), RunEnded)
    assert column(f"{sink}-main", "n") == GOOD
    assert run.counters()["numbers"] == {"bad_records": len(BAD)}
    if letters:
        assert column(f"{sink}-side", "raw") == sorted(f"bad {n}".encode() for n in BAD)


def test_a_savepoint_holds_the_count(folder: Path, sink: str) -> None:
    job = InProcessJob(lambda: drawn(files(folder, "skip"), sink, letters=False))
    run = job.submit()
    run.until(lambda: run.counters().get("numbers", {}).get("bad_records", 0) >= 10)
    before = run.counters()["numbers"]["bad_records"]
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    restored = job.submit(RestoreFrom("latest"))
    assert before <= restored.counters()["numbers"]["bad_records"] <= len(BAD)
    restored.to_end()
    assert restored.counters()["numbers"] == {"bad_records": len(BAD)}


@pytest.mark.parametrize("make", [files, replay])
def test_batch_gives_the_same_records_dead_letters_and_count(folder: Path, sink: str, make: Any) -> None:
    batch = InProcessBatch(lambda: drawn(make(folder, "dead_letter"), sink, letters=True), {"parallelism": 2})
    batch.run()
    batch.commit()
    assert column(f"{sink}-main", "n") == GOOD
    assert column(f"{sink}-side", "raw") == sorted(f"bad {n}".encode() for n in BAD)
    assert batch.counters["numbers"] == {"bad_records": len(BAD)}


def test_batch_counts_what_a_stage_without_a_sink_has_skipped(folder: Path, sink: str) -> None:
    def build() -> Pipeline:
        p = Pipeline()
        p.read(files(folder, "skip"), uid="numbers").group_by("n").agg(c=count(), uid="counts").write(
            CollectSink(f"{sink}-main"), uid="out"
        )
        return p

    batch = InProcessBatch(build, {"parallelism": 2, "allow_mode_dependent": True})
    batch.run()
    batch.commit()
    assert column(f"{sink}-main", "n") == GOOD
    assert batch.counters["numbers"] == {"bad_records": len(BAD)}


def test_dead_letters_that_nobody_reads_are_refused_when_the_pipeline_is_built(folder: Path, sink: str) -> None:
    with pytest.raises(
        PipelineError, match=r"no operator or sink reads the side output 'bad_records'.*source 'numbers'"
    ):
        drawn(files(folder, "dead_letter"), sink, letters=False).build()
    with pytest.raises(PipelineError, match=r"no side output 'bad_records'"):
        drawn(files(folder, "skip"), sink, letters=True)
    assert drawn(files(folder, "dead_letter"), sink, letters=True).build().nodes[0].output_schema(MAIN_OUTPUT).names
