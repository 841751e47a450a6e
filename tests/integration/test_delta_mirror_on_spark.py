"""S4.2, S7.4, S9.1 on real Spark: a PostgreSQL table mirrored in a Delta table, with killed slots and drivers."""

from __future__ import annotations

import json
import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import RealJob
from deltalake import DeltaTable
from ledger import compared
from postgres_server import PASSWORD_VARIABLE, PostgresServer

MIRROR = Path(__file__).parent / "pipelines" / "delta_mirror.py"
ROWS = 40_000
_numbers = count()


class Mirrored:
    """A table that changes, and its mirror as DuckDB reads it from the files that delta-rs names."""

    def __init__(self, job: RealJob, server: PostgresServer) -> None:
        self.job, self.server = job, server
        self.name = f"mirrored_in_delta_{next(_numbers)}"
        self.run(
            f"CREATE TABLE {self.name} (id int PRIMARY KEY, v int NOT NULL, note text, price numeric(9, 2))",
            f"INSERT INTO {self.name} SELECT g, 0, 'row ' || g, g / 4.0 FROM generate_series(1, {ROWS}) g",
        )
        place = Path(job.out).parent / "mirror.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"dsn": server.dsn, "table": self.name, "password": server.password}))

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.server.connect() as sql:
            for statement in statements:
                cursor = sql.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def change(self, n: int) -> None:
        """Rows of every kind of change; the key of some changes, too."""
        self.run(
            f"UPDATE {self.name} SET v = v + 1, note = 'change {n}' WHERE id % 50 = {n % 50}",
            f"DELETE FROM {self.name} WHERE id % 101 = {n}; INSERT INTO {self.name}"
            f" SELECT -g - {n} * 1000, {n}, NULL, NULL FROM generate_series(1, 500) g",
            f"UPDATE {self.name} SET id = id + 1000000 WHERE id % 997 = {n}",
        )

    def rows(self) -> list[tuple[Any, ...]]:
        import duckdb

        if not DeltaTable.is_deltatable(self.job.out):
            return []
        files = DeltaTable(self.job.out).file_uris()
        query = "SELECT id, v, note, price FROM read_parquet($files) ORDER BY id"
        return duckdb.execute(query, {"files": files}).fetchall() if files else []

    def until_equal(self) -> None:
        wanted = self.run(f"SELECT id, v, note, price FROM {self.name} ORDER BY id")
        self.job.until(lambda _: self.rows() == wanted, "the mirror equals the table")
        assert compared("PostgresTable, Delta", wanted, self.rows()) == (0, 0)


def restarted(job: RealJob, at_least: int) -> None:
    job.until(lambda view: view.restarts >= at_least and view.status.value == "RUNNING", "the restart")


@pytest.mark.slow
def test_a_delta_mirror_equals_its_table_after_killed_slots_and_a_killed_driver(
    local_job: RealJob, postgres: PostgresServer
) -> None:
    """S4.2, S7.4, S9.1, S9.2; and the job directory has no secret."""
    table = Mirrored(local_job, postgres)
    local_job.start(rows=0, rate=0.0, pipeline=MIRROR)
    local_job.completed(1)
    killed: set[int] = set()
    for n in range(1, 3):
        table.change(n)
        # After a restart, the status names the slots of the run before for a moment.
        local_job.until(lambda _: killed.isdisjoint(local_job.slot_pids()), "the slots of the new run")
        killed.update(local_job.slot_pids())
        os.kill(local_job.slot_pids()[n % len(local_job.slot_pids())], signal.SIGKILL)
        table.change(10 + n)
        restarted(local_job, n)
    table.until_equal()
    DeltaTable(local_job.out).optimize.compact()
    table.change(5)
    os.kill(local_job.driver_pid(), signal.SIGKILL)
    table.change(6)
    local_job.relaunch()
    table.change(7)
    table.until_equal()
    command = local_job.client.send("stop", {"mode": "drain"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok, result
    table.until_equal()
    secret = os.environ[PASSWORD_VARIABLE].encode()
    assert not [path for path in Path(local_job.root).rglob("*") if path.is_file() and secret in path.read_bytes()]
