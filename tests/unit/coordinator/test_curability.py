"""S9.1: the same error about the same data is known again in another run, whose code lies in another folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tidegate.coordinator.job_run import RunFailed
from tidegate.coordinator.supervision.restart_strategy import restart_strategy
from tidegate.coordinator.supervision.retry_policy import RetryPolicy
from tidegate.jobs.options import JobOptions
from tidegate.spark.scratch import ScratchFolder
from tidegate.subtask.chain import OperatorFailure

CODE = "def price(row):\n    raise ValueError(f'{row} has no price, {object.__repr__(row)}')\n"


def failure_of_a_run() -> RunFailed:
    """As a slot reports it: each has a folder of its own, into which it unpacks the pipeline."""
    scratch = ScratchFolder("slot0")
    try:
        file = Path(scratch.path, "priced.py")
        file.write_text(CODE)
        spec = importlib.util.spec_from_file_location("priced", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            module.price("order 17")
        except ValueError as error:
            failure = OperatorFailure("priced", 1, error)
            return RunFailed(failure.message, failure.uid, failure.subtask, failure.traceback, failure.code)
        raise AssertionError("it was to fail")
    finally:
        scratch.remove()


def test_a_row_that_fails_in_every_run_is_given_up_after_three() -> None:
    restarts = RetryPolicy(restart_strategy(JobOptions()))
    delays = [restarts.on_failure(failure_of_a_run(), 1_000 * n) for n in range(3)]
    assert delays[0] is not None and delays[1] is not None
    assert delays[2] is None and "the same error occurred 3 times" in restarts.exhausted


def test_another_row_is_another_error() -> None:
    restarts = RetryPolicy(restart_strategy(JobOptions()))
    failures = [RunFailed(f"ValueError: order {n}", "priced", 1, "traceback", "user_error") for n in range(9)]
    assert None not in [restarts.on_failure(failure, 1_000 * n) for n, failure in enumerate(failures)]
