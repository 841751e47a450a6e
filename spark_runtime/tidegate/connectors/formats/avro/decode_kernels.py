"""Kernel that decodes Avro records by a program, see `instructions`.

It is compiled once for all schemas: a compilation takes seconds, which a job would else pay for each schema.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.connectors.formats.avro.instructions import (
    ALWAYS,
    BAD_BOOLEAN,
    BAD_BRANCH,
    BAD_DECIMAL,
    BAD_LENGTH,
    BAD_NUMBER,
    BAD_SYMBOL,
    BOOLEAN,
    COPY,
    DECIMAL,
    END,
    ERROR,
    FIRST_VALUE,
    FIXED,
    FLOAT32,
    FLOAT64,
    INT,
    INT32,
    INT64,
    JUMP,
    LIST_BEGIN,
    LIST_NEXT,
    OVERFLOW,
    RANGE,
    SIZED,
    SYMBOL,
    TOO_MANY,
    TRAILING,
    TRUNCATED,
    UNION,
    VALID,
    WIDENED,
    WIDTH,
)
from tidegate.state.byte_words import address_of, copy_bytes, load_byte, load_half, load_word, store_byte, store_half
from tidegate.state.byte_words import store_word as store_word
from tidegate.state.numba_kernels import inlined, instruction, kernel

OUT_WORDS = 4
"""Words for each output: address of a byte for each value that is 1 where valid, address of the values, bytes of a
value, domain.
"""
MAX_DEPTH = 64
"""Most lists in lists."""
SPARE_ELEMENTS = 256
"""Elements that a record may have beyond its bytes. Elements of type null take no bytes, so a record of a few bytes
could claim any number of them."""
_MAX_VARINT_BITS = 70
_LEAST, _GREATEST = -(2**63), 2**63 - 1


def _float_bits(typing_context: Any, number: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.uint64(types.float64), generate


def _single_bits(typing_context: Any, number: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.bitcast(arguments[0], ir.IntType(32)), ir.IntType(64))

    return types.uint64(types.float32), generate


def _single(typing_context: Any, word: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.trunc(arguments[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.uint64), generate


float_bits: Any = instruction(_float_bits)
"""float_bits(number) returns the bits of a float of 64 bits."""
single_bits: Any = instruction(_single_bits)
"""single_bits(number) returns the bits of a float of 32 bits."""
single: Any = instruction(_single)
"""single(bits) returns the float of 32 bits with these bits."""


@inlined
def read_varint(at: Any, end: Any) -> Any:
    """Return a number in zigzag form, and the address after it, or the negative reason."""
    value, shift, byte = np.uint64(0), np.uint64(0), np.uint64(0)
    more: Any = True
    while more and at < end:
        byte = load_byte(at)
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        shift += np.uint64(7)
        more = byte >= np.uint64(0x80) and shift < np.uint64(_MAX_VARINT_BITS)
    if more:
        at = np.int64(-TRUNCATED)
    elif byte >= np.uint64(0x80) or (shift == np.uint64(_MAX_VARINT_BITS) and byte > np.uint64(1)):
        at = np.int64(-BAD_NUMBER)
    number = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
    return number, at


@inlined
def _read(op: Any, size: Any, at: Any, end: Any) -> Any:
    """Return a number, or place and length of bytes; and the address after it, or the negative reason."""
    number, start = np.int64(0), at
    if op == FIXED:
        at += size
        if at > end:
            at = np.int64(-TRUNCATED)
    else:
        number, at = read_varint(at, end)
        if op == SIZED and at > 0:
            start, size = at, number
            if number < 0 or number > end - at:
                at = np.int64(-BAD_LENGTH)
            else:
                at += number
        elif op == INT and (number > np.int64(2147483647) or number < np.int64(-2147483648)):
            at = np.int64(-BAD_NUMBER)
    return number, start, size, at


@inlined
def _store_decimal(target: Any, width: Any, start: Any, size: Any) -> Any:
    """Store a big-endian number of two's complement; returns a reason, or 0. Bytes beyond `width` may only repeat the
    sign.
    """
    reason = np.int64(0) if size > 0 else np.int64(BAD_DECIMAL)
    sign = np.uint64(0)
    if size > 0 and load_byte(start) >= np.uint64(0x80):
        sign = np.uint64(0xFF)
    for i in range(width):
        store_byte(target + i, load_byte(start + size - 1 - i) if i < size else sign)
    for i in range(width, size):
        if load_byte(start + size - 1 - i) != sign:
            reason = np.int64(BAD_DECIMAL)
    if size > width and (load_byte(target + width - 1) >= np.uint64(0x80)) != (sign != np.uint64(0)):
        reason = np.int64(BAD_DECIMAL)
    return reason


@inlined
def _store_number(store: Any, target: Any, number: Any, factor: Any) -> Any:
    """Store a number that was read; returns a reason, or 0."""
    reason = np.int64(0)
    if store == INT32:
        store_half(target, np.uint64(number))
    elif store == INT64:
        # The compiler assumes that products do not overflow, so the factors are compared.
        if factor != 1 and abs(number) > np.int64(_GREATEST) // factor:
            reason = np.int64(OVERFLOW)
        store_word(target, np.uint64(number * factor))
    elif store == FLOAT64:
        store_word(target, float_bits(np.float64(number)))
    elif store == FLOAT32:
        store_half(target, single_bits(np.float32(number)))
    return reason


@inlined
def _store_bytes(store: Any, target: Any, start: Any, size: Any, width: Any) -> Any:
    """Store a value of a fixed number of bytes; returns a reason, or 0."""
    reason = np.int64(0)
    if store == COPY:
        copy_bytes(start, target, size)
    elif store == DECIMAL:
        reason = _store_decimal(target, width, start, size)
    elif store == WIDENED:
        store_word(target, float_bits(np.float64(single(load_half(start)))))
    elif store == BOOLEAN:
        byte = load_byte(start)
        store_byte(target, byte)
        if byte > np.uint64(1):
            reason = np.int64(BAD_BOOLEAN)
    return reason


@inlined
def _store_value(
    store: Any, out: Any, place: Any, number: Any, start: Any, size: Any, base: Any, tables: Any, a: Any, b: Any
) -> Any:
    """Store what was read at a place of the output whose words are at the address `out`; returns a reason, or 0."""
    reason = np.int64(0)
    target = np.int64(load_word(out + 8)) + place * np.int64(load_word(out + 16))
    if store == RANGE:
        store_word(target, np.uint64(start - base))
        store_word(np.int64(load_word(out + 40)) + place * 8, np.uint64(size))
    elif store == SYMBOL:
        symbol = np.int64(-1)
        if 0 <= number < b:
            symbol = np.int64(load_word(tables + 8 * (a + number)))
        store_half(target, np.uint64(symbol))
        if symbol < 0:
            reason = np.int64(BAD_SYMBOL)
    elif store >= COPY:
        reason = _store_bytes(store, target, start, size, b)
    else:
        reason = _store_number(store, target, number, b)
    return reason


@inlined
def _read_block(at: Any, end: Any) -> Any:
    """Return the number of elements of a block, and the address after its head, or the negative reason."""
    count, at = read_varint(at, end)
    if at > 0 and count < 0:
        is_least = count == np.int64(_LEAST)  # has no positive counterpart
        count = -count
        size, at = read_varint(at, end)
        if at > 0 and (size < 0 or is_least):
            at = np.int64(-BAD_LENGTH)
    return count, at


@kernel("void(i8[], i8[], i8[], i8[])")
def clear_outputs(outs: Any, firsts: Any, ends: Any, capacity: Any) -> None:
    """Make the values from `firsts` to `ends`, by domain, zero and null."""
    for out in range(len(outs) // OUT_WORDS):
        valid, values, width, domain = outs[4 * out], outs[4 * out + 1], outs[4 * out + 2], outs[4 * out + 3]
        for place in range(firsts[domain], min(ends[domain], capacity[domain])):
            store_byte(valid + place, np.uint64(0))
            for i in range(width):
                store_byte(values + place * width + i, np.uint64(0))


@kernel("i8(u1[], i8, i8, i8[], i8[], i8[], i8[], i8[]!, i8[]!)")
def decode_record(  # noqa: C901, PLR0912, PLR0915 - one case per instruction
    data: Any, at: Any, end: Any, program: Any, tables: Any, outs: Any, capacity: Any, cursor: Any, left: Any
) -> Any:
    """Decode the record at data[at:end]; returns a reason, or 0.

    Args:
        outs: see `OUT_WORDS`. Values beyond the capacity of their domain are counted, and not stored.
        cursor: the number of values of each domain; the first is the number of the record.
        left: for each list that is open the number of elements of its block that are not read.
    """
    base, outputs, entries = address_of(data), address_of(outs), address_of(tables)
    at, end = at + base, end + base
    budget, depth, pc, reason = end - at + SPARE_ELEMENTS, -1, np.int64(0), np.int64(0)
    while reason == 0:
        op, store, out, null = program[pc], program[pc + 1], program[pc + 2], program[pc + 3]
        a, b, following, domain = program[pc + 4], program[pc + 5], program[pc + 6], program[pc + 7]
        place = cursor[domain]
        stored = out >= 0 and place < capacity[domain]
        out = outputs + 8 * OUT_WORDS * out
        if null:
            if null != ALWAYS:
                branch = np.int64(load_byte(at)) if at < end else np.int64(-1)
                if branch != 0 and branch != 2:
                    return np.int64(BAD_BRANCH) if at < end else np.int64(TRUNCATED)
                at += 1
                if branch == 2 * (null - 1):
                    pc = following
                    continue
            if stored:
                store_byte(np.int64(load_word(out)) + place, np.uint64(1))
        if op >= FIRST_VALUE:
            number, start, size, at = _read(op, a, at, end)
            if at < 0:
                reason = -at
            elif stored:
                reason = _store_value(store, out, place, number, start, size, base, entries, a, b)
            pc = following
        elif op == VALID:
            pc += WIDTH
        elif op in (LIST_BEGIN, LIST_NEXT):
            begins = op == LIST_BEGIN
            depth += begins
            left[depth] = 0 if begins else left[depth] - 1
            cursor[b] += np.int64(op == LIST_NEXT)
            budget -= 1
            if left[depth] == 0:
                left[depth], at = _read_block(at, end)
                if stored and at > 0:
                    target = np.int64(load_word(out + 8)) + place * 8
                    store_word(target, load_word(target) + np.uint64(left[depth]))
            reason = -at if at < 0 else (np.int64(0) if budget >= 0 else np.int64(TOO_MANY))
            pc = a if left[depth] else following
            depth -= left[depth] == 0
        elif op == UNION:
            number, at = read_varint(at, end)
            reason = -at if at < 0 else (np.int64(0) if 0 <= number < b else np.int64(BAD_BRANCH))
            pc = tables[a + number] if reason == 0 else pc
        elif op == JUMP:
            pc = following
        elif op == ERROR:
            reason = a
        elif op == END:
            return np.int64(0) if at == end else np.int64(TRAILING)
    return reason


@kernel("i8(u1[], i8[], i8[], i8[], i8[], i8[], i8[], i8[]!, i8[]!)")
def decode_records(
    data: Any, starts: Any, lengths: Any, program: Any, tables: Any, outs: Any, capacity: Any, cursor: Any, reasons: Any
) -> Any:
    """Decode records; returns how many are bad.

    Args:
        starts, lengths: place of each record in `data`.
        outs, capacity, cursor: see `decode_record`; the outputs are zero. The number of the first domain is the record.
        reasons: written: for each record 0, or the reason why it is bad. It has no values then.
    """
    left = np.empty(MAX_DEPTH, np.int64)
    saved, ends = np.empty(len(cursor), np.int64), np.empty(len(cursor), np.int64)
    bad = np.int64(0)
    for row in range(len(starts)):
        cursor[0] = row
        for domain in range(len(cursor)):
            saved[domain] = cursor[domain]
        reason = decode_record(
            data, starts[row], starts[row] + lengths[row], program, tables, outs, capacity, cursor, left
        )
        reasons[row] = reason
        if reason:
            bad += 1
            for domain in range(len(cursor)):
                ends[domain] = cursor[domain] + 1
                cursor[domain] = saved[domain]
            clear_outputs(outs, saved, ends, capacity)
    return bad
