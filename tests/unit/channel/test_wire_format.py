"""Wire format v1: frames as bytes (docs/adr/0002-wire-format.md)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.channel.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    CancelBarrier,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    Event,
    IdleStatus,
    Watermark,
)
from tidegate.channel.failures import ChannelError, ProtocolError
from tidegate.channel.tcp import wire_format
from tidegate.channel.tcp.wire_format import Kind
from tidegate.errors import DataError
from tidegate.snapshot.partial_rows import is_partial, partial_schema

GOLDEN: list[tuple[Event, str]] = [
    (Watermark(1_000_000), "02000000 07000000 09000000 08000000 40420f0000000000"),
    (IdleStatus(True), "03000000 07000000 09000000 01000000 01"),
    (
        CheckpointBarrier(42, "stop-savepoint", 1_700_000_000_000, "drain"),
        "04000000 07000000 09000000 12000000 2a00000000000000 0068e5cf8b010000 02 02",
    ),
    (CancelBarrier(42), "05000000 07000000 09000000 08000000 2a00000000000000"),
    (EndOfData(True), "06000000 07000000 09000000 01000000 01"),
    (EndOfPartition(), "07000000 07000000 09000000 00000000"),
]

EVENTS = st.one_of(
    st.builds(Watermark, st.integers(MIN_WATERMARK, MAX_WATERMARK)),
    st.builds(IdleStatus, st.booleans()),
    st.builds(
        CheckpointBarrier,
        st.integers(0, 2**64 - 1),
        st.sampled_from(["checkpoint", "savepoint", "stop-savepoint", "final"]),
        st.integers(0, 2**63 - 1),
        st.sampled_from([None, "suspend", "drain"]),
    ),
    st.builds(CancelBarrier, st.integers(0, 2**64 - 1)),
    st.builds(EndOfData, st.booleans()),
    st.builds(EndOfPartition),
)


def split(frame: bytes) -> tuple[wire_format.Header, bytes]:
    header = wire_format.unpack_header(frame[: wire_format.HEADER_BYTES])
    return header, frame[wire_format.HEADER_BYTES :]


@pytest.mark.parametrize(("event", "frame"), GOLDEN, ids=lambda value: type(value).__name__)
def test_the_bytes_of_an_event_are_those_of_version_1(event: Event, frame: str) -> None:
    assert wire_format.event_frame(event, channel_id=7, sequence=9) == bytes.fromhex(frame)


def test_the_bytes_of_credit_and_farewell_are_those_of_version_1() -> None:
    assert wire_format.credit_frame(7, 4096) == bytes.fromhex("08000000 07000000 00000000 08000000 0010000000000000")
    assert wire_format.close_frame(Kind.CLOSE) == bytes.fromhex("09000000 ffffffff 00000000 00000000")
    assert wire_format.close_frame(Kind.CLOSE_ACK) == bytes.fromhex("0a000000 ffffffff 00000000 00000000")


@given(EVENTS, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_an_event_comes_back_from_its_frame(event: Event, channel_id: int, sequence: int) -> None:
    header, payload = split(wire_format.event_frame(event, channel_id, sequence))
    assert (header.channel_id, header.sequence, header.length) == (channel_id, sequence, len(payload))
    assert wire_format.decode_event(header, payload) == event


@given(EVENTS, st.binary(max_size=40))
def test_an_event_with_a_payload_of_another_length_is_refused(event: Event, payload: bytes) -> None:
    header, right = split(wire_format.event_frame(event, 0, 0))
    if len(payload) != len(right):
        with pytest.raises(ProtocolError):
            wire_format.decode_event(header, payload)


@pytest.mark.parametrize("codes", ["04 00", "00 03"])
def test_a_barrier_of_an_unknown_kind_is_refused(codes: str) -> None:
    header, payload = split(wire_format.event_frame(CheckpointBarrier(1, "checkpoint", 0), 0, 0))
    with pytest.raises(ProtocolError, match="BARRIER"):
        wire_format.decode_event(header, payload[:-2] + bytes.fromhex(codes))


def test_an_unknown_kind_of_frame_is_refused() -> None:
    with pytest.raises(ProtocolError, match="unknown kind"):
        wire_format.unpack_header(bytes([77]) + bytes(15))


def test_a_frame_beyond_the_bound_of_its_kind_is_refused_by_its_header() -> None:
    assert (
        wire_format.unpack_header(wire_format.pack_header(Kind.BATCH, 0, 0, wire_format.MAX_FRAME_BYTES)).length
        == wire_format.MAX_FRAME_BYTES
    )
    with pytest.raises(ProtocolError, match="BATCH message between slots states a length of 268,435,457 bytes"):
        wire_format.unpack_header(wire_format.pack_header(Kind.BATCH, 0, 0, wire_format.MAX_FRAME_BYTES + 1))
    with pytest.raises(ProtocolError, match="WATERMARK message between slots states a length of 65 bytes"):
        wire_format.unpack_header(wire_format.pack_header(Kind.WATERMARK, 0, 0, 65))


@settings(deadline=None)
@given(st.lists(st.none() | st.text(max_size=5), max_size=20), st.integers(0, 5))
def test_a_slice_of_a_batch_comes_back_as_its_own_rows(values: list[str | None], offset: int) -> None:
    batch = pa.record_batch({"s": pa.array(values, pa.string()), "n": pa.array(range(len(values)), pa.int32())})
    part = batch.slice(min(offset, len(values)))
    flags, payload = wire_format.encode_batch(part)
    assert wire_format.BatchDecoder(part.schema).decode(flags, payload).equals(part)


def test_a_batch_is_read_without_copying_its_columns() -> None:
    batch = pa.record_batch({"a": pa.array(range(1_000), pa.int64())})
    flags, payload = wire_format.encode_batch(batch)
    values = wire_format.BatchDecoder(batch.schema).decode(flags, payload).column(0).buffers()[1]
    assert payload.address <= values.address < payload.address + payload.size


def test_dictionary_columns_travel_with_their_dictionaries() -> None:
    words = pa.array(["x", "y", "x", None]).dictionary_encode()
    batch = pa.record_batch({"w": words, "nested": pa.StructArray.from_arrays([words], ["w"])})
    flags, payload = wire_format.encode_batch(batch)
    assert wire_format.BatchDecoder(batch.schema).decode(flags, payload).equals(batch)


@pytest.mark.parametrize("index_type", [pa.int16(), pa.uint16(), pa.int64()], ids=str)
@pytest.mark.parametrize("ordered", [False, True])
def test_a_part_of_a_batch_travels_with_the_values_it_uses(index_type: pa.DataType, ordered: bool) -> None:
    dictionary = pa.array([f"value {i}" * 20 for i in range(1_100)])
    indices = pa.array([999, 3, None, 3, 50, 0], index_type)
    words = pa.DictionaryArray.from_arrays(indices, dictionary, ordered=ordered)
    whole = pa.record_batch({"w": words, "n": pa.array(range(6))})
    for part in (whole, whole.slice(1, 3), whole.slice(2, 1), whole.slice(0, 0)):
        flags, payload = wire_format.encode_batch(part)
        assert payload.size < 5_000
        read = wire_format.BatchDecoder(whole.schema).decode(flags, payload)
        assert read.schema == whole.schema and read.to_pylist() == part.to_pylist()
        held = read.column("w").dictionary.to_pylist()
        assert held == [text for text in dictionary.to_pylist() if text in part.column("w").to_pylist()]


def test_a_dictionary_of_views_travels_whole() -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([1]), pa.array([f"{i}" for i in range(1_100)], pa.string_view()))
    batch = pa.record_batch({"w": words})
    assert wire_format.BatchDecoder(batch.schema).decode(*wire_format.encode_batch(batch)).equals(batch)


def test_a_damaged_batch_is_refused() -> None:
    batch = pa.record_batch({"a": pa.array([1], pa.int64())})
    _, payload = wire_format.encode_batch(batch)
    with pytest.raises(ProtocolError, match="cannot be decoded"):
        wire_format.BatchDecoder(batch.schema).decode(0, payload.slice(0, 20))


def test_a_batch_beyond_the_bound_of_a_frame_names_its_size_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_format, "MAX_FRAME_BYTES", 1_000)
    batch = pa.record_batch({"a": pa.array(range(1_000), pa.int64())})
    with pytest.raises(ChannelError, match=r"1,000 rows, columns a.*of at most 61 rows each"):
        wire_format.encode_batch(batch)


def test_a_row_beyond_the_bound_of_a_frame_gets_advice_that_can_help() -> None:
    """Smaller batches cannot: the batch has one row."""
    photo = pa.array([bytes(wire_format.MAX_FRAME_BYTES + 1)], pa.large_binary())
    batch = pa.record_batch({"id": pa.array([7]), "photo": photo})
    with pytest.raises(DataError, match=r"a row of 268,43\d,\d{3} bytes.*column 'photo'.*send their path") as raised:
        wire_format.encode_batch(batch)
    assert "smaller batches" not in str(raised.value)


def test_a_row_just_below_the_bound_is_sent() -> None:
    batch = pa.record_batch({"photo": pa.array([bytes(wire_format.MAX_FRAME_BYTES - 4_096)], pa.binary())})
    flags, payload = wire_format.encode_batch(batch)
    assert wire_format.BatchDecoder(batch.schema).decode(flags, payload).equals(batch)


def test_partial_rows_travel_with_their_schema() -> None:
    """A channel carries them beside rows of another schema, which is all that the receiver knows."""
    schema = partial_schema([pa.field("window_start_us", pa.int64()), pa.field("key:k", pa.string())])
    batch = pa.record_batch([pa.array([0, 0, 5]), pa.array(["a", None, "b"]), pa.array([1, 2, 3])], schema=schema)
    flags, payload = wire_format.encode_batch(batch.slice(1))
    back = wire_format.BatchDecoder(pa.schema([("k", pa.string())])).decode(flags, payload)
    assert back.equals(batch.slice(1)) and is_partial(back.schema)
    with pytest.raises(ProtocolError, match="cannot be decoded"):
        wire_format.BatchDecoder(schema).decode(flags, payload.slice(0, 100))
