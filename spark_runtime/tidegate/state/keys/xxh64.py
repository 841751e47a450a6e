"""xxh64 with seed 0, after the published specification of XXH64, for use in kernels (S5.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.state.byte_words import load_byte, load_half, load_word
from tidegate.state.numba_kernels import inlined

_P1 = np.uint64(11400714785074694791)
_P2 = np.uint64(14029467366897019727)
_P3 = np.uint64(1609587929392839161)
_P4 = np.uint64(9650029242287828579)
_P5 = np.uint64(2870177450012600261)
_LANE_2 = np.uint64((11400714785074694791 + 14029467366897019727) % 2**64)
_LANE_4 = np.uint64((-11400714785074694791) % 2**64)
_ZERO = np.uint64(0)


@inlined
def rotate_left(x: Any, bits: Any) -> Any:
    """Return `x` rotated left; `bits` from 1 to 63."""
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@inlined
def avalanche(h: Any) -> Any:
    """Do the final mixing."""
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    return h ^ (h >> np.uint64(32))


@inlined
def mix_lane(accumulator: Any, lane: Any) -> Any:
    """Do one round."""
    return rotate_left(accumulator + lane * _P2, 31) * _P1


@inlined
def mix_8(h: Any, lane: Any) -> Any:
    """Mix in eight bytes of the tail."""
    return rotate_left(h ^ mix_lane(_ZERO, lane), 27) * _P1 + _P4


@inlined
def mix_4(h: Any, half: Any) -> Any:
    """Mix in four bytes of the tail."""
    return rotate_left(h ^ (half * _P1), 23) * _P2 + _P3


@inlined
def mix_1(h: Any, byte: Any) -> Any:
    """Mix in one byte of the tail."""
    return rotate_left(h ^ (np.uint64(byte) * _P5), 11) * _P1


@inlined
def begin_short(length: Any) -> Any:
    """Return the initial hash of fewer than 32 bytes."""
    return _P5 + np.uint64(length)


@inlined
def merge_lane(h: Any, lane: Any) -> Any:
    """Fold one of the four lanes in."""
    return (h ^ mix_lane(_ZERO, lane)) * _P1 + _P4


@inlined
def merge_lanes(a: Any, b: Any, c: Any, d: Any, length: Any) -> Any:
    """Return the hash after the last round of 32 bytes. Args: length: of all bytes."""
    h = rotate_left(a, 1) + rotate_left(b, 7) + rotate_left(c, 12) + rotate_left(d, 18)
    return merge_lane(merge_lane(merge_lane(merge_lane(h, a), b), c), d) + np.uint64(length)


@inlined
def mix_tail(h: Any, at: Any, end: Any) -> Any:
    """Mix in the fewer than 32 bytes that are left, and do the final mixing."""
    while at + 8 <= end:
        h = mix_8(h, load_word(at))
        at += 8
    if at + 4 <= end:
        h = mix_4(h, load_half(at))
        at += 4
    while at < end:
        h = mix_1(h, load_byte(at))
        at += 1
    return avalanche(h)


@inlined
def xxh64(address: Any, length: Any) -> Any:
    """Return xxh64 of the bytes at an address."""
    at = address
    end = address + length
    if length >= 32:
        a, b, c, d = _LANE_2, _P2, _ZERO, _LANE_4
        while at + 32 <= end:
            a = mix_lane(a, load_word(at))
            b = mix_lane(b, load_word(at + 8))
            c = mix_lane(c, load_word(at + 16))
            d = mix_lane(d, load_word(at + 24))
            at += 32
        h = merge_lanes(a, b, c, d, length)
    else:
        h = begin_short(length)
    return mix_tail(h, at, end)


@inlined
def xxh64_tagged(tag: Any, address: Any, length: Any) -> Any:
    """Return xxh64 of a tag byte, `length` as uint32, little endian, and the bytes at an address."""
    header = np.uint64(tag) | ((np.uint64(length) & np.uint64(0xFFFFFFFF)) << np.uint64(8))
    end = address + length
    whole = length + 5
    if length < 3:
        h = mix_1(mix_4(begin_short(whole), header), _ZERO)
        return mix_tail(h, address, end)
    first = header | (_load_3(address, length) << np.uint64(40))
    at = address + 3
    if whole >= 32:
        a = mix_lane(_LANE_2, first)
        b = mix_lane(_P2, load_word(at))
        c = mix_lane(_ZERO, load_word(at + 8))
        d = mix_lane(_LANE_4, load_word(at + 16))
        at += 24
        while at + 32 <= end:
            a = mix_lane(a, load_word(at))
            b = mix_lane(b, load_word(at + 8))
            c = mix_lane(c, load_word(at + 16))
            d = mix_lane(d, load_word(at + 24))
            at += 32
        h = merge_lanes(a, b, c, d, whole)
    else:
        h = mix_8(begin_short(whole), first)
    return mix_tail(h, at, end)


@inlined
def _load_3(address: Any, length: Any) -> Any:
    """Return three bytes, and perhaps others above them."""
    if length > 3:
        return load_half(address)
    return load_byte(address) | (load_byte(address + 1) << np.uint64(8)) | (load_byte(address + 2) << np.uint64(16))
