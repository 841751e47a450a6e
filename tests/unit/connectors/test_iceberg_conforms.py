"""The Iceberg sink against the contract (S7.4, S9.3)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from iceberg_tables import opened, rows_of, sqlite_catalog
from pyiceberg.catalog import Catalog
from upsert_conformance import UpsertConformance

from tidegate.connectors.iceberg.iceberg_sink import Iceberg
from tidegate.connectors.interface import Sink
from tidegate.testing.sink_conformance import SinkConformance

_numbers = count()


@pytest.fixture(scope="class")
def warehouse(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    request.cls.properties = sqlite_catalog(tmp_path_factory.mktemp("iceberg"))
    request.cls.catalog = opened(request.cls.properties)
    yield
    request.cls.catalog.close()


@pytest.mark.usefixtures("warehouse")
class TestIceberg(SinkConformance):
    properties: dict[str, str]
    catalog: Catalog
    table = ""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            type(self).table = f"shop.t{next(_numbers)}"
        return Iceberg(self.table, catalog=self.properties, create=True)

    def visible(self) -> list[int]:
        return rows_of(self.catalog, self.table)


class TestPartitionedIceberg(TestIceberg):
    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            type(self).table = f"shop.t{next(_numbers)}"
        return Iceberg(self.table, catalog=self.properties, create=True, partition_by=["bucket(3, n)"])


class TestIcebergBranch(TestIceberg):
    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            type(self).table = f"shop.t{next(_numbers)}"
        return Iceberg(self.table, catalog=self.properties, create=True, branch="audit")

    def visible(self) -> list[int]:
        assert rows_of(self.catalog, self.table) == [], "the main branch shows rows"
        shown = self.catalog.table_exists(self.table) and "audit" in self.catalog.load_table(self.table).refs()
        return rows_of(self.catalog, self.table, branch="audit") if shown else []


class TestIcebergUpserts(UpsertConformance, TestIceberg):
    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            type(self).table = f"shop.t{next(_numbers)}"
        return Iceberg(self.table, catalog=self.properties, create=True, mode="upsert", key="n")


class TestPartitionedIcebergUpserts(UpsertConformance, TestIceberg):
    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            type(self).table = f"shop.t{next(_numbers)}"
        partition_by = ["bucket(3, n)"]
        return Iceberg(
            self.table, catalog=self.properties, create=True, mode="upsert", key="n", partition_by=partition_by
        )
