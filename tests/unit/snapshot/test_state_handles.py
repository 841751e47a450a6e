"""State handles and the stream factory (S5.4)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tidegate.errors import AlreadyExistsError, SnapshotError
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.snapshot.blobs import BlobFile, StoredBlob
from tidegate.snapshot.handles import DEFAULT_THRESHOLD_BYTES, SnapshotStreams, StateHandle


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_small_streams_stay_inline_and_large_ones_become_files(store: Store) -> None:
    """S5.2, S5.4."""
    streams = SnapshotStreams(store, "j/checkpoints/chk-1-g1")
    small = streams.store("small", b"x" * (DEFAULT_THRESHOLD_BYTES - 1))
    large = streams.store("large", b"x" * DEFAULT_THRESHOLD_BYTES)
    assert small.path is None and large.path == "large"
    assert store.walk("j") == ["j/checkpoints/chk-1-g1/large"]
    assert [len(streams.load(h)) for h in (small, large)] == [DEFAULT_THRESHOLD_BYTES - 1, DEFAULT_THRESHOLD_BYTES]


def test_handles_survive_json(store: Store) -> None:
    streams = SnapshotStreams(store, "s", threshold_bytes=4)
    for data in (b"", b"\x00\xff", b"long enough"):
        handle = streams.store(f"f{len(data)}", data)
        again = StateHandle.from_json(json.loads(json.dumps(handle.to_json())))
        assert again == handle and streams.load(again) == data


def test_a_stream_is_never_overwritten(store: Store) -> None:
    streams = SnapshotStreams(store, "s", threshold_bytes=0)
    handle = streams.store("f", b"first")
    with pytest.raises(AlreadyExistsError):
        streams.store("f", b"second")
    assert streams.load(handle) == b"first"


def test_a_folder_can_be_moved(store: Store, tmp_path: Path) -> None:
    handle = SnapshotStreams(store, "s/one", threshold_bytes=0).store("f", b"state")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "s" / "one").rename(tmp_path / "elsewhere" / "two")
    assert SnapshotStreams(open_store(str(tmp_path / "elsewhere")), "two").load(handle) == b"state"
    assert SnapshotStreams(open_store(str(tmp_path / "elsewhere" / "two")), "").load(handle) == b"state"


@pytest.mark.parametrize(
    ("data", "what"), [(b"statf", "checksum"), (b"state2", "6 bytes instead of 5"), (None, "missing")]
)
def test_a_damaged_or_missing_file_is_named(store: Store, data: bytes | None, what: str) -> None:
    streams = SnapshotStreams(store, "s", threshold_bytes=0)
    handle = streams.store("daily-3-g1-r1", b"state")
    store.delete("s/daily-3-g1-r1")
    if data is not None:
        store.create("s/daily-3-g1-r1", data)
    with pytest.raises(SnapshotError, match=f"daily-3-g1-r1.*{what}") as raised:
        streams.load(handle)
    assert raised.value.where == f"{store.url}/s/daily-3-g1-r1"


def test_an_error_in_a_snapshot_outside_the_root_names_its_whole_path(tmp_path: Path) -> None:
    """Such a snapshot is opened in a store of its parent folder."""
    folder = f"{tmp_path}/job/checkpoints/chk-9"
    streams = SnapshotStreams.at(folder, partial(open_snapshot_folder, open_store("/root"), {}))
    blobs = BlobFile("blobs", None, True, 5, (StoredBlob("a", 0, 5, ""),))
    for read, path in (
        (lambda: streams.load(StateHandle("op", None, 5, "")), f"{folder}/op"),
        (lambda: streams.load_blob(blobs, blobs.blobs[0]), f"{tmp_path}/job/shared/blobs"),
    ):
        with pytest.raises(SnapshotError) as raised:
            read()
        assert raised.value.where == path


def test_a_damaged_inline_stream_is_refused(store: Store) -> None:
    handle = SnapshotStreams(store, "s").store("f", b"state")
    document = handle.to_json() | {"inline": "c3RhdGY="}
    with pytest.raises(SnapshotError, match="inline.*checksum") as raised:
        SnapshotStreams(store, "s").load(StateHandle.from_json(document))
    assert raised.value.where == f"{store.url}/s/_metadata, inline state"


@pytest.mark.parametrize("path", ["../other/f", "/etc/passwd", "a/../../f", "", ".", "a//b", "a\\b", "s3:x"])
def test_a_path_that_leaves_the_folder_is_refused(store: Store, path: str) -> None:
    with pytest.raises(SnapshotError, match="outside the folder of its snapshot"):
        StateHandle.from_json({"path": path, "size_bytes": 1, "sha256": "0"})
    with pytest.raises(SnapshotError):
        SnapshotStreams(store, "s", threshold_bytes=0).store(path, b"x")
    with pytest.raises(SnapshotError):
        SnapshotStreams(store, "s").load(StateHandle(path, None, 1, "0"))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"size_bytes": 1, "sha256": "0"},
        {"path": "a", "inline": "", "size_bytes": 1, "sha256": ""},
        {"inline": "?"},
        7,
    ],
)
def test_an_unreadable_handle_is_a_snapshot_error(document: dict[str, object]) -> None:
    with pytest.raises(SnapshotError):
        StateHandle.from_json(document)
