"""Rows as byte strings, and key columns back from canonical key bytes."""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import PipelineError, SnapshotError
from tidegate.state.keys.key_bytes import canonical_bytes
from tidegate.state.rocksdb.byte_rows import ByteRows, frame, interleave, join_bytes, unframe
from tidegate.state.rocksdb.key_columns import key_columns
from tidegate.state.rocksdb.row_codec import RowCodec

EVERY_TYPE = pa.RecordBatch.from_pydict(
    {
        "int32": pa.array([1, None, -3], pa.int32()),
        "bool": [True, False, None],
        "string": ["a", None, "xyz"],
        "large_binary": pa.array([b"", b"q", None], pa.large_binary()),
        "list": [[1, 2], None, []],
        "struct": [{"a": 1, "b": "x"}, None, {"a": None, "b": "yy"}],
        "map": pa.array([[("k", 1)], None, [("a", 2), ("b", None)]], pa.map_(pa.string(), pa.int64())),
        "decimal": pa.array([decimal.Decimal("1.23"), None, decimal.Decimal("-4.56")], pa.decimal128(10, 2)),
        "fixed": pa.array([b"abc", None, b"xyz"], pa.binary(3)),
        "timestamp": pa.array([1, 2, None], pa.timestamp("ms", "UTC")),
        "null": pa.nulls(3),
        "list of lists": [[["a"], None, []], [], None],
        "view": pa.array(["a", None, "b" * 30], pa.string_view()),
        "half": pa.array([np.float16(1.5), None, np.float16(-2)], pa.float16()),
    }
)


def test_rows_of_every_type_come_back_as_they_were() -> None:
    codec = RowCodec(EVERY_TYPE.schema)
    decoded = codec.decode(codec.encode(EVERY_TYPE))
    decoded.validate(full=True)
    assert decoded.equals(EVERY_TYPE)


def test_rows_in_the_middle_of_a_larger_batch_come_back() -> None:
    batch = pa.concat_batches([EVERY_TYPE] * 3).slice(2, 5)
    codec = RowCodec(batch.schema)
    decoded = codec.decode(codec.encode(batch))
    decoded.validate(full=True)
    assert decoded.to_pylist() == batch.to_pylist()


def test_a_missing_row_has_zeros_and_the_rows_beside_it_are_right() -> None:
    codec = RowCodec(EVERY_TYPE.schema)
    rows = codec.encode(EVERY_TYPE)
    gaps = ByteRows(rows.data, np.array([-1, rows.starts[2], -1]), np.array([0, rows.lengths[2], 0]))
    decoded = codec.decode(gaps)
    decoded.validate(full=True)
    assert decoded.slice(1, 1).to_pylist() == EVERY_TYPE.slice(2, 1).to_pylist()
    assert decoded.column("int32")[0].as_py() == 0 and decoded.column("string")[2].as_py() == ""


def test_the_bytes_of_a_row_are_those_of_version_1() -> None:
    """Durable: RocksDB's files in snapshots hold them."""
    batch = pa.RecordBatch.from_pydict(
        {"n": pa.array([258, None], pa.int32()), "b": [True, None], "s": ["ab", None], "l": [[1], None]},
        schema=pa.schema([("n", pa.int32()), ("b", pa.bool_()), ("s", pa.string()), ("l", pa.list_(pa.int16()))]),
    )
    first, second = RowCodec(batch.schema).encode(batch).to_list()
    element = "0100" + "0100"
    assert first.hex() == "0100" + "02010000" + "01" + "02000000" + "08000000" + "6162" + "04000000" + element
    assert second.hex()[:4] == "010f" and len(second) == 2 + 4 + 1 + 4 + 4


def test_rows_of_another_version_are_refused() -> None:
    codec = RowCodec(pa.schema([("n", pa.int64())]))
    data, offsets = codec.encode(pa.RecordBatch.from_pydict({"n": [1]})).packed()
    data[0] = 9
    with pytest.raises(SnapshotError, match="cannot read"):
        codec.decode(ByteRows.of(data, offsets))


def test_a_type_that_cannot_be_kept_is_refused_by_name() -> None:
    with pytest.raises(PipelineError, match="'d' of type dictionary"):
        RowCodec(pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))]))


def test_eight_bytes_of_a_row_are_read_and_changed_alone() -> None:
    batch = pa.RecordBatch.from_pydict({"s": ["x", "yy"], "t": [5, 6]})
    codec = RowCodec(batch.schema)
    changed = codec.with_numbers(codec.encode(batch), 1, np.array([50, 60]))
    assert codec.numbers(changed, 1).tolist() == [50, 60]
    assert codec.decode(changed).to_pylist() == [{"s": "x", "t": 50}, {"s": "yy", "t": 60}]


def test_key_columns_of_every_type_come_back_from_their_canonical_bytes() -> None:
    keys = pa.RecordBatch.from_pydict(
        {
            "int16": pa.array([1, None, -3], pa.int16()),
            "string": ["x", None, ""],
            "float32": pa.array([1.5, float("inf"), None], pa.float32()),
            "date32": pa.array([1, None, -5], pa.date32()),
            "date64": pa.array([86400000, None, -86400000], pa.date64()),
            "ns": pa.array([1, None, 1000], pa.timestamp("ns")),
            "s": pa.array([1, None, -1000], pa.timestamp("s")),
            "ms": pa.array([-1, None, 1], pa.timestamp("ms", "UTC")),
            "uint64": pa.array([2**63 + 1, None, 1], pa.uint64()),
            "bool": [True, None, False],
            "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
            "large": pa.array(["x", None, "y"], pa.large_string()),
        }
    )
    rows = join_bytes(
        ByteRows.of_list([b"--"] * 3),
        ByteRows.of(*canonical_bytes(keys, keys.schema.names)),
        ByteRows.of_list([b"."] * 3),
    )
    decoded, ends = key_columns(rows, keys.schema, skip=2)
    decoded.validate(full=True)
    assert decoded.equals(keys)
    assert ends.tolist() == (rows.starts + rows.lengths - 1).tolist()


def test_rows_framed_in_groups_come_back_in_groups() -> None:
    rows = ByteRows.of_list([b"a", b"", b"ccc"])
    groups = frame(rows, np.array([0, 2, 2, 3]))
    back, offsets = unframe(groups)
    assert back.to_list() == rows.to_list() and offsets.tolist() == [0, 2, 2, 3]


def test_rows_keep_which_are_missing_when_they_are_stacked_and_taken() -> None:
    rows = interleave(ByteRows.of_list([b"a", None]), ByteRows.missing(1), ByteRows.of_list([b"bb"]))
    assert rows.present.tolist() == [True, False, False, True]
    assert rows.take([3, 0]).to_list() == [b"bb", b"a"]


def test_the_order_of_rows_is_that_of_their_first_bytes() -> None:
    values = [b"\x01", b"\x00\xff", b"", b"\x00" * 8 + b"b", b"\x00" * 8 + b"a"]
    order = ByteRows.of_list(values).order()
    assert [values[i] for i in order] == sorted(values)


@pytest.mark.parametrize("rows", [[], [None], [b"ab", b"", b"c"], [b"ab", None, b"c"], [None, b"a"], [b"a", None]])
def test_rows_become_objects_whether_they_are_next_to_each_other_or_not(rows: list[bytes | None]) -> None:
    stored, objects = ByteRows.of_list(rows), [row or b"" for row in rows]
    assert stored.to_list() == objects
    assert stored.take(slice(1, None)).to_list() == objects[1:]
    assert stored.take(np.arange(len(rows))[::-1]).to_list() == objects[::-1]
