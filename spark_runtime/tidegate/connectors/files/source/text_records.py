"""Text files as batches of records: a good block at once, the records of a bad block one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidegate.connectors.files.source.bad_records import BadRecord
from tidegate.connectors.files.source.character_encoding import Decoder, UndecodableRecordError
from tidegate.connectors.files.source.record_blocks import MAX_RECORD_BYTES, ByteStream, Ends, RecordBlock, blocks

READ_BLOCK_BYTES = 2**20
"""Size of the blocks in which text is parsed, so that one poll takes a few milliseconds."""
ISOLATED_RECORDS = 1_024
"""Number of records of a block with a bad record that are parsed in one poll."""


class TextParser(Protocol):
    """Parser of records of one text format in one schema."""

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the batches."""

    def ends(self, text: bytes, is_last: bool) -> Ends:
        """Return the ends of records, see `record_blocks.FindEnds`."""

    def parse(self, text: bytes) -> pa.RecordBatch:
        """Parse whole records, in UTF-8, in the order of the text.

        Raises UndecodableRecordError or ArrowInvalid if one of them cannot be read.
        """

    def reason(self, error: Exception, text: bytes) -> str:
        """Return the reason, for users, from the error that `parse` raised for a single record with this text."""


@dataclass(frozen=True)
class Chunk:
    """Some of a file's records.

    Attributes:
        batch: readable records, perhaps none.
        bad: the other records, in the order of the file.
        at: where the next chunk begins: bytes of the (decompressed) text, or rows.
    """

    batch: pa.RecordBatch
    bad: tuple[BadRecord, ...]
    at: int


def text_chunks(
    stream: ByteStream,
    parser: TextParser,
    offset: int,
    decode: Decoder,
    *,
    stop_at_bad: bool,
    block_bytes: int = READ_BLOCK_BYTES,
) -> Iterator[Chunk]:
    """Yield all chunks of a stream at position `offset`.

    Args:
        decode: converts text to UTF-8; raises UndecodableRecordError if it cannot.
        stop_at_bad: stop after the first bad record.
    """
    for block in blocks(stream, offset, parser.ends, block_bytes):
        if block.torn:
            yield Chunk(_none(parser), (_split_error(block),), block.end)
            continue
        try:
            yield Chunk(parser.parse(decode(block.data)), (), block.end)
        except (UndecodableRecordError, pa.ArrowInvalid):
            yield from _record_by_record(block, parser, decode, stop_at_bad)


def _record_by_record(block: RecordBlock, parser: TextParser, decode: Decoder, stop_at_bad: bool) -> Iterator[Chunk]:
    ends = block.ends.tolist()
    for first in range(0, len(ends), ISOLATED_RECORDS):
        last = min(first + ISOLATED_RECORDS, len(ends))
        good: list[pa.RecordBatch] = []
        bad: list[BadRecord] = []
        for found in _halves(block, [0, *ends], first, last, parser, decode):
            if isinstance(found, BadRecord):
                bad.append(found)
                if stop_at_bad:
                    break
            else:
                good.append(found)
        batch = pa.concat_batches(good) if good else _none(parser)
        yield Chunk(batch, tuple(bad), block.offset + ends[last - 1])


def _halves(
    block: RecordBlock, bounds: Sequence[int], first: int, last: int, parser: TextParser, decode: Decoder
) -> Iterator[pa.RecordBatch | BadRecord]:
    """Yield records [first, last): together if all are readable, else each half separately."""
    text = block.data[bounds[first] : bounds[last]]
    try:
        batch = parser.parse(decode(text))
    except (UndecodableRecordError, pa.ArrowInvalid) as error:
        if last - first > 1:
            middle = (first + last) // 2
            yield from _halves(block, bounds, first, middle, parser, decode)
            yield from _halves(block, bounds, middle, last, parser, decode)
        else:
            yield BadRecord(block.offset + bounds[first], text.rstrip(b"\r\n"), parser.reason(error, text))
        return
    yield batch


def _none(parser: TextParser) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=parser.schema)


def _split_error(block: RecordBlock) -> BadRecord:
    limit = MAX_RECORD_BYTES // 2**20
    why = f"the record has no end: a quotation mark is not closed, or the record is longer than {limit} MiB"
    return BadRecord(block.offset, block.data.rstrip(b"\r\n"), why)
