"""Files of blobs: which lie together, and how damage to them is found (S5.2, S5.4)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.jobs.options import SnapshotCompression
from tidegate.snapshot.blobs import PACK_BYTES, PackedBlobs, checksum, matches, plan_blob_files
from tidegate.snapshot.parts import Blob
from tidegate.snapshot.row_streams import MIN_NARROW_ROWS, stream_of, table_of

COMPRESSIONS: list[SnapshotCompression] = ["none", "lz4", "zstd"]
ROWS = pa.table({"n": range(10_000), "s": ["text"] * 10_000})
GOLDEN = Path(__file__).parent / "golden" / "rows-v5.bin"


def integers(rows: int) -> pa.Table:
    """A column for each way in which integers are stored."""
    numbers = np.arange(rows)
    columns = {
        "one_byte": numbers % 256,
        "two_bytes": numbers * 65_535 // (rows - 1),
        "four_bytes": numbers * (2**32 - 1) // (rows - 1),
        "eight_bytes": numbers * 2**33,
        "negative": numbers - 1,
        "constant": np.full(rows, -5),
        "ends_alike": np.where(numbers % (rows - 1) == 0, 7, 8),
        "short": (numbers % 100).astype(np.int16),
    }
    null = pa.array(numbers, mask=numbers == 3)
    fields = [pa.field(name, pa.from_numpy_dtype(values.dtype), name != "constant") for name, values in columns.items()]
    schema = pa.schema([*fields, pa.field("null", pa.int64())])
    return pa.table([*map(pa.array, columns.values()), null], schema=schema)


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
    assert (len(data) < 0.4 * ROWS.nbytes) is (compression != "none")
    assert Blob("a", lambda: data).table().equals(Blob("b", lambda: ROWS).table())


def test_columns_that_are_not_changed_are_written_from_where_they_lie() -> None:
    buffers = {piece.address for piece in stream_of(ROWS) if isinstance(piece, pa.Buffer)}
    assert ROWS["s"].chunk(0).buffers()[2].address in buffers


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("rows", [MIN_NARROW_ROWS - 1, MIN_NARROW_ROWS, 10_000])
def test_integers_come_back_however_few_bytes_they_need(rows: int, compression: SnapshotCompression) -> None:
    table = integers(rows)
    data = b"".join(stream_of(table, compression))
    assert table_of(data).equals(table, check_metadata=True)
    wanted = 1 + 2 + 4 + 8 + 8 + 0 + 1 + 2 + 8 if rows >= MIN_NARROW_ROWS else table.nbytes / rows
    if compression == "none":
        assert wanted * rows <= len(data) <= wanted * rows * 1.1 + 2_500


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4), st.booleans())
def test_all_integers_come_back(values: list[int], nullable: bool) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable)])
    table = pa.table([pa.array((values * MIN_NARROW_ROWS)[: MIN_NARROW_ROWS + 3])], schema=schema)
    assert table_of(b"".join(stream_of(table))).equals(table, check_metadata=True)


def test_rows_of_version_5_are_read_back_and_written_as_in_their_golden_file() -> None:
    assert table_of(GOLDEN.read_bytes()).equals(integers(300), check_metadata=True)
    with (
        pa.ipc.open_stream(GOLDEN.read_bytes()) as golden,
        pa.ipc.open_stream(b"".join(stream_of(integers(300)))) as now,
    ):
        assert golden.schema.equals(now.schema, check_metadata=True)
