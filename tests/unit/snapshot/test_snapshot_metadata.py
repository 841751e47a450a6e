"""`_metadata` (S2.1, S6.2)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.contract.errors import AlreadyExistsError, SnapshotError
from tidegate.contract.store import Store, open_store
from tidegate.snapshot.handles import StreamFactory
from tidegate.snapshot.metadata import (
    METADATA_NAME,
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
FRESH = itertools.count()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def metadata(store: Store) -> SnapshotMetadata:
    streams = StreamFactory(store, FOLDER, threshold_bytes=10)
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
    assert read_metadata(store, FOLDER) == written == verify(store, FOLDER)
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


def test_a_savepoint_can_be_copied_as_a_whole(store: Store, tmp_path: Path) -> None:
    written = metadata(store)
    write_metadata(store, FOLDER, written)
    (tmp_path / FOLDER).rename(tmp_path / "moved")
    assert verify(open_store(str(tmp_path / "moved")), "") == written


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
    document = json.loads(encode_metadata(metadata(store))) | {"v": 2}
    with pytest.raises(SnapshotError, match="version 2.*Upgrade"):
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
        verify(store, FOLDER)


def test_verify_reads_every_file_of_a_store_that_is_not_local() -> None:
    store = open_store("memory://verify")
    write_metadata(store, FOLDER, metadata(store))
    verify(store, FOLDER)
    store.replace(f"{FOLDER}/daily-0", b"another state of bytes"[:21])
    with pytest.raises(SnapshotError, match="daily-0 is damaged.*checksum"):
        verify(store, FOLDER)
