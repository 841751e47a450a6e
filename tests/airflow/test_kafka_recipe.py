"""The recipe `kafka_to_iceberg`: a real broker, and a table that pyiceberg reads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from airflow_home import Standalone
from dag_run import DagRun
from demo_kafka import PARTITIONS, TABLE, TOPIC, difference, expected, fill, open_catalog, published
from driving import ClientOf, driver_of, ran, run_to_end, states, until
from flight_data import YEAR_BEGINS
from kafka_broker import KafkaBroker

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.gate, pytest.mark.timeout(600)]


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Path]:
    open_catalog(tmp_path).create_namespace(TABLE.partition(".")[0])
    yield tmp_path


def test_hours_of_a_topic_are_published_after_an_audit_and_never_without(
    airflow: Standalone, client_of: ClientOf, kafka: KafkaBroker, warehouse: Path
) -> None:
    """S7.8, S9.1: with a refused audit and a dead driver between two runs; each hour is in the table once."""
    flights = airflow.home.flights / "data" / "flights.parquet"
    kafka.create_topic(TOPIC, PARTITIONS)
    job = {"servers": kafka.servers, "warehouse": str(warehouse)}

    def conf(days: int) -> dict[str, str]:
        return {**job, "until": f"{(YEAR_BEGINS + timedelta(days=days)).isoformat()}Z"}

    fill(kafka, flights, range(2))
    first = ran(airflow, "kafka_to_iceberg", "day-1", conf(1))
    assert {t: s for t, s in states(first).items() if s == "skipped"} == {"restore": "skipped", "reject": "skipped"}
    one_day = published(warehouse)
    assert one_day.num_rows and difference(one_day, set()) == (0, one_day.num_rows)

    fill(kafka, flights, range(2, 4))
    refused = DagRun(airflow, "kafka_to_iceberg", "day-3-refused")
    refused.trigger({**conf(3), "most_flights": 3})
    found = run_to_end(refused)
    assert (found["audit"], found["reject"], found["publish"]) == ("failed", "success", "upstream_failed"), found
    assert published(warehouse).num_rows == one_day.num_rows, "rejected rows are visible"

    again = ran(airflow, "kafka_to_iceberg", "day-3", conf(3))
    assert states(again)["start"] == "skipped" and states(again)["restore"] == "success"
    driver = driver_of(client_of("departures-to-iceberg"))
    assert driver is not None
    driver.kill()
    until("the driver to end", lambda: driver_of(client_of("departures-to-iceberg")) is None, 60.0)
    fill(kafka, flights, range(4, 6))
    ran(airflow, "kafka_to_iceberg", "day-5", conf(5))
    rows = published(warehouse)
    end = YEAR_BEGINS + timedelta(days=5)
    early = [row for row in rows.to_pylist() if row["window_start"] < end]
    assert difference(
        rows.take([i for i, r in enumerate(rows.to_pylist()) if r["window_start"] < end]), expected(flights, end)
    ) == (0, 0)
    assert len({(row["origin"], row["window_start"]) for row in rows.to_pylist()}) == rows.num_rows >= len(early)
    driver = driver_of(client_of("departures-to-iceberg"))
    assert driver is not None
    driver.kill()
