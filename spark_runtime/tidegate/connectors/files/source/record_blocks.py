"""A stream of text as blocks of whole records, each with its offset in the stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

MAX_BLOCK_RECORDS = 65_536
"""So that a block gives one batch, and a position is always between two records."""
MAX_RECORD_BYTES = 128 * 2**20
"""A line, or a value in quotes, that goes on for longer is not taken for a record: a slot must hold it in memory."""

Ends = npt.NDArray[np.int64]
FindEnds = Callable[[bytes, bool], Ends]
"""(text, whether the stream ends with it) -> where each whole record ends, behind its line end, ascending."""

_LF, _CR, _QUOTE, _COMMA = b'\n\r",'


class ByteStream(Protocol):
    """What is read."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


@dataclass(frozen=True)
class RecordBlock:
    """Whole records.

    Attributes:
        offset: of the first byte, in the stream.
        data: the records with their line ends.
        ends: where each ends in `data`.
        torn: it is the first line of a record that does not end, or not within `MAX_RECORD_BYTES`.
    """

    offset: int
    data: bytes
    ends: Ends
    torn: bool = False

    @property
    def end(self) -> int:
        """Offset of what follows."""
        return self.offset + len(self.data)


def blocks(stream: ByteStream, offset: int, find_ends: FindEnds, block_bytes: int) -> Iterator[RecordBlock]:
    """The rest of a stream that stands at `offset`, in blocks of some `block_bytes`. One longer record makes a
    block of its own."""
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
            lines = line_ends(text, True)
            yield RecordBlock(offset, text[: lines[0]], lines[:1], torn=True)
            offset, text = offset + int(lines[0]), text[lines[0] :]
            continue
        else:
            wanted = min(2 * len(text), MAX_RECORD_BYTES)
            continue
        begin = 0
        for first in range(0, len(ends), MAX_BLOCK_RECORDS):
            own = ends[first : first + MAX_BLOCK_RECORDS]
            yield RecordBlock(offset + begin, text[begin : own[-1]], own - begin)
            begin = int(own[-1])
        offset, text = offset + begin, text[begin:]


def line_ends(text: bytes, is_last: bool) -> Ends:
    """Of records of one line. A line ends with LF, CRLF or CR."""
    data = np.frombuffer(text, np.uint8)
    is_end = data == _LF
    if b"\r" in text:
        alone = data == _CR
        alone[:-1] &= ~is_end[1:]
        alone[-1] &= is_last
        is_end = is_end | alone
    ends = np.flatnonzero(is_end) + 1
    if is_last and len(text) and (not len(ends) or ends[-1] != len(text)):
        ends = np.append(ends, len(text))
    return ends


def csv_ends(text: bytes, is_last: bool) -> Ends:
    """Of CSV records, whose values may have line ends in quotes. As Arrow reads it, a quotation mark opens a value only
    where a field begins; in it `""` is one mark."""
    lines = line_ends(text, is_last)
    if b'"' not in text or not len(lines):
        return lines
    data = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    opening = quotes[0::2]
    before = data[np.maximum(opening - 1, 0)]
    opens = (opening == 0) | (before == _COMMA) | (before == _LF) | (before == _CR)
    opens[1:] |= quotes[1:-1:2] + 1 == opening[1:]
    if not opens.all():  # a mark in the midst of a value, as in 5" disk: marks do not pair up
        return _csv_ends_one_by_one(text, is_last)
    return lines[np.searchsorted(quotes, lines) % 2 == 0]


_FIELD = rb'(?:"(?:[^"]|"")*+"[^,\r\n]*+|[^",\r\n][^,\r\n]*+|)'
_RECORD = re.compile(_FIELD + rb"(?:," + _FIELD + rb")*+(\r\n|\n|\r|\Z)")


def _csv_ends_one_by_one(text: bytes, is_last: bool) -> Ends:
    ends: list[int] = []
    place = 0
    while place < len(text):
        found = _RECORD.match(text, place)
        if found is None:
            break  # a quotation mark that is not closed
        if found.end() == len(text) and found[1] != b"\n" and found[1] != b"\r\n" and not is_last:
            break  # more of it, or of its line end, may follow
        place = found.end()
        ends.append(place)
    return np.array(ends, np.int64)
