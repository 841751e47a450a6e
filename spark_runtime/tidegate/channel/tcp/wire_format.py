"""Frames of a data connection, wire format v1 (docs/adr/0002-wire-format.md). Pure: bytes and elements, no sockets.

A frame is a 16-byte header and a payload. Header, little-endian: u8 kind, u8 flags, u16 reserved (0), u32 channel id,
u32 sequence, u32 payload length. Elements are numbered from 0 per channel, modulo 2**32; credits and farewells carry 0.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.channel.column_blocks import BlockLayout
from tidegate.channel.elements import (
    CancelBarrier,
    CheckpointBarrier,
    CheckpointKind,
    EndOfData,
    EndOfPartition,
    Event,
    IdleStatus,
    StopMode,
    Watermark,
)
from tidegate.channel.failures import ChannelError, ProtocolError
from tidegate.channel.tcp.shared_blocks import Offer, Place
from tidegate.errors import DataError
from tidegate.snapshot.partial_rows import is_partial

HEADER_BYTES = 16
MAX_FRAME_BYTES = 256 * 2**20
"""Largest payload of a frame with a record batch."""
MAX_EVENT_BYTES = 64
"""Largest payload of all other frames."""
SPARE_VALUES = 1024
"""Values more than rows from which a dictionary is cut to the used values. Less would cost more than to send them."""
SEQUENCES = 2**32
NO_CHANNEL = 2**32 - 1
"""Channel id of frames that concern the connection."""
FLAG_STREAM = 1
"""On a batch: the payload is an IPC stream with schema and dictionaries, not a single IPC message."""
FLAG_BLOCK = 2
"""On a batch: the payload is a block of columns, see `column_blocks`."""
FLAG_SHARED = 128
"""On a batch: the payload names its place in the sender's shared memory."""
_HEADER = struct.Struct("<BBHIII")
_WATERMARK = struct.Struct("<q")
_FLAG = struct.Struct("<B")
_BARRIER = struct.Struct("<QqBB")
_CANCEL = struct.Struct("<Q")
_CREDIT = struct.Struct("<Q")
_OFFER = struct.Struct("<IIQ16s")
_PLACE = struct.Struct("<IQQ")
_CHECKPOINT_KINDS: tuple[CheckpointKind, ...] = ("checkpoint", "savepoint", "stop-savepoint", "final")
_STOP_MODES: tuple[StopMode | None, ...] = (None, "suspend", "drain")


class Kind(IntEnum):
    """The kind of a frame."""

    BATCH = 1
    WATERMARK = 2
    IDLE = 3
    BARRIER = 4
    CANCEL = 5
    END_OF_DATA = 6
    END_OF_PARTITION = 7
    CREDIT = 8
    CLOSE = 9
    """Connection-wide: the sender has sent its last element on every channel."""
    CLOSE_ACK = 10
    """The answer to CLOSE: everything sent before it has arrived."""
    OFFER = 11
    """Connection-wide: where the sender's shared memory is."""
    ACCEPT = 12
    """The answer to OFFER: the receiver has mapped it."""


class Header(NamedTuple):
    """A frame's header."""

    kind: Kind
    flags: int
    channel_id: int
    sequence: int
    length: int


_KINDS = {int(kind): kind for kind in Kind}


def pack_header(kind: Kind, channel_id: int, sequence: int, length: int, flags: int = 0) -> bytes:
    """Return the header of a frame with `length` bytes of payload."""
    return _HEADER.pack(kind, flags, 0, channel_id, sequence, length)


def unpack_header(data: Any) -> Header:
    """Return the header from its 16 bytes.

    Raises:
        ProtocolError: the kind is unknown, or the payload exceeds the limit of its kind.
    """
    kind_number, flags, reserved, channel_id, sequence, length = _HEADER.unpack(data)
    kind = _KINDS.get(kind_number)
    if kind is None or reserved:
        raise ProtocolError(
            "internal error: a message between slots has an unknown kind",
            where=f"kind {kind_number}, reserved {reserved}",
        )
    bound = MAX_FRAME_BYTES if kind is Kind.BATCH else MAX_EVENT_BYTES
    if length > bound:
        raise ProtocolError(
            f"internal error: a {kind.name} message between slots states a length of {length:,} bytes",
            cause=f"at most {bound:,} bytes are allowed",
        )
    return Header(kind, flags, channel_id, sequence, length)


def event_frame(event: Event, channel_id: int, sequence: int) -> bytes:
    """Return header and payload of an in-band event."""
    match event:
        case Watermark(time_us):
            kind, payload = Kind.WATERMARK, _WATERMARK.pack(time_us)
        case IdleStatus(idle):
            kind, payload = Kind.IDLE, _FLAG.pack(idle)
        case CheckpointBarrier(checkpoint_id, checkpoint_kind, triggered_ms, stop):
            kind = Kind.BARRIER
            payload = _BARRIER.pack(
                checkpoint_id, triggered_ms, _CHECKPOINT_KINDS.index(checkpoint_kind), _STOP_MODES.index(stop)
            )
        case CancelBarrier(checkpoint_id):
            kind, payload = Kind.CANCEL, _CANCEL.pack(checkpoint_id)
        case EndOfData(drain):
            kind, payload = Kind.END_OF_DATA, _FLAG.pack(drain)
        case EndOfPartition():
            kind, payload = Kind.END_OF_PARTITION, b""
        case other:
            raise AssertionError(f"internal error: {other!r} is not an event that can be sent to another slot")
    return pack_header(kind, channel_id, sequence, len(payload)) + payload


def decode_event(header: Header, payload: Any) -> Event:
    """Return the event of a frame with an event kind.

    Raises:
        ProtocolError: the payload does not fit the kind.
    """
    try:
        match header.kind:
            case Kind.WATERMARK:
                return Watermark(_WATERMARK.unpack(payload)[0])
            case Kind.IDLE:
                return IdleStatus(_decode_flag(payload))
            case Kind.BARRIER:
                checkpoint_id, triggered_ms, kind, stop = _BARRIER.unpack(payload)
                return CheckpointBarrier(checkpoint_id, _CHECKPOINT_KINDS[kind], triggered_ms, _STOP_MODES[stop])
            case Kind.CANCEL:
                return CancelBarrier(_CANCEL.unpack(payload)[0])
            case Kind.END_OF_DATA:
                return EndOfData(_decode_flag(payload))
            case Kind.END_OF_PARTITION if not payload:
                return EndOfPartition()
    except (struct.error, IndexError) as error:
        raise ProtocolError(
            f"internal error: a {header.kind.name} message between slots cannot be decoded", cause=str(error)
        ) from error
    raise ProtocolError(f"internal error: a {header.kind.name} message between slots contains no event")


def _decode_flag(payload: Any) -> bool:
    # An index, so that every other value raises IndexError and counts as damage.
    return (False, True)[_FLAG.unpack(payload)[0]]


def credit_frame(channel_id: int, consumed_bytes: int) -> bytes:
    """Return the frame for: the receiver of `channel_id` has consumed this many more payload bytes of batches."""
    return pack_header(Kind.CREDIT, channel_id, 0, _CREDIT.size) + _CREDIT.pack(consumed_bytes)


def decode_credit(payload: Any) -> int:
    """Return the consumed bytes of a CREDIT frame."""
    try:
        return int(_CREDIT.unpack(payload)[0])
    except struct.error as error:
        raise ProtocolError(
            "internal error: a CREDIT message between slots cannot be decoded", cause=str(error)
        ) from error


def offer_frame(offer: Offer) -> bytes:
    """Return the frame for: the sender's shared memory is here."""
    return pack_header(Kind.OFFER, NO_CHANNEL, 0, _OFFER.size) + _OFFER.pack(*offer)


def decode_offer(payload: Any) -> Offer:
    """Return the offer of an OFFER frame."""
    try:
        return Offer(*_OFFER.unpack(payload))
    except struct.error as error:
        raise ProtocolError(
            "internal error: an OFFER message between slots cannot be decoded", cause=str(error)
        ) from error


def accept_frame() -> bytes:
    """Return the frame for: the offered memory is mapped."""
    return pack_header(Kind.ACCEPT, NO_CHANNEL, 0, 0)


def shared_frame(place: Place, flags: int, channel_id: int, sequence: int) -> bytes:
    """Return the frame of a record batch in shared memory. `flags`: of `encode_batch`."""
    return pack_header(Kind.BATCH, channel_id, sequence, _PLACE.size, flags | FLAG_SHARED) + _PLACE.pack(*place)


def decode_place(payload: Any) -> Place:
    """Return the place of a BATCH frame with `FLAG_SHARED`."""
    try:
        return Place(*_PLACE.unpack(payload))
    except struct.error as error:
        raise ProtocolError(
            "internal error: a BATCH message between slots names no place in shared memory", cause=str(error)
        ) from error


def close_frame(kind: Kind) -> bytes:
    """Return a CLOSE or CLOSE_ACK frame."""
    return pack_header(kind, NO_CHANNEL, 0, 0)


def encode_batch(batch: pa.RecordBatch) -> tuple[int, pa.Buffer]:
    """Return (flags, payload) of a record batch.

    Raises:
        ChannelError: it is larger than `MAX_FRAME_BYTES`.
        DataError: it has a single row, which is larger than that.
    """
    # A single IPC message of Arrow does not contain dictionaries, so these batches need a whole stream.
    if any(_has_dictionary(field.type) for field in batch.schema):
        sink = pa.BufferOutputStream()
        batch = _with_used_values(batch)
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        flags, payload = FLAG_STREAM, sink.getvalue()
    elif is_partial(batch.schema):
        # The receiver needs the schema. A stream without its end takes a quarter of the time of a writer.
        flags, payload = FLAG_STREAM, pa.py_buffer(b"".join((batch.schema.serialize(), batch.serialize())))
    else:
        flags, payload = 0, batch.serialize()
    if payload.size > MAX_FRAME_BYTES:
        raise _too_large(batch, payload.size)
    return flags, payload


def _too_large(batch: pa.RecordBatch, size_bytes: int) -> ChannelError | DataError:
    """Return the error for a batch that no frame can hold. Smaller batches help only if it has several rows."""
    sizes = {name: column.nbytes for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    largest = max(sizes, key=lambda name: sizes[name])
    if batch.num_rows == 1:
        return DataError(
            f"a row of {size_bytes:,} bytes is too large to be sent to another slot",
            where=f"column {largest!r} has {sizes[largest]:,} bytes",
            cause=f"one row may have at most {MAX_FRAME_BYTES:,} bytes between two slots",
            remedy="Keep values of this size in files or an object store and send their path in the row, divide them "
            "into several rows, or drop the column before the exchange",
        )
    rows = max(1, batch.num_rows * MAX_FRAME_BYTES // size_bytes // 2)
    return ChannelError(
        f"a record batch of {size_bytes:,} bytes is too large for a channel",
        where=f"{batch.num_rows:,} rows, columns {', '.join(batch.schema.names)}; the largest is {largest!r}",
        cause=f"one batch may have at most {MAX_FRAME_BYTES:,} bytes",
        remedy=f"Emit smaller batches of these rows, of at most {rows:,} rows each",
    )


class BatchDecoder:
    """Reads the record batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._blocks: BlockLayout | None = None

    def decode(self, flags: int, payload: pa.Buffer) -> pa.RecordBatch:
        """Return the record batch of a BATCH frame. Its columns are views of `payload`.

        Raises:
            ProtocolError: it is damaged, or has another schema.
        """
        try:
            if flags & FLAG_BLOCK:
                if self._blocks is None:
                    self._blocks = BlockLayout(self._schema)
                return self._blocks.batch(payload)
            if flags & FLAG_STREAM:
                return pa.ipc.open_stream(payload).read_next_batch()
            return pa.ipc.read_record_batch(payload, self._schema)
        except (pa.ArrowException, OSError, StopIteration, ValueError) as error:
            raise ProtocolError(
                "internal error: a record batch from another slot cannot be decoded",
                where=f"{payload.size:,} bytes",
                cause=str(error),
            ) from error


def _with_used_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with only the used values in dictionaries with `SPARE_VALUES`, in the same order.

    A part of a larger batch shares its dictionary, which every message would carry whole.
    """
    arrays = list(batch.columns)
    for i, array in enumerate(arrays):
        if not _has_spare_values(array):
            continue
        indices = array.indices
        used = np.zeros(len(array.dictionary), np.bool_)
        used[indices.drop_null().to_numpy()] = True
        numbers = pa.array(np.maximum(np.cumsum(used) - 1, 0)).cast(indices.type)
        values = array.dictionary.filter(pa.array(used))
        arrays[i] = pa.DictionaryArray.from_arrays(numbers.take(indices), values, ordered=array.type.ordered)
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _has_spare_values(array: pa.Array) -> bool:
    if not pa.types.is_dictionary(array.type) or len(array.dictionary) < len(array) + SPARE_VALUES:
        return False
    is_view = pa.types.is_string_view(array.type.value_type) or pa.types.is_binary_view(array.type.value_type)
    return not is_view  # pyarrow cannot filter views


def _has_dictionary(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        return True
    return any(_has_dictionary(data_type.field(i).type) for i in range(data_type.num_fields))
