"""The page of jobs in Airflow: who sees what, who may press what, from where, and what a press does."""

from __future__ import annotations

import inspect
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders.clock import ManualClock
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from page_stub import HOST, NONCE, Page, make_page
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.plugins.job_cache import POINTS_S, READ_INTERVAL_S
from airflow_tidegate.plugins.page_app import make_app
from airflow_tidegate.plugins.plugin import LazyPage, TidegatePlugin, views
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.desired_state import read_desired
from tidegate.jobs.launches import record_launch
from tidegate.jobs.layout import stable_id
from tidegate.jobs.records import Launch, RestoreFrom, encode

JOB = "/api/jobs/tidegate_default/j1"
VERBS = ("checkpoint", "savepoint", "stop", "cancel", "commit", "reject", "restore")


@pytest.fixture
def page(job: Job, monkeypatch: pytest.MonkeyPatch, clock: ManualClock[float]) -> Page:
    """The page over the job root of `job`; job `j1` is of DAG `d` and runs."""
    job.submit(owner_dag="d", submitted_by="airflow:d/r1/start")
    driver = ScriptedDriver(job.client)
    driver.status("RUNNING")
    driver.checkpoint(1)
    return make_page(monkeypatch, clock)


def commands(job: Job) -> list[Any]:
    names = job.client.store.list(job.client.layout.commands)
    ids = [name.removesuffix(".json") for name in names if name.endswith(".json") and name.count(".") == 1]
    return [job.client.command(command_id) for command_id in ids]


# ---------------------------------------------------------------- who


def test_every_route_refuses_somebody_who_is_not_logged_in(page: Page) -> None:
    anonymous = page.user(None)
    routes = [route for route in make_app().routes if isinstance(route, APIRoute)]
    assert {"/ui/jobs", "/static/{name}", "/api/jobs/{conn_id}/{job_id}/{verb}"} <= {r.path for r in routes}
    for route in routes:
        path = route.path.format(
            conn_id="tidegate_default", job_id="j1", verb="savepoint", name="page.css", command_id="c1"
        )
        for method in route.methods:
            answer = anonymous.get(f"{path}?dag_id=d") if method == "GET" else anonymous.post(path)
            assert answer.status_code == 401, f"{method} {path}"
    assert page.user("x").get("/docs").status_code == page.user("x").get("/openapi.json").status_code == 404


def test_a_token_that_is_wrong_is_nobody(page: Page) -> None:
    page.auth.rights.pop("eve", None)
    assert page.client.get("/api/jobs", headers={"Cookie": "_token=eve"}).status_code == 403


def test_a_viewer_sees_the_job_and_may_press_nothing(page: Page, job: Job) -> None:
    viewer = page.viewer()
    assert viewer.get("/ui/jobs/tidegate_default/j1").status_code == 200
    seen = viewer.get(JOB).json()
    assert (seen["status"], seen["owner_dag"]) == ("RUNNING", "d")
    assert seen["may"] == {"operate": False, "control": False}
    assert [viewer.post(f"{JOB}/{verb}").status_code for verb in VERBS] == [403] * len(VERBS)
    assert commands(job) == []


def test_one_who_may_run_the_dag_takes_snapshots_and_commits_and_ends_nothing(page: Page, job: Job) -> None:
    runner = page.user("rudi", ("GET", "d"), ("POST RUN", "d"))
    assert runner.get(JOB).json()["may"] == {"operate": True, "control": False}
    body = {"nonce": NONCE, "spec": 1, "checkpoint_id": 1}
    assert [runner.post(f"{JOB}/{verb}").status_code for verb in ("checkpoint", "savepoint")] == [202, 202]
    assert runner.post(f"{JOB}/commit", body).status_code == 202
    refused = [runner.post(f"{JOB}/{verb}").status_code for verb in ("stop", "cancel", "reject", "restore")]
    assert refused == [403] * 4
    assert sorted(command.verb for command in commands(job)) == ["checkpoint", "commit", "savepoint"]


def test_one_without_rights_on_the_owner_dag_does_not_learn_that_the_job_is_there(page: Page) -> None:
    stranger = page.user("sam", ("GET", "other"), ("PUT", "other"), ("POST RUN", "other"))
    there = [stranger.get(JOB), stranger.get("/ui/jobs/tidegate_default/j1"), stranger.post(f"{JOB}/cancel")]
    missing = stranger.get("/api/jobs/tidegate_default/nobody")
    assert [answer.status_code for answer in there] == [404] * 3
    assert there[0].json() == missing.json()
    assert stranger.get("/api/jobs").json()["jobs"] == []


def test_the_owner_is_that_of_the_newest_submission_and_never_of_the_address(page: Page, job: Job) -> None:
    stranger = page.user("sam", ("GET", "mine"), ("PUT", "mine"), ("POST RUN", "mine"))
    assert stranger.get(f"{JOB}?dag_id=mine").status_code == 404
    assert stranger.post(f"{JOB}/cancel?dag_id=mine", {"nonce": NONCE, "spec": 1}).status_code == 404
    assert stranger.post(f"{JOB}/cancel", {"nonce": NONCE, "spec": 1, "owner_dag": "mine"}).status_code == 404


def test_a_job_without_owner_dag_is_for_those_who_may_change_its_connection(
    page: Page, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    JobClient(str(job.root), "lonely").submit(pipeline="pipe.py:build", code_root=str(job.dag_file.parent))
    everything = [("GET", "d"), ("POST RUN", "d"), ("PUT", "d")]
    editor, admin = (
        page.user("otto", *everything),
        page.user("ada", *everything, ("PUT", "connection tidegate_default")),
    )
    assert [j["job_id"] for j in editor.get("/api/jobs").json()["jobs"]] == ["j1"]
    assert [j["job_id"] for j in admin.get("/api/jobs").json()["jobs"]] == ["j1", "lonely"]
    address = "/api/jobs/tidegate_default/lonely"
    assert editor.get(address).status_code == 404
    assert admin.get(address).json()["may"] == {"operate": True, "control": True}


def test_the_list_asks_once_for_all_dags_that_airflow_knows(page: Page, job: Job) -> None:
    for n in range(5):
        other = JobClient(str(job.root), f"k{n}")
        other.submit(pipeline="pipe.py:build", code_root=str(job.dag_file.parent), owner_dag="d")
    viewer = page.viewer()
    assert len(viewer.get("/api/jobs").json()["jobs"]) == 6
    assert [asked for asked in page.auth.asked if asked[1] == "GET"] == [("vera", "GET", "all")]


# ---------------------------------------------------------------- from where


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Sec_Fetch_Site": None},
        {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"},
        {"Origin": None, "Sec_Fetch_Site": "cross-site"},
        {"Origin": "null", "Sec_Fetch_Site": None},
        {"Origin": HOST, "Sec_Fetch_Site": "same-site"},
        {"Origin": None, "Sec_Fetch_Site": None},
        {"Origin": "http://airflow.example.evil.example", "Sec_Fetch_Site": None},
    ],
)
def test_a_press_that_does_not_come_from_airflows_own_pages_is_refused(
    page: Page, job: Job, headers: dict[str, str | None]
) -> None:
    assert page.editor().post(f"{JOB}/savepoint", **headers).status_code == 403
    assert commands(job) == []


def test_a_program_that_brings_its_token_needs_no_origin_and_a_foreign_one_is_refused(page: Page) -> None:
    page.editor()
    headers = {"Authorization": "Bearer otto"}
    body = {"nonce": NONCE, "spec": 1}
    assert page.client.post(f"{JOB}/savepoint", json=body, headers=headers).status_code == 202
    headers["Origin"] = "http://evil.example"
    assert page.client.post(f"{JOB}/savepoint", json=body, headers=headers).status_code == 403


def test_behind_a_proxy_the_configured_address_is_airflows_own(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://public.example/airflow")
    assert page.editor().post(f"{JOB}/savepoint", Origin="https://public.example").status_code == 202
    assert page.editor().post(f"{JOB}/checkpoint", Origin="http://public.example").status_code == 403


def test_what_a_form_of_another_site_could_send_is_refused(page: Page, job: Job) -> None:
    page.editor()
    headers = {"Cookie": "_token=otto", "Origin": HOST, "Content-Type": "text/plain"}
    answer = page.client.post(f"{JOB}/savepoint", content=json.dumps({"nonce": NONCE, "spec": 1}), headers=headers)
    assert answer.status_code == 415
    assert commands(job) == []


def test_every_answer_forbids_foreign_content_and_frames(page: Page) -> None:
    for path in ("/ui/jobs", "/static/page.css", JOB, "/api/jobs", "/nothing"):
        headers = page.viewer().get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'self'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "SAMEORIGIN"


def test_the_page_loads_nothing_from_elsewhere_and_parses_no_html() -> None:
    static = Path(__file__).parents[3] / "provider/airflow_tidegate/plugins/static"
    for file in static.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file.name
        for dangerous in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
            assert dangerous not in text, file.name


@pytest.mark.parametrize("job_id", ["a..b", "<b>", "x" * 200, ".hidden"])
def test_what_is_no_job_id_is_not_found(page: Page, job_id: str) -> None:
    assert page.editor().get(f"/api/jobs/tidegate_default/{job_id}").status_code == 404
    assert page.editor().post(f"/api/jobs/tidegate_default/{job_id}/cancel").status_code == 404


def test_a_connection_that_the_page_does_not_show_is_not_found(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "tidegate", "host": "/"}))
    assert page.editor().get("/api/jobs/other/j1").status_code == 404
    monkeypatch.setenv("AIRFLOW__TIDEGATE__CONNECTIONS", "tidegate_default, other")
    assert page.editor().get("/api/jobs").json()["connections"] == ["tidegate_default", "other"]


# ---------------------------------------------------------------- what a press does


def test_a_press_leaves_the_users_name_in_the_command(page: Page, job: Job) -> None:
    answer = page.editor().post(f"{JOB}/savepoint")
    assert answer.json() == {"command_id": stable_id("ui", "savepoint", "airflow-ui:otto", NONCE)}
    (command,) = commands(job)
    assert (command.verb, command.issued_by, command.spec) == ("savepoint", "airflow-ui:otto", 1)


def test_a_double_click_is_one_command_and_another_press_another(page: Page, job: Job) -> None:
    """S9.4"""
    for nonce in (NONCE, NONCE, "fedcba9876543210"):
        assert page.editor().post(f"{JOB}/checkpoint", {"nonce": nonce, "spec": 1}).status_code == 202
    assert len(commands(job)) == 2


def test_a_stop_carries_what_the_dialog_asked(page: Page, job: Job) -> None:
    body = {"nonce": NONCE, "spec": 1, "mode": "drain", "timeout": "5 min", "on_timeout": "suspend"}
    assert page.editor().post(f"{JOB}/stop", body).status_code == 202
    (command,) = commands(job)
    assert command.arguments == {"mode": "drain", "timeout": "5 min", "on_timeout": "suspend"}


@pytest.mark.parametrize(
    ("verb", "body", "words"),
    [
        ("savepoint", {"nonce": NONCE, "spec": 1, "path": "/etc"}, "savepoint has no argument 'path'"),
        ("savepoint", {"nonce": "short", "spec": 1}, "nonce"),
        ("savepoint", {"spec": 1}, "nonce is missing"),
        ("savepoint", {"nonce": NONCE}, "spec is missing"),
        ("savepoint", {"nonce": NONCE, "spec": True}, "type int"),
        ("stop", {"nonce": NONCE, "spec": 1, "mode": "sideways"}, "sideways"),
        ("stop", {"nonce": NONCE, "spec": 1, "timeout": "soon"}, "timeout"),
        ("reject", {"nonce": NONCE, "spec": 1}, "checkpoint_id is missing"),
        ("reject", {"nonce": NONCE, "spec": 1, "checkpoint_id": 1, "then": "dance"}, "dance"),
        ("reject", {"nonce": NONCE, "spec": 1, "checkpoint_id": 1, "reason": "x" * 501}, "longer than 500"),
        ("restore", {"nonce": NONCE, "spec": 1, "on_committed_after": "hope"}, "on_committed_after"),
    ],
)
def test_what_a_press_may_not_say_is_refused_by_name(
    page: Page, job: Job, verb: str, body: dict[str, Any], words: str
) -> None:
    answer = page.editor().post(f"{JOB}/{verb}", body)
    assert answer.status_code == 400
    assert words in json.dumps(answer.json()["error"])
    assert commands(job) == []


def test_a_press_on_a_submission_that_is_no_longer_the_newest_is_refused(page: Page, job: Job) -> None:
    ScriptedDriver(job.client, launch=2).status("STOPPED")
    job.submit("second", owner_dag="d")
    answer = page.editor().post(f"{JOB}/cancel", {"nonce": NONCE, "spec": 1})
    assert answer.status_code == 409
    assert "submitted again" in answer.json()["error"]["what"]


def test_the_drivers_answer_is_shown(page: Page, job: Job) -> None:
    command_id = page.editor().post(f"{JOB}/savepoint").json()["command_id"]
    address = f"{JOB}/commands/{command_id}"
    assert page.viewer().get(address).json()["answered"] is False
    ScriptedDriver(job.client, launch=2).answer(command_id, path="j1/savepoints/s")
    told = page.viewer().get(address).json()
    assert (told["answered"], told["ok"], told["data"]) == (True, True, {"path": "j1/savepoints/s"})


def test_a_cancel_of_a_job_whose_driver_is_dead_needs_no_driver(
    page: Page, job: Job, clock: ManualClock[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobClient, "is_alive", lambda self: False)
    assert page.viewer().get(JOB).json()["is_silent"] is False
    clock.now += timedelta(hours=1).total_seconds()
    assert page.viewer().get(JOB).json()["is_silent"] is True
    assert "cancelled" in page.editor().post(f"{JOB}/cancel").json()["done"]
    assert str(job.client.view().status) == "CANCELED"
    assert "airflow-ui:otto" in job.client.view().reason


# ---------------------------------------------------------------- restoring


def ended(job: Job, launcher: str = "local", host: str | None = None) -> None:
    """The job is stopped; its driver had been launched."""
    launch = record_launch(job.client.store, job.client.layout, job.client.spec(1).number, launcher=launcher, host=host)
    known = Launch(**{**{f: getattr(launch, f) for f in Launch.__slots__}, "pid": 1})
    job.client.store.create(job.client.layout.launched_process(1, launch.attempt), encode(known))
    ScriptedDriver(job.client, launch=2).status("STOPPED")


def test_a_restore_submits_what_was_submitted_before_and_launches_its_driver(
    page: Page, job: Job, clock: ManualClock[float]
) -> None:
    assert page.viewer().get(JOB).json()["restore_problem"] == "", "nobody asks while a driver runs"
    ended(job)
    clock.now += READ_INTERVAL_S
    assert page.viewer().get(JOB).json()["restore_problem"] == ""
    body = {"nonce": NONCE, "spec": 1, "checkpoint_id": 1, "allow_drained": True}
    for _ in range(2):
        answer = page.editor().post(f"{JOB}/restore", body)
        assert answer.status_code == 202, answer.json()
    spec = job.client.specs()[-1]
    assert (spec.number, spec.owner_dag, spec.submitted_by) == (2, "d", "airflow-ui:otto")
    assert spec.artifact == job.client.spec(1).artifact
    assert spec.restore is not None
    assert (spec.restore.checkpoint_id, spec.restore.allow_drained) == (1, True)
    assert set(job.launches) == {2}


def connect(job: Job, monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
    """The connection names this launcher."""
    connection = {"conn_type": "tidegate", "host": str(job.root), "extra": {"launcher": launcher}}
    monkeypatch.setenv("AIRFLOW_CONN_TIDEGATE_DEFAULT", json.dumps(connection))


@pytest.mark.parametrize(("launcher", "host"), [("local", "elsewhere"), ("yarn", None)])
def test_a_restore_whose_driver_the_page_cannot_start_submits_nothing(
    page: Page, job: Job, monkeypatch: pytest.MonkeyPatch, launcher: str, host: str | None
) -> None:
    connect(job, monkeypatch, launcher)
    ended(job, launcher, host)
    told = page.viewer().get(JOB).json()["restore_problem"]
    assert (host or f"launcher {launcher!r}") in told and "TidegateRestoreJobOperator" in told
    answer = page.editor().post(f"{JOB}/restore")
    assert answer.status_code == 409
    assert "TidegateRestoreJobOperator" in answer.json()["error"]["remedy"]
    assert len(job.client.specs()) == 1 and job.launches == []


def test_a_restore_leaves_the_launch_to_an_agent_where_there_is_one(
    page: Page, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(job, monkeypatch, "agent")
    ended(job, "spark-submit", "elsewhere")
    answer = page.editor().post(f"{JOB}/restore")
    assert answer.status_code == 202 and "agent" in answer.json()["done"]
    desired = read_desired(job.client)
    assert desired is not None and (desired.state, desired.spec) == ("running", 2)
    assert job.launches == []


@pytest.mark.parametrize("executor", ["CeleryExecutor", "LocalExecutor,my.CeleryExecutor"])
def test_a_job_directory_cannot_make_the_api_server_run_code_where_tasks_run_elsewhere(
    page: Page, job: Job, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """Who may write the job root may write there that its driver was started on the API server's machine."""
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    ended(job)
    editor = page.editor()
    assert "runs on other machines" in page.viewer().get(JOB).json()["restore_problem"]
    job.submit(stable_id("ui", "restore", "airflow-ui:otto", "forged-0123"), owner_dag="d")
    for nonce, spec in ((NONCE, 2), ("forged-0123", 2)):
        answer = editor.post(f"{JOB}/restore", {"nonce": nonce, "spec": spec})
        assert (answer.status_code, answer.json()["error"]["what"]) == (
            409,
            "the page cannot start a driver on Airflow's API server",
        )
    assert len(job.client.specs()) == 2 and job.launches == []


def test_only_a_snapshot_of_the_job_can_be_restored(page: Page, job: Job) -> None:
    ended(job)
    answer = page.editor().post(f"{JOB}/restore", {"nonce": NONCE, "spec": 1, "checkpoint_id": 99})
    assert answer.status_code == 409
    assert len(job.client.specs()) == 1


def test_restore_points_are_those_that_are_still_there(page: Page, job: Job, clock: ManualClock[float]) -> None:
    driver = ScriptedDriver(job.client, launch=2)
    driver.checkpoint(2)
    driver.checkpoint(3, "savepoint")
    driver.status("STOPPED")
    job.client.store.delete(job.client.layout.metadata(job.client.layout.checkpoint(1, 1)))
    assert [point["id"] for point in page.viewer().get(JOB).json()["points"]] == [3, 2]
    job.client.store.delete(job.client.layout.metadata(job.client.layout.checkpoint(3, 2)))
    clock.now += POINTS_S
    assert [point["id"] for point in page.viewer().get(JOB).json()["points"]] == [2], "the log shows no deletion"


def test_a_refused_restore_leaves_the_job_as_it_was(page: Page, job: Job) -> None:
    """S9.3."""
    ScriptedDriver(job.client, launch=2).status("STOPPED")
    job.client.submit(restore=RestoreFrom("latest"), owner_dag="d")
    refused = ScriptedDriver(job.client, spec=2)
    refused.generation_log.append("failure", {"message": "no such column", "code": "pipeline"})
    refused.status("FAILED", reason="no such column")
    shown = page.viewer().get(JOB).json()
    assert (shown["status"], shown["spec"]) == ("STOPPED", 2)
    assert shown["reason"] == "submission 2 was refused, and changed nothing: no such column"


# ---------------------------------------------------------------- what is shown


def test_html_in_what_is_shown_stays_text_in_the_page_and_in_the_answer(
    page: Page, job: Job, clock: ManualClock[float]
) -> None:
    evil = "<img src=x onerror=alert(1)>"
    driver = ScriptedDriver(job.client, launch=2)
    driver.generation_log.append("failure", {"message": evil, "operator": None, "subtask": None, "traceback": None})
    driver.status("FAILED", reason=evil)
    clock.now += READ_INTERVAL_S
    shell = page.viewer().get("/ui/jobs/tidegate_default/j1")
    assert "<img" not in shell.text and shell.headers["content-type"].startswith("text/html")
    answer = page.viewer().get(JOB)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["failures"][0]["message"] == evil


def test_a_failure_says_whether_the_job_has_run_since_and_slots_are_those_it_needs(
    page: Page, job: Job, clock: ManualClock[float]
) -> None:
    """S9.1: derived where the CLI derives it."""
    driver = ScriptedDriver(job.client, launch=2)
    driver.generation_log.append("failure", {"message": "gone", "operator": None, "subtask": None, "traceback": None})
    driver.status("RESTARTING", reason="gone")
    driver.beat(slots_registered=2, slots_needed=1)
    for status, words in (("WAITING_FOR_SLOTS", "not recovered from yet"), ("RUNNING", "since recovered")):
        driver.status(status)
        clock.now += READ_INTERVAL_S
        document = page.viewer().get(JOB).json()
        assert document["failures"][0]["words"] == f"last failure, {words}"
        assert document["slots"] == {"registered": 1, "needed": 1}
        assert document["submissions"][-1]["was_restored"] is False


def test_a_page_says_in_words_that_checkpoints_wait_for_deletions(
    page: Page, job: Job, clock: ManualClock[float]
) -> None:
    """S2.3: in those of the CLI; the script of the page shows them."""
    driver = ScriptedDriver(job.client, launch=2)
    driver.status("RUNNING")
    for waits, words in (
        (40, "no new checkpoint starts: the store has not deleted 40 retired checkpoints yet"),
        (0, ""),
    ):
        driver.beat(waits_for_deletions=waits)
        clock.now += READ_INTERVAL_S
        document = page.viewer().get(JOB).json()
        assert document["deletions"].partition(". ")[0] == words
    script = Path(inspect.getfile(TidegatePlugin)).with_name("static") / "job.js"
    assert "banner(" in script.read_text().partition("if (job.deletions)")[2].partition("\n")[0]


def test_many_open_pages_cost_one_read(
    page: Page, job: Job, clock: ManualClock[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    real = JobClient.decisions
    monkeypatch.setattr(JobClient, "decisions", lambda self: (reads.append(self.job_id), real(self))[1])
    viewer = page.viewer()
    for _ in range(20):
        viewer.get(JOB)
        viewer.get("/api/jobs")
    assert reads == ["j1"]
    clock.now += READ_INTERVAL_S
    viewer.get(JOB)
    assert reads == ["j1", "j1"]


def test_throughput_is_that_of_two_hints_of_one_run_by_the_drivers_clock(
    page: Page, job: Job, clock: ManualClock[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = ScriptedDriver(job.client, launch=2)
    driver.status("RUNNING")

    def rate(at: str, records: int) -> Any:
        monkeypatch.setattr("scripted_job.NOW", at)
        driver.beat(sources={"flights": {"boundedness": "bounded", "records": records}})
        clock.now += READ_INTERVAL_S
        return page.viewer().get(JOB).json()["sources"][0]["rate"]

    assert rate("2026-01-01T00:00:00.000Z", 100) is None
    assert rate("2026-01-01T00:00:02.000Z", 300) == 100.0
    assert rate("2026-01-01T00:00:04.000Z", 700) == 150.0


def test_the_list_goes_on_page_by_page(page: Page, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_tidegate.plugins.page_app.PAGE_SIZE", 2)
    for n in range(4):
        other = JobClient(str(job.root), f"k{n}")
        other.submit(pipeline="pipe.py:build", code_root=str(job.dag_file.parent), owner_dag="d" if n % 2 else "x")
    viewer, seen, after = page.viewer(), [], ""
    while after is not None:
        told = viewer.get(f"/api/jobs?after={after}").json()
        seen += [j["job_id"] for j in told["jobs"]]
        after = told["next"]
    assert seen == ["j1", "k1", "k3"]


def test_what_cannot_be_read_is_named_to_those_who_can_mend_it(page: Page, job: Job) -> None:
    broken = job.root / "broken" / "specs"
    broken.mkdir(parents=True)
    (broken / "000001.json").write_text("{")
    admin = page.user("ada", ("GET", "d"), ("PUT", "connection tidegate_default"))
    told = admin.get("/api/jobs").json()
    assert [problem["job_id"] for problem in told["problems"]] == ["broken"]
    told = page.viewer().get("/api/jobs").json()
    assert (told["problems"], told["unreadable"]) == ([], 1)
    assert [j["job_id"] for j in told["jobs"]] == ["j1"]


@pytest.mark.parametrize(
    ("query", "target"),
    [
        ("dag_id=d", "/ui/jobs?dag=d"),
        ("dag_id=d&run_id=r1", "/ui/jobs/tidegate_default/j1"),
        ("dag_id=d&run_id=r2&task_id=start", "/ui/jobs/tidegate_default/k"),
        ("dag_id=d&run_id=unknown", "/ui/jobs?dag=d"),
    ],
)
def test_the_tab_of_a_run_jumps_to_its_job(page: Page, job: Job, query: str, target: str) -> None:
    other = JobClient(str(job.root), "k")
    code = str(job.dag_file.parent)
    other.submit(pipeline="pipe.py:build", code_root=code, owner_dag="d", submitted_by="airflow:d/r2/start")
    answer = page.viewer().get(f"/ui/go?{query}")
    assert (answer.status_code, answer.headers["location"]) == (303, target)


def test_the_tab_is_for_those_who_may_read_the_dag(page: Page) -> None:
    assert page.viewer().get("/ui/go?dag_id=other").status_code == 403


# ---------------------------------------------------------------- the plugin


def test_the_plugin_makes_nothing_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = TidegatePlugin()
    TidegatePlugin.validate()
    (app,) = plugin.fastapi_apps
    assert isinstance(app["app"], LazyPage) and app["url_prefix"] == "/tidegate"
    shown = {view["destination"]: view for view in plugin.external_views}
    assert set(shown) == {"nav", "dag", "dag_run", "task", "task_instance"}
    assert len({view["url_route"] for view in plugin.external_views}) == 5
    assert shown["dag_run"]["href"] == "/tidegate/ui/go?dag_id={DAG_ID}&run_id={RUN_ID}"


def test_below_a_path_of_a_proxy_the_frames_and_the_pages_links_have_it(page: Page) -> None:
    assert {view["href"].partition("/ui/")[0] for view in views("/airflow")} == {"/airflow/tidegate"}
    page.viewer()
    below = TestClient(page.client.app, base_url=HOST, root_path="/airflow/tidegate")
    shell = below.get("/ui/jobs", headers={"Cookie": "_token=vera"}).text
    assert 'data-root="/airflow/tidegate"' in shell and 'src="/airflow/tidegate/static/jobs.js"' in shell
    answer = below.get("/ui/go?dag_id=d", headers={"Cookie": "_token=vera"}, follow_redirects=False)
    assert answer.headers["location"] == "/airflow/tidegate/ui/jobs/tidegate_default/j1"
