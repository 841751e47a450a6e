"""The back end `rocksdb` keeps the contract of keyed state back ends."""

from __future__ import annotations

from state_suites.backend_conformance import KeyedBackendConformance

from tidegate.state.rocksdb.rocksdb_backend import RocksDBBackend


class TestRocksBackend(KeyedBackendConformance):
    many_keys = 10_000

    def make_backend(self) -> RocksDBBackend:
        return RocksDBBackend()
