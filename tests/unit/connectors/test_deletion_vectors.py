"""Deletion vectors of Delta tables, against the library of the format."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from builders.delta_tables import golden, read
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.connectors.delta.source.deletion_vectors import deleted_rows, parse_bitmap_array, vector_path
from tidegate.connectors.delta.source.delta_source import DeltaTable
from tidegate.errors import PipelineError

MAGIC = struct.pack("<I", 1_681_511_377)
SMALL = {"storageType": "u", "pathOrInlineDv": "vBn[lx{q8@P<9BNH/isA", "offset": 1, "sizeInBytes": 36, "cardinality": 2}

runs = st.tuples(st.integers(0, 2**34), st.integers(1, 9_000)).map(lambda run: range(run[0], run[0] + run[1]))


@settings(max_examples=60, deadline=None)
@given(st.lists(runs, max_size=6), st.lists(st.integers(0, 2**34), max_size=50), st.booleans())
def test_every_bitmap_is_parsed(ranges: list[range], single: list[int], optimized: bool) -> None:
    """Containers of all three kinds: arrays, bitmaps and runs."""
    made = BitMap64(single)
    for one in ranges:
        made |= BitMap64(one)
    if optimized:
        made.run_optimize()
    assert parse_bitmap_array(MAGIC + made.serialize()).tolist() == sorted(made)


@pytest.mark.parametrize("content", [b"", MAGIC, struct.pack("<Iq", 1, 0), MAGIC + struct.pack("<qII", 1, 0, 7)])
def test_other_content_is_an_error(content: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        parse_bitmap_array(content)


def test_a_vector_of_spark_is_found_by_its_encoded_name(tmp_path: Path) -> None:
    folder = golden("table-with-dv-small", tmp_path)
    log = LogFiles(str(folder), {})
    assert vector_path(log, SMALL) == "deletion_vector_61d16c75-6994-46b7-a15b-8b538852e50e.bin"
    assert deleted_rows(log, SMALL).tolist() == [0, 9]
    prefixed = {**SMALL, "pathOrInlineDv": f"ab{SMALL['pathOrInlineDv']}"}
    assert vector_path(log, prefixed) == f"ab/{vector_path(log, SMALL)}"
    assert sorted(row["value"] for row in read(DeltaTable(folder))) == list(range(1, 9))
    assert len(read(DeltaTable(folder, version=0))) == 10


def test_a_vector_in_the_log_is_read(tmp_path: Path) -> None:
    """The example of the Delta kernel."""
    text = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    inline = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": 44}
    found = deleted_rows(LogFiles(str(tmp_path), {}), {**inline, "cardinality": 6})
    assert found.tolist() == [3, 4, 7, 11, 18, 29]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cardinality": 3}, "2 rows, and the log says 3"),
        ({"sizeInBytes": 35}, "length differs"),
    ],
)
def test_a_vector_that_contradicts_the_log_is_an_error(tmp_path: Path, change: dict[str, int], said: str) -> None:
    log = LogFiles(str(golden("table-with-dv-small", tmp_path)), {})
    with pytest.raises(PipelineError, match=said):
        deleted_rows(log, {**SMALL, **change})


def test_a_damaged_vector_is_an_error_and_a_missing_one_is_named(tmp_path: Path) -> None:
    folder = golden("table-with-dv-small", tmp_path)
    (file,) = folder.glob("deletion_vector_*.bin")
    content = bytearray(file.read_bytes())
    content[25] ^= 1
    file.write_bytes(content)
    source = DeltaTable(folder)
    with pytest.raises(PipelineError, match="checksum does not match"):
        read(source)
    splits = source.discover(1)
    file.unlink()
    with pytest.raises(PipelineError, match="data file of the Delta table is missing"):
        read(source, splits)
    ((_, why),) = source.unavailable_splits(splits)
    assert file.name in why
