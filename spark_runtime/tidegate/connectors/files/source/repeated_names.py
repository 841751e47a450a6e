"""JSON objects that have two members of one name. Arrow refuses them only among the fields of its schema."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.connectors.files.source.character_encoding import UndecodableRecordError
from tidegate.connectors.files.source.json_values import JsonObject, loads
from tidegate.state.byte_words import address_of, load_byte, load_word, same_bytes, store_word, trailing_zeros
from tidegate.state.numba_kernels import inlined, kernel

REPEATED = "a field is repeated in the record"

_NAMES = 8_192
"""Most names of the open objects of a line that the kernel remembers. Lines with more are examined one by one."""
_DEPTHS = 256
"""More objects than a line may nest (`MAX_DEPTH`)."""
_LINES = 1_024
"""Suspicious lines of one call. The kernel then returns, and is called for the rest of the text."""
_KNOWN = 512
"""Most names of the line with which others are compared."""
_MISSES = 16
"""Lines that are unlike it, after which another line takes its place."""
_QUOTE, _BACKSLASH, _COLON, _COMMA, _LIST, _OPEN, _CLOSE, _LF, _CR, _BLANK = b'"\\:,[{}\n\r '
_MIX, _MIX_TOO = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
"""Odd constants of splitmix64, which spread the bits of a name."""
_TOP_BITS = 58
"""Shift that leaves a number below 64, the place of a name in a mask of 64 bits."""
_LOWS, _HIGHS = 0x0101010101010101, 0x8080808080808080
_AHEAD = 8
"""Bytes that are read at once."""


def refuse_repeated_names(text: bytes) -> None:
    """Raise UndecodableRecordError if an object in the text has two members of one name.

    A compiled kernel compares hashes of the names, and reports lines in which two may be equal, or have escapes. Only
    these are parsed. Most lines have the names of a line before them, in the same order: they need no hashes.

    Args:
        text: lines of JSON that a parser has accepted, with at most `MAX_DEPTH` levels.
    """
    data = np.frombuffer(text, np.uint8)
    # Room for the kernel: hashes, first hashes and masks of open objects; tokens of the line to compare with.
    hashes, open_objects, tokens = (np.empty(n, np.uint64) for n in (_NAMES, 2 * _DEPTHS, 2 * _KNOWN))
    begins, ends, at = np.empty(_LINES, np.int64), np.empty(_LINES, np.int64), np.zeros(1, np.int64)
    while at[0] < len(data):
        found = _find_suspects(data, at, hashes, open_objects, tokens, begins, ends)
        for begin, end in zip(begins[:found].tolist(), ends[:found].tolist()):
            if any(map(_repeats, loads(text[begin:end].strip()))):
                raise UndecodableRecordError(REPEATED)


def _repeats(value: Any) -> bool:
    """Return whether an object in the value has two members of one name."""
    if isinstance(value, JsonObject):
        names = [name for name, _ in value]
        return len(set(names)) < len(names) or any(_repeats(member) for _, member in value)
    return isinstance(value, list) and any(map(_repeats, value))


@inlined
def _hash(address: Any, length: Any) -> Any:
    """Return the hash of a name."""
    found = np.uint64(length)
    if length >= 8:
        last = length - 8
        at = 0
        while at < last:
            found = (found ^ load_word(address + at)) * np.uint64(_MIX)
            found ^= found >> np.uint64(29)
            at += 8
        found = (found ^ load_word(address + last)) * np.uint64(_MIX)
    else:
        word = np.uint64(0)
        for i in range(length):
            word = (word << np.uint64(8)) | load_byte(address + i)
        found = (found ^ word) * np.uint64(_MIX)
    found ^= found >> np.uint64(32)
    return found * np.uint64(_MIX_TOO)


@inlined
def _string_end(base: Any, at: Any, size: Any) -> Any:
    """Return the place of the closing quotation mark of a text that begins at `at`, and whether it has escapes."""
    escaped = False
    while at < size:
        byte = load_byte(base + at)
        if byte == _QUOTE:
            break
        if byte == _BACKSLASH:
            escaped = True
            at += 1
        at += 1
    return at, escaped


@inlined
def _is_among(hashed: Any, first: Any, end: Any) -> Any:
    """Return whether one of the words at these addresses is the hash."""
    found = False
    while first < end:
        found |= load_word(first) == hashed
        first += 8
    return found


@inlined
def _zeros(word: Any) -> Any:
    """Return a word whose lowest one is in the lowest byte that is 0. Source: Warren, Hacker's Delight, section 6-1."""
    return (word - np.uint64(_LOWS)) & ~word & np.uint64(_HIGHS)


@inlined
def _stop(base: Any, at: Any, size: Any, one: Any, other: Any) -> Any:
    """Return the place of the first of two bytes from `at` on; near the end of the text, an earlier place."""
    ones, others = np.uint64(one) * np.uint64(_LOWS), np.uint64(other) * np.uint64(_LOWS)
    marks = np.uint64(0)
    while marks == np.uint64(0) and at + _AHEAD <= size:
        word = load_word(base + at)
        marks = _zeros(word ^ ones) | _zeros(word ^ others)
        at += _AHEAD
    return at if marks == np.uint64(0) else at - _AHEAD + (trailing_zeros(marks) >> 3)


@inlined
def _after_alike(base: Any, at: Any, size: Any, tokens: Any, known: Any) -> Any:
    """Return the place after the object at `at` if it has the known names and no objects or lists; else -1.

    A name is compared with the bytes around it, from the end of the value before it to the beginning of its own value.
    """
    at += 1
    token, end, alike = tokens, tokens + 16 * known, True
    while alike and token < end:
        begin, length = np.int64(load_word(token)), np.int64(load_word(token + 8))
        alike = at + length + _AHEAD <= size and same_bytes(base + begin, base + at, length)
        if alike:
            at += length
            first = load_byte(base + at)
            if first == _QUOTE:
                at = _stop(base, at + 1, size, _QUOTE, _BACKSLASH)
                alike = at < size and load_byte(base + at) == _QUOTE
                at += 1
            else:
                alike = first not in (_OPEN, _LIST)
                at = _stop(base, at, size, _COMMA, _CLOSE)
        token += 16
    alike = alike and at < size and load_byte(base + at) == _CLOSE
    at += 1
    if alike and (at >= size or load_byte(base + at) in (_LF, _CR)):
        return at
    return np.int64(-1)


@inlined
def _learn(base: Any, at: Any, size: Any, tokens: Any) -> Any:
    """Write the tokens of the object at `at` for `_after_alike`. Return their number; 0: it has objects or lists."""
    count, more = np.int64(0), True
    at += 1
    while more and count < _KNOWN:
        begin = at
        while at < size and load_byte(base + at) in (_BLANK, _COMMA):
            at += 1
        at = _string_end(base, at + 1, size)[0] + 1
        while at < size and load_byte(base + at) in (_BLANK, _COLON):
            at += 1
        store_word(tokens + 16 * count, np.uint64(begin))
        store_word(tokens + 16 * count + 8, np.uint64(at - begin))
        count += 1
        first = load_byte(base + at) if at < size else np.uint64(_OPEN)
        if first == _QUOTE:
            at = _string_end(base, at + 1, size)[0] + 1
        else:
            while at < size and load_byte(base + at) not in (_COMMA, _CLOSE):
                at += 1
        last = load_byte(base + at) if at < size else np.uint64(_OPEN)
        more = last == _COMMA
        if first in (_OPEN, _LIST) or last not in (_COMMA, _CLOSE):
            count, more = np.int64(0), False
    return count if not more else np.int64(0)


@inlined
def _scan_line(base: Any, at: Any, size: Any, hashes: Any, open_objects: Any) -> Any:
    """Return the end of the line that begins at `at`, and whether an object in it may have two members of one name.

    Args:
        hashes, open_objects: addresses of room for the hashes of all names of the open objects, in order; and for each
            of these objects the address of its first hash, and which places of 64 its hashes take.
    """
    depth, used, suspect = open_objects, hashes, False
    name, name_end, escaped, inside = np.int64(0), np.int64(0), False, True
    store_word(depth, np.uint64(used))
    store_word(depth + 8, np.uint64(0))
    while inside and at < size:
        byte = load_byte(base + at)
        if byte == _QUOTE:
            name = at + 1
            at, escaped = _string_end(base, name, size)
            name_end = at
        elif byte == _COLON:
            hashed, mask = _hash(base + name, name_end - name), load_word(depth + 8)
            bit = np.uint64(1) << (hashed >> np.uint64(_TOP_BITS))
            if mask & bit:
                suspect |= _is_among(hashed, np.int64(load_word(depth)), used)
            store_word(depth + 8, mask | bit)
            store_word(used, hashed)
            used += 8
            suspect |= escaped
            if used == hashes + 8 * _NAMES:  # the last one is not kept
                used, suspect = used - 8, True
        elif byte == _OPEN:
            depth = min(depth + 16, open_objects + 16 * (_DEPTHS - 1))
            store_word(depth, np.uint64(used))
            store_word(depth + 8, np.uint64(0))
        elif byte == _CLOSE:
            used, depth = np.int64(load_word(depth)), max(depth - 16, open_objects)
        inside = byte not in (_LF, _CR)
        at += 1
    return (at if inside else at - 1), suspect


@kernel("i8(u1[], i8[]!, u8[]!, u8[]!, u8[]!, i8[]!, i8[]!)")
def _find_suspects(data: Any, place: Any, hashes: Any, open_objects: Any, tokens: Any, begins: Any, ends: Any) -> Any:
    """Find lines in which an object may have two members of one name. Returns their number.

    Args:
        place: where to begin; written: where to go on.
        hashes, open_objects, tokens: room, see `_scan_line` and `_learn`.
        begins, ends: written: the lines.
    """
    size, base = len(data), address_of(data)
    names, objects, known_tokens = address_of(hashes), address_of(open_objects), address_of(tokens)
    at, found, known, missed = place[0], np.int64(0), np.int64(0), np.int64(0)
    while at < size and found < len(begins):
        line = at
        if known and load_byte(base + at) == _OPEN:
            at = _after_alike(base, line, size, known_tokens, known)
            if at >= 0:
                at += 1
                continue
            missed += 1
        at, suspect = _scan_line(base, line, size, names, objects)
        if suspect:
            begins[found], ends[found] = line, at
            found += 1
        elif load_byte(base + line) == _OPEN and (known == 0 or missed > _MISSES):
            known, missed = _learn(base, line, at, known_tokens), np.int64(0)
        at += 1
    place[0] = at
    return found
