"""Character encoding of text files."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from tidegate.errors import OptionError

Decoder: TypeAlias = Callable[[bytes], bytes]
"""Converts whole records to UTF-8. Raises UndecodableRecordError if they are not text."""


class UndecodableRecordError(ValueError):
    """A record's text is invalid; the message gives the reason."""


class CharacterEncoding:
    """A character encoding that Python knows.

    Attributes:
        name: name that the user passed.
        is_wide: ASCII characters are not single bytes in it, so the text must be decoded before records can be found.

    Raises:
        OptionError: the name is unknown, or is not an encoding of text.
    """

    def __init__(self, name: str) -> None:
        try:
            ends = 'a,"\r\n'.encode(name).decode(name) == 'a,"\r\n'
            codec = codecs.lookup(name)
        except (LookupError, UnicodeError):
            ends = False
        if not ends:
            raise OptionError(
                f"the text encoding {name!r} is unknown",
                where="encoding",
                remedy='Use a name that Python knows, such as "cp1252"',
            )
        self.name = name
        self._is_utf8 = codec.name == "utf-8"
        self.is_wide = not all(_is_one_byte(code, name) for code in range(128))

    def to_utf8(self, text: bytes) -> bytes:
        """Convert records, see `Decoder`. For a wide encoding, `text` comes from a stream that is already in UTF-8."""
        if self._is_utf8 or self.is_wide:
            try:
                # Arrow checks UTF-8 without creating a Python string of the whole text.
                _as_one_string(text).validate(full=True)
            except pa.ArrowInvalid:
                raise self._error(text, "utf-8") from None
            return text
        try:
            return text.decode(self.name).encode()
        except UnicodeError:
            raise self._error(text, self.name) from None

    def _error(self, text: bytes, read_as: str) -> UndecodableRecordError:
        name, where = "UTF-8" if self._is_utf8 else self.name, ""
        try:
            text.decode(read_as)
        except UnicodeDecodeError as error:
            if not self.is_wide:
                where = f" (byte 0x{text[error.start]:02x} at {error.start} of the record)"
        except UnicodeError:
            pass
        return UndecodableRecordError(
            f"the record is not {name} text{where}; set encoding= if the file has another encoding"
        )


def _is_one_byte(code: int, encoding: str) -> bool:
    try:
        return bytes([code]).decode(encoding) == chr(code)
    except UnicodeError:
        return False


def _as_one_string(text: bytes) -> pa.Array:
    bounds = pa.array([0, len(text)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 1, [None, bounds, pa.py_buffer(text)])
