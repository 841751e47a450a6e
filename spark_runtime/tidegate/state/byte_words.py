"""Bytes at addresses, read, written, copied and compared as words of eight, for use in kernels. Little endian.

An address may be any byte of an array. Nothing checks it, and the array must live on. Functions take addresses instead
of arrays, because numba counts the references of every array that an inlined function receives. That costs more than
the function.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.state.numba_kernels import inlined, instruction, kernel

AHEAD_BYTES = 1024
"""How far ahead a kernel requests the memory of bytes that it reads in order.

Without this, a virtual machine read texts of 60 bytes three times slower.
"""


def _llvm() -> tuple[Any, Any]:
    """Return LLVM's and numba's types; imported here, because only compilation needs them."""
    from llvmlite import ir
    from numba.core import types

    return ir, types


def _address_of(typing_context: Any, array: Any) -> Any:
    ir, types = _llvm()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


address_of: Any = instruction(_address_of)
"""address_of(array) returns the address of the first element of a contiguous array."""


def _loader(bits: int) -> Any:
    def load(typing_context: Any, address: Any) -> Any:
        ir, types = _llvm()

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()), align=1)
            if bits == 8:
                return builder.zext(word, ir.IntType(64))
            word = word if sys.byteorder == "little" else builder.bswap(word)
            return builder.zext(word, ir.IntType(64)) if bits < 64 else word

        return types.uint64(types.int64), generate

    return instruction(load)


load_word: Any = _loader(64)
"""load_word(address) returns eight bytes as uint64."""
load_half: Any = _loader(32)
"""load_half(address) returns four bytes as uint64."""
load_byte: Any = _loader(8)
"""load_byte(address) returns one byte as uint64."""


def _storer(bits: int) -> Any:
    def store(typing_context: Any, address: Any, word: Any) -> Any:
        ir, types = _llvm()

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.trunc(arguments[1], ir.IntType(bits)) if bits < 64 else arguments[1]
            value = value if bits == 8 or sys.byteorder == "little" else builder.bswap(value)
            builder.store(value, builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.uint64), generate

    return instruction(store)


store_word: Any = _storer(64)
"""store_word(address, word) writes the eight bytes of a uint64."""
store_half: Any = _storer(32)
"""store_half(address, word) writes the lower four bytes of a uint64."""
store_byte: Any = _storer(8)
"""store_byte(address, word) writes the lowest byte of a uint64."""


def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    ir, types = _llvm()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


trailing_zeros: Any = instruction(_trailing_zeros)
"""trailing_zeros(word) returns the number of zeros below the lowest one of a uint64; 64 for 0."""


def _prefetch(typing_context: Any, address: Any) -> Any:
    ir, types = _llvm()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        declared = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        called = builder.module.declare_intrinsic("llvm.prefetch", [pointer], declared)
        options = (ir.Constant(word, option) for option in (0, 3, 1))  # to read, keep in all caches, data
        builder.call(called, [builder.inttoptr(arguments[0], pointer), *options])
        return context.get_dummy_value()

    return types.void(types.int64), generate


prefetch: Any = instruction(_prefetch)
"""prefetch(address) asks the processor for the cache line at any address, also one without memory."""


@inlined
def same_bytes(one: Any, other: Any, length: Any) -> Any:
    """Return whether the bytes at two addresses are equal."""
    same = True
    if length >= 8:
        last = length - 8
        at = 0
        while same and at < last:
            same = load_word(one + at) == load_word(other + at)
            at += 8
        same = same and load_word(one + last) == load_word(other + last)
    elif length >= 4:
        last = length - 4
        same = load_half(one) == load_half(other) and load_half(one + last) == load_half(other + last)
    else:
        for i in range(length):
            same = same and load_byte(one + i) == load_byte(other + i)
    return same


@inlined
def copy_bytes(source: Any, target: Any, length: Any) -> None:
    """Copy bytes from one address to another; nothing after them changes."""
    if length >= 8:
        last = length - 8
        at = 0
        while at < last:
            store_word(target + at, load_word(source + at))
            at += 8
        store_word(target + last, load_word(source + last))
    elif length >= 4:
        last = length - 4
        head, tail = load_half(source), load_half(source + last)
        store_half(target, head)
        store_half(target + last, tail)
    else:
        for i in range(length):
            store_byte(target + i, load_byte(source + i))


def gather_bytes(
    source: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Return the bytes of each range of `source`, one range after the other."""
    out = np.empty(int(lengths.sum()), np.uint8)
    _gather(source, starts, lengths, out)
    return out


@kernel("void(u1[], i8[], i8[], u1[]!)")
def _gather(source: Any, starts: Any, lengths: Any, out: Any) -> None:
    read, write = address_of(source), address_of(out)
    at = 0
    for i in range(len(starts)):
        copy_bytes(read + starts[i], write + at, lengths[i])
        at += lengths[i]
