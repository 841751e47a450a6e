"""The back ends in memory keep the contract."""

from __future__ import annotations

from state_suites.backend_conformance import KeyedBackendConformance

from tidegate.state.heap.heap_backend import HeapBackend, MemoryBackend


class TestHeapBackend(KeyedBackendConformance):
    def make_backend(self) -> HeapBackend:
        return HeapBackend()


class TestMemoryBackend(KeyedBackendConformance):
    def make_backend(self) -> MemoryBackend:
        return MemoryBackend()
