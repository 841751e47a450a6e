"""Writing the blobs of states: what is shared with completed checkpoints, what is written, and where (S5.2)."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.errors import SnapshotError
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.snapshot.blobs import MAX_SMALL_FILES, PACK_BYTES
from tidegate.snapshot.handles import SnapshotStreams, StateHandle
from tidegate.snapshot.local_copies import LocalCopies
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, Blob, StatePart
from tidegate.subtask.snapshots.snapshot_writer import SnapshotPlace, SnapshotWriter, WrittenSnapshot
from tidegate.testing.in_process_job import InlineExecutor

TABLE = pa.table({KEY_GROUP_COLUMN: pa.array([], pa.uint16()), "v": pa.array([], pa.int64())})
MEET_S = 20.0
"""How long a thread waits for the others, seconds; only a failing test waits."""


def rows(*values: int) -> bytes:
    """The rows of one blob."""
    table = pa.table({KEY_GROUP_COLUMN: pa.array([0] * len(values), pa.uint16()), "v": pa.array(values, pa.int64())})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


class Slot:
    """One operator subtask "op", 0, and its writer; `reads` are ids of blobs that were asked for their bytes."""

    def __init__(self, store: Store, *, threshold_bytes: int = 0, writers: Executor | None = None) -> None:
        self.store = store
        self.reads: list[str] = []
        self.failures: list[Exception] = []
        self.writer = SnapshotWriter("r1", 1, self.open, threshold_bytes, writers or InlineExecutor())

    def open(self, location: str) -> tuple[Store, str]:
        return self.store, location

    def blob(self, blob_id: str, data: bytes, size_bytes: int = 0) -> Blob:
        def read() -> bytes:
            self.reads.append(blob_id)
            return data

        return Blob(blob_id, read, size_bytes)

    def write(self, n: int, blobs: Sequence[Blob], savepoint: bool = False) -> WrittenSnapshot:
        """Snapshot `n` with these blobs; it is not yet complete."""
        made: list[WrittenSnapshot] = []
        part = StatePart("v", "keyed", TABLE, (), tuple(blobs))
        place = SnapshotPlace(n, location(n, savepoint), savepoint)
        self.writer.write(0, place, [("op", lambda: [part])], made.append, self.failures.append)
        assert self.failures == []
        return made[0]

    def values(self, written: WrittenSnapshot, at: str) -> list[int]:
        """What a restore of the snapshot reads."""
        handle = StateHandle.from_json(written.handles["op"].to_json())
        (part,) = SnapshotStreams.at(at, self.open).parts(handle)
        return [v for table in part.tables() for v in table["v"].to_pylist()]


def location(n: int, savepoint: bool = False) -> str:
    return f"j/savepoints/sp-{n}" if savepoint else f"j/checkpoints/chk-{n}-g1"


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(open_store(str(tmp_path)))


def test_a_blob_that_a_completed_checkpoint_has_is_not_written_again(slot: Slot) -> None:
    """S5.2, S2.5: full and newly written bytes are told apart."""
    a, b, c = (slot.blob(name, rows(value)) for name, value in (("a", 1), ("b", 2), ("c", 3)))
    first = slot.write(1, [a, b])
    slot.writer.blobs.completed(1)
    second = slot.write(2, [a, b, c])
    assert slot.reads == ["a", "b", "c"]
    assert slot.values(first, location(1)) == [1, 2]
    assert slot.values(second, location(2)) == [1, 2, 3]
    stream = second.handles["op"].size_bytes
    assert second.metrics["bytes"] == stream + len(rows(1)) + len(rows(2)) + len(rows(3))
    assert second.metrics["persisted_bytes"] == stream + len(rows(3))
    assert first.metrics["bytes"] == first.metrics["persisted_bytes"]
    assert len(slot.store.walk("j/shared")) == 2


@pytest.mark.parametrize("aborted", [True, False], ids=["aborted", "still pending"])
def test_uploads_of_a_checkpoint_that_has_not_completed_are_not_relied_on(slot: Slot, aborted: bool) -> None:
    """S5.2: they may be deleted."""
    slot.write(1, [slot.blob("a", rows(1))])
    if aborted:
        slot.writer.blobs.aborted(1)
    second = slot.write(2, [slot.blob("a", rows(1))])
    slot.writer.blobs.completed(2)
    assert slot.reads == ["a", "a"]
    third = slot.write(3, [slot.blob("a", rows(1))])
    assert slot.reads == ["a", "a"]
    assert third.handles["op"].files == second.handles["op"].files


def test_only_the_newest_completed_checkpoint_is_relied_on(slot: Slot) -> None:
    """S2.3: files of older ones go with them."""
    slot.write(1, [slot.blob("a", rows(1))])
    slot.write(2, [slot.blob("b", rows(2))])
    slot.writer.blobs.completed(2)
    slot.writer.blobs.completed(1)
    slot.write(3, [slot.blob("a", rows(1)), slot.blob("b", rows(2))])
    assert slot.reads == ["a", "b", "a"]


def test_a_savepoint_holds_all_of_its_blobs_and_can_be_copied(slot: Slot, tmp_path: Path) -> None:
    """Savepoints are self-contained and relocatable; nothing uses their files."""
    slot.write(1, [slot.blob("a", rows(1))])
    slot.writer.blobs.completed(1)
    savepoint = slot.write(2, [slot.blob("a", rows(1))], savepoint=True)
    assert slot.reads == ["a", "a"]
    assert not any(file.shared for file in savepoint.handles["op"].files)
    slot.writer.blobs.completed(2)
    slot.write(3, [slot.blob("a", rows(1))])
    assert slot.reads == ["a", "a", "a"], "after a stop-savepoint nothing older is kept"
    (tmp_path / location(2, True)).rename(tmp_path / "moved")
    slot.store.delete_folder("j")
    assert slot.values(savepoint, "moved") == [1]


def test_many_small_blobs_lie_in_few_files_and_large_ones_by_themselves(slot: Slot) -> None:
    data = rows(1)
    small = [slot.blob(f"s{n}", data, len(data)) for n in range(1000)]
    large = [slot.blob(f"l{n}", data, PACK_BYTES) for n in range(3)]
    handle = slot.write(1, [*small, *large]).handles["op"]
    assert [len(file.blobs) for file in handle.files] == [1001, 1, 1]
    assert len(slot.store.walk("j/shared")) == 3


def test_few_bytes_of_blobs_stay_inline_and_are_written_with_the_next_ones(tmp_path: Path) -> None:
    """S5.4; inline ones do not add up over the checkpoints."""
    slot = Slot(open_store(str(tmp_path)), threshold_bytes=1 << 20)
    first = slot.write(1, [slot.blob("a", rows(1))])
    slot.writer.blobs.completed(1)
    second = slot.write(2, [slot.blob("a", rows(1)), slot.blob("b", rows(2))])
    assert slot.store.walk("j") == []
    assert slot.values(first, location(1)) == [1] and slot.values(second, location(2)) == [1, 2]
    assert len(second.handles["op"].files) == 1


def test_a_file_that_is_mostly_out_of_use_is_written_anew(slot: Slot) -> None:
    """What an incremental snapshot depends on is bounded."""
    data = rows(1)
    blobs = [slot.blob(f"b{n}", data) for n in range(10)]
    slot.write(1, blobs)
    slot.writer.blobs.completed(1)
    second = slot.write(2, blobs[:5])
    assert len(slot.reads) == 10, "half of it is in use"
    slot.writer.blobs.completed(2)
    third = slot.write(3, blobs[:4])
    assert slot.reads[10:] == ["b0", "b1", "b2", "b3"]
    (old,), (new,) = second.handles["op"].files, third.handles["op"].files
    assert old.name != new.name and new.size_bytes == 4 * len(data)


def test_small_files_are_written_together_when_they_are_many(slot: Slot) -> None:
    blobs: list[Blob] = []
    counts: list[int] = []
    for n in range(1, 3 * MAX_SMALL_FILES):
        blobs.append(slot.blob(f"b{n}", rows(n)))
        written = slot.write(n, blobs)
        slot.writer.blobs.completed(n)
        counts.append(len(written.handles["op"].files))
    assert max(counts) == MAX_SMALL_FILES + 1
    assert slot.values(written, location(n)) == list(range(1, n + 1))


def test_a_restored_savepoint_of_two_runs_tells_blobs_of_one_name_apart(slot: Slot) -> None:
    """Ids are a back end's own: another run or subtask may give them again."""
    slot.write(1, [slot.blob("a", rows(1))])
    slot.writer.blobs.completed(1)
    again = Slot(slot.store)
    again.writer = SnapshotWriter("r2", 1, again.open, 0, InlineExecutor())
    second = again.write(2, [again.blob("a", rows(2))])
    assert again.values(second, location(2)) == [2]


def test_files_of_blobs_are_written_side_by_side(tmp_path: Path) -> None:
    """S5.4: one after the other, none of these reads would end."""
    meeting = threading.Barrier(3)
    told = threading.Event()

    def read(n: int) -> bytes:
        meeting.wait(MEET_S)
        return rows(n)

    with ThreadPoolExecutor(3) as writers:
        slot = Slot(open_store(str(tmp_path)), writers=writers)
        part = StatePart("v", "keyed", TABLE, (), tuple(Blob(f"b{n}", partial(read, n), PACK_BYTES) for n in range(3)))
        made: list[WrittenSnapshot] = []

        def written(one: WrittenSnapshot) -> None:
            made.append(one)
            told.set()

        place = SnapshotPlace(1, location(1), False)
        slot.writer.write(0, place, [("op", lambda: [part])], written, slot.failures.append)
        assert told.wait(MEET_S)
    assert slot.values(made[0], location(1)) == [0, 1, 2]


def test_a_blob_that_cannot_be_read_fails_the_snapshot(slot: Slot) -> None:
    """S3.6."""

    def fail() -> bytes:
        raise OSError("disk full")

    part = StatePart("v", "keyed", TABLE, (), (Blob("a", fail),))
    place = SnapshotPlace(1, location(1), False)
    slot.writer.write(0, place, [("op", lambda: [part])], lambda _: pytest.fail("written"), slot.failures.append)
    assert [str(error) for error in slot.failures] == ["disk full"]


def test_a_damaged_or_missing_blob_is_named_when_it_is_read(slot: Slot) -> None:
    """S9.3."""
    written = slot.write(1, [slot.blob("a", rows(1)), slot.blob("b", rows(2))])
    (path,) = slot.store.walk("j/shared")
    whole = slot.store.read(path)
    slot.store.replace(path, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(SnapshotError, match="blob 0-r1-b in .*op-0-g1-r1-.*damaged.*checksum"):
        slot.values(written, location(1))
    slot.store.replace(path, whole[:-1])
    with pytest.raises(SnapshotError, match="blob 0-r1-b in .*damaged.*bytes"):
        slot.values(written, location(1))
    slot.store.delete(path)
    with pytest.raises(SnapshotError, match="op-0-g1-r1-.*is missing"):
        slot.values(written, location(1))


def test_a_blob_that_the_metadata_does_not_name_is_an_error(slot: Slot) -> None:
    written = slot.write(1, [slot.blob("a", rows(1))])
    bare = WrittenSnapshot({"op": replace(written.handles["op"], files=())}, {})
    with pytest.raises(SnapshotError, match="needs the piece 0-r1-a"):
        slot.values(bare, location(1))


def test_blobs_of_the_restored_snapshot_keep_their_ids_and_are_not_written_again(slot: Slot) -> None:
    """S7.4: a back end that hands in what it was given; other ids are the new run's, even when they look alike."""
    first = slot.write(1, [slot.blob("a", rows(1)), slot.blob("b", rows(2))])
    again = Slot(slot.store)
    again.writer = SnapshotWriter("r2", 2, again.open, 0, InlineExecutor())
    again.writer.blobs.restored({("op", 0): first.handles["op"].files})
    changed = [again.blob("0-r1-a", rows(1)), again.blob("b", rows(3))]
    second = again.write(2, changed)
    again.writer.blobs.completed(2)
    third = again.write(3, changed)
    assert again.reads == ["b"]
    assert again.values(second, location(2)) == again.values(third, location(3)) == [1, 3]


def test_checkpoints_are_copied_to_the_local_disk_and_savepoints_are_not(slot: Slot, tmp_path: Path) -> None:
    """S5.4: a restart reads the newest completed checkpoint there."""
    copies = LocalCopies(str(tmp_path / "local" / "job"), 0)
    slot.writer = SnapshotWriter("r1", 1, slot.open, 0, InlineExecutor(), copies)
    slot.write(1, [slot.blob("a", rows(1)), slot.blob("gone", rows(9))])
    slot.writer.completed(1)
    slot.write(2, [slot.blob("a", rows(1))], savepoint=True)
    third = slot.write(3, [slot.blob("a", rows(1)), slot.blob("b", rows(2))])
    slot.writer.completed(3)
    names = os.listdir(tmp_path / "local" / "job" / "0")
    assert sorted(name.rpartition(".")[2] for name in names) == ["blobs", "blobs", "state"]
    slot.store.delete_folder("j")
    (part,) = SnapshotStreams.at(location(3), slot.open, 0, copies).parts(third.handles["op"])
    assert [v for table in part.tables() for v in table["v"].to_pylist()] == [1, 2]
