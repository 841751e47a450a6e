"""S4.2, S7.4, S9.1 on real Spark: a mirrored table that keeps changing, while slots, drivers and its server die."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import RealJob
from ledger import compared
from postgres_server import PASSWORD_VARIABLE, PostgresServer

MIRROR = Path(__file__).parent / "pipelines" / "mirror.py"
ROWS = 50_000
_numbers = count()


@pytest.fixture(scope="module")
def second_postgres(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server that may be killed: the sink of other jobs needs the first one."""
    server = PostgresServer(f"{PASSWORD_VARIABLE}_2")
    try:
        server.start()
        yield server
    finally:
        server.stop()


class Tables:
    """A table and its mirror, each on a server of its own."""

    def __init__(self, job: RealJob, source: PostgresServer, target: PostgresServer) -> None:
        self.job, self.source, self.target = job, source, target
        number = next(_numbers)
        self.names = f"original_{number}", f"mirrored_on_spark_{number}"
        for server, name in zip((source, target), self.names, strict=True):
            self.run(server, f"CREATE TABLE {name} (id int PRIMARY KEY, v int, note text)")
        self.write(f"INSERT INTO $t SELECT g, 0, 'row ' || g FROM generate_series(1, {ROWS}) g")
        ends = [
            {"dsn": server.dsn, "table": name, "password": server.password}
            for server, name in zip((source, target), self.names, strict=True)
        ]
        place = Path(job.out).parent / "mirror.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"source": ends[0], "sink": ends[1]}))

    @staticmethod
    def run(server: PostgresServer, statement: str) -> list[Any]:
        with server.connect() as sql:
            cursor = sql.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def write(self, statement: str) -> None:
        self.run(self.source, statement.replace("$t", self.names[0]))

    def change(self, n: int) -> None:
        """Change rows of every kind."""
        self.write(f"UPDATE $t SET v = v + 1, note = 'change {n}' WHERE id % 5 = {n % 5}")
        self.write(
            f"DELETE FROM $t WHERE id % 101 = {n};"
            f" INSERT INTO $t SELECT -g - {n} * 1000, {n} FROM generate_series(1, 500) g"
        )
        self.write(f"UPDATE $t SET id = id + 1000000 WHERE id % 997 = {n}")

    def until_equal(self) -> None:
        """Until the mirror has the rows of the table, and no other ones."""
        wanted = self.run(self.source, f"SELECT * FROM {self.names[0]} ORDER BY 1")
        query = f"SELECT * FROM {self.names[1]} ORDER BY 1"
        self.job.until(lambda _: self.run(self.target, query) == wanted, "the mirror equals the table")
        rows = ([tuple(row) for row in found] for found in (wanted, self.run(self.target, query)))
        assert compared("PostgresTable, Postgres", *rows) == (0, 0)


def restarted(job: RealJob, at_least: int) -> None:
    job.until(lambda view: view.restarts >= at_least and view.status.value == "RUNNING", "the restart")


def test_a_mirror_equals_its_table_after_a_killed_slot(local_job: RealJob, postgres: PostgresServer) -> None:
    """S4.2, S7.4, S9.1; and the job directory has no secret."""
    tables = Tables(local_job, postgres, postgres)
    local_job.start(rows=0, rate=0.0, pipeline=MIRROR)
    tables.change(1)
    local_job.completed(1)
    tables.change(2)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    tables.change(3)
    restarted(local_job, 1)
    tables.change(4)
    tables.until_equal()
    secret = os.environ[PASSWORD_VARIABLE].encode()
    assert not [path for path in Path(local_job.root).rglob("*") if path.is_file() and secret in path.read_bytes()]


@pytest.mark.slow
def test_a_mirror_equals_its_table_after_killed_slots_drivers_and_servers(
    local_job: RealJob, postgres: PostgresServer, second_postgres: PostgresServer
) -> None:
    """S4.2, S7.4, S9.1, S9.2."""
    tables = Tables(local_job, second_postgres, postgres)
    local_job.start(rows=0, rate=0.0, pipeline=MIRROR)
    local_job.completed(1)
    killed: set[int] = set()
    for n in range(1, 4):
        tables.change(n)
        # After a restart, the status names the slots of the run before for a moment.
        local_job.until(lambda _: killed.isdisjoint(local_job.slot_pids()), "the slots of the new run")
        killed.update(local_job.slot_pids())
        os.kill(local_job.slot_pids()[0], signal.SIGKILL)
        restarted(local_job, n)
    second_postgres.kill()
    second_postgres.start_again()
    tables.change(4)
    tables.until_equal()
    tables.change(5)
    os.kill(local_job.driver_pid(), signal.SIGKILL)
    tables.change(6)
    local_job.relaunch()
    tables.change(7)
    tables.until_equal()
    command = local_job.client.send("stop", {"mode": "drain"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok, result
    tables.until_equal()
