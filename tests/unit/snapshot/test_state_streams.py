"""The state stream: what comes back, and what is refused (S5.3)."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import SnapshotError
from tidegate.snapshot import streams
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, Blob, StatePart
from tidegate.snapshot.streams import STREAM_VERSION, decode_parts, encode_parts, read_header

KEYED = StatePart(
    "windows",
    "keyed",
    pa.table(
        {KEY_GROUP_COLUMN: pa.array([9, 2, 9, 2, 0], pa.uint16()), "row": [0, 1, 2, 3, 4], "s": list("abcd") + [None]}
    ),
)
LIST = StatePart("progress", "list", pa.table({"split": ["a"], "time_us": [5]}))
EMPTY = StatePart("buffered", "broadcast", pa.schema([("x", pa.float64())]).empty_table())


def test_parts_come_back_with_keyed_rows_sorted_by_key_group() -> None:
    keyed, progress, empty = decode_parts(encode_parts([KEYED, LIST, EMPTY]))
    assert keyed.table.to_pydict() == {
        KEY_GROUP_COLUMN: [0, 2, 2, 9, 9],
        "row": [4, 1, 3, 0, 2],
        "s": [None, "b", "d", "a", "c"],
    }
    assert (keyed.name, keyed.kind) == ("windows", "keyed")
    assert (progress.name, progress.kind) == ("progress", "list") and progress.table.equals(LIST.table)
    assert empty.kind == "broadcast" and empty.table.equals(EMPTY.table)
    assert decode_parts(encode_parts([])) == []


def test_the_header_tells_names_types_and_key_group_offsets_before_the_data() -> None:
    """S5.3."""
    data = encode_parts([KEYED, LIST])
    keyed, progress = read_header(data)
    assert keyed.fields == ((KEY_GROUP_COLUMN, "uint16"), ("row", "int64"), ("s", "string"))
    assert keyed.key_groups == ((0, 0), (2, 1), (9, 3)) and keyed.rows == 5
    assert progress.key_groups == ()
    start = len(data) - keyed.size_bytes - progress.size_bytes
    assert read_header(data[:start]) == (keyed, progress)


def test_encoding_is_deterministic_and_does_not_depend_on_chunks() -> None:
    chunked = pa.concat_tables([KEYED.table.slice(0, 2), KEYED.table.slice(2)])
    assert encode_parts([StatePart("windows", "keyed", chunked)]) == encode_parts([KEYED])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_damage_goes_unnoticed(data: st.DataObject) -> None:
    whole = encode_parts([KEYED, LIST])
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    with pytest.raises(SnapshotError, match="subtask 3"):
        decode_parts(damaged, where="daily subtask 3")


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(SnapshotError, match="after its end"):
        decode_parts(encode_parts([LIST]) + b"x")


def test_a_stream_of_a_newer_version_asks_for_an_upgrade() -> None:
    data = bytearray(encode_parts([LIST]))
    struct.pack_into("<H", data, 8, STREAM_VERSION + 1)
    with pytest.raises(SnapshotError, match=f"version {STREAM_VERSION + 1}.*Upgrade tidegate"):
        decode_parts(bytes(data))


def test_key_groups_of_a_newer_hash_ask_for_an_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEY_BYTES_VERSION", 2)
    data = encode_parts([KEYED])
    monkeypatch.undo()
    with pytest.raises(SnapshotError, match="keys in the snapshot have format version 2.*Upgrade"):
        decode_parts(data)


@pytest.mark.parametrize("parts", [[LIST, LIST], [StatePart("windows", "keyed", pa.table({"row": [1]}))]])
def test_an_operator_that_breaks_the_contract_is_caught_when_writing(parts: list[StatePart]) -> None:
    with pytest.raises(AssertionError):
        encode_parts(parts)


def test_ids_of_blobs_and_their_format_come_back_and_their_bytes_are_read_on_demand() -> None:
    """S5.2; such a stream has version 3, with rows in blobs 4; others stay readable for those who know no blobs."""
    files = pa.table({"name": ["1.sst", "2.sst"]})
    native = StatePart("db", "keyed", files, (), (Blob("f1", bytes), Blob("f2", bytes)), "rocksdb")
    pieces = StatePart("v", "keyed", KEYED.table, (), (Blob("c1", bytes),))
    data = encode_parts([native, pieces])
    assert [struct.unpack_from("<H", encode_parts(parts), 8)[0] for parts in ([native], [pieces], [KEYED])] == [3, 5, 1]
    asked: list[str] = []

    def read(blob_id: str) -> bytes:
        asked.append(blob_id)
        return blob_id.encode()

    db, v = decode_parts(data, read_blob=read)
    assert (db.format, v.format, db.table) == ("rocksdb", "rows", files)
    assert asked == []
    assert [blob.read() for blob in (*db.blobs, *v.blobs)] == [b"f1", b"f2", b"c1"]
    with pytest.raises(SnapshotError, match="piece f1"):
        decode_parts(data)[0].blobs[0].read()


def test_a_stream_of_version_3_is_read_back() -> None:
    """Its golden file."""
    data = (Path(__file__).parent / "golden" / "state-v3.bin").read_bytes()
    db, v, progress = decode_parts(data, read_blob=str.encode)
    assert (db.kind, db.format, [blob.id for blob in db.blobs]) == ("keyed", "rocksdb", ["f1", "f2"])
    assert (v.format, [blob.read() for blob in v.blobs]) == ("rows", [b"c1"])
    assert db.table.to_pydict() == {"name": ["1.sst", "2.sst"]} and progress == LIST


def golden_4() -> list[StatePart]:
    """What the golden file of version 4 holds."""
    return [StatePart("v", "keyed", KEYED.table, (), (Blob("c1", bytes), Blob("c2", bytes))), LIST]


def test_a_stream_of_version_4_is_read_back() -> None:
    data = (Path(__file__).parent / "golden" / "state-v4.bin").read_bytes()
    v, progress = decode_parts(data, read_blob=str.encode)
    assert (v.kind, v.format, [blob.read() for blob in v.blobs]) == ("keyed", "rows", [b"c1", b"c2"])
    assert sorted(v.table["row"].to_pylist()) == [0, 1, 2, 3, 4] and progress == LIST
    assert read_header(data) == read_header(encode_parts(golden_4()))
