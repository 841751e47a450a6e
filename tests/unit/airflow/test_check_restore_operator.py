"""Whether a pipeline fits a snapshot, asked by an Airflow task: from the pinned graph and `_metadata` alone."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_job import NOW, Job, ScriptedDriver

from airflow_tidegate.operators.check_restore import TidegateCheckRestoreOperator
from airflow_tidegate.version_compat import AirflowException, AirflowFailException
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph, write_pinned_graph
from tidegate.jobs.client import preflight
from tidegate.jobs.codec import canonical, encode, to_document
from tidegate.snapshot.metadata import METADATA_VERSION

STATE = {"name": "windows", "kind": "keyed", "form": "", "renamed": {}, "fills": True}
WINDOWS = {**STATE, "columns": [["key:k", "int64", True], ["count:n", "int64", True]]}


def graph(*states: Any, uid: str = "daily") -> dict[str, Any]:
    source = {
        "uid": "in",
        "kind": "source",
        "stateful": False,
        "schema": "",
        "inputs": [],
        "exchanges": [],
        "states": [],
    }
    window = {"uid": uid, "kind": "window", "stateful": True, "inputs": ["in"], "exchanges": ["hash"]}
    return {"version": 2, "operators": [source, {**window, "states": list(states)}]}


def snapshot(job: Job, driver: ScriptedDriver, number: int, **more: Any) -> str:
    """A completed checkpoint that is whole; its path."""
    driver.checkpoint(number)
    path = job.client.layout.checkpoint(number, driver.generation_log.generation)
    handle = {"inline": "", "size_bytes": 0, "sha256": "", "kinds": ["keyed"]}
    subtasks = [{"index": 0, "finished": False, "handle": handle}]
    body = {
        "job_id": "j1",
        "lineage": job.client.specs()[-1].lineage,
        "parallelism": 1,
        "max_parallelism": 128,
        "graph": graph(WINDOWS),
        "operators": [{"uid": uid, "status": "running", "subtasks": subtasks} for uid in ("in", "daily")],
        "drained_operators": [],
        **more,
    }
    sha256 = hashlib.sha256(canonical(body).rstrip(b"\n")).hexdigest()
    document = {"record": "snapshot", "v": 2, "sha256": sha256, "body": body}
    job.client.store.replace(job.client.layout.metadata(path), json.dumps(document).encode())
    return path


@pytest.fixture
def driver(job: Job) -> ScriptedDriver:
    job.submit()
    made = ScriptedDriver(job.client)
    made.status("RUNNING")
    write_pinned_graph(job.client.store, job.client.layout, PinnedGraph(1, 1, 128, graph(WINDOWS), NOW))
    return made


def check(**changes: Any) -> TidegateCheckRestoreOperator:
    return TidegateCheckRestoreOperator(**{"task_id": "c", "job_id": "j1", **changes})


def pinned(document: Any) -> dict[str, Any]:
    return to_document(PinnedGraph(0, 1, 128, document, NOW))


def test_a_job_fits_its_own_latest_snapshot(job: Job, driver: ScriptedDriver) -> None:
    path = snapshot(job, driver, 1)
    assert check().execute(job.context()) == {"fits": True, "findings": [], "path": path, "spec": 1}


def test_a_snapshot_is_named_as_for_a_restore(job: Job, driver: ScriptedDriver) -> None:
    first, second = snapshot(job, driver, 1), snapshot(job, driver, 2)
    for named, path in ((1, first), ("2", second), ({"path": first}, first), (f"{job.root}/{second}", second)):
        assert check(from_=named).execute(job.context())["path"] == path


def test_what_does_not_fit_fails_the_task_for_good_with_every_reason(job: Job, driver: ScriptedDriver) -> None:
    snapshot(job, driver, 1)
    changed = copy.deepcopy(graph(WINDOWS))
    changed["operators"][1]["states"][0]["columns"][0][1] = "string"
    with pytest.raises(AirflowFailException) as caught:
        check(graph={**pinned(changed), "max_parallelism": 64}).execute(job.context())
    for words in ("'key:k' was int64, now string", "Set max_parallelism=128", "checkpoints/chk-1-g1"):
        assert words in str(caught.value)


def test_the_verdict_can_be_returned_for_a_branch(job: Job, driver: ScriptedDriver) -> None:
    snapshot(job, driver, 1)
    found = check(graph=pinned(graph(WINDOWS, uid="renamed")), on_misfit="return").execute(job.context())
    assert found["fits"] is False and json.loads(json.dumps(found)) == found
    assert [(f["code"], f["verdict"], f["uid"]) for f in found["findings"]] == [
        ("lost_operator", "refused", "daily"),
        ("new_operator", "changes", "renamed"),
    ]


def test_what_is_allowed_is_no_reason(job: Job, driver: ScriptedDriver) -> None:
    snapshot(job, driver, 1, drained_operators=["daily"])
    with pytest.raises(AirflowFailException, match="taken by a drain"):
        check().execute(job.context())
    assert check(allow_drained="true").execute(job.context())["fits"]
    more = {"graph": pinned(graph(uid="renamed")), "allow_non_restored_state": "True", "allow_drained": True}
    assert check(**more, parallelism="4").execute(job.context())["fits"]


def test_a_graph_may_lie_in_a_file(job: Job, driver: ScriptedDriver, tmp_path: Path) -> None:
    snapshot(job, driver, 1)
    file = tmp_path / "graph.json"
    file.write_bytes(encode(PinnedGraph(0, 1, 128, graph(WINDOWS), NOW)))
    assert check(graph=str(file)).execute(job.context())["spec"] == 0
    with pytest.raises(AirflowFailException, match="graph does not exist"):
        check(graph=str(tmp_path / "gone.json")).execute(job.context())


def test_a_submission_that_no_driver_has_built_yet_has_no_graph(job: Job, driver: ScriptedDriver) -> None:
    snapshot(job, driver, 1)
    job.client.store.delete(job.client.layout.graph(1))
    with pytest.raises(AirflowFailException, match="no graph of the pipeline.* for submission 1.*--write-graph"):
        check().execute(job.context())


def test_a_damaged_or_missing_snapshot_is_told(job: Job, driver: ScriptedDriver) -> None:
    with pytest.raises(AirflowException, match="no snapshot to restore"):
        check().execute(job.context())
    file = job.root / job.client.layout.metadata(snapshot(job, driver, 1))
    file.write_text(file.read_text().replace('"max_parallelism": 128', '"max_parallelism": 129'))
    with pytest.raises(AirflowException, match="its checksum differs"):
        check().execute(job.context())


def test_a_wrong_word_is_refused(job: Job, driver: ScriptedDriver) -> None:
    with pytest.raises(AirflowFailException, match="on_misfit='maybe'"):
        check(on_misfit="maybe").execute(job.context())


def test_the_contract_knows_the_newest_version_of_metadata() -> None:
    assert preflight.NEWEST_METADATA == METADATA_VERSION


def test_a_preflight_needs_neither_arrow_nor_numpy() -> None:
    code = "import sys, tidegate.jobs.client.preflight as _; print({'pyarrow', 'numpy', 'pyspark'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
