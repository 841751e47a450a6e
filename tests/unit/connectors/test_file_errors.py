"""Files that cannot be read, and disks that are full: the error names the file."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.connectors.files_read import read_all, write
from tidegate.connectors.files.sink.encoded_file import EncodedFile, FileEncoding
from tidegate.connectors.files.sink.parquet_encoding import ParquetEncoding
from tidegate.connectors.files.sink.text_encodings import CsvEncoding, JsonLinesEncoding
from tidegate.connectors.files.source.files import Files
from tidegate.errors import PipelineError

ROWS = b"n\n" + b"".join(b"%d\n" % n for n in range(50_000))


def zipped() -> bytes:
    with BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.csv", ROWS)
        return file.getvalue()


COMPRESSED = {
    "gz": gzip.compress(ROWS),
    "bz2": bz2.compress(ROWS),
    "xz": lzma.compress(ROWS),
    "zst": pa.compress(ROWS, codec="zstd", asbytes=True),
    "zip": zipped(),
}


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_file_that_is_cut_off_is_named(tmp_path: Path, suffix: str) -> None:
    whole = COMPRESSED[suffix]
    path = write(tmp_path / f"a.csv.{suffix}", whole)
    assert len(read_all(Files(path)).rows) == 50_000
    write(path, whole[: len(whole) // 2])
    with pytest.raises(PipelineError, match=rf"a\.csv\.{suffix}"):
        read_all(Files(path, schema=pa.schema([("n", pa.int64())])))


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_a_compressed_file_with_other_bytes_in_it_is_named(tmp_path: Path, suffix: str) -> None:
    whole = bytearray(COMPRESSED[suffix])
    whole[len(whole) // 2] ^= 0xFF
    write(tmp_path / f"a.csv.{suffix}", bytes(whole))
    with pytest.raises(PipelineError, match=rf"a\.csv\.{suffix}"):
        read_all(Files(tmp_path, schema=pa.schema([("n", pa.int64())])))


def test_a_line_of_30_mb_is_read(tmp_path: Path) -> None:
    long = "x" * 30_000_000
    write(tmp_path / "a.jsonl", f'{{"n": 1, "s": "a"}}\n{{"n": 2, "s": "{long}"}}\n{{"n": 3, "s": "b"}}\n')
    rows = read_all(Files(tmp_path)).rows
    assert [(row["n"], len(row["s"])) for row in rows] == [(1, 1), (2, 30_000_000), (3, 1)]


@pytest.mark.parametrize("damage", [b"PAR1 no Parquet", b"", b"PAR1"])
def test_a_parquet_file_without_its_footer_is_named(tmp_path: Path, damage: bytes) -> None:
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    write(tmp_path / "b.parquet", damage or whole[:-4] + b"XXXX")
    with pytest.raises(PipelineError, match=r"b\.parquet"):
        Files(tmp_path).discover(1)


@pytest.mark.parametrize("make", [ParquetEncoding, CsvEncoding, JsonLinesEncoding])
def test_a_disk_that_is_full_is_told_with_the_path(make: Callable[[], FileEncoding], tmp_path: Path) -> None:
    """Neither Arrow nor the operating system says which file could not be written."""
    path = tmp_path / "part-1.staged"
    path.symlink_to("/dev/full")
    numbers = pa.record_batch({"n": range(100_000)})

    def written() -> None:
        file = EncodedFile(str(path), path.name, numbers.schema, make(), "")
        file.write(numbers)
        file.close()

    with pytest.raises(OSError, match=r"No space left.*part-1\.staged|part-1\.staged.*No space left") as caught:
        written()
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", b'{"n": 1, "s": "ok"}\n{"n": 2, "s": "\xff"}\n', r"a\.jsonl, offset 20.*not UTF-8.*0xff"),
        ("a.csv", b"n,s\n1,ok\n2,\xff\n", r"a\.csv, offset 9.*not UTF-8.*0xff"),
        ("a.csv", b"n,\xff\n1,ok\n", r"a\.csv, offset 0.*header.*not UTF-8"),
    ],
)
def test_text_that_is_not_utf8_is_refused_with_file_and_offset(
    tmp_path: Path, name: str, text: bytes, said: str
) -> None:
    write(tmp_path / name, text)
    with pytest.raises(PipelineError, match=said):
        read_all(Files(tmp_path / name))


def test_a_line_without_an_object_is_no_row_of_nulls(tmp_path: Path) -> None:
    """Arrow makes a row of nulls of it, and dies of one that stands alone."""
    write(tmp_path / "a.jsonl", '{"n": 1}\nnull\n')
    with pytest.raises(PipelineError, match=r"offset 9.*not a JSON object"):
        read_all(Files(tmp_path))


def test_an_unclosed_quotation_mark_does_not_swallow_the_rest(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", 'n,s\n1,"open\n2,b\n3,c\n')
    with pytest.raises(PipelineError, match=r"a\.csv, offset 4.*not closed"):
        read_all(Files(tmp_path))
