"""Where records end, and that blocks of them are the same however the text comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.connectors.files_read import read_all, write
from tidegate.connectors.files.source import record_blocks
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.files.source.record_blocks import csv_ends
from tidegate.errors import PipelineError


def csv_records(text: str) -> list[str]:
    """The reference: one character at a time. The rest, where a quotation mark is not closed, is the last."""
    records, begin, place = [], 0, 0
    field_begins, quoted = True, False
    while place < len(text):
        c = text[place]
        if quoted:
            if c == '"' and text[place + 1 : place + 2] == '"':
                place += 1
            elif c == '"':
                quoted = False
        elif c == '"' and field_begins:
            quoted, field_begins = True, False
        elif c == ",":
            field_begins = True
        elif c in "\r\n":
            if c == "\r" and text[place + 1 : place + 2] == "\n":
                place += 1
            records.append(text[begin : place + 1])
            begin, field_begins = place + 1, True
        else:
            field_begins = False
        place += 1
    return records + ([text[begin:]] if begin < len(text) and not quoted else [])


@settings(max_examples=500)
@given(st.text(alphabet='a,"\n\r', max_size=40))
def test_csv_records_end_where_a_reader_of_single_characters_says(text: str) -> None:
    ends = [0, *csv_ends(text.encode(), True).tolist()]
    assert [text[a:b] for a, b in zip(ends, ends[1:], strict=False)] == csv_records(text)


@settings(max_examples=300)
@given(st.text(alphabet='a,"\n\r', max_size=60), st.integers(1, 9))
def test_records_are_the_same_however_the_text_comes(text: str, block_bytes: int) -> None:
    class Stream:
        at = 0

        def read(self, size: int, /) -> bytes:
            begin, self.at = self.at, self.at + size
            return text.encode()[begin : self.at]

    found = list(record_blocks.blocks(Stream(), 0, csv_ends, block_bytes))
    assert b"".join(block.data for block in found) == text.encode()
    assert [block.offset for block in found] == np.cumsum([0, *(len(b.data) for b in found)])[:-1].tolist()
    whole = record_blocks.blocks(Stream(), 0, csv_ends, 10_000)
    assert [record for block in found for record in _cut(block)] == [
        record for block in whole for record in _cut(block)
    ]


def _cut(block: record_blocks.RecordBlock) -> list[bytes]:
    bounds = [0, *block.ends.tolist()]
    return [block.data[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def test_a_line_beyond_all_bounds_is_a_bad_record_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_blocks, "MAX_RECORD_BYTES", 1_000)
    write(tmp_path / "a.csv", 'n,s\n1,a\n2,"' + "x\n" * 2_000_000 + '"\n')
    with pytest.raises(PipelineError, match=r"a\.csv, offset 8.*has no end.*longer than"):
        read_all(Files(tmp_path))
