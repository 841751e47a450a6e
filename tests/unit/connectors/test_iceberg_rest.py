"""The Iceberg sink and source with a REST catalog: the contract, credentials, and answers that are lost (S7.4)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from iceberg_tables import TABLE, opened, rows_of, sqlite_catalog
from pyiceberg.catalog import Catalog
from rest_catalog import Answer, RestCatalogServer

from tidegate.connectors.iceberg.iceberg_sink import Iceberg
from tidegate.connectors.iceberg.iceberg_source import IcebergTable
from tidegate.connectors.interface import Sink
from tidegate.errors import OutageError, PipelineError
from tidegate.testing.one_sink_job import TestWriter, numbers
from tidegate.testing.sink_conformance import SinkConformance

_numbers = count()
TOKEN = "TIDEGATE_TEST_ICEBERG_TOKEN"


@pytest.fixture(scope="class")
def rest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(TOKEN, "let-me-in")
        request.cls.catalog = opened(sqlite_catalog(tmp_path_factory.mktemp("rest")))
        server = RestCatalogServer(request.cls.catalog)
        request.cls.server = server
        request.cls.properties = {"type": "rest", "uri": server.uri, "token": f"secret:env/{TOKEN}"}
        yield
        server.stop()
        request.cls.catalog.close()


class _BehindRest:
    properties: dict[str, str]
    server: RestCatalogServer
    catalog: Catalog
    table = ""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            type(self).table = f"shop.t{next(_numbers)}"
        return Iceberg(self.table, catalog=self.properties, create=True)

    def visible(self) -> list[int]:
        return rows_of(self.catalog, self.table)


@pytest.mark.usefixtures("rest")
class TestIcebergBehindRest(_BehindRest, SinkConformance):
    """S7.4, S9.3."""


@pytest.mark.usefixtures("rest")
class TestTablesBehindRest(_BehindRest):
    @pytest.mark.parametrize("status", [500, 503, 504, 409])
    def test_an_unclear_answer_commits_once(self, status: int) -> None:
        """The commit succeeded, and the answer says otherwise: an error of the server, or a conflict with itself."""
        writer = self.make_sink(fresh=True).create_writer(TestWriter().context(0, 1))
        writer.write(numbers(0, 3))
        handles = writer.prepare_commit(1)()
        answers = [status]

        def spoiled(answer: Answer) -> Answer:
            error = {"error": {"message": "too late", "type": "Unclear", "code": status}}
            return (answers.pop(), error) if answers else answer

        self.server.after_commits = spoiled
        writer.commit(handles)
        self.server.after_commits = lambda answer: answer
        assert answers == []
        assert self.visible() == [0, 1, 2]
        assert len(self.catalog.load_table(self.table).snapshots()) == 1
        source = IcebergTable(self.table, catalog=self.properties)
        assert source.schema().equals(pa.schema([("n", pa.int64())]))
        assert len(source.discover(1)) == 1

    def test_a_wrong_token_is_named_and_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sink = self.make_sink(fresh=True)
        monkeypatch.setenv(TOKEN, "wrong-token")
        with pytest.raises(PipelineError, match="access is refused") as caught:
            sink.check(TestWriter.schema)
        assert "wrong-token" not in str(caught.value)


def test_a_catalog_that_is_away_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "let-me-in")
    catalog = opened(sqlite_catalog(tmp_path))
    server = RestCatalogServer(catalog)
    properties = {"type": "rest", "uri": server.uri, "token": f"secret:env/{TOKEN}"}
    source = IcebergTable(TABLE, catalog=properties, follow="1 s")
    server.stop()
    catalog.close()
    with pytest.raises(OutageError, match="cannot be opened"):
        source.create_enumerator(None).discover()
