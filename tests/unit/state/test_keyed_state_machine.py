"""Random use, crashes and rescales of every back end beside the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from state_suites.backend_machine import BackendMachine
from state_suites.model_backend import ModelBackend

from tidegate.state.heap.heap_backend import HeapBackend, MemoryBackend
from tidegate.state.keyed_state import KeyedStateBackend
from tidegate.state.rocksdb.rocksdb_backend import RocksDBBackend

BACKENDS: dict[str, Callable[[], KeyedStateBackend]] = {
    "model": ModelBackend,
    "heap": HeapBackend,
    "memory": MemoryBackend,
    "rocksdb": RocksDBBackend,
}
SETTINGS = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_back_end_holds_what_the_reference_holds_through_crashes_and_rescales(name: str) -> None:
    machine = partial(BackendMachine, {name: BACKENDS[name]})
    examples = 8 if name == "rocksdb" else 20  # it opens a database for each subtask and restore
    run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=examples))


def test_a_job_changes_its_back_end_at_portable_snapshots() -> None:
    machine = partial(BackendMachine, BACKENDS)
    run_state_machine_as_test(machine, settings=SETTINGS)
