"""Rows in a block of memory: which rows can be in one, and what a damaged block says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidegate.channel.column_blocks import Block, BlockLayout, begin_block, block_layout
from tidegate.channel.failures import ProtocolError
from tidegate.channel.tcp.wire_format import FLAG_BLOCK, BatchDecoder

SCHEMA = pa.schema([pa.field("a", pa.int64(), nullable=False), ("t", pa.timestamp("us")), ("f", pa.float32())])


def block(rows: int) -> Block:
    *begins, size = BlockLayout(SCHEMA).offsets(rows)
    made = Block(np.zeros(size, np.uint8))
    begin_block(made, rows)
    for begin, dtype in zip(begins, ("<i8", "<i8", "<f4"), strict=True):
        width = int(dtype[-1]) * rows
        made.memory[begin : begin + width].view(dtype)[:] = np.arange(rows)
    return made


@pytest.mark.parametrize("count", [1, 7, 16, 1_000])
def test_rows_are_read_where_they_are(count: int) -> None:
    made = block(count)
    batch = BatchDecoder(SCHEMA).decode(FLAG_BLOCK, pa.py_buffer(made.memory))
    assert batch.schema == SCHEMA
    batch.validate(full=True)
    assert [column.cast(pa.float64()).to_pylist() for column in (batch["a"], batch["f"])] == [[*range(count)]] * 2
    assert batch["t"].cast(pa.int64()).to_pylist() == [*range(count)]
    made.memory[64:72].view("<i8")[0] = 5
    assert batch["a"][0].as_py() == 5, "it is a view"


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.int16(), pa.decimal128(9), pa.list_(pa.int64())])
def test_other_columns_cannot_be_in_a_block(kind: pa.DataType) -> None:
    assert block_layout(SCHEMA) is not None
    assert block_layout(SCHEMA.append(pa.field("other", kind))) is None


def test_rows_without_columns_and_rows_with_metadata_cannot_be_in_a_block() -> None:
    assert block_layout(pa.schema([])) is None
    assert block_layout(SCHEMA.with_metadata({"kind": "partial"})) is None


@pytest.mark.parametrize("rows", [-1, 11, 10**9])
def test_a_block_with_a_wrong_number_of_rows_is_refused(rows: int) -> None:
    made = block(100)
    begin_block(made, rows)
    with pytest.raises(ProtocolError, match="cannot be decoded"):
        BatchDecoder(SCHEMA).decode(FLAG_BLOCK, pa.py_buffer(made.memory))


def test_bytes_that_are_no_block_are_refused() -> None:
    with pytest.raises(ValueError, match="are no rows"):
        BlockLayout(SCHEMA).batch(pa.py_buffer(b"short"))
