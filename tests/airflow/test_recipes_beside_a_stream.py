"""Recipes that change, copy or follow a running stream: upgrade, backfill, and a batch for each hour."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow.dataset
import pytest
from airflow_home import Standalone
from dag_run import DagRun
from driving import RUN_TIMEOUT_S, ClientOf, driver_of, ran, run_to_end, states, until

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.timeout(600)]


def flights_of_days(airflow: Standalone) -> Counter[str]:
    """Airport and day -> flights with a delay, from the source file."""
    rows = pyarrow.dataset.dataset(str(airflow.home.flights / "data" / "flights.parquet")).to_table().to_pylist()
    return Counter(f"{r['origin']} {r['time_hour']:%Y-%m-%d}" for r in rows if r["dep_delay"] is not None)


def table_of(folder: str) -> list[dict[str, Any]]:
    return list(pyarrow.dataset.dataset(folder, format="parquet").to_table().to_pylist())


def days_of(folder: str) -> Counter[str]:
    """Airport and day -> flights of a table of totals, rows of one day added up."""
    found: Counter[str] = Counter()
    for row in table_of(folder):
        found[f"{row['origin']} {row['window_start']:%Y-%m-%d}"] += row["flights"]
    return found


def test_a_job_is_upgraded_rolled_back_and_its_past_calculated_again_while_it_runs(
    airflow: Standalone, client_of: ClientOf
) -> None:
    """S5.5, S7.4."""
    job = {"job_id": "in-production"}
    client = client_of("in-production")
    ran(airflow, "morning_restore", "in-production", {**job, "speed": 0.1})
    ran(airflow, "savepoint_on_demand", "in-production", {**job, "label": "before-the-upgrade"})

    good = ran(airflow, "upgrade_with_rollback", "good", job)
    assert states(good) == {"upgrade": "success", "works": "success", "old_version_works": "skipped"}
    assert [spec.pipeline.rpartition(":")[2] for spec in client.specs()] == ["build", "with_late_flights"]

    bad = DagRun(airflow, "upgrade_with_rollback", "bad")
    bad.trigger({**job, "version": "broken"})
    found = run_to_end(bad)
    assert found == {"upgrade": "failed", "works": "upstream_failed", "old_version_works": "success"}, found
    words = bad.log("upgrade", bad.tasks()["upgrade"]["try_number"])
    assert "this version was never tested" in words and "The old version is restored" in words, words[-3000:]
    versions = [spec.pipeline.rpartition(":")[2] for spec in client.specs()]
    assert versions == ["build", "with_late_flights", "broken", "with_late_flights"]

    again = ran(airflow, "backfill_from_savepoint", "again", {**job, "until": "2013-01-10"})
    truth = flights_of_days(airflow)
    fork = client_of(again.xcom("backfill")["job_id"])
    assert fork.view().status.value == "FINISHED"
    days = days_of(fork.spec(1).arguments["out"])
    assert days == {day: truth[day] for day in days}
    assert max(days).endswith("2013-01-09") and len(days) % 3 == 0, "three airports, to the end of the interval"
    assert again.xcom("compare")["days"] == len(days)
    assert client.view().status.value == "RUNNING", "the original runs on"

    live = days_of(client.spec(1).arguments["out"])
    assert live and live == {day: truth[day] for day in live}, "two upgrades lost or repeated a flight"
    driver = driver_of(client)
    assert driver is not None
    driver.kill()


def test_each_hour_that_the_watermark_has_passed_is_reported_once_and_whole(
    airflow: Standalone, client_of: ClientOf
) -> None:
    ran(airflow, "departures_live", "live", {"speed": 0.05})
    airflow.call("PATCH", "/api/v2/dags/hourly_batch_on_watermark", {"is_paused": False})
    path = "/api/v2/dags/hourly_batch_on_watermark/dagRuns"

    def reports() -> list[DagRun]:
        runs = airflow.call("GET", path)["dag_runs"]
        return [DagRun(airflow, run["dag_id"], run["dag_run_id"]) for run in runs if run["state"] == "success"]

    until("two reports", lambda: len(reports()) >= 2, RUN_TIMEOUT_S)
    airflow.call("PATCH", "/api/v2/dags/hourly_batch_on_watermark", {"is_paused": True})
    stream = client_of("departures-live")
    flights = pyarrow.dataset.dataset(str(airflow.home.flights / "data" / "flights.parquet")).to_table().to_pylist()
    ends = []
    for report in reports():
        which = report.xcom("which")
        assert client_of(which["job_id"]).view().status.value == "FINISHED"
        hours = (f"{f['origin']} {f['time_hour'].isoformat()}" for f in flights)
        truth = Counter(hour for hour in hours if which["start"][:19] <= hour.split(" ")[1] < which["end"][:19])
        found = {f"{row['origin']} {row['window_start'].isoformat()}": row["flights"] for row in table_of(which["out"])}
        assert found == dict(truth)
        ends.append((which["start"], which["end"]))
    assert all(one[1] <= next_[0] for one, next_ in zip(sorted(ends), sorted(ends)[1:], strict=False)), ends
    driver = driver_of(stream)
    assert driver is not None
    driver.kill()
