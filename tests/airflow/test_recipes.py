"""The recipes in dags/, each triggered over REST and followed to its end."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet
import pytest
from airflow_home import AirflowFailed, Standalone
from dag_run import DagRun
from driving import ClientOf, driver_of, ran, run_to_end, states, until

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.gate, pytest.mark.timeout(600)]


def minutes_late(airflow: Standalone, flights: int) -> int:
    """Of the first flights that have a delay, in the order in which they play, from the source file."""
    table = pyarrow.dataset.dataset(str(airflow.home.flights / "data" / "flights.parquet")).to_table()
    played = table.take(pyarrow.compute.sort_indices(table["time_hour"]))
    return sum(played["dep_delay"].drop_null().slice(0, flights).to_pylist())


def test_a_job_that_is_drained_every_night_and_restored_every_morning_counts_every_flight_once(
    airflow: Standalone, client_of: ClientOf
) -> None:
    """S7.2, S7.5. The day that is open when the job is drained has two rows, which add up."""
    job = {"job_id": "days-and-nights"}
    client = client_of("days-and-nights")
    first = ran(airflow, "morning_restore", "day-1", {**job, "speed": 0.07})
    assert {t: s for t, s in states(first).items() if s != "success"} == {"restore": "skipped"}

    noon = ran(airflow, "morning_restore", "day-1-again", job)
    assert {t: s for t, s in states(noon).items() if s == "skipped"} == {"start": "skipped", "restore": "skipped"}
    assert len(client.specs()) == 1, "a job that runs was to be left alone"

    saved = ran(airflow, "savepoint_on_demand", "before-the-night", {**job, "label": "before-the-night"})
    path = saved.xcom("savepoint")["path"]
    assert Path(path).parent == airflow.home.job_root / "days-and-nights" / "savepoints" / "before-the-night"
    assert states(saved)["checkpoint"] == "skipped"
    own = ran(airflow, "savepoint_on_demand", "a-checkpoint", {**job, "kind": "checkpoint"})
    assert own.xcom("checkpoint")["checkpoint_id"] > saved.xcom("savepoint")["checkpoint_id"]

    night = ran(airflow, "nightly_drain_and_stop", "night-1", job)
    assert night.xcom("stop")["outcome"] == "committed"
    until("the driver to end", lambda: driver_of(client) is None, 60.0)
    so_far = night.xcom("report")
    assert so_far["minutes_late"] == minutes_late(airflow, so_far["flights"])

    second = ran(airflow, "morning_restore", "day-2", job)
    assert states(second)["start"] == "skipped"
    assert client.specs()[-1].restore is not None
    assert not client.view().sources[0].played_all, "the job was to be stopped in the middle"
    end = ran(airflow, "nightly_drain_and_stop", "night-2", job).xcom("report")
    assert end["flights"] > so_far["flights"] > 0
    assert end["minutes_late"] == minutes_late(airflow, end["flights"])
    table = pyarrow.dataset.dataset(client.specs()[-1].arguments["out"], format="parquet").to_table()
    rows = table.group_by(["origin", "window_start"]).aggregate([([], "count_all")])["count_all"].to_pylist()
    assert set(rows) >= {1, 2}, "the day that was open was to have two rows, days before it one"


def test_the_form_of_a_savepoint_refuses_what_cannot_be(airflow: Standalone) -> None:
    for conf, word in (({"kind": "backup"}, "backup"), ({"label": "../../etc"}, "../../etc")):
        with pytest.raises(AirflowFailed, match="400") as refusal:
            DagRun(airflow, "savepoint_on_demand", "refused").trigger({"job_id": "x", **conf})
        assert word in str(refusal.value)


def nine_days(airflow: Standalone, home: Path) -> None:
    """A home of the DAG with the flights of the first nine days."""
    (home / "data").mkdir(parents=True)
    shutil.copy(airflow.home.flights / "data" / "airlines.parquet", home / "data")
    flights = pyarrow.dataset.dataset(str(airflow.home.flights / "data" / "flights.parquet")).to_table()
    first = pyarrow.compute.min(flights["time_hour"]).as_py()
    early = pyarrow.compute.field("time_hour") < pyarrow.scalar(first + timedelta(days=9), flights["time_hour"].type)
    pyarrow.parquet.write_table(flights.filter(early), home / "data" / "flights.parquet")


def test_rows_of_the_rest_that_fail_the_audit_are_rejected_although_the_job_has_ended(
    airflow: Standalone, client_of: ClientOf, tmp_path: Path
) -> None:
    """S7.8. The first departure that is later than 1,000 minutes is that of January 9; half a minute before it plays
    there is time for the first audit."""
    nine_days(airflow, tmp_path)
    run = DagRun(airflow, "write_audit_publish", "rest-refused")
    run.trigger({"speed": 0.25, "most_delay": 1000, "home": str(tmp_path)})
    found = run_to_end(run)
    assert (found["audit"], found["publish"], found["reject"]) == ("success", "success", "skipped"), found
    assert (found["audit_the_rest"], found["reject_the_rest"]) == ("failed", "success"), run.log("reject_the_rest")
    assert found["publish_the_rest"] == "upstream_failed"
    published = run.xcom("audit")["rows"]
    files = (tmp_path / "out" / "rest-refused-0").glob("*.parquet")
    assert sum(pyarrow.dataset.dataset(str(path)).count_rows() for path in files) == published > 0
    assert run.xcom("reject_the_rest")["rejected"] == [run.xcom("drain")["checkpoint_id"]]
    view = client_of("departures-rest-refused").view()
    assert view.waiting == view.uncommitted == ()
