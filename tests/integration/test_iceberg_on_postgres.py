"""The Iceberg sink and source with a catalog in a real PostgreSQL server (S7.4)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from iceberg_tables import opened, rows_of
from postgres_server import PASSWORD_VARIABLE, PostgresServer
from pyiceberg.catalog import Catalog

from tidegate.connectors.iceberg.iceberg_sink import Iceberg
from tidegate.connectors.iceberg.iceberg_source import IcebergTable
from tidegate.connectors.interface import Sink
from tidegate.jobs.secrets import resolve_secrets
from tidegate.testing.sink_conformance import SinkConformance

_numbers = count()
URI = "TIDEGATE_TEST_ICEBERG_URI"


@pytest.fixture(scope="class")
def warehouse(
    request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        address = f"owner:{os.environ[PASSWORD_VARIABLE]}@/postgres?host={postgres.folder}"
        patched.setenv(URI, f"postgresql+psycopg://{address}")
        folder = tmp_path_factory.mktemp("warehouse")
        request.cls.properties = {"type": "sql", "uri": f"secret:env/{URI}", "warehouse": f"file://{folder}"}
        request.cls.catalog = opened(resolve_secrets(request.cls.properties))
        yield
        request.cls.catalog.close()


@pytest.mark.usefixtures("warehouse")
class TestIcebergCatalogInPostgres(SinkConformance):
    """S7.4."""

    properties: dict[str, Any]
    catalog: Catalog
    table = ""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            type(self).table = f"shop.t{next(_numbers)}"
        return Iceberg(self.table, catalog=self.properties, create=True)

    def visible(self) -> list[int]:
        return rows_of(self.catalog, self.table)

    def test_the_source_reads_what_the_sink_wrote(self) -> None:
        from tidegate.testing.one_sink_job import TestWriter, numbers

        writer = self.make_sink(fresh=True).create_writer(TestWriter().context(0, 1))
        writer.write(numbers(0, 3))
        writer.commit(writer.prepare_commit(1)())
        assert [split.data["rows"] for split in IcebergTable(self.table, catalog=self.properties).discover(1)] == [3]
