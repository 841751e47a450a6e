"""The reference back end keeps the contract that it is the reference of."""

from __future__ import annotations

from state_suites.backend_conformance import KeyedBackendConformance
from state_suites.model_backend import ModelBackend


class TestModelBackend(KeyedBackendConformance):
    many_keys = 1_000

    def make_backend(self) -> ModelBackend:
        return ModelBackend()
