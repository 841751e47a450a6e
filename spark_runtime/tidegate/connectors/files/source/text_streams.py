"""Text of a file as a stream of bytes: decompressed, without a byte order mark, from any position on."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.files.source.character_encoding import CharacterEncoding
from tidegate.connectors.files.source.file_errors import truncated_file_error
from tidegate.connectors.files.source.record_blocks import ByteStream

COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "xz": "xz", "zip": "zip", "zst": "zstd"}
"""Suffix -> fsspec's name of the compression."""
SKIPPED_BYTES = 2**20
_BOM = b"\xef\xbb\xbf"
"""Byte order mark at the start of UTF-8 text."""
_NO_TEXT = "tidegate.no-text"
# A lone surrogate is not allowed in UTF-8. The error handler "surrogatepass" writes it all the same.
codecs.register_error(
    _NO_TEXT, lambda error: ("\udc00", error.end) if isinstance(error, UnicodeDecodeError) else ("", 0)
)


@contextmanager
def open_text(filesystem: AbstractFileSystem, path: str, encoding: CharacterEncoding, at: int = 0) -> Iterator[Any]:
    """Yield a stream of the file's (decompressed) text from byte `at` on; text of a wide encoding is in UTF-8."""
    suffix = path.rsplit(".", 1)[-1].lower()
    compression = COMPRESSIONS.get(suffix)
    with ExitStack() as opened:
        if suffix == "zst":
            # fsspec would need another package for zstd.
            raw = opened.enter_context(filesystem.open(path, "rb"))
            stream: Any = opened.enter_context(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))
        else:
            stream = opened.enter_context(filesystem.open(path, "rb", compression=compression))
        if encoding.is_wide:
            stream = _Transcoded(stream, encoding.name)
        if at and compression is None and not encoding.is_wide:
            stream.seek(at)
        elif at:
            _skip(stream, at, path)
        yield stream


def _skip(stream: ByteStream, at: int, path: str) -> None:
    left = at
    while left:
        skipped = len(stream.read(min(left, SKIPPED_BYTES)))
        if not skipped:
            raise truncated_file_error(path, at - left, at)
        left -= skipped


class _Transcoded:
    """A stream in UTF-8 over a stream in another encoding.

    Bytes that cannot be decoded become invalid UTF-8, so that the parser finds them with their record.
    """

    def __init__(self, stream: ByteStream, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(_NO_TEXT)
        self._ready = b""

    def read(self, size: int, /) -> bytes:
        """See `ByteStream`."""
        while not self._ready:
            raw = self._stream.read(size)
            self._ready = self._decoder.decode(raw, not raw).encode("utf-8", "surrogatepass")
            if not raw:
                break
        found, self._ready = self._ready[:size], self._ready[size:]
        return found


class _BufferedStream:
    """A stream whose first bytes have been read."""

    def __init__(self, first: bytes, stream: ByteStream) -> None:
        self._first, self._stream = first, stream

    def read(self, size: int, /) -> bytes:
        """Return these bytes first."""
        first, self._first = self._first, b""
        return first or self._stream.read(size)


def without_bom(stream: ByteStream) -> tuple[ByteStream, int]:
    """Return a stream without its byte order mark, and the offset of its first byte. Call it at the start."""
    first = stream.read(len(_BOM))
    return (stream, len(_BOM)) if first == _BOM else (_BufferedStream(first, stream), 0)
