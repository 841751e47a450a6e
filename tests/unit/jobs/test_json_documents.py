"""Documents of other processes are limited in size and depth, wherever they are read."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from scripted_contract import ScriptedDriver

from tidegate.channel.control import message_framing
from tidegate.channel.failures import ProtocolError
from tidegate.errors import RecordError, SnapshotError
from tidegate.jobs import codec, json_documents
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.codec import decode, encode, read_record
from tidegate.jobs.json_documents import MAX_DEPTH, MAX_RECORD_BYTES, JsonDocumentError, parse_json, read_bounded
from tidegate.jobs.launches import read_launch
from tidegate.jobs.records import Command, Launch, RestoreFrom, Spec, StatusHint
from tidegate.jobs.stores.local_disk import LocalStore
from tidegate.snapshot.metadata import decode_metadata

DEEP = 100_000
"""Levels of a document that Python's own parser cannot read."""


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + "1" + closing * levels


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 990, DEEP])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_document_that_is_nested_too_deeply_is_refused(levels: int, opening: str, closing: str) -> None:
    with pytest.raises(JsonDocumentError, match=f"more than {MAX_DEPTH} lists and objects"):
        parse_json(nested(levels, opening, closing))
    with pytest.raises(JsonDocumentError, match=f"more than {MAX_DEPTH} lists and objects"):
        parse_json(nested(levels, opening, closing).encode())


def test_a_document_at_the_limits_is_read() -> None:
    """Also one with many lists side by side, and with brackets in its texts."""
    assert json.dumps(parse_json(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    wide = [[n, {"n": "[{" * 5}] for n in range(MAX_DEPTH * 2)]
    assert parse_json(json.dumps(wide)) == wide
    assert parse_json(b"[1]", max_bytes=3) == [1]
    with pytest.raises(JsonDocumentError, match="more than 2 bytes"):
        parse_json(b"[1]", max_bytes=2)


@pytest.mark.parametrize("data", [b"\xff", "[]".encode("utf-16"), b"", b"{", b"[1] [2]"])
def test_what_is_no_json_in_utf_8_is_refused(data: bytes) -> None:
    with pytest.raises(JsonDocumentError, match="is not JSON"):
        parse_json(data)


def test_a_record_that_is_too_long_is_refused_before_it_is_in_memory(tmp_path: Path) -> None:
    """The file has holes, so that the test writes nothing."""
    store = LocalStore(str(tmp_path))
    with open(tmp_path / "status.json", "wb") as file:
        file.truncate(20 * MAX_RECORD_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match="too long to be read .status.json.") as refused:
            read_record(store, "status.json", StatusHint)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"{MAX_RECORD_BYTES:,}" in str(refused.value)
    assert peak_bytes < 1.5 * MAX_RECORD_BYTES


def test_a_short_file_is_read_as_it_is(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.create("a", b"12345")
    assert (read_bounded(store, "a"), read_bounded(store, "a", max_bytes=5)) == (b"12345", b"12345")
    assert (store.read_range("a", 3, 100), store.read_range("a", 9, 100)) == (b"45", b"")
    with pytest.raises(RecordError):
        read_bounded(store, "a", max_bytes=4)


def test_a_record_that_nobody_could_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_RECORD_BYTES", 1_000)
    hint = StatusHint(1, 1, "r", "now", {"text": "x" * 2_000})
    with pytest.raises(RecordError, match="'status' is too long to be written"):
        encode(hint)


def deep_record(kind: str) -> bytes:
    return f'{{"record":"{kind}","v":1,"data":{nested(DEEP)}}}'.encode()


@pytest.mark.parametrize("kind", [StatusHint, Command, Launch, Spec])
def test_a_deep_record_names_its_place(kind: type[StatusHint]) -> None:
    with pytest.raises(RecordError, match=f"cannot be read .flights/it.json.: .*more than {MAX_DEPTH} lists"):
        decode(deep_record(kind.RECORD), kind, "flights/it.json")


def test_documents_of_a_job_directory_are_limited_wherever_they_are_read(
    client: JobClient, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status, a launch, a command, and the metadata of a snapshot."""
    path = driver.checkpoint(1)
    layout, store = client.layout, client.store
    places = {
        layout.status(1): client.view,
        layout.launch(1, 1): lambda: read_launch(store, layout, 1, 1),
        layout.command("c1"): lambda: client.command("c1"),
        layout.metadata(path): lambda: client.submit(restore=RestoreFrom("checkpoint", checkpoint_id=1)),
    }
    kinds = iter(("status", "launch", "command", "snapshot"))
    driver.status("STOPPED")
    for place, read in places.items():
        before = store.read(place) if store.exists(place) else None
        store.replace(place, deep_record(next(kinds)))
        with pytest.raises((RecordError, SnapshotError)):
            read()
        store.replace(place, b" " * 2_000)
        with monkeypatch.context() as limited:
            limited.setattr(json_documents.read_bounded, "__kwdefaults__", {"max_bytes": 1_000})
            limited.setattr(json_documents, "MAX_METADATA_BYTES", 1_000)
            with pytest.raises(RecordError, match="too long to be read"):
                read()
        store.delete(place)
        if before is not None:
            store.replace(place, before)


def test_messages_and_metadata_are_limited() -> None:
    with pytest.raises(ProtocolError, match=f"more than {MAX_DEPTH} lists"):
        message_framing._decode(nested(DEEP).encode())
    with pytest.raises(SnapshotError, match="not readable as JSON"):
        decode_metadata(deep_record("snapshot"))
