"""Key bytes, key hashes and key groups (S5.1)."""

from __future__ import annotations

import datetime as dt
import decimal
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import PipelineError
from tidegate.state.keys.key_bytes import canonical_bytes
from tidegate.state.keys.key_hash import hash_keys, hash_rows, key_groups, partition_hash, subtask_of_key_groups

MASK = 2**64 - 1
GOLDEN_INT_GROUPS = [118, 3, 54, 104, 38]
GOLDEN_TEXT_GROUPS = [24, 96, 20, 44, 77]
GOLDEN_PAIR_GROUPS = [0, 104, 1, 1, 60]
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def rotl(x: int, r: int) -> int:
    return ((x << r) | (x >> (64 - r))) & MASK


def lane(acc: int, value: int) -> int:
    return rotl((acc + value * P2) & MASK, 31) * P1 & MASK


def model_xxh64(data: bytes) -> int:
    """XXH64 with seed 0 in plain Python."""
    at = 0
    if len(data) >= 32:
        accs = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= len(data):
            accs = [lane(a, v) for a, v in zip(accs, struct.unpack_from("<4Q", data, at))]
            at += 32
        h = sum(rotl(a, r) for a, r in zip(accs, (1, 7, 12, 18))) & MASK
        for a in accs:
            h = ((h ^ lane(0, a)) * P1 + P4) & MASK
    else:
        h = P5
    h = (h + len(data)) & MASK
    while at + 8 <= len(data):
        h = (rotl(h ^ lane(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= len(data):
        h = (rotl(h ^ (struct.unpack_from("<I", data, at)[0] * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        h = rotl(h ^ (byte * P5 & MASK), 11) * P1 & MASK
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32


def xxh64(data: bytes) -> int:
    out = np.empty(1, np.uint64)
    hash_rows(np.frombuffer(data, np.uint8), np.array([0, len(data)]), out)
    return int(out[0])


def rows(batch: pa.RecordBatch, *columns: str) -> list[bytes]:
    data, offsets = canonical_bytes(batch, columns)
    return [data[a:b].tobytes() for a, b in zip(offsets, offsets[1:])]


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_xxh64_gives_the_published_values(data: bytes, digest: int) -> None:
    assert xxh64(data) == digest == model_xxh64(data)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_xxh64_equals_the_model_for_every_length(data: bytes) -> None:
    assert xxh64(data) == model_xxh64(data)


def test_the_canonical_bytes_of_version_1_never_change() -> None:
    """S5.1."""
    day = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    batch = pa.record_batch(
        {
            "int": pa.array([5, -1, None], pa.int16()),
            "unsigned": pa.array([5, 2**63, None], pa.uint64()),
            "bool": pa.array([True, False, None]),
            "float": pa.array([-0.0, float("nan"), None]),
            "time": pa.array([day, day, None], pa.timestamp("s", "UTC")),
            "nanos": pa.array([1500, 2000, None], pa.timestamp("ns")),
            "date": pa.array([day.date(), dt.date(1969, 12, 31), None], pa.date32()),
            "text": pa.array(["é", "", None]),
            "bytes": pa.array([b"\x00", b"", None]),
        }
    )
    day_us = struct.pack("<q", 1356998400_000_000)
    assert rows(batch, "int") == [b"\x01" + struct.pack("<q", 5), b"\x01" + b"\xff" * 8, b"\x00"]
    assert rows(batch, "unsigned") == [b"\x01" + struct.pack("<q", 5), b"\x02" + struct.pack("<Q", 2**63), b"\x00"]
    assert rows(batch, "bool") == [b"\x03\x01" + b"\x00" * 7, b"\x03" + b"\x00" * 8, b"\x00"]
    assert rows(batch, "float") == [b"\x04" + b"\x00" * 8, b"\x04" + b"\x00" * 6 + b"\xf8\x7f", b"\x00"]
    assert rows(batch, "time") == [b"\x05" + day_us, b"\x05" + day_us, b"\x00"]
    assert rows(batch, "nanos") == [b"\x07" + struct.pack("<q", 1500), b"\x05" + struct.pack("<q", 2), b"\x00"]
    assert rows(batch, "date") == [b"\x06" + day_us, b"\x06" + struct.pack("<q", -86_400_000_000), b"\x00"]
    assert rows(batch, "text") == [b"\x10\x02\x00\x00\x00\xc3\xa9", b"\x10\x00\x00\x00\x00", b"\x00"]
    assert rows(batch, "bytes") == [b"\x11\x01\x00\x00\x00\x00", b"\x11\x00\x00\x00\x00", b"\x00"]
    assert rows(batch, "text", "int")[0] == rows(batch, "text")[0] + rows(batch, "int")[0]


def test_the_key_groups_of_version_1_never_change() -> None:
    """S5.1."""
    batch = pa.record_batch({"i": pa.array([0, 1, -1, None, 123456789]), "s": ["", "a", "AA", None, "ü"]})
    hashes = hash_keys(batch, ["i"])
    assert [int(h) for h in hashes] == [model_xxh64(row) for row in rows(batch, "i")]
    assert key_groups(hashes, 128).tolist() == [h % 128 for h in map(int, hashes)] == GOLDEN_INT_GROUPS
    assert key_groups(hash_keys(batch, ["s"]), 100).tolist() == GOLDEN_TEXT_GROUPS
    assert key_groups(hash_keys(batch, ["i", "s"]), 128).tolist() == GOLDEN_PAIR_GROUPS


@pytest.mark.parametrize(
    "type_", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
)
def test_integers_of_any_width_hash_alike(type_: pa.DataType) -> None:
    values = [0, 1, 127, None]
    narrow, wide = (pa.record_batch({"k": pa.array(values, t)}) for t in (type_, pa.int64()))
    assert hash_keys(narrow, ["k"]).tolist() == hash_keys(wide, ["k"]).tolist()


def test_times_hash_alike_in_every_unit_and_zone() -> None:
    moment = dt.datetime(2013, 7, 1, 12, tzinfo=dt.UTC)
    types = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in ("UTC", "America/New_York")]
    assert len({int(hash_keys(pa.record_batch({"k": pa.array([moment], t)}), ["k"])[0]) for t in types}) == 1


def test_every_nan_and_both_zeros_are_one_key() -> None:
    """S5.1."""
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
    batch = pa.record_batch({"k": pa.array(np.array([float("nan"), other_nan, 0.0, -0.0]))})
    a, b, c, d = hash_keys(batch, ["k"]).tolist()
    assert a == b != c == d
    narrow = pa.record_batch({"k": batch.column("k").cast(pa.float32())})
    assert hash_keys(narrow, ["k"]).tolist() == [a, b, c, d]


KEYS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, st.one_of(st.none(), st.text(max_size=40))), max_size=50), st.integers(0, 5))
def test_a_key_hashes_alike_in_every_batch_and_slice(pairs: list[tuple[int | None, str | None]], start: int) -> None:
    batch = pa.record_batch(
        {"i": pa.array([p[0] for p in pairs], pa.int64()), "s": pa.array([p[1] for p in pairs], pa.string())}
    )
    for columns in (["i"], ["s"], ["s", "i"]):
        whole = hash_keys(batch, columns).tolist()
        assert whole == [model_xxh64(row) for row in rows(batch, *columns)]
        assert hash_keys(batch.slice(start), columns).tolist() == whole[start:]


@settings(deadline=None, max_examples=30)
@given(st.data(), st.integers(0, 150), st.integers(0, 5))
def test_the_bytes_of_several_columns_are_those_of_each_one_after_the_other(
    data: st.DataObject, count: int, start: int
) -> None:
    """S5.1."""
    kinds: dict[str, tuple[pa.DataType, st.SearchStrategy[object]]] = {
        "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
        "unsigned": (pa.uint64(), st.sampled_from([0, 7, 2**63, 2**64 - 1])),
        "float": (pa.float32(), st.sampled_from([0.0, -0.0, 1.5, float("nan")])),
        "nanos": (pa.timestamp("ns"), st.sampled_from([1500, 2000])),
        "text": (pa.string(), st.text("ab", max_size=40)),
        "bytes": (pa.large_binary(), st.binary(max_size=3)),
        "fixed": (pa.binary(2), st.binary(min_size=2, max_size=2)),
        "number": (pa.decimal128(9, 2), st.sampled_from([decimal.Decimal("1.50"), decimal.Decimal("-0.01")])),
    }
    columns = data.draw(st.lists(st.sampled_from(sorted(kinds)), min_size=2, max_size=5, unique=True))
    picks = data.draw(st.randoms(use_true_random=False))
    arrays = []
    for name in columns:
        type_, values = kinds[name]
        some = [None, *data.draw(st.lists(values, min_size=1, max_size=6))][data.draw(st.integers(0, 1)) :]
        arrays.append(pa.array([picks.choice(some) for _ in range(count)], type_))
    batch = pa.record_batch(arrays, names=columns).slice(start)
    single = [rows(batch, name) for name in columns]
    together = rows(batch, *columns)
    assert together == [b"".join(parts) for parts in zip(*single, strict=True)]
    assert hash_keys(batch, columns).tolist() == [model_xxh64(row) for row in together]
    assert [hash_keys(batch, [n]).tolist() for n in columns] == [[model_xxh64(r) for r in one] for one in single]


def test_a_column_that_cannot_be_a_key_is_refused_by_name() -> None:
    for array in (pa.array([[1]]), pa.nulls(1), pa.array([{"a": 1}])):
        with pytest.raises(PipelineError, match=r"'carrier' of type .*Cast"):
            hash_keys(pa.record_batch({"carrier": array}), ["carrier"])


@given(st.integers(1, 64), st.integers(64, 200))
def test_subtasks_own_contiguous_ranges_of_all_key_groups(parallelism: int, max_parallelism: int) -> None:
    """S5.1."""
    owners = subtask_of_key_groups(parallelism, max_parallelism).tolist()
    assert owners == sorted(owners) == [g * parallelism // max_parallelism for g in range(max_parallelism)]
    assert set(owners) == set(range(parallelism))


@settings(deadline=None)
@given(st.lists(KEYS, max_size=200), st.integers(1, 7), st.sampled_from([7, 100, 128]))
def test_partitioning_sends_each_row_to_the_owner_of_its_key_and_keeps_order(
    keys: list[int | None], parallelism: int, max_parallelism: int
) -> None:
    batch = pa.record_batch({"k": pa.array(keys, pa.int64()), "row": pa.array(range(len(keys)), pa.int64())})
    parts = partition_hash(batch, ["k"], parallelism, max_parallelism)
    groups = key_groups(hash_keys(batch, ["k"]), max_parallelism)
    owners = subtask_of_key_groups(parallelism, max_parallelism)[groups]
    for target, part in enumerate(parts):
        expected = [row for row in range(len(keys)) if owners[row] == target]
        assert (part.column("row").to_pylist() if part is not None else []) == expected
        assert part is None or part.column("k").to_pylist() == [keys[row] for row in expected]


def test_a_batch_of_one_subtasks_keys_is_passed_on_without_a_copy() -> None:
    batch = pa.record_batch({"k": [7] * 100})
    parts = partition_hash(batch, ["k"], 4, 128)
    assert [part is batch for part in parts].count(True) == 1
    assert [part is None for part in parts].count(True) == 3
