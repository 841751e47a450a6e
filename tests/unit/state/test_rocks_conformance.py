"""The back end `rocksdb` keeps the contract of keyed state back ends."""

from __future__ import annotations

from tidegate.state.rocks_backend import RocksBackend
from tidegate.testing.state_conformance import KeyedBackendConformance


class TestRocksBackend(KeyedBackendConformance):
    many_keys = 10_000

    def make_backend(self) -> RocksBackend:
        return RocksBackend()
