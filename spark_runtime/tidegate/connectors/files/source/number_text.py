"""Numbers in text that would lose digits in a column's type.

The checks of a whole block are fast, and never wrong when they return False. Only suspicious numbers are examined one
by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Context, Decimal, InvalidOperation
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_LONG = r"[0-9][0-9.]{15,}|[eE][-+]?[0-9]{3}"
"""A number of more than 15 digits, or with a large exponent: a 64-bit float keeps every other number."""
_LONG_CHARACTERS = 16
_PIECE_BYTES, _OVERLAP_BYTES = 65_536, 16
"""The overlap of pieces is one byte shorter than the longest pattern, so every pattern lies within one piece."""
_LARGE_EXPONENT = 5
"""Least length of a number with an exponent, such as `1e400`."""
_NUMBER = r"^[ \t]*[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*$"
"""Includes blanks and tabs around the number, which Arrow skips."""
_LEADING_ZERO = r"^[ \t]*[-+]?0[0-9xX]"
"""Arrow reads `0x00ff` as a hexadecimal number."""
_PADDED_ZERO = re.compile(rb"""[,\n\r"][ \t]+[-+]?0[0-9xX]""")
_EXACTLY = Context(prec=1_200)
"""Enough digits for any float, and for the difference of two floats."""
_INTEGER_DIGITS = 18
"""Whole numbers of this many digits fit 64-bit integers, and powers of ten up to this one are exact long doubles."""
_SURELY_NEARER = 0.25
"""Distance that is below 0.5 by more than the error of a product of long doubles."""

_TINY = r"[eE]-[0-9]{5}"
"""An exponent far below the least exponent of a decimal. For some of them, Arrow reads memory that is not its own,
which can end the process."""
_TINY_BYTES = re.compile(_TINY.encode())

Mask: TypeAlias = npt.NDArray[np.bool_]


def may_lose_digits(text: bytes) -> bool:
    """Return whether a number in the text may lose digits as a 64-bit float."""
    data = np.frombuffer(text, np.uint8)
    large = any(map(_any_large_exponent, _pieces(data)))
    if not large and not any(map(_any_long_run, _pieces(data))):
        return False
    digit_or_point = _digit_or_point(data)
    part = digit_or_point | ((data | 32) == 101) | (data == 43) | (data == 45)
    edges = np.flatnonzero(np.diff(part, prepend=False, append=False))
    begins, ends = edges[0::2], edges[1::2]
    lengths = ends - begins
    long = lengths >= (_LARGE_EXPONENT if large else _LONG_CHARACTERS)
    characters = data[part][np.repeat(long, lengths)]
    texts = _strings(characters, lengths[long])
    return _first_lossy(texts.filter(pa.array(~_kept(characters, lengths[long], texts)))) is not None


def _pieces(data: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield small pieces, each of which begins with the end of the one before.

    The intermediate arrays of a small piece stay in the cache, and need no new memory of the operating system.
    """
    for begin in range(0, max(len(data) - _OVERLAP_BYTES, 1), _PIECE_BYTES):
        yield data[begin : begin + _PIECE_BYTES + _OVERLAP_BYTES]


def _digit_or_point(data: npt.NDArray[np.uint8]) -> Mask:
    # Smaller bytes wrap around to large ones, so one comparison tests both bounds.
    return ((data - np.uint8(48)) < 10) | (data == 46)


def _any_long_run(data: npt.NDArray[np.uint8]) -> bool:
    run = _digit_or_point(data)
    # Each step doubles the length of the runs that are left: 2, 4, 8, and then `_LONG_CHARACTERS`.
    for step in (1, 2, 4, 8):
        run = run[:-step] & run[step:]
    return bool(run.any())


def _any_large_exponent(data: npt.NDArray[np.uint8]) -> bool:
    """Return whether a number is followed by an `e` and three digits, with or without a sign."""
    digit_or_point = _digit_or_point(data)
    marks = ((data[1:-3] | 32) == 101) & digit_or_point[:-4]
    if not marks.any():
        return False
    at = np.flatnonzero(marks) + 1
    digits = np.append(digit_or_point, [False])
    signed = (data[at + 1] == 43) | (data[at + 1] == 45)
    return bool((digits[at + 2] & digits[at + 3] & np.where(signed, digits[at + 4], digits[at + 1])).any())


def _kept(characters: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64], texts: pa.Array) -> Mask:
    """Return which texts are surely numbers that a float keeps.

    It covers texts with digits and one point, at most 18 digits, as in printed floats. Such a number is M / 10**s for
    some M. The float is the nearest to it with that many digits if the float times 10**s is nearer to M than to any
    other whole number.
    """
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    is_point = characters == 46
    points = np.flatnonzero(is_point)
    others = np.flatnonzero(~is_point & ((characters - np.uint8(48)) >= 10))
    simple = (np.diff(np.searchsorted(points, bounds)) == 1) & (lengths <= _INTEGER_DIGITS + 1)
    simple &= np.diff(np.searchsorted(others, bounds)) == 0
    if not simple.any():
        return simple
    of_simple = np.repeat(simple, lengths)
    mantissas = _strings(characters[of_simple & ~is_point], lengths[simple] - 1).cast(pa.int64()).to_numpy()
    numbers = texts.filter(pa.array(simple)).cast(pa.float64()).to_numpy()
    places = bounds[1:][simple] - 1 - points[of_simple[points]]
    exact = numbers.astype(np.longdouble) * np.power(np.longdouble(10), np.arange(_INTEGER_DIGITS + 1))[places]
    kept = simple.copy()
    kept[simple] = np.abs(exact - mantissas) < _SURELY_NEARER
    return kept


def _strings(characters: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> pa.Array:
    """Return texts of these lengths, cut from consecutive characters."""
    # Arrow's strings have 32-bit offsets. A block is far below 2 GiB.
    bounds = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=bounds[1:])
    return pa.Array.from_buffers(
        pa.string(), len(lengths), [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(characters))]
    )


def may_have_leading_zeros(text: bytes) -> bool:
    """Return whether a CSV field may begin with a zero and another digit or an `x`, after blanks, tabs and a sign."""
    # The masks compare up to two characters before a zero, also at the beginning of the text.
    lines = b"\n\n" + text
    data = np.frombuffer(lines, np.uint8)
    if any(map(_any_leading_zero, _pieces(data))):
        return True
    return any(map(_any_zero_after_blank, _pieces(data))) and _PADDED_ZERO.search(lines) is not None


def _any_leading_zero(data: npt.NDArray[np.uint8]) -> bool:
    return _any_zero_after(data, (data == 44) | (data == 10) | (data == 34) | (data == 13))


def _any_zero_after_blank(data: npt.NDArray[np.uint8]) -> bool:
    """Return whether a zero follows a blank. Most such zeros are the hours in `2026-01-02 03:04`."""
    return _any_zero_after(data, (data == 32) | (data == 9))


def _any_zero_after(data: npt.NDArray[np.uint8], begins: Mask) -> bool:
    zero = (data[2:-1] == 48) & (((data[3:] - np.uint8(48)) < 10) | ((data[3:] | 32) == 120))
    signed = ((data[1:-2] == 43) | (data[1:-2] == 45)) & begins[:-3]
    return bool((zero & (begins[1:-2] | signed)).any())


def with_leading_zeros(texts: pa.Array) -> str | None:
    """Return the first of these texts of whole numbers that has leading zeros, or is hexadecimal."""
    found = texts.filter(pc.match_substring_regex(texts, _LEADING_ZERO).fill_null(False))
    return str(found[0]) if len(found) else None


def first_beyond_float(texts: pa.Array) -> str | None:
    """Return the first of these texts of numbers that loses digits as a 64-bit float."""
    return _first_lossy(texts.filter(pc.match_substring_regex(texts, _LONG).fill_null(False)))


def may_be_tiny(text: bytes) -> bool:
    """Return whether Arrow must not read the numbers in the text as decimals."""
    return (b"e-" in text or b"E-" in text) and _TINY_BYTES.search(text) is not None


def first_tiny(texts: pa.Array) -> str | None:
    """Return the first of these texts of numbers that Arrow must not read as a decimal."""
    found = texts.filter(pc.match_substring_regex(texts, _TINY).fill_null(False))
    return str(found[0]) if len(found) else None


def all_whole(texts: pa.Array) -> bool:
    """Return whether all are whole numbers.

    If such a column is not a 64-bit integer, some are longer, even if a float keeps them.
    """
    return bool(pc.all(pc.match_substring_regex(texts, r"^[ \t]*[-+]?[0-9]+[ \t]*$")).as_py())


def _first_lossy(texts: pa.Array) -> str | None:
    """Return the first text that loses digits. Most long numbers are printed floats: printing them again shows that."""
    try:
        numbers = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        texts = pc.utf8_trim(texts.filter(pc.match_substring_regex(texts, _NUMBER).fill_null(False)), " \t")
        numbers = texts.cast(pa.float64())
    again = numbers.cast(pa.string())
    unlike = texts.filter(pc.invert(pc.equal(again, texts).fill_null(False)))
    return next((str(text) for text in unlike if loses_digits(str(text))), None)


def loses_digits(text: str) -> bool:
    """Return whether a 64-bit float does not keep this number.

    That is so if the number is further from the float than half of its last digit's place. A printed float is kept,
    whatever its number of digits.
    """
    if len(text) < _LARGE_EXPONENT:
        return False
    try:
        exact = Decimal(text.strip())
    except InvalidOperation:
        return False  # not a number: another check reports it
    if not exact.is_finite():
        return False
    number = float(exact)
    if math.isinf(number):
        return True
    last_place = Decimal((0, (1,), int(exact.as_tuple().exponent)))
    return 2 * abs(_EXACTLY.subtract(exact, Decimal(number))) > last_place
