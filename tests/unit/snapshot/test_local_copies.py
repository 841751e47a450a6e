"""S5.4: state files are read from the slot's own disk when they are whole there, and from the store otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.errors import SnapshotError
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.snapshot.handles import SnapshotStreams
from tidegate.snapshot.local_copies import LocalCopies

CHECKPOINT = "j/checkpoints/chk-1-g1"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "local" / "job"


def streams(store: Store, copies: LocalCopies | None) -> SnapshotStreams:
    return SnapshotStreams.at(CHECKPOINT, lambda location: (store, location), 0, copies)


def test_what_was_written_is_read_back_without_the_store(store: Store, folder: Path) -> None:
    """Also by the slot of another number: after a rescale another one needs it."""
    writer = streams(store, LocalCopies(str(folder), 0))
    handle = writer.store("op-0.state", b"state")
    file = writer.store_blobs("op-0.blobs", [("a", [b"chunk"]), ("b", [b"pie", b"ce"])], shared=True)
    store.delete_folder("j")
    reader = streams(store, LocalCopies(str(folder), 1))
    assert reader.load(handle) == b"state"
    assert [reader.load_blob(file, blob) for blob in file.blobs] == [b"chunk", b"piece"]
    with pytest.raises(SnapshotError, match="is missing"):
        streams(store, None).load(handle)


@pytest.mark.parametrize("found", [b"statf", b"sta", b"", None])
def test_a_copy_that_is_not_whole_is_passed_over(store: Store, folder: Path, found: bytes | None) -> None:
    handle = streams(store, LocalCopies(str(folder), 0)).store("op-0.state", b"state")
    (folder / "0" / "op-0.state").unlink()
    if found is not None:
        (folder / "0" / "op-0.state").write_bytes(found)
    assert streams(store, LocalCopies(str(folder), 0)).load(handle) == b"state"


def test_a_disk_that_takes_nothing_fails_no_snapshot(store: Store, folder: Path) -> None:
    copies = LocalCopies(str(folder), 0)
    (folder / "0").rmdir()
    handle = streams(store, copies).store("op-0.state", b"state")
    assert streams(store, copies).load(handle) == b"state" and not folder.joinpath("0").exists()


def test_copies_that_no_completed_or_newer_checkpoint_uses_go(folder: Path) -> None:
    copies = LocalCopies(str(folder), 0)
    for name in ("left", "old", "shared", "new", "newer"):
        copies.put(name, [b"x"])
    copies.on_written(1, {"old", "shared"})
    copies.on_written(2, {"shared"})
    copies.on_written(2, {"new"})
    copies.on_written(3, {"newer"})
    copies.completed(2)
    assert sorted(os.listdir(folder / "0")) == ["new", "newer", "shared"]
    copies.clear()
    assert not folder.exists()


def test_a_folder_that_somebody_else_laid_there_is_not_used(folder: Path, tmp_path: Path) -> None:
    """State is nobody else's to read."""
    (tmp_path / "theirs").mkdir()
    folder.mkdir(parents=True)
    (folder / "0").symlink_to(tmp_path / "theirs")
    LocalCopies(str(folder), 0).put("op-0.state", [b"sta", b"te"])
    assert os.listdir(tmp_path / "theirs") == []
    LocalCopies(str(folder), 1).put("op-1.state", [b"state"])
    assert (folder / "1").stat().st_mode & 0o077 == 0


def test_jobs_and_slots_have_folders_of_their_own() -> None:
    places = [("a", "j", 0), ("a", "j", 1), ("a", "k", 0), ("b", "j", 0)]
    copies = [LocalCopies.of_job(*place) for place in places]
    assert len({one._own for one in copies}) == 4
    for one in copies:
        one.clear()
