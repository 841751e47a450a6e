"""A stream of text as blocks of whole records, each with its offset in the stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

MAX_BLOCK_RECORDS = 65_536
"""Limit at which a block still becomes one batch, so that a position is always between two records."""
MAX_RECORD_BYTES = 128 * 2**20
"""Longest record. A longer line, or longer value in quotes, is not accepted, because a slot must hold it in memory."""

Ends = npt.NDArray[np.int64]
FindEnds = Callable[[bytes, bool], Ends]
"""(text, whether the stream ends with it) -> the position after each whole record and its line end, ascending."""

_LF, _CR, _QUOTE, _COMMA = b'\n\r",'
# Possessive quantifiers do not backtrack, so the search takes linear time, also if a quotation mark is never closed.
_FIELD = rb'(?:"(?:[^"]|"")*+"[^,\r\n]*+|[^",\r\n][^,\r\n]*+|)'
_RECORD = re.compile(_FIELD + rb"(?:," + _FIELD + rb")*+(\r\n|\n|\r|\Z)")


class ByteStream(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


@dataclass(frozen=True)
class RecordBlock:
    """Whole records.

    Attributes:
        offset: offset of the first byte, in the stream.
        data: the records with their line ends.
        ends: where each record ends in `data`.
        torn: the block is the first line of a record that does not end, or not within `MAX_RECORD_BYTES`.
    """

    offset: int
    data: bytes
    ends: Ends
    torn: bool = False

    @property
    def end(self) -> int:
        """Return the offset of the byte after the block."""
        return self.offset + len(self.data)


def blocks(stream: ByteStream, offset: int, find_ends: FindEnds, block_bytes: int) -> Iterator[RecordBlock]:
    """Yield the rest of a stream at position `offset`, in blocks of about `block_bytes`.

    A longer record is a block of its own.
    """
    text, over = b"", False
    wanted = block_bytes
    while True:
        while len(text) < wanted and not over:
            more = stream.read(wanted - len(text))
            over = not more
            text += more
        if not text:
            return
        ends = find_ends(text, over)
        if len(ends):
            wanted = block_bytes
        elif over or len(text) >= MAX_RECORD_BYTES:
            # Only the first line is given up, because whole records may follow it.
            lines = line_ends(text, True)
            yield RecordBlock(offset, text[: lines[0]], lines[:1], torn=True)
            offset, text = offset + int(lines[0]), text[lines[0] :]
            continue
        else:
            # Doubling limits how often the beginning of a long record is searched again.
            wanted = min(2 * len(text), MAX_RECORD_BYTES)
            continue
        begin = 0
        for first in range(0, len(ends), MAX_BLOCK_RECORDS):
            own = ends[first : first + MAX_BLOCK_RECORDS]
            yield RecordBlock(offset + begin, text[begin : own[-1]], own - begin)
            begin = int(own[-1])
        offset, text = offset + begin, text[begin:]


def line_ends(text: bytes, is_last: bool) -> Ends:
    """Return the ends of one-line records. A line ends with LF, CRLF or CR."""
    data = np.frombuffer(text, np.uint8)
    is_end = data == _LF
    if b"\r" in text:
        # A CR before an LF is no end of its own. A CR at the end of the text may be followed by an LF, unless the
        # stream ends.
        alone = data == _CR
        alone[:-1] &= ~is_end[1:]
        alone[-1] &= is_last
        is_end = is_end | alone
    ends = np.flatnonzero(is_end) + 1
    if is_last and len(text) and (not len(ends) or ends[-1] != len(text)):
        ends = np.append(ends, len(text))
    return ends


def csv_ends(text: bytes, is_last: bool) -> Ends:
    """Return the ends of CSV records, whose values may have line ends in quotes.

    As in Arrow, a quotation mark opens a value only at the beginning of a field; inside it, `""` is one mark.
    """
    lines = line_ends(text, is_last)
    if b'"' not in text or not len(lines):
        return lines
    data = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    opening = quotes[0::2]
    before = data[np.maximum(opening - 1, 0)]
    opens = (opening == 0) | (before == _COMMA) | (before == _LF) | (before == _CR)
    # A mark directly after a closing mark is the second half of `""`.
    opens[1:] |= quotes[1:-1:2] + 1 == opening[1:]
    if not opens.all():  # a mark within a value, as in 5" disk: marks do not form pairs
        return _csv_ends_one_by_one(text, is_last)
    # After an even number of quotation marks, a line end is outside of quotes.
    return lines[np.searchsorted(quotes, lines) % 2 == 0]


def _csv_ends_one_by_one(text: bytes, is_last: bool) -> Ends:
    ends: list[int] = []
    place = 0
    while place < len(text):
        found = _RECORD.match(text, place)
        if found is None:
            break  # an unclosed quotation mark
        if found.end() == len(text) and found[1] != b"\n" and found[1] != b"\r\n" and not is_last:
            break  # more of it, or of its line end, may follow
        place = found.end()
        ends.append(place)
    return np.array(ends, np.int64)
