"""The page when something is wrong: a store that hangs, records that make no sense, requests that ask too much."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
from builders.clock import ManualClock
from page_stub import HOST, NONCE, Page, make_page
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.plugins import job_cache, page_app
from airflow_tidegate.plugins.job_cache import READS_AT_ONCE
from tidegate.errors import StoreError
from tidegate.jobs.client.job_client import JobClient

JOB = "/api/jobs/tidegate_default/j1"


@pytest.fixture
def page(job: Job, monkeypatch: pytest.MonkeyPatch, clock: ManualClock[float]) -> Page:
    """The page over the job root of `job`; job `j1` is of DAG `d` and runs."""
    job.submit(owner_dag="d", submitted_by="airflow:d/r1/start")
    driver = ScriptedDriver(job.client)
    driver.status("RUNNING")
    driver.beat()
    return make_page(monkeypatch, clock)


def another(job: Job, job_id: str) -> JobClient:
    client = JobClient(str(job.root), job_id)
    client.submit(pipeline="pipe.py:build", code_root=str(job.dag_file.parent), owner_dag="d")
    return client


def test_a_store_that_hangs_takes_a_few_threads_of_the_api_server_and_no_more(
    page: Page, job: Job, clock: ManualClock[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_cache, "PATIENCE_S", 0.2)
    others = [another(job, f"k{n}").job_id for n in range(3 * READS_AT_ONCE)]
    released, hanging = threading.Event(), []

    def hang(self: JobClient) -> None:
        hanging.append(self.job_id)
        released.wait(120)
        raise StoreError("it hung")

    monkeypatch.setattr(JobClient, "specs", hang)

    def job_state(job_id: str) -> None:
        with pytest.raises(StoreError):
            page.jobs.job_state("tidegate_default", job_id)

    readers = [threading.Thread(target=job_state, args=(job_id,), daemon=True) for job_id in [*others, *others]]
    for reader in readers:
        reader.start()
    try:
        until = time.monotonic() + 60
        while sum(r.is_alive() for r in readers) > READS_AT_ONCE and time.monotonic() < until:
            time.sleep(0.01)
        assert sum(r.is_alive() for r in readers) == len(hanging) == READS_AT_ONCE
        monkeypatch.setattr(job_cache, "PATIENCE_S", 60.0)
        began = time.monotonic()
        assert page.user("ada", ("PUT", "connection tidegate_default")).get("/api/jobs").status_code == 200
        assert time.monotonic() - began < job_cache.PATIENCE_S, "a job of the list was waited for"
    finally:
        released.set()
        for reader in readers:
            reader.join(20)


def test_why_a_job_cannot_be_read_is_told_to_those_alone_who_can_mend_it(page: Page, job: Job) -> None:
    broken = job.root / "broken" / "specs"
    broken.mkdir(parents=True)
    (broken / "000001.json").write_text("{")
    admin, address = page.user("ada", ("PUT", "connection tidegate_default")), "/api/jobs/tidegate_default/broken"
    for path in (address, "/ui/jobs/tidegate_default/broken"):
        answer = page.viewer().get(path)
        assert answer.status_code == 502
        assert "000001" not in answer.text and str(job.root) not in answer.text
    assert "000001" in admin.get(address).text


def test_records_that_make_no_sense_hide_no_other_job(page: Page, job: Job) -> None:
    other = another(job, "k")
    driver = ScriptedDriver(other)
    driver.status("RUNNING")
    hint = job.root / other.layout.status(1)
    driver.beat()
    hint.write_text(hint.read_text().replace(json.loads(hint.read_text())["at"], "yesterday"))
    admin = page.user("ada", ("GET", "d"), ("PUT", "connection tidegate_default"))
    told = admin.get("/api/jobs").json()
    assert [j["job_id"] for j in told["jobs"]] == ["j1"]
    assert [p["job_id"] for p in told["problems"]] == ["k"]
    assert admin.get("/ui/go?dag_id=d").headers["location"] == "/ui/jobs/tidegate_default/j1"


def test_a_body_that_does_not_say_how_long_it_is_is_read_only_so_far(page: Page) -> None:
    page.editor()
    sent = []

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            sent.append(1)
            yield b" " * 1024

    headers = {"Cookie": "_token=otto", "Origin": HOST, "Content-Type": "application/json"}
    answer = page.client.post(f"{JOB}/savepoint", content=endless(), headers=headers)
    assert answer.status_code == 413


def test_a_body_that_is_nested_deeply_is_no_json_object(page: Page) -> None:
    page.editor()
    headers = {"Cookie": "_token=otto", "Origin": HOST, "Content-Type": "application/json"}
    deep = '{"nonce":' + "[" * 15_000
    assert page.client.post(f"{JOB}/savepoint", content=deep, headers=headers).status_code == 400
    assert page.editor().post(f"{JOB}/savepoint", {"nonce": NONCE, "spec": 1}).status_code == 202


def test_names_that_somebody_makes_up_fill_no_memory(page: Page) -> None:
    viewer, before = page.viewer(), len(page_app._statics())
    for n in range(20):
        assert viewer.get(f"/static/nothing-{n}.js").status_code == 404
    assert len(page_app._statics()) == before
    assert page_app._statics.cache_info().currsize == 1


@pytest.mark.parametrize("owner", ["", "~"])
def test_an_owner_that_names_no_dag_is_none(page: Page, job: Job, owner: str) -> None:
    client = JobClient(str(job.root), "odd")
    client.submit(pipeline="pipe.py:build", code_root=str(job.dag_file.parent), owner_dag=owner)
    editor = page.user("otto", ("GET", owner), ("PUT", owner), ("GET", "d"))
    assert editor.get("/api/jobs/tidegate_default/odd?dag_id=d").status_code == 404
    assert page.user("ada", ("PUT", "connection tidegate_default")).get("/api/jobs/tidegate_default/odd").is_success


def test_jobs_that_are_not_there_displace_none_that_are(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_cache, "MAX_JOBS", 2)
    viewer = page.viewer()
    assert viewer.get(JOB).status_code == 200
    known = page.jobs._watched[("tidegate_default", "j1")]
    for n in range(5):
        assert viewer.get(f"/api/jobs/tidegate_default/made-up-{n}").status_code == 404
    assert page.jobs._watched == {("tidegate_default", "j1"): known}


def test_the_list_goes_on_with_a_connection_whose_name_begins_like_the_one_before(
    page: Page, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TIDEGATE__CONNECTIONS", "t, t-x")
    for name in ("t", "t-x"):
        (job.root / name).mkdir()
        connection = {"conn_type": "tidegate", "host": str(job.root / name)}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
        client = JobClient(str(job.root / name), "j")
        client.submit(pipeline="pipe.py:build", code_root=str(job.dag_file.parent), owner_dag="d")
    monkeypatch.setattr(page_app, "PAGE_SIZE", 1)
    viewer, seen, after = page.viewer(), [], ""
    while after is not None:
        told = viewer.get(f"/api/jobs?after={after}").json()
        seen += [j["conn_id"] for j in told["jobs"]]
        after = told["next"]
    assert seen == ["t", "t-x"]


def test_a_cancel_asks_a_driver_that_is_silent_though_its_process_is_there(
    page: Page, clock: ManualClock[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.4"""
    monkeypatch.setattr(JobClient, "is_alive", lambda self: False)
    monkeypatch.setattr("tidegate.jobs.client.submission.find_local_driver", lambda *_: object())
    page.viewer().get(JOB)
    clock.now += 3600.0
    assert page.viewer().get(JOB).json()["is_silent"] is True
    answer = page.editor().post(f"{JOB}/cancel")
    assert (answer.status_code, list(answer.json())) == (202, ["command_id"])
