"""Kernel that encodes rows as Avro records by a program, see `instructions`. It is compiled once for all schemas."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.connectors.formats.avro.instructions import (
    COPY,
    DECIMAL,
    END,
    FIRST_VALUE,
    FIXED,
    INT32,
    JUMP,
    LIST_BEGIN,
    LIST_NEXT,
    NULL_FIRST,
    NULL_SECOND,
    PLAIN,
    RANGE,
    SYMBOL,
    UNION,
    VALID,
    WIDTH,
)
from tidegate.state.byte_words import address_of, copy_bytes, load_byte, load_half, load_word, store_byte
from tidegate.state.numba_kernels import inlined, kernel

IN_WORDS = 5
"""Words for each input: address of a byte for each value that is 0 where null, or 0 if none is null; address of the
values, or of the starts of ranges; bytes of a value; address of the lengths of ranges; address of the bytes of ranges.
"""
MAX_NUMBER_BYTES = 10
"""Most bytes of a number, a length or the number of a branch."""


@inlined
def write_varint(at: Any, number: Any) -> Any:
    """Write a number in zigzag form, and return the address after it."""
    word = (np.uint64(number) << np.uint64(1)) ^ np.uint64(number >> np.int64(63))
    while word >= np.uint64(0x80):
        store_byte(at, word | np.uint64(0x80))
        at += 1
        word >>= np.uint64(7)
    store_byte(at, word)
    return at + 1


@inlined
def _write_decimal(at: Any, source: Any, width: Any, size: Any) -> Any:
    """Write a little-endian number as big endian: in `size` bytes, or with its length in as few as possible if `size`
    is 0. Returns the address after it; 0: it does not fit.
    """
    sign = np.uint64(0xFF) if load_byte(source + width - 1) >= np.uint64(0x80) else np.uint64(0)
    needed = width
    while needed > 1 and load_byte(source + needed - 1) == sign:
        if (load_byte(source + needed - 2) >= np.uint64(0x80)) != (sign != np.uint64(0)):
            break
        needed -= 1
    written = size
    if size == 0:
        written = needed
        at = write_varint(at, needed)
    if written < needed:
        at = np.int64(0)
    else:
        for i in range(written):
            from_end = written - 1 - i
            store_byte(at + i, load_byte(source + from_end) if from_end < width else sign)
        at += written
    return at


@inlined
def _write_value(op: Any, store: Any, words: Any, place: Any, at: Any, size: Any) -> Any:
    """Write a value of the input whose words are at the address `words`; returns the address after it, 0: it does not
    fit.
    """
    width = np.int64(load_word(words + 16))
    source = np.int64(load_word(words + 8)) + place * width
    if store == RANGE:
        length = np.int64(load_word(np.int64(load_word(words + 24)) + place * 8))
        if op != FIXED:
            at = write_varint(at, length)
        copy_bytes(np.int64(load_word(words + 32)) + np.int64(load_word(source)), at, length)
        at += length
    elif store == COPY:
        copy_bytes(source, at, size)
        at += size
    elif store == DECIMAL:
        at = _write_decimal(at, source, width, size)
    elif store in (INT32, SYMBOL):
        number = np.int64(np.int32(load_half(source)))
        at = np.int64(0) if store == SYMBOL and number < 0 else write_varint(at, number)
    else:
        at = write_varint(at, np.int64(load_word(source)))
    return at


@kernel("i8(i8, i8[], i8[], i8[], i8[]!, i8[]!)")
def encode_record(  # noqa: C901, PLR0912 - one case per instruction
    at: Any, program: Any, tables: Any, inputs: Any, cursor: Any, left: Any
) -> Any:
    """Write the record of the row cursor[0] at an address. Returns the address after it; or, if the value of an
    instruction cannot be written, the negative place of the instruction in the program, minus 1.

    Args:
        cursor: for each domain the place of the value that is written.
        left: for each list that is open the number of elements that were not written.
    """
    words, depth, pc = address_of(inputs), -1, np.int64(0)
    while True:
        op, store, value, null = program[pc], program[pc + 1], program[pc + 2], program[pc + 3]
        a, b, following, domain = program[pc + 4], program[pc + 5], program[pc + 6], program[pc + 7]
        place, one = cursor[domain], words + 8 * IN_WORDS * value
        if value >= 0 and op != LIST_NEXT:
            valid = np.int64(load_word(one))
            is_null = valid != 0 and load_byte(valid + place) == np.uint64(0)
            if is_null and null != NULL_FIRST and null != NULL_SECOND:
                return -pc - 1
            if null != PLAIN:
                # The number of the branch is 0 or 1, in zigzag form 0 or 2.
                store_byte(at, np.uint64(0) if is_null == (null == NULL_FIRST) else np.uint64(2))
                at += 1
            if is_null:
                pc = following
                continue
        if op >= FIRST_VALUE:
            written = _write_value(op, store, one, place, at, a)
            if written == 0:
                return -pc - 1
            at, pc = written, following
        elif op == VALID:
            pc += WIDTH
        elif op in (LIST_BEGIN, LIST_NEXT):
            if op == LIST_BEGIN:
                depth += 1
                cursor[b] = np.int64(load_word(np.int64(load_word(one + 8)) + place * 8))
                left[depth] = np.int64(load_word(np.int64(load_word(one + 24)) + place * 8))
                if left[depth]:
                    at = write_varint(at, left[depth])
            else:
                cursor[b] += 1
                left[depth] -= 1
            pc = a if left[depth] else following
            if left[depth] == 0:
                store_byte(at, np.uint64(0))
                at += 1
                depth -= 1
        elif op == UNION:
            # `b` members: of each the input, the number of the branch, and the instruction. The first valid one counts.
            member = 0
            while member < b:
                valid = np.int64(load_word(words + 8 * IN_WORDS * tables[a + 3 * member]))
                if valid == 0 or load_byte(valid + place) != np.uint64(0):
                    break
                member += 1
            if member == b:
                return -pc - 1
            at, pc = write_varint(at, tables[a + 3 * member + 1]), tables[a + 3 * member + 2]
        elif op == JUMP:
            pc = following
        elif op == END:
            return at


@kernel("i8(u1[]!, i8[]!, i8, i8, i8[], i8[], i8[], i8[]!, i8[]!)")
def encode_records(
    out: Any,
    offsets: Any,
    rows: Any,
    head: Any,
    program: Any,
    tables: Any,
    inputs: Any,
    cursor: Any,
    left: Any,
) -> Any:
    """Write records one after the other; returns -1, or the place in the program of a value that cannot be written.

    Args:
        out: large enough for all records.
        offsets: written: where each record begins in `out`, and where the last one ends.
        head: bytes that are left free before each record.
    """
    base = address_of(out)
    at = base
    for row in range(rows):
        offsets[row] = at - base
        cursor[0] = row
        at = encode_record(at + head, program, tables, inputs, cursor, left)
        if at < 0:
            return -at - 1
    offsets[rows] = at - base
    return np.int64(-1)
