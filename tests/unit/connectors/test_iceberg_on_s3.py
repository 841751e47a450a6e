"""Iceberg tables on S3, as far as moto's server on loopback is S3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import s3fs
from iceberg_tables import opened, rows_of
from moto.server import ThreadedMotoServer
from pyarrow import dataset
from pyiceberg.catalog import Catalog
from test_iceberg_source import numbers
from upsert_conformance import UpsertConformance

from tidegate.connectors.iceberg.iceberg_sink import Iceberg
from tidegate.connectors.iceberg.iceberg_source import IcebergTable
from tidegate.connectors.iceberg.iceberg_writer import IcebergWriter
from tidegate.connectors.interface import Sink
from tidegate.connectors.leftovers import NeededTransactions
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.secrets import resolve_secrets
from tidegate.testing.one_sink_job import TestWriter
from tidegate.testing.one_sink_job import numbers as batch
from tidegate.testing.sink_conformance import SinkConformance

_numbers = count()
SECRET = "TIDEGATE_TEST_ICEBERG_S3_SECRET"


@pytest.fixture(scope="class")
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A bucket, and a catalog in a folder whose tables are in it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(SECRET, "hidden-key")
        patched.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        files = s3fs.S3FileSystem(
            key="test",
            secret="hidden-key",
            client_kwargs={"endpoint_url": endpoint, "region_name": "us-east-1"},
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        files.call_s3("create_bucket", Bucket="lake")
        request.cls.files = files
        request.cls.properties = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path_factory.mktemp('catalog')}/catalog.db",
            "warehouse": "s3://lake/warehouse",
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": "test",
            "s3.secret-access-key": f"secret:env/{SECRET}",
        }
        request.cls.catalog = opened(resolve_secrets(request.cls.properties))
        yield
        request.cls.catalog.close()
        server.stop()


class _OnS3:
    properties: dict[str, str]
    catalog: Catalog
    files: Any
    table = ""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            type(self).table = f"shop.t{next(_numbers)}"
        return Iceberg(self.table, catalog=self.properties, create=True)

    def visible(self) -> list[int]:
        return rows_of(self.catalog, self.table)


@pytest.mark.usefixtures("bucket")
class TestIcebergOnS3(_OnS3, SinkConformance):
    """The whole contract, with copies instead of renames."""

    def read_staged(self, staged: StagedData) -> list[int] | None:
        paths = [path for path in staged.paths if path.startswith("s3://")]
        if not paths:  # in quarantine, which is local
            return super().read_staged(staged)
        files = dataset.dataset([path[5:] for path in paths], format="parquet", filesystem=self.files)
        return [int(n) for n in files.to_table().column("n").to_pylist()]


@pytest.mark.usefixtures("bucket")
class TestIcebergUpsertsOnS3(UpsertConformance, TestIcebergOnS3):
    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            type(self).table = f"shop.t{next(_numbers)}"
        return Iceberg(self.table, catalog=self.properties, create=True, mode="upsert", key="n")


@pytest.mark.usefixtures("bucket")
class TestTablesOnS3(_OnS3):
    def test_an_upsert_leaves_nothing_staged_and_no_scratch_file(self, tmp_path: Path) -> None:
        self.make_sink(fresh=True)
        sink = Iceberg(self.table, catalog=self.properties, create=True, mode="upsert", key="n")
        writer = sink.create_writer(replace(TestWriter().context(0, 1), scratch=str(tmp_path)))
        for checkpoint_id in (1, 2):
            writer.write(batch(checkpoint_id, 5))
            writer.commit(writer.prepare_commit(checkpoint_id)())
        assert self.visible() == [1, 2, 3, 4, 5, 6]
        folder = f"lake/warehouse/shop/{self.table[5:]}"
        assert not [path for path in self.files.find(folder) if path.endswith(".staged")]
        assert [path for path in self.files.find(folder) if "/rest-" in path]
        assert list(tmp_path.iterdir()) == []

    def test_a_commit_copies_the_staged_files_and_removes_them(self) -> None:
        sink = self.make_sink(fresh=True)
        writer = sink.create_writer(TestWriter().context(0, 1))
        writer.write(batch(0, 5))
        (handle,) = writer.prepare_commit(1)()
        folder = f"lake/warehouse/shop/{self.table[5:]}"
        assert [path for path in self.files.find(folder) if path.endswith(".parquet.staged")]
        writer.commit([handle])
        assert not [path for path in self.files.find(folder) if path.endswith(".staged")]
        assert self.visible() == [0, 1, 2, 3, 4]
        source = IcebergTable(self.table, catalog=self.properties, filter="n > 1")
        assert numbers(source) == [2, 3, 4]
        splits = list(source.discover(2))
        assert source.unavailable_splits(splits) == []
        self.files.rm_file(splits[0].data["path"][5:])
        assert [name for name, _ in source.unavailable_splits(splits)] == [splits[0].split_id]

    def test_leftovers_are_listed_and_removed(self) -> None:
        sink = self.make_sink(fresh=True)
        assert isinstance(sink, Iceberg)
        identity = TestWriter()
        writer = sink.create_writer(identity.context(0, 1))
        writer.write(batch(0, 5))
        writer.prepare_commit(1)()
        needed = NeededTransactions((), 0, datetime.max.replace(tzinfo=UTC))
        (found,) = sink.collect(identity.context(0, 1), needed).found
        assert found.why == "staged" and not self.files.exists(found.path)

    def test_no_secret_is_in_what_a_snapshot_stores(self, tmp_path: Path) -> None:
        sink = self.make_sink(fresh=True)
        writer = sink.create_writer(TestWriter().context(0, 1))
        writer.write(batch(0, 1))
        (handle,) = writer.prepare_commit(1)()
        texts = [str(handle), sink.describe(), str(sink.staged(TestWriter().context(), 1, handle).to_json())]
        assert not [text for text in texts if "hidden-key" in text]

    def test_each_commit_uses_the_credentials_that_the_catalog_has_sent_last(self) -> None:
        writer = self.make_sink(fresh=True).create_writer(TestWriter().context(0, 1))
        assert isinstance(writer, IcebergWriter)
        writer.write(batch(0, 2))
        handles = writer.prepare_commit(1)()
        writer._io_properties = {"s3.session-token": "expired"}
        before, writer._fs = writer._fs, None
        writer._packs._fs = before
        writer._commit(handles[0])
        assert writer._fs is not None and self.visible() == [0, 1]
