"""xxh64 with seed 0, after the published specification of XXH64, for use in kernels (S5.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

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
def mix_1(h: Any, byte: Any) -> Any:
    """Mix in one byte of the tail."""
    return rotate_left(h ^ (np.uint64(byte) * _P5), 11) * _P1


@inlined
def begin_short(length: Any) -> Any:
    """Return the initial hash of fewer than 32 bytes."""
    return _P5 + np.uint64(length)


@inlined
def read_u32(data: Any, at: Any) -> Any:
    """Return four bytes, little endian."""
    value = _ZERO
    for i in range(4):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return value


@inlined
def read_u64(data: Any, at: Any) -> Any:
    """Return eight bytes, little endian."""
    return read_u32(data, at) | (read_u32(data, at + 4) << np.uint64(32))


@inlined
def merge_lane(h: Any, lane: Any) -> Any:
    """Fold one of the four lanes in."""
    return (h ^ mix_lane(_ZERO, lane)) * _P1 + _P4


@inlined
def xxh64(data: Any, start: Any, end: Any) -> Any:
    """Return xxh64 of data[start:end]."""
    length = end - start
    at = start
    if length >= 32:
        a, b, c, d = _LANE_2, _P2, _ZERO, _LANE_4
        while at + 32 <= end:
            a = mix_lane(a, read_u64(data, at))
            b = mix_lane(b, read_u64(data, at + 8))
            c = mix_lane(c, read_u64(data, at + 16))
            d = mix_lane(d, read_u64(data, at + 24))
            at += 32
        h = rotate_left(a, 1) + rotate_left(b, 7) + rotate_left(c, 12) + rotate_left(d, 18)
        h = merge_lane(merge_lane(merge_lane(merge_lane(h, a), b), c), d) + np.uint64(length)
    else:
        h = begin_short(length)
    while at + 8 <= end:
        h = mix_8(h, read_u64(data, at))
        at += 8
    if at + 4 <= end:
        h = rotate_left(h ^ (read_u32(data, at) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        h = mix_1(h, data[at])
        at += 1
    return avalanche(h)
