"""Random use, crashes and rescales of RocksDB beside the reference."""

from __future__ import annotations

from functools import partial

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from state_suites.backend_machine import BackendMachine

from tidegate.state.rocksdb.rocksdb_backend import RocksDBBackend

SETTINGS = settings(
    max_examples=6,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.reuse, Phase.generate],
)
"""Fewer than of the others: opening and closing a database costs some tens of milliseconds, and shrinking minutes."""


def test_rocksdb_holds_what_the_reference_holds_through_crashes_and_rescales() -> None:
    run_state_machine_as_test(partial(BackendMachine, {"rocksdb": RocksDBBackend}), settings=SETTINGS)
