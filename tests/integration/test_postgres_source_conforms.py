"""The PostgreSQL source against the source contract, on a real server (S4.1 to S4.3)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from postgres_server import PostgresServer

from tidegate import PostgresTable
from tidegate.connectors.interface import Source
from tidegate.testing.source_conformance import SourceConformance

_numbers = count()
ROWS = 600
COLUMNS = (
    "id bigint PRIMARY KEY, name text, amount numeric(12,2), at timestamptz, flag boolean NOT NULL, raw bytea,"
    " price double precision, day date, hour time, took interval, code uuid, grp integer"
)
FILL = (
    "SELECT g, CASE WHEN g % 7 = 0 THEN NULL WHEN g % 5 = 0 THEN '' ELSE E'a,\"b\"\\n\\\\' || g END, g / 7.0,"
    " '2024-01-01 00:00:00Z'::timestamptz + g * interval '1.5 s', g % 2 = 0, decode(lpad(to_hex(g), 4, '0'), 'hex'),"
    " 1.0 / g, '2024-01-01'::date + g, '00:00:01.5'::time, g * interval '1 hour', md5(g::text)::uuid,"
    f" nullif(g % 10, 3) FROM generate_series(1, {ROWS}) g"
)


@pytest.fixture(scope="class")
def table(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[None]:
    request.cls.server = postgres
    request.cls.table = f"scan_{next(_numbers)}"
    with postgres.connect() as sql:
        columns = COLUMNS.replace(" PRIMARY KEY", "") if request.cls.without_key else COLUMNS
        sql.execute(f"CREATE TABLE {request.cls.table} ({columns})")
        sql.execute(f"INSERT INTO {request.cls.table} {FILL}")
        yield


class _Scan(SourceConformance):
    server: PostgresServer
    table = ""
    without_key = False
    options: dict[str, Any] = {}

    def make_source(self) -> Source:
        return PostgresTable(self.server.dsn, self.table, password=self.server.password, splits=3, **self.options)

    # The common state of the ranges has another name in each search.
    def test_discovering_twice_gives_the_same_json_able_splits(self) -> None:
        ranges = [self.make_source().discover(2) for _ in range(2)]
        assert ranges[0] == ranges[1] and len(ranges[0]) > 1


@pytest.mark.usefixtures("table")
class TestScanByKey(_Scan):
    """S4.1 to S4.3."""


@pytest.mark.slow
@pytest.mark.usefixtures("table")
class TestScanByNullableColumn(_Scan):
    """S4.1 to S4.3: rows of one value, and of null, have an order, too."""

    options = {"split_by": "grp"}


@pytest.mark.slow
@pytest.mark.usefixtures("table")
class TestScanByUuid(_Scan):
    """S4.1 to S4.3."""

    options = {"split_by": "code"}


@pytest.mark.slow
@pytest.mark.usefixtures("table")
class TestScanWithoutKey(_Scan):
    """S4.1 to S4.3."""

    without_key = True


@pytest.mark.slow
@pytest.mark.usefixtures("table")
class TestScanWithCondition(_Scan):
    """S4.1 to S4.3."""

    without_key = True
    options = {"where": "id % 2 = 0", "columns": ["name", "id"]}
