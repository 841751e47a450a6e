"""Messages and rows of `PySparkSink` on S3, as far as moto's server on loopback is S3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import s3fs
from builders.data_sinks import Rows, Target
from moto.server import ThreadedMotoServer

from tidegate.connectors.interface import Sink
from tidegate.connectors.pyspark.pyspark_sink import PySparkSink
from tidegate.testing.one_sink_job import TestWriter, numbers
from tidegate.testing.sink_conformance import SinkConformance

_numbers = count()


@pytest.fixture(scope="class")
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TIDEGATE_TEST_S3_KEY", "test")
        patched.setenv("TIDEGATE_TEST_S3_SECRET", "hidden")
        patched.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        client = {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}
        files = s3fs.S3FileSystem(
            key="test", secret="hidden", client_kwargs=client, use_listings_cache=False, skip_instance_cache=True
        )
        files.call_s3("create_bucket", Bucket="jobs")
        request.cls.files = files
        references = {name: f"secret:env/TIDEGATE_TEST_S3_{name.upper()}" for name in ("key", "secret")}
        request.cls.options = {**references, "client_kwargs": client}
        request.cls.folder = tmp_path_factory.mktemp("target")
        yield
        server.stop()


@pytest.mark.usefixtures("bucket")
class TestStreamWithMessagesOnS3(SinkConformance):
    files: s3fs.S3FileSystem
    options: Mapping[str, Any]
    folder: Path
    name = ""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.name = str(next(_numbers))
        return self.sink(stream=True)

    def sink(self, *, stream: bool) -> PySparkSink:
        return PySparkSink(
            Rows,
            options={"path": str(self.folder / self.name)},
            stream=stream,
            staging=f"s3://jobs/{self.name}",
            staging_options=self.options,
        )

    def visible(self) -> list[int]:
        return [row["n"] for row in Target(self.folder / self.name).rows()]

    def test_all_rows_of_a_job_are_one_commit(self) -> None:
        """S7.2: rows of an earlier checkpoint, and of the last one, in two subtasks. Nothing but markers is left."""
        self.name = "bounded"
        sink = self.sink(stream=False)
        sink.check(TestWriter.schema)
        writers = [sink.create_writer(TestWriter().context(n)) for n in range(2)]
        for n, writer in enumerate(writers):
            writer.write(numbers(10 * n, 2))
            writer.commit(writer.prepare_commit(1)())
        assert self.visible() == []
        for n, writer in enumerate(writers):
            writer.write(numbers(10 * n + 2, 1))
            writer.end_input()
            writer.commit(writer.prepare_commit(2)())
        assert sorted(self.visible()) == [0, 1, 2, 10, 11, 12]
        left = [path for path in self.files.find("jobs/bounded") if "/commits/" not in path]
        assert [path.rsplit("/", 2)[1] for path in left] == ["ended"] and left[0].endswith(".committed.json")

    def test_nothing_but_markers_is_left_of_a_committed_batch(self) -> None:
        """The records, and the claim."""
        sink = self.make_sink(fresh=True)
        writers = [sink.create_writer(TestWriter().context(n)) for n in range(2)]
        handles = []
        for n, writer in enumerate(writers):
            writer.write(numbers(2 * n, 2))
            handles.append(writer.prepare_commit(4)())
        for writer, handle in zip(writers, handles, strict=True):
            writer.commit(handle)
        assert sorted(self.visible()) == [0, 1, 2, 3]
        assert ["/commits/" in path for path in self.files.find(f"jobs/{self.name}")] == [True]
