"""The recipe `folder_to_kafka`: a real broker that demands a password, which only an Airflow connection holds."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow_home import Standalone
from dag_run import DagRun
from driving import ClientOf, driver_of, run_to_end, states, until
from kafka_broker import USER, KafkaBroker

from tidegate.cli.job_output import view_document
from tidegate.jobs.client.job_client import JobClient

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.gate, pytest.mark.timeout(600)]

JOB_ID = "folder-to-kafka"
TOPIC = "delivered-departures"
FIELDS = ("origin", "carrier", "flight", "time_hour", "dep_delay")


class Partner:
    """Delivers files with departures, and remembers their lines."""

    def __init__(self, folder: Path, flights: Path) -> None:
        self.incoming, self.published = folder / "incoming", folder / "published"
        self.incoming.mkdir()
        rows = pq.read_table(flights, columns=list(FIELDS)).slice(0, 3_000).to_pylist()
        self._rows = [{**row, "time_hour": row["time_hour"].isoformat()} for row in rows]
        self.lines: Counter[str] = Counter()
        self.files = 0

    def deliver(self, files: int, lines: int) -> None:
        """Rename complete files into the folder."""
        for _ in range(files):
            chosen = [self._rows[(self.lines.total() + n) % len(self._rows)] for n in range(lines)]
            self.lines.update(map(canonical, chosen))
            being_written = self.incoming / f".{self.files}.jsonl"
            being_written.write_text("".join(f"{json.dumps(row)}\n" for row in chosen))
            being_written.rename(self.incoming / f"{self.files}.jsonl")
            self.files += 1

    def all_are_archived(self) -> bool:
        return len(list(self.published.glob("*.jsonl"))) == self.files and not list(self.incoming.iterdir())


def canonical(row: dict[str, Any]) -> str:
    """A departure, however its numbers and times are written."""
    time = str(row["time_hour"]).replace(" ", "T").removesuffix(".000000")
    delay = None if row["dep_delay"] is None else float(row["dep_delay"])
    return json.dumps([row["origin"], row["carrier"], row["flight"], time, delay])


def on_the_topic(kafka: KafkaBroker) -> Counter[str]:
    """What `read_committed` consumers see."""
    return Counter(canonical(json.loads(message.value())) for message in kafka.read(TOPIC))


@pytest.fixture
def kafka_connection(airflow: Standalone, kafka: KafkaBroker) -> Iterator[str]:
    """An Airflow connection in its database, with the password of the broker. Returns the password."""
    secret = os.environ[kafka.password.removeprefix("secret:env/")]
    body = {"connection_id": "kafka_departures", "conn_type": "generic", "login": USER, "password": secret}
    airflow.call("POST", "/api/v2/connections", body)
    yield secret
    airflow.call("DELETE", "/api/v2/connections/kafka_departures")


def files_with(secret: str, folder: Path) -> list[str]:
    """Files below a folder that contain a text. Airflow's database is left out: `columns_with` reads it."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("airflow.db"):
            try:
                if secret.encode() in path.read_bytes():
                    found.append(str(path))
            except FileNotFoundError:  # a file that the job has just deleted
                continue
    return found


def columns_with(secret: str, database: Path) -> list[str]:
    """Columns of Airflow's database, XComs and rendered fields included, that contain a text."""
    found = set()
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert {"xcom", "rendered_task_instance_fields", "trigger"} <= set(tables)
        for table in tables:
            cursor = connection.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            found |= {
                f"{table}.{n}" for row in cursor for n, value in zip(names, row, strict=True) if secret in str(value)
            }
    return sorted(found)


def commands_with(secret: str) -> list[str]:
    """Command lines of processes that contain a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:  # it has ended
            continue
        if secret.encode() in command:
            found.append(command.decode(errors="replace"))
    return found


def environment_of(client: JobClient) -> bytes:
    driver = driver_of(client)
    assert driver is not None
    return Path(f"/proc/{driver.pid}/environ").read_bytes()


def test_each_line_is_published_once_and_the_password_is_nowhere(
    airflow: Standalone, client_of: ClientOf, kafka: KafkaBroker, kafka_connection: str, tmp_path: Path
) -> None:
    """S4.3, S7.4, S9.1: over the death of the driver, whose successor gets the password, too."""
    secret, client = kafka_connection, client_of(JOB_ID)
    kafka.create_topic(TOPIC, 2)
    partner = Partner(tmp_path, airflow.home.flights / "data" / "flights.parquet")
    partner.deliver(2, 700)
    conf = {
        "deliveries": str(tmp_path),
        "servers": kafka.secured_servers,
        "topic": TOPIC,
        "protocol": "SASL_PLAINTEXT",
        "mechanism": "PLAIN",
    }
    run = DagRun(airflow, "folder_to_kafka", "deliveries")
    run.trigger(conf)
    until("the first files to be archived", partner.all_are_archived, 240.0)
    until("their records", lambda: on_the_topic(kafka).total() >= partner.lines.total())
    until("the supervision", lambda: states(run)["supervise"] == "deferred")
    assert secret.encode() in environment_of(client), "else the search below would find nothing anywhere"

    partner.deliver(2, 700)
    driver = driver_of(client)
    assert driver is not None
    driver.kill(signal.SIGKILL)
    until("another driver", lambda: len(client.launches()) == 2 and driver_of(client) is not None)
    partner.deliver(1, 70)
    until("all files to be archived", partner.all_are_archived)
    until("their records", lambda: on_the_topic(kafka).total() >= partner.lines.total())
    assert secret.encode() in environment_of(client)

    assert commands_with(secret) == []
    stop = client.send("stop", {"mode": "drain"}, issued_by="test")
    assert client.wait_result(stop.command_id, "1 min").ok
    assert run_to_end(run) == {
        "whether": "success",
        "start": "success",
        "restore": "skipped",
        "supervise": "success",
    }
    found = on_the_topic(kafka)
    assert (partner.lines - found, found - partner.lines) == (Counter(), Counter())

    home = airflow.home
    assert client.specs()[0].secrets["KAFKA_PASSWORD"] == "conn:kafka_departures/password"
    assert files_with("conn:kafka_departures/password", home.job_root / JOB_ID), "the job directory has the place"
    assert files_with(secret, home.job_root) == [] and files_with(secret, home.folder) == []
    assert "xcom.value" in columns_with(JOB_ID, home.folder / "airflow.db"), "a text that is there is found"
    assert columns_with(secret, home.folder / "airflow.db") == []
    assert secret not in json.dumps(view_document(client.view()), default=str)
