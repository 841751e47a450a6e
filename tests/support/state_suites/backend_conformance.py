"""The conformance suite for keyed state back ends: subclass it, say how to make one, and pytest runs the contract.

class TestMyBackend(KeyedBackendConformance):
    def make_backend(self):
        return MyBackend()

Needs pytest. A back end that passes keeps every kind of state for keys of every type, and what it snapshots comes back
at any parallelism, in any back end (S5). The reference that it is compared with is `model_backend.ModelBackend`.
"""

from __future__ import annotations

from state_suites.kinds_conformance import KeyTests, ListTests, MapTests, MergingTests, ValueTests
from state_suites.snapshot_conformance import IsolationTests, LayoutTests, RestoreTests, WrongStateTests
from state_suites.time_conformance import TimerTests, TtlTests


class KeyedBackendConformance(
    KeyTests,
    ValueTests,
    ListTests,
    MapTests,
    MergingTests,
    TtlTests,
    TimerTests,
    RestoreTests,
    IsolationTests,
    LayoutTests,
    WrongStateTests,
):
    """Subclass it, named `Test...`, and give `make_backend`."""
