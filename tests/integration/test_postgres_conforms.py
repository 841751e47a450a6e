"""The Postgres sink against the sink contract, on a real server (S7.4)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from postgres_server import PostgresServer

from tidegate.connectors.interface import Sink
from tidegate.connectors.postgres.postgres_sink import Postgres
from tidegate.jobs.client.staged_data import StagedData
from tidegate.testing.sink_conformance import SinkConformance

_numbers = count()


@pytest.fixture(scope="class")
def server(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[None]:
    request.cls.server = postgres
    with postgres.connect() as request.cls.reader:
        yield


class _OnPostgres(SinkConformance):
    server: PostgresServer
    reader: Any
    table = ""
    columns = "n bigint PRIMARY KEY"

    def _sink(self, table: str) -> Sink:
        raise NotImplementedError

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.table = f"conform_{next(_numbers)}"
            self.reader.execute(f"CREATE TABLE {self.table} ({self.columns})")
            self.reader.execute("CREATE SCHEMA IF NOT EXISTS tidegate; DROP SCHEMA tidegate CASCADE")
        return self._sink(self.table)

    def read_staged(self, staged: StagedData) -> list[int]:
        query = f"SELECT n FROM {staged.relation} WHERE {staged.where} ORDER BY tidegate_row"
        return [n for (n,) in self.reader.execute(query)]

    def visible(self) -> list[int]:
        return [n for (n,) in self.reader.execute(f"SELECT n FROM {self.table}")]


class _WithoutRewind(Postgres):
    """Without rewind records the sink refuses every rewind, see test_postgres_rewind.py."""

    rewind_to = None  # type: ignore[assignment]


@pytest.mark.usefixtures("server")
class TestPostgresAppending(_OnPostgres):
    """S7.4, S9.3."""

    def _sink(self, table: str) -> Sink:
        return Postgres(self.server.dsn, table, password=self.server.password)


@pytest.mark.usefixtures("server")
class TestPostgresAppendingWithoutRewind(_OnPostgres):
    """S7.4."""

    def _sink(self, table: str) -> Sink:
        return _WithoutRewind(self.server.dsn, table, password=self.server.password, rewind=False)


@pytest.mark.usefixtures("server")
class TestPostgresUpserting(_OnPostgres):
    """S7.4."""

    def _sink(self, table: str) -> Sink:
        return _WithoutRewind(self.server.dsn, table, mode="upsert", key="n", password=self.server.password)


@pytest.mark.usefixtures("server")
class TestPostgresUpsertingWithRewind(_OnPostgres):
    """S7.4, S9.3: see test_postgres_rewind.py for rows that are replaced."""

    def _sink(self, table: str) -> Sink:
        return Postgres(self.server.dsn, table, mode="upsert", key="n", password=self.server.password, rewind=True)
