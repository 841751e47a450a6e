"""The back ends in memory keep the contract."""

from __future__ import annotations

from tidegate.state.heap import HeapBackend
from tidegate.state.memory import MemoryBackend
from tidegate.testing.state_conformance import KeyedBackendConformance


class TestHeapBackend(KeyedBackendConformance):
    def make_backend(self) -> HeapBackend:
        return HeapBackend()


class TestMemoryBackend(KeyedBackendConformance):
    def make_backend(self) -> MemoryBackend:
        return MemoryBackend()
