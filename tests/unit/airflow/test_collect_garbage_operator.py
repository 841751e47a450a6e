"""Garbage collection as an Airflow task: `tidegate gc`, run by the connection's interpreter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_job import NOW, Job, ScriptedDriver

from airflow_tidegate.operators.collect_garbage import TidegateCollectGarbageOperator
from airflow_tidegate.version_compat import AirflowException, AirflowFailException

COLLECTED = [{"path": f"j1/checkpoints/chk-{n}-g1", "why": "unfinished", "size_bytes": 5} for n in (1, 2)]
ANSWER = {
    "job_id": "j1",
    "dry_run": False,
    "collected": COLLECTED,
    "freed_bytes": 10,
    "too_young": 1,
    "kept_back": None,
}


class Interpreter:
    """A stand-in for the connection's Python: notes the words it is called with and the root, gives an answer."""

    def __init__(self, job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._notes = folder / "notes"
        self._answer = folder / "answer.json"
        python = folder / "python"
        python.write_text(f'#!/bin/sh\necho "$TIDEGATE_ROOT $@" >> {self._notes}\ncat {self._answer}\n')
        python.chmod(0o755)
        extra = {"python": str(python)}
        connection = {"conn_type": "tidegate", "host": str(job.root), "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_TIDEGATE_DEFAULT", json.dumps(connection))
        self.says(ANSWER)

    def says(self, document: Any) -> None:
        self._answer.write_text(json.dumps(document))

    @property
    def calls(self) -> list[str]:
        return self._notes.read_text().splitlines()


@pytest.fixture
def interpreter(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interpreter:
    job.submit()
    return Interpreter(job, tmp_path, monkeypatch)


def collect(**changes: Any) -> TidegateCollectGarbageOperator:
    return TidegateCollectGarbageOperator(**{"task_id": "gc", "job_id": "j1", **changes})


def test_it_runs_the_verb_and_tells_what_it_freed(job: Job, interpreter: Interpreter) -> None:
    """S2.3."""
    found = collect().execute(job.context("gc"))
    assert found == {**ANSWER, "collected": 2, "in_sinks": 0, "in_sources": 0}
    assert interpreter.calls == [f"{job.root} -m tidegate.cli.main gc j1 --json --older-than 1 h"]


def test_what_is_given_goes_to_the_verb(job: Job, interpreter: Interpreter) -> None:
    collect(older_than="3 days", keep="2", dry_run="True").execute(job.context("gc"))
    collect(keep="None", dry_run="False", sinks="True", sources="True").execute(job.context("gc"))
    [first, second] = [call.partition("--json ")[2] for call in interpreter.calls]
    assert first == "--older-than 3 d --keep 2 --dry-run"
    assert second == "--older-than 1 h --sinks --sources"


def test_a_retry_goes_on_with_what_is_left(job: Job, interpreter: Interpreter) -> None:
    collect().execute(job.context("gc"))
    interpreter.says({**ANSWER, "collected": [], "freed_bytes": 0})
    assert collect().execute(job.context("gc"))["freed_bytes"] == 0


def test_a_refusal_is_told_in_the_verbs_words(job: Job, interpreter: Interpreter) -> None:
    told = {"code": "store", "what": "the store refuses", "where": "s3://x", "cause": "no rights", "remedy": "Ask"}
    interpreter.says({"error": told})
    with pytest.raises(AirflowException, match=r"the store refuses \[s3://x\]: no rights. Ask"):
        collect().execute(job.context("gc"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"keep": 0}, "argument keep"), ({"older_than": 3600}, "argument older_than"), ({"dry_run": "yes"}, "dry_run")],
)
def test_a_wrong_argument_is_refused_before_anything_runs(
    job: Job, interpreter: Interpreter, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(AirflowFailException, match=words):
        collect(**changes).execute(job.context("gc"))
    with pytest.raises(FileNotFoundError):
        assert interpreter.calls


def test_a_real_process_finds_what_an_unfinished_checkpoint_left(job: Job) -> None:
    """S2.3: with this interpreter; nothing is old enough to go, but for a grace of nothing."""
    job.submit()
    driver = ScriptedDriver(job.client)
    path = job.client.layout.checkpoint(1, 1)
    driver.generation_log.append("claim", {"checkpoint_id": 1, "kind": "checkpoint", "path": path, "triggered_at": NOW})
    driver.status("FAILED", reason="x")
    job.client.store.create(f"{path}/op.state", b"five!")
    assert collect(dry_run=True).execute(job.context("gc"))["too_young"] == 1
    found = collect(older_than="0 s").execute(job.context("gc"))
    assert (found["collected"], found["freed_bytes"], found["kept_back"]) == (1, 5, None)
    assert not job.client.store.exists(f"{path}/op.state")
