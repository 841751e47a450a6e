"""Files of blobs: which lie together, and how damage to them is found (S5.2, S5.4)."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.jobs.options import SnapshotCompression
from tidegate.snapshot.blobs import PACK_BYTES, PackedBlobs, checksum, matches, plan_blob_files
from tidegate.snapshot.parts import Blob
from tidegate.snapshot.row_streams import stream_of, table_of

COMPRESSIONS: list[SnapshotCompression] = ["none", "lz4", "zstd"]
ROWS = pa.table({"n": range(10_000), "s": ["text"] * 10_000})


@given(st.lists(st.binary(max_size=20), max_size=5), st.data())
def test_no_damaged_byte_of_a_blob_goes_unnoticed(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    for expected in (checksum(pieces), hashlib.sha256(whole).hexdigest()):
        assert matches(whole, expected)
        if whole:
            at = data.draw(st.integers(0, len(whole) - 1))
            flipped = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
            assert not matches(whole[:at] + flipped + whole[at + 1 :], expected)


def test_a_checksum_of_an_unknown_kind_matches_nothing() -> None:
    assert not matches(b"data", "crc64:00")


def test_each_blob_is_where_its_file_says_whatever_its_pieces() -> None:
    packed = PackedBlobs([("a", [b"12", b"3"]), ("b", []), ("c", [pa.py_buffer(b"4567")])])
    data = b"".join(packed)
    stored = packed.stored
    found = {blob.id: data[blob.offset : blob.offset + blob.size_bytes] for blob in stored}
    assert found == {"a": b"123", "b": b"", "c": b"4567"}
    assert all(matches(found[blob.id], blob.checksum) for blob in stored)


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (15, [15]), (16, [16]), (17, [9, 8]), (33, [11, 11, 11])])
def test_blobs_lie_in_as_few_files_as_do_and_these_are_of_about_one_size(count: int, sizes: list[int]) -> None:
    """A snapshot waits for the largest."""
    blobs = [Blob(f"{n}", bytes, PACK_BYTES // 16) for n in range(count)]
    assert [len(pack) for pack in plan_blob_files(blobs)] == sizes


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_rows_come_back_from_their_stream(compression: SnapshotCompression) -> None:
    data = b"".join(stream_of(ROWS, compression))
    assert table_of(data).equals(ROWS)
    assert (len(data) < 0.6 * ROWS.nbytes) is (compression != "none")
    assert Blob("a", lambda: data).table().equals(Blob("b", lambda: ROWS).table())


def test_columns_that_are_not_compressed_are_written_from_where_they_lie() -> None:
    buffers = {piece.address for piece in stream_of(ROWS) if isinstance(piece, pa.Buffer)}
    assert ROWS["n"].chunk(0).buffers()[1].address in buffers
