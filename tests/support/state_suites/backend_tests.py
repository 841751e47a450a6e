"""What the parts of the conformance suite of keyed state back ends share: opening back ends, and cases of types."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from state_suites.plain_states import FakeClock, PlainBackend, Row, SnapshotShelf
from tidegate.state.keyed_state import KeyedStateBackend, StateDescriptor

NAN = math.nan
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
DAY = dt.date(2013, 7, 1)
_D = decimal.Decimal
NOON = dt.datetime(2013, 7, 1, 12, tzinfo=dt.UTC)

KEY_CASES: dict[str, tuple[pa.Schema, Sequence[Row]]] = {
    "int64": (pa.schema([("k", pa.int64())]), [(0,), (None,), (-1,), (2**63 - 1,), (-(2**63),), (7,)]),
    "int16": (pa.schema([("k", pa.int16())]), [(0,), (None,), (-1,), (300,)]),
    "uint64": (pa.schema([("k", pa.uint64())]), [(0,), (None,), (2**63,), (2**64 - 1,)]),
    "bool": (pa.schema([("k", pa.bool_())]), [(False,), (None,), (True,)]),
    "float64": (pa.schema([("k", pa.float64())]), [(0.0,), (None,), (NAN,), (1.5,), (-math.inf,)]),
    "float32": (pa.schema([("k", pa.float32())]), [(0.0,), (None,), (NAN,), (1.5,)]),
    "string": (pa.schema([("k", pa.string())]), [("",), (None,), ("a",), ("ü" * 300,), ("a\x00",)]),
    "binary": (pa.schema([("k", pa.binary())]), [(b"",), (None,), (b"\x00",), (b"\x00\x00",)]),
    "date": (pa.schema([("k", pa.date32())]), [(DAY,), (None,), (dt.date(1969, 12, 31),)]),
    "timestamp": (pa.schema([("k", pa.timestamp("us", "UTC"))]), [(NOON,), (None,)]),
    "decimal": (
        pa.schema([("k", pa.decimal128(38, 4))]),
        [(_D("0"),), (None,), (_D("1.5"),), (_D("-0.0001"),), (_D("9" * 34),), (_D("100"),)],
    ),
    "decimal256": (pa.schema([("k", pa.decimal256(76, 0))]), [(_D("0"),), (None,), (_D("-1"),), (_D("7" + "0" * 60),)]),
    "time": (pa.schema([("k", pa.time32("ms"))]), [(dt.time(0),), (None,), (dt.time(23, 59, 59, 999_000),)]),
    "duration": (
        pa.schema([("k", pa.duration("s"))]),
        [(dt.timedelta(0),), (None,), (dt.timedelta(days=-3),), (dt.timedelta(seconds=1),)],
    ),
    "large string": (pa.schema([("k", pa.large_string())]), [("",), (None,), ("ü",)]),
    "fixed-size binary": (pa.schema([("k", pa.binary(3))]), [(b"abc",), (None,), (b"\x00" * 3,)]),
    "decimal and time": (
        pa.schema([("k", pa.decimal64(10, 2)), ("t", pa.time64("us"))]),
        [(_D("1.10"), dt.time(1)), (_D("1.10"), None), (None, dt.time(1)), (_D("11"), dt.time(1))],
    ),
    "pair": (
        pa.schema([("k", pa.string()), ("n", pa.int64())]),
        [("a", 1), ("a", None), (None, 1), (None, None), ("", 1), ("a", 2)],
    ),
    "float and date": (
        pa.schema([("k", pa.float64()), ("d", pa.date32())]),
        [(0.0, DAY), (NAN, DAY), (NAN, None), (None, DAY)],
    ),
}
"""Key columns, and keys that are all different."""

VALUE_CASES: dict[str, tuple[pa.Schema, Sequence[Row]]] = {
    "int64": (pa.schema([("v", pa.int64())]), [(1,), (None,), (-(2**63),)]),
    "float64": (pa.schema([("v", pa.float64())]), [(-0.0,), (NAN,), (None,), (0.1,)]),
    "string": (pa.schema([("v", pa.string())]), [("",), (None,), ("ü" * 500,)]),
    "binary": (pa.schema([("v", pa.binary())]), [(b"",), (None,), (b"\x00\xff",)]),
    "bool and date": (pa.schema([("v", pa.bool_()), ("d", pa.date32())]), [(True, DAY), (None, None), (False, None)]),
    "time": (pa.schema([("v", pa.timestamp("ms", "UTC"))]), [(NOON,), (None,)]),
    "decimal": (
        pa.schema([("v", pa.decimal128(38, 3))]),
        [(decimal.Decimal("12345678901234567890.125"),), (None,), (decimal.Decimal("-0.001"),)],
    ),
    "list": (pa.schema([("v", pa.list_(pa.int64()))]), [([1, None],), ([],), (None,), ([3],)]),
    "struct": (
        pa.schema([("v", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]))]),
        [({"a": 1, "b": ["x", None]},), (None,), ({"a": None, "b": None},)],
    ),
    "several": (
        pa.schema([("n", pa.int32()), ("s", pa.string()), ("l", pa.list_(pa.float64()))]),
        [(1, "a", [0.5]), (None, None, None), (2, "", [])],
    ),
}
"""Value columns, and rows."""


def value_state(name: str = "state", columns: pa.Schema | None = None, **more: Any) -> StateDescriptor:
    """A descriptor of kind "value", by default of one int64 column `v`."""
    return described("value", name, columns, **more)


def described(kind: Any, name: str = "state", columns: pa.Schema | None = None, **more: Any) -> StateDescriptor:
    """A descriptor; maps have one string column `m` as key."""
    if kind == "map":
        more.setdefault("map_key", pa.schema([("m", pa.string())]))
    return StateDescriptor(name, kind, columns or pa.schema([("v", pa.int64())]), **more)


class Rig:
    """Opens back ends that share a clock and a shelf of blobs, and closes them."""

    def __init__(self, make: Callable[[], KeyedStateBackend], directory: Path) -> None:
        self.clock = FakeClock()
        self.shelf = SnapshotShelf()
        self._make = make
        self._directory = directory
        self._opened: list[PlainBackend] = []

    def opened(self, make: Callable[[], KeyedStateBackend] | None = None, **context: Any) -> PlainBackend:
        """A new back end, of another kind with `make`; `context` as of `PlainBackend`."""
        scratch = self._directory / f"backend-{len(self._opened)}"
        scratch.mkdir()
        opened = PlainBackend((make or self._make)(), scratch=str(scratch), clock=self.clock, **context)
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        """Close all, twice: closing may come twice."""
        for opened in self._opened * 2:
            opened.backend.close()


class BackendTests(ABC):
    """Base of the parts of the suite.

    Attributes:
        many_keys: so many that a state is written in several pieces.
    """

    many_keys = 150_000

    @abstractmethod
    def make_backend(self) -> KeyedStateBackend:
        """A new back end, not open."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[Rig]:
        """Opens back ends under test."""
        rig = Rig(self.make_backend, tmp_path)
        yield rig
        rig.close()
