"""`_metadata` (S2.1, S6.2)."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import AlreadyExistsError, SnapshotError
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.snapshot.blobs import BlobFile, StoredBlob
from tidegate.snapshot.handles import SnapshotStreams, StateHandle
from tidegate.snapshot.metadata import (
    METADATA_NAME,
    METADATA_VERSION,
    OperatorState,
    SnapshotMetadata,
    SubtaskState,
    decode_metadata,
    encode_metadata,
    read_metadata,
    verify,
    write_metadata,
)

FOLDER = "j/savepoints/sp-7"
GOLDEN = Path(__file__).parent / "golden"
FRESH = itertools.count()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def metadata(store: Store) -> SnapshotMetadata:
    streams = SnapshotStreams(store, FOLDER, threshold_bytes=10)
    return SnapshotMetadata(
        checkpoint_id=7,
        kind="stop-savepoint",
        job_id="j",
        lineage="l1",
        generation=2,
        run_id="2-1",
        parent="../../checkpoints/chk-3-g1",
        parallelism=2,
        max_parallelism=128,
        created_at="2026-01-01T00:00:00Z",
        graph={"operators": [{"uid": "flüge"}]},
        operators=(
            OperatorState("airlines", "finished", (SubtaskState(0, True, None), SubtaskState(1, True, None))),
            OperatorState(
                "daily",
                "partially_finished",
                (
                    SubtaskState(0, False, streams.store("daily-0", b"a state of some bytes")),
                    SubtaskState(1, True, streams.store("daily-1", b"small")),
                ),
            ),
        ),
        splits={"flights": [{"split_id": "f0", "position": 5}]},
        stop_mode="drain",
        drained_operators=("daily",),
    )


def test_metadata_comes_back_as_written(store: Store) -> None:
    written = metadata(store)
    write_metadata(store, FOLDER, written)
    assert read_metadata(store, FOLDER) == written == verify(lambda at: (store, at), FOLDER)
    assert [h.path for h in written.handles()] == ["daily-0", None]
    assert written.size_bytes == 26
    daily = written.operator("daily")
    assert daily is not None and daily.status == "partially_finished"
    assert written.operator("unknown") is None


def test_a_snapshot_is_completed_once(store: Store) -> None:
    """S2.1."""
    write_metadata(store, FOLDER, metadata(store))
    with pytest.raises(AlreadyExistsError):
        write_metadata(store, FOLDER, decode_metadata(store.read(f"{FOLDER}/{METADATA_NAME}")))


def test_a_folder_without_metadata_is_not_a_complete_snapshot(store: Store) -> None:
    """S2.1, S9.3."""
    metadata(store)
    with pytest.raises(SnapshotError, match="sp-7 is not a complete snapshot"):
        read_metadata(store, FOLDER)


@pytest.mark.parametrize("data", [None, b"no JSON"])
def test_an_error_about_metadata_names_its_whole_path(tmp_path: Path, data: bytes | None) -> None:
    """A snapshot outside the root is opened in a store of its parent folder."""
    if data is not None:
        (tmp_path / "chk-9").mkdir()
        (tmp_path / "chk-9" / METADATA_NAME).write_bytes(data)
    with pytest.raises(SnapshotError) as raised:
        read_metadata(*open_snapshot_folder(open_store("/root"), {}, f"{tmp_path}/chk-9"))
    assert raised.value.where == f"{tmp_path}/chk-9/{METADATA_NAME}"


def test_a_savepoint_can_be_copied_as_a_whole(store: Store, tmp_path: Path) -> None:
    written = metadata(store)
    write_metadata(store, FOLDER, written)
    (tmp_path / FOLDER).rename(tmp_path / "moved")
    assert verify(lambda at: (open_store(str(tmp_path / at)), ""), "moved") == written


@given(st.data())
def test_no_damage_of_the_metadata_goes_unnoticed(data: st.DataObject) -> None:
    """S9.3."""
    whole = encode_metadata(metadata(open_store(f"memory://metadata-{next(FRESH)}")))
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 2))]
    else:
        at = data.draw(st.integers(0, len(whole) - 2))
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    try:
        read = decode_metadata(damaged, where="chk-7")
    except SnapshotError as error:
        assert "chk-7" in str(error)
    else:
        assert read == decode_metadata(whole)


def test_metadata_of_a_newer_version_asks_for_an_upgrade(store: Store) -> None:
    document = json.loads(encode_metadata(metadata(store))) | {"v": METADATA_VERSION + 1}
    with pytest.raises(SnapshotError, match=f"version {METADATA_VERSION + 1}.*Upgrade"):
        decode_metadata(json.dumps(document).encode())


@pytest.mark.parametrize(("replacement", "what"), [(None, "daily-0 is missing"), (b"short", "daily-0 is damaged")])
def test_verify_names_the_state_file_that_is_missing_or_damaged(
    store: Store, replacement: bytes | None, what: str
) -> None:
    """S9.3."""
    write_metadata(store, FOLDER, metadata(store))
    store.delete(f"{FOLDER}/daily-0")
    if replacement is not None:
        store.create(f"{FOLDER}/daily-0", replacement)
    with pytest.raises(SnapshotError, match=what):
        verify(lambda at: (store, at), FOLDER)


def test_verify_reads_every_file_of_a_store_that_is_not_local() -> None:
    store = open_store("memory://verify")
    write_metadata(store, FOLDER, metadata(store))
    verify(lambda at: (store, at), FOLDER)
    store.replace(f"{FOLDER}/daily-0", b"another state of bytes"[:21])
    with pytest.raises(SnapshotError, match="daily-0 is damaged.*checksum"):
        verify(lambda at: (store, at), FOLDER)


def golden(version: int) -> SnapshotMetadata:
    """What the golden file of a version holds."""
    sums = {data: hashlib.sha256(data).hexdigest() for data in (b"state", b"small", b"chunk")}
    chunk = sums[b"chunk"] if version < 3 else "crc32:9506712e"
    files = (
        BlobFile("daily-0-g2-r1-00c0ffee.blobs", None, True, 10, (StoredBlob("0-r1-c0", 5, 5, sums[b"chunk"]),)),
        BlobFile(None, b"chunk", False, 5, (StoredBlob("0-r1-c1", 0, 5, chunk),)),
    )
    staged = ({"uid": "out", "checkpoint_id": 7, "kind": "files", "rows": 1},)
    name = "daily-0-g2-r1-deadbeef.state"
    blobs = files if version > 1 else ()
    large = StateHandle(name, None, 5, sums[b"state"], ("keyed", "list"), staged, blobs)
    large = large if version < 3 else replace(large, formats=("rocksdb",))
    small = StateHandle(None, b"small", 5, sums[b"small"])
    daily = OperatorState("daily", "partially_finished", (SubtaskState(0, False, large), SubtaskState(1, True, small)))
    return SnapshotMetadata(
        checkpoint_id=7,
        kind="final",
        job_id="j",
        lineage="l1",
        generation=2,
        run_id="r1",
        parent="j/checkpoints/chk-3-g1",
        parallelism=2,
        max_parallelism=128,
        created_at="2026-01-01T00:00:00Z",
        graph={"operators": [{"uid": "flüge", "kind": "source"}]},
        operators=(daily,),
        splits={"flights": [{"split_id": "f0", "position": 5}]},
        stop_mode="drain",
        drained_operators=("daily",),
        version=version,
        counters={"flights": {"bad_records": 3}} if version > 3 else {},
        enumerators={"files": {"state": 4, "waiting": [{"split_id": "w0"}], "complete": False}} if version > 4 else {},
    )


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_metadata_of_every_version_is_read_back(version: int) -> None:
    assert decode_metadata((GOLDEN / f"metadata-v{version}.json").read_bytes()) == golden(version)


def test_metadata_is_written_exactly_as_in_the_golden_file_of_its_version() -> None:
    assert encode_metadata(golden(5)) == (GOLDEN / "metadata-v5.json").read_bytes()


def test_the_size_of_a_snapshot_counts_blobs_whoever_wrote_them() -> None:
    """S2.5."""
    assert golden(2).size_bytes == 20
    assert golden(2).shared_files() == {"daily-0-g2-r1-00c0ffee.blobs"}


@pytest.mark.parametrize(
    "document",
    [
        {"name": "../f", "size_bytes": 1, "blobs": []},
        {"size_bytes": 1, "blobs": []},
        {"name": "f", "inline": "", "size_bytes": 1, "blobs": []},
        {"name": "f", "blobs": []},
        {"name": "f", "size_bytes": 1, "blobs": [["a", 0, 1]]},
    ],
)
def test_an_unreadable_file_of_blobs_is_a_snapshot_error(document: dict[str, object]) -> None:
    with pytest.raises(SnapshotError):
        BlobFile.from_json(document)


@pytest.mark.parametrize("at", ["local", "memory"])
def test_verify_names_a_file_of_blobs_that_is_missing_or_damaged(tmp_path: Path, at: str) -> None:
    """S9.3; in the folder that checkpoints share, too."""
    store = open_store(str(tmp_path) if at == "local" else f"memory://verify-blobs-{next(FRESH)}")
    folder = "j/checkpoints/chk-7-g2"
    streams = SnapshotStreams.at(folder, lambda location: (store, location), 0)
    shared = streams.store_blobs("daily-0", [("a", [b"chunk"]), ("b", [b"pi", b"ece"])], shared=True)
    state = replace(streams.store("daily-0", b"state"), files=(shared,))
    daily = OperatorState("daily", "running", (SubtaskState(0, False, state),))
    written = replace(golden(METADATA_VERSION), operators=(daily,))
    write_metadata(store, folder, written)
    assert verify(lambda location: (store, location), folder) == written
    store.replace("j/shared/daily-0", b"chunkpiec")
    with pytest.raises(SnapshotError, match="blob b in daily-0 is damaged"):
        verify(lambda location: (store, location), folder)
    store.delete("j/shared/daily-0")
    with pytest.raises(SnapshotError, match="daily-0 is missing"):
        verify(lambda location: (store, location), folder)
