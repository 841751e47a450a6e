"""What can be said of the recipes in dags/ without a job: they parse fast, without warnings, and decide well."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.version_compat import AirflowFailException, AirflowSkipException
from tidegate.jobs.client.job_client import JobClient

REPOSITORY = Path(__file__).parents[3]
DAGS = sorted((REPOSITORY / "dags").glob("*.py"))
MOST_PARSE_S = 1.0
"""Of one DAG file, in a process that has imported Airflow: seconds of CPU, because others may be at work here."""

LOOK = """
import importlib, json, os, pkgutil, runpy, sys, time, warnings
import airflow.sdk, airflow.triggers.base
told = {{}}
for path in sys.argv[1:]:
    read, write = os.pipe()
    if os.fork() == 0:  # as Airflow's DAG processor does
        began = time.process_time()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            {parse}
        took = time.process_time() - began
        warned = [
            f"{{w.filename}}:{{w.lineno}}: {{w.message}}"
            for w in caught
            if issubclass(w.category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning))
            and ("tidegate" in w.filename or "/dags/" in w.filename or w.category.__module__.startswith("airflow"))
            and "/airflow/providers/common/compat/" not in w.filename  # Airflow 3.1 warns of its own imports
        ]
        os.write(write, json.dumps({{"seconds": took, "warned": warned}}).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        told[path] = json.load(answer)
    os.wait()
print(json.dumps(told))
"""


def looked_at(names: list[str], parse: str) -> dict[str, Any]:
    """Name -> `{"seconds", "warned"}`, each by a fork of one process that has imported Airflow."""
    program = LOOK.format(parse=parse)
    done = subprocess.run(
        [sys.executable, "-c", program, *names], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_every_example_is_parsed_in_less_than_a_second_and_without_a_deprecation() -> None:
    found = looked_at([str(path) for path in DAGS], "runpy.run_path(path)")
    assert len(found) == len(DAGS) >= 5
    assert {path: told for path, told in found.items() if told["seconds"] > MOST_PARSE_S or told["warned"]} == {}


def test_no_module_of_the_provider_imports_what_is_deprecated() -> None:
    modules = "pkgutil.walk_packages(__import__(path).__path__, path + '.')"
    walk = f"[importlib.import_module(m.name) for m in {modules}]"
    found = looked_at(["airflow_tidegate"], walk)
    assert found["airflow_tidegate"]["warned"] == []


def test_every_recipe_has_its_page() -> None:
    pages = {path.stem for path in (REPOSITORY / "docs" / "recipes").glob("*.md")} - {"README"}
    assert pages == {path.stem for path in DAGS}
    listed = (REPOSITORY / "docs" / "recipes" / "README.md").read_text(encoding="utf-8")
    assert {page for page in pages if f"({page}.md)" not in listed} == set()


def recipe(name: str) -> ModuleType:
    """The DAG file as a module."""
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", REPOSITORY / "dags" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_in_the_morning_a_job_is_started_restored_or_left_alone(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    whether = recipe("morning_restore").whether.function
    assert whether("j1") == "start"
    job.submit()
    driver = ScriptedDriver(job.client)
    driver.status("RUNNING")
    alive: list[bool] = [True, False]
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self: alive.pop(0))
    assert whether("j1") == "checkpoint"
    assert whether("j1") == "restore", "its driver has died"
    driver.status("STOPPED")
    assert whether("j1") == "restore"


def test_a_job_that_publishes_a_folder_is_started_until_it_has_a_snapshot(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore would be refused without one."""
    whether = recipe("folder_to_kafka").whether.function
    assert whether("j1") == "start"
    job.submit()
    driver = ScriptedDriver(job.client)
    alive = False
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self: alive)
    driver.status("FAILED")
    assert whether("j1") == "start"
    driver.status("RUNNING")
    driver.checkpoint(1)
    assert whether("j1") == "restore", "its driver has died"
    alive = True
    assert whether("j1") == "supervise"


def test_a_savepoint_with_a_label_lies_in_a_folder_of_that_name(job: Job) -> None:
    module = recipe("savepoint_on_demand")

    def place(folder: str | None, label: str | None) -> str | None:
        given: str | None = module.place.function(params={"job_id": "j1", "folder": folder, "label": label})
        return given

    job.submit()
    assert place(None, None) is None
    assert place("s3://b/saves", None) == "s3://b/saves"
    assert place("s3://b/saves/", "v1") == "s3://b/saves/v1"
    assert place(None, "v1") == f"{job.root}/j1/savepoints/v1"


class Pulled:
    """A task instance whose XComs are given."""

    def __init__(self, xcoms: Mapping[str, Any]) -> None:
        self._xcoms = xcoms

    def xcom_pull(self, *, task_ids: str) -> Any:
        return self._xcoms.get(task_ids)


def test_a_reject_is_skipped_when_there_was_nothing_to_audit() -> None:
    observed = recipe("write_audit_publish").only_after("drain")
    observed({"ti": Pulled({"drain": {"checkpoint_id": 3}})})
    with pytest.raises(AirflowSkipException, match="drain"):
        observed({"ti": Pulled({})})


class Events(dict[str, Any]):
    """Events by the asset's name, as Airflow gives them by the asset."""

    def get(self, asset: Any, default: Any = None) -> Any:
        return super().get(asset.name, default)


def test_hours_that_came_in_several_events_are_one_interval_and_one_that_is_done_is_skipped(job: Job) -> None:
    module = recipe("hourly_batch_on_watermark")
    which = module.which.function
    with pytest.raises(AirflowFailException, match="it has no hour"):
        which(triggering_asset_events=Events())
    stream = Job(job.root, job.dag_file, JobClient(str(job.root), module.STREAM))
    stream.submit(arguments={"out": "/tables/departures"})
    hours = [("2013-01-01T06:00:00.000000+00:00", "2013-01-01T08:00:00.000000+00:00")]
    hours.append((hours[0][1], "2013-01-01T09:00:00.000000+00:00"))
    told = [SimpleNamespace(extra={"payload": {"interval_start": a, "interval_end": b}}) for a, b in reversed(hours)]
    events = Events({module.HOUR_PASSED.name: told})
    found = which(triggering_asset_events=events)
    assert (found["start"], found["end"], found["table"]) == (hours[0][0], hours[1][1], "/tables/departures")
    assert found["job_id"] == "departures-live-until-20130101T0900"
    assert found["out"] == "/tables/departures-hours/departures-live-until-20130101T0900"
    report = Job(job.root, job.dag_file, JobClient(str(job.root), found["job_id"]))
    report.submit()
    driver = ScriptedDriver(report.client)
    driver.status("RUNNING")
    assert which(triggering_asset_events=events) == found, "a report that was begun is gone on with"
    driver.status("FINISHED")
    with pytest.raises(AirflowSkipException, match="exists already"):
        which(triggering_asset_events=events)


def test_a_backfill_takes_the_newest_savepoint_unless_one_is_named(job: Job) -> None:
    module = recipe("backfill_from_savepoint")

    def where(given: str | None) -> Any:
        return module.where.function(params={"job_id": "j1", "savepoint": given})

    job.submit(arguments={"out": "/tables/totals"})
    driver = ScriptedDriver(job.client)
    driver.checkpoint(1)
    with pytest.raises(AirflowFailException, match="savepoint_on_demand"):
        where(None)
    driver.checkpoint(2, "savepoint")
    driver.checkpoint(3, "savepoint")
    driver.checkpoint(4)
    newest = job.client.view().completed[2]
    assert where(None) == {"path": newest.path, "out": "/tables/totals"}
    assert where("s3://b/saves/v1") == {"path": "s3://b/saves/v1", "out": "/tables/totals"}
