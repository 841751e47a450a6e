"""The page in a real browser over scripted jobs: what it draws, what its buttons send, what becomes of hostile text.
The sample of this layer that `make test` holds; the same in a real Airflow: test_page_in_airflow.py."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from fastapi import FastAPI
from page_stub import Page as StubPage
from page_stub import make_page
from scripted_job import Job, ScriptedDriver

from tidegate.jobs.client.job_client import JobClient

if TYPE_CHECKING:
    from playwright.sync_api import Page

EVIL = "<img src=x onerror=alert(1)>"
Open = Callable[..., "Page"]


@pytest.fixture
def job(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job root with a job that runs, fifteen snapshots old, and one that failed with hostile words."""
    root, code = tmp_path / "root", tmp_path / "code"
    root.mkdir()
    code.mkdir()
    (code / "pipe.py").write_text("")
    monkeypatch.setenv("AIRFLOW_CONN_TIDEGATE_DEFAULT", json.dumps({"conn_type": "tidegate", "host": str(root)}))
    made = Job(root, code / "d.py", JobClient(str(root), "flight-delays"))
    made.submit(owner_dag="d", submitted_by=f"airflow:d/r1/{EVIL}")
    driver = ScriptedDriver(made.client)
    driver.status("RUNNING")
    for n in range(1, 16):
        driver.checkpoint(n, aborted="expired" if n == 7 else None)
    driver.generation_log.append("end_of_data", {"source": "airlines"})
    driver.beat(
        sources={
            "flights": {"boundedness": "unbounded", "records": 1000},
            "airlines": {"boundedness": "bounded", "records": 16},
        },
        watermark_us=1_357_000_000_000_000,
    )
    bad = JobClient(str(root), "bad")
    bad.submit(pipeline="pipe.py:build", code_root=str(code), owner_dag="d")
    told = ScriptedDriver(bad)
    told.generation_log.append(
        "failure", {"message": EVIL, "operator": EVIL, "subtask": 0, "traceback": f"Traceback\n{EVIL}"}
    )
    told.status("FAILED", reason=EVIL)
    return made


@pytest.fixture
def stub(job: Job, monkeypatch: pytest.MonkeyPatch) -> StubPage:
    """Its routes and rights."""
    made = make_page(monkeypatch, time.monotonic)
    made.viewer()
    made.editor()
    return made


@pytest.fixture
def address(stub: StubPage) -> Iterator[str]:
    """The page, served below /tidegate as Airflow does; of a job: `/ui/jobs/tidegate_default/<id>`."""
    app = FastAPI()
    app.mount("/tidegate", stub.client.app)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/tidegate/ui/jobs"
        server.should_exit = True
        thread.join()


def test_a_viewer_sees_the_job_and_every_button_is_off(address: str, open_as: Open) -> None:
    page = open_as(f"{address}/tidegate_default/flight-delays", "vera")
    page.wait_for_selector("#history tbody tr")
    assert page.inner_text("h1") == "flight-delays"
    assert "running" in page.inner_text(".head .badge")
    assert "end of data" in page.inner_text("#sources")
    assert page.locator("#chart svg .bar").count() == 15
    assert page.locator("#chart svg rect.aborted").count() == 1
    buttons = page.locator("button[data-action]")
    assert buttons.count() == 5
    assert [buttons.nth(i).is_disabled() for i in range(5)] == [True] * 5


def test_one_press_is_one_command_and_its_answer_is_shown(address: str, open_as: Open, job: Job) -> None:
    """S9.4: also with a double click."""
    page = open_as(f"{address}/tidegate_default/flight-delays", "otto")
    page.dblclick("[data-action=savepoint]")
    page.wait_for_selector(".notice.wait >> text=command sent to the job")
    names = job.client.store.list(job.client.layout.commands)
    (command_id,) = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    ScriptedDriver(job.client, launch=2).answer(command_id, path="savepoints/here")
    page.wait_for_selector(".notice.good >> text=savepoints/here")


def test_a_dangerous_button_asks_first_and_sends_what_was_chosen(address: str, open_as: Open, job: Job) -> None:
    page = open_as(f"{address}/tidegate_default/flight-delays", "otto", size="phone")
    page.click("[data-action=drain]")
    page.click("dialog >> text=Keep as is")
    assert [n for n in job.client.store.list(job.client.layout.commands) if n.endswith(".json")] == []
    page.click("[data-action=drain]")
    page.fill("dialog [name=timeout]", "5 min")
    page.select_option("dialog [name=on_timeout]", "suspend")
    page.click("dialog [data-confirm]")
    page.wait_for_selector(".notice.wait >> text=command sent to the job")
    (name,) = (n for n in job.client.store.list(job.client.layout.commands) if n.endswith(".json"))
    command = job.client.command(name.removesuffix(".json"))
    assert command is not None
    assert (command.verb, command.issued_by) == ("stop", "airflow-ui:otto")
    assert command.arguments == {"mode": "drain", "timeout": "5 min", "on_timeout": "suspend"}


def test_hostile_text_is_shown_as_text(address: str, open_as: Open) -> None:
    """A script of it that ran would open a dialog, which fails the test (`open_as`)."""
    page = open_as(f"{address}/tidegate_default/bad", "otto")
    page.wait_for_selector(".banner.failed")
    page.click("#failures summary")
    assert EVIL in page.inner_text(".banner.failed")
    assert EVIL in page.inner_text("#failures pre")
    page.goto(address)
    page.wait_for_selector("td .reason")
    assert EVIL in page.inner_text("td .reason")
    page.goto(f"{address}/tidegate_default/flight-delays")
    page.wait_for_selector(".head .who")
    assert EVIL in page.inner_text(".head .who")
    page.goto(f"{address}/tidegate_default/%3Cimg%20src=x%20onerror=alert(1)%3E")
    assert page.locator("img").count() == 0


def test_the_page_fits_a_phone_and_follows_dark_mode(address: str, open_as: Open) -> None:
    page = open_as(f"{address}/tidegate_default/flight-delays", "otto", size="phone", scheme="dark")
    page.wait_for_selector("#history tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    assert page.evaluate("document.documentElement.classList.contains('dark')")
    page.evaluate("localStorage.setItem('theme', 'light')")
    page.goto(address)
    page.wait_for_selector("td .job")
    assert not page.evaluate("document.documentElement.classList.contains('dark')"), "Airflow's own choice comes first"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"


def test_what_the_job_does_comes_to_an_open_page(address: str, open_as: Open, job: Job) -> None:
    page = open_as(f"{address}/tidegate_default/flight-delays", "vera")
    page.wait_for_selector("#history tbody tr >> text=#15")
    driver = ScriptedDriver(job.client, launch=2)
    driver.checkpoint(16, "savepoint")
    page.wait_for_selector("#history tbody tr >> text=#16")
    driver.status("FINISHED")
    page.wait_for_selector(".head .badge >> text=finished")
