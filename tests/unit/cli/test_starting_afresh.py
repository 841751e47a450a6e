"""`tidegate start` under the id of a job that is over, and relative paths on the command line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_caller import Caller

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import RelativePaths

WRITING = """
import pyarrow as pa
import tidegate

def build(args):
    p = tidegate.Pipeline()
    rows = p.read(tidegate.DataGen(lambda n: {"k": n}, pa.schema([("k", pa.int64())]), rows=10), uid="rows")
    rows.write(tidegate.Parquet(args["out"], if_exists=args.get("if_exists", "error")), uid="out")
    return p
"""


@pytest.fixture
def writing(tmp_path: Path) -> str:
    (tmp_path / "writing.py").write_text(WRITING)
    return f"{tmp_path}/writing.py:build"


def test_a_second_start_is_refused_with_the_choices(tidegate: Caller, pipeline: str) -> None:
    driver = tidegate.submitted()
    driver.status("RUNNING")
    driver.status("FINISHED")
    answer = tidegate("start", pipeline, "--job-id", "flights", "--detach")
    assert answer.code == 4 and "job 'flights' exists, and is FINISHED" in answer.err
    assert "tidegate restore" in answer.err and "another job id" in answer.err and "--fresh" in answer.err
    assert not tidegate.launched


def test_a_second_fork_is_refused_with_the_choices(tidegate: Caller) -> None:
    """S9.3: the same submission is no second one."""
    tidegate.submitted().complete(4, "savepoint")
    words = ("fork", "flights", "--job-id", "backfill", "--from", "4", "--arg", "n=2", "--detach")
    assert tidegate(*words, "--submission-id", "s1").code == 0
    assert tidegate.driver is not None and tidegate.driver.spec.job_id == "backfill"
    tidegate.driver.status("RUNNING")
    tidegate.driver.status("FINISHED")
    refused = tidegate(*words, "--pipeline", "no_such_file.py:build")
    assert refused.code == 4 and " exists, and is FINISHED" in refused.err
    for choice in ("tidegate restore", "another job id", "fork with --fresh"):
        assert choice in refused.err
    assert len(tidegate.launched) == 1
    assert tidegate(*words, "--submission-id", "s1").code == 0
    assert len(JobClient(tidegate.root, "backfill").specs()) == 1
    tidegate.driver.status("FINISHED")
    assert tidegate(*words, "--fresh").code == 0
    assert len(JobClient(tidegate.root, "backfill").specs()) == 2


def test_a_fresh_start_says_what_it_does_to_the_output(tidegate: Caller, writing: str, tmp_path: Path) -> None:
    driver = tidegate.submitted()
    driver.status("RUNNING")
    driver.status("FINISHED")
    (tmp_path / "out").mkdir()
    pq.write_table(pa.table({"k": [1]}), tmp_path / "out" / "old.parquet")
    words = ("start", writing, "--job-id", "flights", "--detach", "--fresh", "--arg", f"out={tmp_path}/out")
    answer = tidegate(*words)
    assert answer.code == 3 and "already holds files" in answer.err and "old.parquet" in answer.err
    assert not tidegate.launched, "a refused start leaves nothing behind"
    answer = tidegate(*words, "--arg", "if_exists=overwrite")
    assert answer.code == 0, answer.err
    told = f"sink 'out': Parquet('{tmp_path}/out') removes the files that are there with the first commit"
    assert told in answer.err
    assert (tmp_path / "out" / "old.parquet").exists(), "nothing is removed before the first commit"


def test_a_first_start_is_checked_for_existing_files_too(tidegate: Caller, writing: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    pq.write_table(pa.table({"k": [1]}), tmp_path / "out" / "old.parquet")
    answer = tidegate("start", writing, "--job-id", "flights", "--detach", "--arg", f"out={tmp_path}/out")
    assert answer.code == 3 and "already holds files" in answer.err


def test_a_start_records_the_folder_of_its_relative_paths(
    tidegate: Caller, writing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = tidegate("start", writing, "--job-id", "flights", "--detach", "--arg", "out=below")
    assert answer.code == 0, answer.err
    assert tidegate.launched[0].relative_paths == RelativePaths(str(tmp_path))
