"""Key -> xxh64 over canonical bytes -> key group -> subtask (S5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.compiled import inlined, kernel
from tidegate.state.keybytes import canonical_bytes, fixed_column, is_fixed_key_type, key_array
from tidegate.state.xxh64 import avalanche, begin_short, mix_1, mix_8, xxh64

MAX_KEY_GROUPS = 32768
"""Upper limit of `max_parallelism`: key groups are uint16, and each costs some bytes in every snapshot."""

Hashes = npt.NDArray[np.uint64]
KeyGroups = npt.NDArray[np.uint16]


def hash_keys(batch: pa.RecordBatch, columns: Sequence[str]) -> Hashes:
    """xxh64 (seed 0) of the canonical bytes of each row's key.

    A single column of numbers, booleans or times is hashed without making the bytes.

    Args:
        batch: n rows.
        columns: key columns, in order; at least one.

    Returns:
        uint64[n].

    Raises:
        PipelineError: a column's type cannot be a key.
    """
    out = np.empty(batch.num_rows, np.uint64)
    first = key_array(batch, columns[0])
    if len(columns) == 1 and is_fixed_key_type(first.type):
        column = fixed_column(first)
        if column.tags is None:
            _hash_fixed(column.values, column.tag, out)
        else:
            _hash_tagged(column.tags, column.values, out)
    else:
        data, offsets = canonical_bytes(batch, columns)
        hash_rows(data, offsets, out)
    return out


def key_groups(hashes: Hashes, max_parallelism: int) -> KeyGroups:
    """Key group of each hash: hash modulo `max_parallelism`, as uint16[n]."""
    assert 0 < max_parallelism <= MAX_KEY_GROUPS, f"max_parallelism {max_parallelism} is not in 1..{MAX_KEY_GROUPS}"
    out = np.empty(len(hashes), np.uint16)
    _key_groups(hashes, np.uint64(max_parallelism), out)
    return out


def subtask_of_key_groups(parallelism: int, max_parallelism: int) -> npt.NDArray[np.uint16]:
    """The subtask that owns each key group: contiguous ranges, `group * parallelism // max_parallelism`. Entry per group."""
    assert 0 < parallelism <= max_parallelism <= MAX_KEY_GROUPS, f"parallelism {parallelism} > {max_parallelism}"
    return (np.arange(max_parallelism, dtype=np.int64) * parallelism // max_parallelism).astype(np.uint16)


@inlined
def key_group(h: Any, groups: Any) -> Any:
    """hash modulo groups; a mask where groups is a power of two."""
    rest = groups - np.uint64(1)
    return h & rest if (groups & rest) == np.uint64(0) else h % groups


@inlined
def hash_tagged_value(tag: Any, value: Any) -> Any:
    """xxh64 of a tag byte and eight bytes, little endian."""
    word = np.uint64(value)
    h = mix_8(begin_short(9), (word << np.uint64(8)) | np.uint64(tag))
    return avalanche(mix_1(h, word >> np.uint64(56)))


@kernel("void(i8[], u1, u8[]!)")
def _hash_fixed(values: Any, tag: Any, out: Any) -> None:
    for i in range(len(values)):
        out[i] = hash_tagged_value(tag, values[i])


@kernel("void(u1[], i8[], u8[]!)")
def _hash_tagged(tags: Any, values: Any, out: Any) -> None:
    of_null = avalanche(mix_1(begin_short(1), np.uint64(0)))
    for i in range(len(values)):
        out[i] = hash_tagged_value(tags[i], values[i]) if tags[i] else of_null


@kernel("void(u1[], i8[], u8[]!)")
def hash_rows(data: Any, offsets: Any, out: Any) -> None:
    """xxh64 of data[offsets[i]:offsets[i + 1]] for each i."""
    for i in range(len(out)):
        out[i] = xxh64(data, offsets[i], offsets[i + 1])


@kernel("void(u8[], u8, u2[]!)")
def _key_groups(hashes: Any, groups: Any, out: Any) -> None:
    for i in range(len(hashes)):
        out[i] = key_group(hashes[i], groups)
