"""A real browser on a real `airflow standalone` over a real Spark job: users of three roles, in Airflow's own frame."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow_home import AirflowHome, Standalone
from dag_run import DagRun
from flight_data import write
from ui_steps import shoot

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.job_directory import list_jobs
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Spec, encode
from tidegate.jobs.stores.store_registry import open_store

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
JOB = "flight-delays"
EVIL = "<img src=x onerror=alert(1)>"
USERS = {"ada": "admin", "otto": "op", "vera": "viewer"}
DAYS = 45
PAGE = f"/tidegate/ui/jobs/tidegate_default/{JOB}"
API = f"/tidegate/api/jobs/tidegate_default/{JOB}"

Open = Callable[..., "Page"]


@dataclass
class Site:
    """Airflow with a job that runs.

    Attributes:
        url: of Airflow.
        tokens: by name of the user.
        job: the job's client.
    """

    url: str
    root: Path
    tokens: Mapping[str, str]
    job: JobClient

    def ask(self, path: str, user: str | None = None, body: Any = None, **headers: str) -> tuple[int, str]:
        """Status and text of an answer to a request with the user's cookie, from no browser."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if user is not None:
            given["Cookie"] = f"_token={self.tokens[user]}"
        if body is not None:
            given.setdefault("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, given)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def commands(self) -> list[str]:
        names = self.job.store.list(self.job.layout.commands)
        return [name for name in names if name.endswith(".json") and name.count(".") == 1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Airflow, its three users, a job that DAG `watched` started, and one whose record is hostile."""
    folder = tmp_path_factory.mktemp("ui")
    shutil.copytree(REPOSITORY / "dags", folder / "dags")
    shutil.copytree(HERE / "page_dags", folder / "dags", dirs_exist_ok=True)
    users = ",".join(f"{name}:{role}" for name, role in USERS.items())
    home = AirflowHome(
        folder=folder / "home",
        job_root=folder / "jobs",
        flights=folder / "flights",
        dags=folder / "dags",
        user="ada",
        extra={"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": users},
    )
    write(home.flights / "data", DAYS)
    with Standalone(home) as airflow:
        try:
            airflow.wait_until_ready()
            passwords = json.loads((home.folder / "passwords.json").read_text())
            tokens = {
                name: airflow.call("POST", "/auth/token", {"username": name, "password": passwords[name]})[
                    "access_token"
                ]
                for name in USERS
            }
            DagRun(airflow, "watched", "r1").trigger({"job_id": JOB})
            made = Site(home.url, home.job_root, tokens, JobClient(str(home.job_root), JOB))
            hostile(str(home.job_root))
            until("a job with checkpoints", lambda: made.job.specs() and len(made.job.view().completed) >= 3)
            yield made
        finally:
            end_drivers(str(home.job_root))


def hostile(root: str) -> None:
    """A job of the same DAG whose record holds HTML wherever somebody could have put text."""
    store, layout = open_store(root, {}), JobLayout("hostile")
    at = "2026-11-21T09:25:00.000Z"
    spec = Spec("hostile", 1, EVIL, EVIL, "", {}, {}, EVIL, {}, {}, None, "l", "watched", at, EVIL)
    store.create(layout.spec(1), encode(spec))
    generation_log = DecisionLog(store, layout, lambda: at, lambda: str(time.monotonic_ns())).begin_generation(
        spec=1, launch=1
    )
    generation_log.append("failure", {"message": EVIL, "operator": EVIL, "subtask": 0, "traceback": EVIL})
    generation_log.append("status", {"status": "FAILED", "reason": EVIL})


def until(what: str, condition: Callable[[], Any], timeout_s: float = 240.0) -> None:
    """Wait for something outside; this layer has no clock of its own to inject."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.2)


def end_drivers(root: str) -> None:
    """Kill the drivers of all jobs below `root`."""
    for job_id in list_jobs(root):
        client = JobClient(root, job_id)
        for spec in client.specs():
            driver = find_local_driver(client.store, client.layout, spec.number)
            if driver is not None:
                driver.kill()


def frame_of(page: Page) -> Frame:
    """The page's frame in Airflow's."""
    handle = page.wait_for_selector("iframe[title=tidegate]")
    assert handle is not None
    frame = handle.content_frame()
    assert frame is not None
    return frame


def test_anonymous_gets_401_everywhere(site: Site) -> None:
    for path in (
        PAGE,
        API,
        "/tidegate/ui/jobs",
        "/tidegate/api/jobs",
        "/tidegate/static/page.js",
        "/tidegate/ui/go?dag_id=x",
    ):
        assert site.ask(path)[0] == 401, path
    own = {"Origin": site.url}
    assert site.ask(f"{API}/cancel", body={"nonce": "0123456789", "spec": 1}, **own)[0] == 401
    assert site.ask("/tidegate/docs")[0] == site.ask("/tidegate/openapi.json")[0] == 404


def test_a_viewer_sees_and_cannot_press(site: Site, open_as: Open) -> None:
    page = open_as(f"{site.url}{PAGE}", site.tokens["vera"])
    page.wait_for_selector("#history tbody tr")
    buttons = page.locator("button[data-action]")
    assert buttons.count() == 5
    assert all(buttons.nth(i).is_disabled() for i in range(5))
    said = page.evaluate(
        """async ([api]) => {
            const send = {method: "POST", headers: {"Content-Type": "application/json"}};
            send.body = JSON.stringify({nonce: "0123456789", spec: 1});
            return (await fetch(`${api}/savepoint`, send)).status;
        }""",
        [API],
    )
    assert said == 403
    assert site.commands() == []


def test_a_foreign_origin_is_refused(site: Site, open_as: Open, tmp_path: Path) -> None:
    """Also one of the same host, on another port: to the cookie the same site."""
    body = {"nonce": "0123456789", "spec": 1}
    for origin in ("http://evil.example", "null"):
        assert site.ask(f"{API}/cancel", "otto", body, Origin=origin)[0] == 403
    assert site.ask(f"{API}/cancel", "otto", body)[0] == 403
    (tmp_path / "evil.html").write_text("<h1>win a prize</h1>")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = open_as(f"http://localhost:{server.server_port}/evil.html", site.tokens["otto"])
        page.evaluate(
            """async ([address, body]) => {
                const send = {method: "POST", mode: "no-cors", credentials: "include", body};
                await fetch(address, send).catch(() => null);  // the answer is kept from the page; was it carried out?
            }""",
            [f"{site.url}{API}/cancel", json.dumps(body)],
        )
        server.shutdown()
    assert site.commands() == []


def test_hostile_text_is_shown_as_text(site: Site, open_as: Open) -> None:
    """A script that ran would open a dialog, which fails the test (`open_as`)."""
    page = open_as(f"{site.url}/tidegate/ui/jobs", site.tokens["vera"])
    page.wait_for_selector("td .reason")
    assert EVIL in page.inner_text("td .reason")
    page.click("text=hostile")
    page.wait_for_selector(".banner.failed")
    assert EVIL in page.inner_text(".banner.failed")
    assert EVIL in page.inner_text(".head .sub")
    assert page.locator("img").count() == 0
    page.goto(f"{site.url}/tidegate/ui/jobs/tidegate_default/%3Cimg%20src=x%20onerror=alert(1)%3E")
    assert page.locator("img").count() == 0


def test_an_op_takes_a_savepoint_and_the_history_has_it_with_the_name(site: Site, open_as: Open) -> None:
    page = open_as(f"{site.url}/plugin/tidegate", site.tokens["otto"])
    frame = frame_of(page)
    frame.click(f"text={JOB}")
    page.wait_for_url("**/plugin/tidegate/**")
    frame = frame_of(page)
    frame.click("[data-action=savepoint]")
    frame.wait_for_selector(".notice.good >> text=Savepoint completed", timeout=120_000)
    row = frame.wait_for_selector("#history tbody tr:has-text('savepoint')")
    assert row is not None and "otto" in row.inner_text()
    (claim,) = [d for d in site.job.decisions() if d.kind == "claim" and d.data["kind"] == "savepoint"]
    assert claim.data["by"] == "airflow-ui:otto"


def test_the_tab_of_the_run_jumps_to_its_job(site: Site, open_as: Open) -> None:
    page = open_as(f"{site.url}/dags/watched/runs/r1/plugin/tidegate-run", site.tokens["vera"])
    frame = frame_of(page)
    frame.wait_for_selector(f"h1:has-text('{JOB}')")
    page.goto(f"{site.url}/dags/watched/runs/r1/tasks/start/plugin/tidegate-task-instance")
    frame_of(page).wait_for_selector(f"h1:has-text('{JOB}')")


def test_pictures(site: Site, open_as: Open) -> None:
    """For the documents; and the page follows Airflow's dark mode and fits a phone."""
    until("some history", lambda: len(site.job.view().completed) >= 30)
    page = open_as(f"{site.url}/plugin/tidegate", site.tokens["otto"])
    frame_of(page).wait_for_selector(f"text={JOB}")
    page.wait_for_timeout(3000)  # throughput needs two reads
    shoot(page, "page-list-desktop")
    for name, scheme in (("desktop", "light"), ("dark", "dark")):
        page = open_as(f"{site.url}/dags/watched/runs/r1/plugin/tidegate-run", site.tokens["otto"], scheme=scheme)
        frame = frame_of(page)
        frame.wait_for_selector("#history tbody tr")
        until(
            "the theme",
            lambda f=frame, s=scheme: (
                f.evaluate("document.documentElement.classList.contains('dark')") == (s == "dark")
            ),
        )
        page.wait_for_timeout(3000)
        shoot(page, f"page-job-{name}")
    for name, path in (("list", "/tidegate/ui/jobs"), ("job", PAGE)):
        page = open_as(f"{site.url}{path}", site.tokens["otto"], size="phone")
        page.wait_for_selector("tbody tr")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} scrolls sideways"
        page.wait_for_timeout(3000)
        shoot(page, f"page-{name}-phone")


def test_an_op_drains_and_the_job_has_stopped(site: Site, open_as: Open) -> None:
    page = open_as(f"{site.url}{PAGE}", site.tokens["otto"])
    page.click("[data-action=drain]")
    page.click("dialog [data-confirm]")
    page.wait_for_selector(".notice.good >> text=The job is drained", timeout=180_000)
    page.wait_for_selector(".head .badge >> text=stopped")
    page.wait_for_selector("#points tbody tr")
    stop = site.job.view().stop
    assert stop is not None and (stop["mode"], stop["outcome"]) == ("drain", "committed")
    (claim,) = [d for d in site.job.decisions() if d.kind == "claim" and d.data["kind"] == "stop-savepoint"]
    assert claim.data["by"] == "airflow-ui:otto"


def test_an_op_restores_it_where_its_driver_ran(site: Site, open_as: Open) -> None:
    page = open_as(f"{site.url}{PAGE}", site.tokens["otto"])
    page.click("#points tbody tr:has-text('stop-savepoint') [data-action=restore]")
    page.check("dialog [name=allow_drained]")
    page.click("dialog [data-confirm]")
    page.wait_for_selector(".notice.good >> text=its driver is starting", timeout=120_000)
    page.wait_for_selector(".head .badge >> text=running", timeout=180_000)
    spec = site.job.specs()[-1]
    assert (spec.number, spec.owner_dag, spec.submitted_by) == (2, "watched", "airflow-ui:otto")
    page.click("[data-action=cancel]")
    page.click("dialog [data-confirm]")
    page.wait_for_selector(".head .badge >> text=canceled", timeout=120_000)
    assert "airflow-ui:otto" in site.job.view().reason
