"""Keys of every type, with what must come of them in every process, version and platform (S5.1).

`python -m state_suites.key_vectors` prints them as the golden file of the tests has them.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.state.keys.key_bytes import canonical_bytes
from tidegate.state.keys.key_hash import hash_keys, key_groups

GROUPS = 128
_D = decimal.Decimal
_NOON = dt.datetime(2013, 7, 1, 12, 0, 0, 250_000, tzinfo=dt.UTC)
_OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
_DECIMALS = ["0", "1.50", "-1.50", "100", "-100", "127", "128", "-128", "-129", "0.01"]


def arrays() -> Mapping[str, pa.Array]:
    """Keys by name of their type."""
    small, words = [0, 1, -1, 100, -128, 127, None], ["", "a", "AA", "ü", "x" * 300, "nul\x00", None]
    raw = [b"", b"a", b"\x00", b"\xff" * 40, None]
    integers = {f"int{width}": pa.array(small, getattr(pa, f"int{width}")()) for width in (8, 16, 32, 64)}
    unsigned = {f"uint{w}": pa.array([0, 1, 2**w - 1, None], getattr(pa, f"uint{w}")()) for w in (8, 16, 32, 64)}
    doubles = np.array([0.0, -0.0, np.nan, _OTHER_NAN, 1.5, -np.inf, 5e-324])
    times = [int(_NOON.timestamp() * 1000), 0, -1, None]
    clocks = [0, 1, 43_200_250, None]
    stamps = {
        f"timestamp[{unit}]": pa.array(times, pa.timestamp("ms")).cast(pa.timestamp(unit), safe=False)
        for unit in ("s", "ms", "us", "ns")
    }
    spans = {
        f"duration[{unit}]": pa.array([0, -1500, 86_400_000, None], pa.duration("ms")).cast(
            pa.duration(unit), safe=False
        )
        for unit in ("s", "ms", "us", "ns")
    }
    return {
        **integers,
        **unsigned,
        "bool": pa.array([True, False, None]),
        "float16": pa.array([np.float16(1.5), np.float16(-0.0), np.float16(np.nan), None], pa.float16()),
        "float32": pa.array(doubles[:6]).cast(pa.float32()),
        "float64": pa.array(doubles),
        **stamps,
        "timestamp[us, zone]": pa.array(times, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "Asia/Tokyo")),
        "timestamp[ns, not whole]": pa.array([1_500, 2_000, -1, None], pa.timestamp("ns")),
        "date32": pa.array([dt.date(2013, 7, 1), dt.date(1969, 12, 31), None], pa.date32()),
        "date64": pa.array([dt.date(2013, 7, 1), dt.date(1969, 12, 31), None], pa.date64()),
        "time32[s]": pa.array([0, 43_200, None], pa.time32("s")),
        "time32[ms]": pa.array(clocks, pa.time32("ms")),
        "time64[us]": pa.array(clocks, pa.time32("ms")).cast(pa.time64("us")),
        "time64[ns]": pa.array([0, 1_000_000, 1, 1_500, None], pa.time64("ns")),
        **spans,
        "duration[ns, not whole]": pa.array([1, -1, 1_000, None], pa.duration("ns")),
        "string": pa.array(words, pa.string()),
        "large_string": pa.array(words, pa.large_string()),
        "string_view": pa.array(words, pa.string_view()),
        "binary": pa.array(raw, pa.binary()),
        "large_binary": pa.array(raw, pa.large_binary()),
        "binary_view": pa.array(raw, pa.binary_view()),
        "fixed_size_binary": pa.array([b"abcd", b"\x00" * 4, None], pa.binary(4)),
        "dictionary of string": pa.array(words).dictionary_encode(),
        "dictionary of int16": pa.array(small, pa.int16()).dictionary_encode(),
        "decimal32": _decimals(["1.50", "-99999.99", "100", "0"], pa.decimal32(7, 2)),
        "decimal64": _decimals(_DECIMALS, pa.decimal64(18, 4)),
        "decimal128": _decimals([*_DECIMALS, "9" * 36, "-" + "9" * 36], pa.decimal128(38, 2)),
        "decimal128 of tens": _decimals(["100", "-150", "0"], pa.decimal128(9, -1)),
        "decimal256": _decimals([*_DECIMALS, "9" * 70, "-1" + "0" * 69], pa.decimal256(76, 6)),
    }


def vectors() -> dict[str, list[list[Any]]]:
    """For each type and key: canonical bytes and hash as hexadecimal, key group of 128. And for two composite keys."""
    found = {name: _vectors([array]) for name, array in arrays().items()}
    some = arrays()
    found["string, int16"] = _vectors([some["string"].slice(0, 3), some["int16"].slice(4, 3)])
    found["decimal128, date32"] = _vectors([some["decimal128"].slice(1, 3), some["date32"].slice(0, 3)])
    return found


def _vectors(columns: Sequence[pa.Array]) -> list[list[Any]]:
    names = [str(i) for i in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(list(columns), names)
    data, offsets = canonical_bytes(batch, names)
    hashes = hash_keys(batch, names)
    groups = key_groups(hashes, GROUPS).tolist()
    rows = [data[start:end].tobytes().hex() for start, end in zip(offsets, offsets[1:])]
    return [[row, f"{int(h):016x}", group] for row, h, group in zip(rows, hashes, groups, strict=True)]


def _decimals(texts: Sequence[str], type_: pa.DataType) -> pa.Array:
    with decimal.localcontext(prec=100):
        return pa.array([*(_D(text) for text in texts), None], type_)


if __name__ == "__main__":
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(rows)}" for name, rows in vectors().items())
    sys.stdout.write(f"{{\n{lines}\n}}\n")
