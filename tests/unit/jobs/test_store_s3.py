"""The S3 store against moto's server on loopback: the same contract, and what retries inside the client may not do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer
from s3fs.errors import translate_boto_error
from store_suites.store_conformance import StoreConformance

from tidegate.errors import AlreadyExistsError, OptionError, StoreError
from tidegate.jobs.stores.s3 import PART_BYTES, S3Store
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store

BUCKET = "jobs"


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """Storage options of a bucket that is there."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEGATE_TEST_KEY", "testing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        storage_options = {
            "key": "secret:env/TIDEGATE_TEST_KEY",
            "secret": "secret:env/TIDEGATE_TEST_KEY",
            "endpoint_url": f"http://{host}:{port}",
            "client_kwargs": {"region_name": "us-east-1"},
        }
        store = open_store(f"s3://{BUCKET}", storage_options)
        assert isinstance(store, S3Store)
        store._files.call_s3("create_bucket", Bucket=BUCKET)
        yield storage_options
    server.stop()


class TestS3Store(StoreConformance):
    @pytest.fixture(autouse=True)
    def _options(self, options: dict[str, Any]) -> None:
        self.options = options

    def make_store(self) -> Store:
        return open_store(f"s3://{BUCKET}/{secrets.token_hex(8)}", self.options)


def opened(options: dict[str, Any]) -> S3Store:
    store = open_store(f"s3://{BUCKET}/{secrets.token_hex(8)}", options)
    assert isinstance(store, S3Store)
    return store


def test_a_creator_whose_request_was_retried_does_not_lose_against_itself(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(options)
    real = store._files.pipe_file

    def answered_twice(key: str, data: bytes, **arguments: Any) -> None:
        real(key, data, **arguments)
        real(key, data, **arguments)

    monkeypatch.setattr(store._files, "pipe_file", answered_twice)
    store.create("object", b"x")
    with pytest.raises(AlreadyExistsError):
        store.create("object", b"x")


def test_objects_have_no_local_path(options: dict[str, Any]) -> None:
    assert opened(options).local_path("object") is None


def test_a_missing_bucket_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="the S3 bucket of the root does not exist.*nowhere"):
        open_store("s3://nowhere/root", options).probe()


def test_a_missing_secret_is_named_before_anything_is_asked_of_s3(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="TIDEGATE_TEST_ABSENT is not set"):
        open_store(f"s3://{BUCKET}", {**options, "secret": "secret:env/TIDEGATE_TEST_ABSENT"})


def test_an_endpoint_that_does_not_answer_gives_a_clear_error(options: dict[str, Any]) -> None:
    unreachable = {**options, "endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    store = open_store(f"s3://{BUCKET}", unreachable)
    assert isinstance(store, S3Store)
    store._files.retries = 1
    with pytest.raises(StoreError, match="the root cannot be used for jobs: a request to S3 failed"):
        store.probe()


def test_a_large_object_is_written_in_parts_and_only_where_there_is_none(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.4 holds for it, too: the request that puts the parts together is conditional, and a loser leaves no parts."""
    store = opened(options)
    asked: list[tuple[str, Any]] = []
    real = type(store._files)._call_s3

    async def call(self: Any, method: str, *words: Any, **arguments: Any) -> Any:
        asked.append((method, arguments.get("IfNoneMatch")))
        return await real(self, method, *words, **arguments)

    monkeypatch.setattr(type(store._files), "_call_s3", call)
    first, second = b"1" * (2 * PART_BYTES + 5), b"2" * (2 * PART_BYTES)
    store.create("large", first)
    assert [method for method, _ in asked].count("upload_part") == 3
    assert ("complete_multipart_upload", "*") in asked
    assert store.stat("large").size_bytes == len(first)
    assert store.read_range("large", 2 * PART_BYTES - 1, 9) == b"1" * 6
    with pytest.raises(AlreadyExistsError):
        store.create("large", second)
    assert store.read_range("large", 0, 1) == b"1"
    left = store._files.call_s3("list_multipart_uploads", Bucket=BUCKET).get("Uploads", [])
    assert left == []


def test_a_creator_of_a_large_object_does_not_lose_against_its_own_first_attempt(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(options)
    real = store._files.pipe_file

    def answered_twice(key: str, data: bytes, **arguments: Any) -> None:
        real(key, data, **arguments)
        real(key, data, **arguments)

    monkeypatch.setattr(store._files, "pipe_file", answered_twice)
    store.create("large", b"x" * 2 * PART_BYTES)


def test_a_service_that_heeds_no_condition_is_refused_with_the_reason(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked at the start, before anything is entrusted to it."""
    store = opened(options)
    real = store._files.pipe_file
    unheeding = lambda key, data, mode="", **arguments: real(key, data, **arguments)  # noqa: E731
    monkeypatch.setattr(store._files, "pipe_file", unheeding)
    with pytest.raises(StoreError, match="second create of one object succeeded.*two drivers.*another store"):
        store.probe()
    assert store.walk("") == []


def test_a_creator_of_a_large_object_does_not_lose_when_the_last_answer_is_lost(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.4: the client puts the parts together again, is refused, and aborts an upload that is gone."""
    store = opened(options)
    asked: list[str] = []
    real = type(store._files)._call_s3

    async def call(self: Any, method: str, *words: Any, **arguments: Any) -> Any:
        asked.append(method)
        code = {"complete_multipart_upload": "PreconditionFailed", "abort_multipart_upload": "NoSuchUpload"}.get(method)
        if code != "NoSuchUpload":
            answer = await real(self, method, *words, **arguments)
        if code is not None:
            raise translate_boto_error(ClientError({"Error": {"Code": code, "Message": code}}, method))
        return answer

    monkeypatch.setattr(type(store._files), "_call_s3", call)
    data = b"1" * (2 * PART_BYTES)
    store.create("large", data)
    assert "abort_multipart_upload" in asked
    assert store.stat("large").size_bytes == len(data)
    with pytest.raises(AlreadyExistsError):
        store.create("large", b"2")


def test_an_upload_that_somebody_has_ended_is_an_error(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(options)
    real = type(store._files)._call_s3

    async def call(self: Any, method: str, *words: Any, **arguments: Any) -> Any:
        if method == "complete_multipart_upload":
            ended = {name: arguments[name] for name in ("Bucket", "Key", "UploadId")}
            await real(self, "abort_multipart_upload", **ended)
        return await real(self, method, *words, **arguments)

    monkeypatch.setattr(type(store._files), "_call_s3", call)
    with pytest.raises(StoreError):
        store.create("large", b"1" * (2 * PART_BYTES))
    assert not store.exists("large")
