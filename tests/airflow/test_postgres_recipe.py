"""The recipe `postgres_to_delta`: a real PostgreSQL server, and a table that delta-rs and DuckDB read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow_home import Standalone
from deltalake import DeltaTable
from driving import ClientOf, driver_of, ran, states, until
from postgres_server import PostgresServer

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.gate, pytest.mark.timeout(600)]

JOB = "customers-to-delta"
ROWS = 5_000


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


def mirrored(folder: Path) -> list[tuple[Any, ...]]:
    """As an independent reader of the files sees the table."""
    import duckdb

    rows = DeltaTable(str(folder)).to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by name
    return duckdb.sql("SELECT id, name, city FROM rows ORDER BY id").fetchall()


def test_a_table_is_mirrored_over_a_dead_driver_and_compacted(
    airflow: Standalone, client_of: ClientOf, postgres: PostgresServer, tmp_path: Path
) -> None:
    """S4.2, S7.4, S9.1, S9.2."""
    out = tmp_path / "customers"
    secret = tmp_path / "password"
    secret.write_text(postgres._secret)
    conf = {
        "dsn": postgres.dsn,
        "password": f"secret:file/{secret}",
        "table": "public.customers",
        "out": str(out),
        "interval": "2 s",
    }

    def change(*statements: str) -> None:
        with postgres.connect() as sql:
            for statement in statements:
                sql.execute(statement)

    def original() -> list[tuple[Any, ...]]:
        with postgres.connect() as sql:
            return list(sql.execute("SELECT id, name, city FROM customers ORDER BY id").fetchall())

    def is_equal() -> bool:
        return DeltaTable.is_deltatable(str(out)) and mirrored(out) == original()

    change(
        "CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, city text)",
        f"INSERT INTO customers SELECT g, 'customer ' || g, 'city ' || g % 7 FROM generate_series(1, {ROWS}) g",
    )
    first = ran(airflow, "postgres_to_delta", "hour-1", conf)
    assert states(first)["restore"] == "skipped"
    until("the copy of the table", is_equal)

    change("UPDATE customers SET city = NULL WHERE id % 10 = 3", "DELETE FROM customers WHERE id % 100 = 7")
    change("UPDATE customers SET id = id + 1000000 WHERE id % 500 = 9")
    driver = driver_of(client_of(JOB))
    assert driver is not None
    driver.kill()
    until("the driver to end", lambda: driver_of(client_of(JOB)) is None, 60.0)
    change("INSERT INTO customers VALUES (0, 'the first', 'after the death')")
    second = ran(airflow, "postgres_to_delta", "hour-2", {**conf, "most_files": 1})
    assert {t: s for t, s in states(second).items() if s == "skipped"} == {"start": "skipped"}
    until("the changes of both times", is_equal)

    change("UPDATE customers SET name = upper(name)")
    third = ran(airflow, "postgres_to_delta", "hour-3", {**conf, "most_files": 1})
    assert {t for t, s in states(third).items() if s == "skipped"} == {"start", "restore"}, "a running job continues"
    found = third.xcom("report")
    assert found["rows"] == len(original()) and found["lag_bytes"] is not None
    assert third.xcom("compact")["after"] <= max(third.xcom("compact")["before"], 1)
    until("the last change", is_equal)
    job = airflow.home.job_root / JOB
    words = postgres._secret.encode()
    assert not [path for path in job.rglob("*") if path.is_file() and words in path.read_bytes()]
    driver = driver_of(client_of(JOB))
    assert driver is not None
    driver.kill()
