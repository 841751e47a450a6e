"""`tidegate start --option execution_mode=batch`: what batch does not run is told before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_caller import Caller

from tidegate.jobs.client.job_directory import list_jobs

CODE = """
import pyarrow as pa
import tidegate

SCHEMA = pa.schema([("k", pa.int64())])


def build(args):
    p = tidegate.Pipeline()
    rows = p.read(tidegate.DataGen(lambda n: {"k": n}, SCHEMA, rows=int(args.get("rows", 0)) or None), uid="rows")
    if args.get("clock"):
        rows = rows.group_by("k").window(tidegate.tumbling("1 s", time="processing")).agg(n=tidegate.count(), uid="n")
    sink = tidegate.SparkWriter(format="orc", path=args["out"]) if args.get("orc") else tidegate.Parquet(args["out"])
    rows.write(sink, uid="out")
    return p
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Of a job in batch that could be started."""
    file = tmp_path / "flow.py"
    file.write_text(CODE)
    return ["start", f"{file}:build", "--detach", "--arg", f"out={tmp_path}/out"]


BATCH = ("--job-id", "j", "--option", "execution_mode=batch")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "source 'rows' at "),
        (["--arg", "rows=10", "--arg", "clock=true"], "its windows are over processing time"),
        (
            ["--arg", "rows=10", "--arg", "orc=true", "--option", "commit=on_request"],
            "sinks that Spark writes cannot wait for approval",
        ),
    ],
)
def test_what_batch_does_not_run_is_refused_by_name(
    tidegate: Caller, words: list[str], more: list[str], said: str
) -> None:
    """S8.1, S8.2."""
    answer = tidegate(*words, *BATCH, *more)
    assert (answer.code, answer.out) == (3, "")
    assert said in answer.err and "flow.py:" in answer.err
    assert not tidegate.launched and list_jobs(tidegate.root) == []


def test_options_of_checkpoints_are_passed_over_and_sinks_of_batch_taken(tidegate: Caller, words: list[str]) -> None:
    assert tidegate(*words, *BATCH, "--arg", "rows=10", "--option", "checkpoint_mode=off").code == 0
    assert tidegate(*words, *BATCH[2:], "--job-id", "other", "--arg", "rows=10", "--arg", "orc=true").code == 0
    assert len(tidegate.launched) == 2


def test_a_sink_of_batch_is_refused_in_streaming(tidegate: Caller, words: list[str]) -> None:
    answer = tidegate(*words, "--job-id", "j", "--arg", "rows=10", "--arg", "orc=true")
    assert answer.code == 3 and "sinks that Spark writes work in batch mode only" in answer.err
