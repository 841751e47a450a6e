"""S9.1: of every error class of the runtime it is decided whether a restart can cure it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import tidegate
from tidegate.coordinator.job_run import RunFailed
from tidegate.coordinator.supervision.restart_strategy import restart_strategy
from tidegate.coordinator.supervision.retry_policy import Curability, RetryPolicy, curability
from tidegate.errors import (
    DataError,
    NotFoundError,
    OutageError,
    RecordError,
    SinkConflictError,
    StoreError,
    TidegateError,
)
from tidegate.jobs.options import JobOptions
from tidegate.subtask.failure_codes import RUNTIME_ERROR, SLOT_MEMORY, USER_ERROR, failure_code

DECISIONS: dict[str, Curability] = {
    "AlreadyExistsError": "curable",
    "ArrayTooLarge": "incurable",
    "ChannelError": "counted",
    "CommandRefusedError": "counted",
    "DataError": "counted",
    "DriverLostError": "curable",
    "EnvironmentProblemError": "incurable",
    "FencedError": "curable",
    "HandshakeError": "curable",
    "JobExistsError": "counted",
    "JobFailedError": "counted",
    "JobNotFoundError": "counted",
    "MissingExtraError": "incurable",
    "NotFoundError": "counted",
    "OptionError": "incurable",
    "OutageError": "curable",
    "PeerLostError": "curable",
    "PipelineError": "incurable",
    "ProtocolError": "counted",
    "RecordError": "counted",
    "SinkConflictError": "incurable",
    "SlotsUnavailableError": "curable",
    "SnapshotError": "incurable",
    "SparkLostError": "curable",
    "StoreError": "curable",
    "StoreGuaranteeError": "curable",
    "SumOverflowError": "counted",
    "TidegateError": "counted",
    "UnclearAnswerError": "curable",
    "UnknownSchemaError": "incurable",
    "WaitTimeoutError": "curable",
}


def error_classes() -> set[type[TidegateError]]:
    """All there are: a module is imported when it defines a class that may be one."""
    source = Path(tidegate.__file__).parent
    for file in source.rglob("*.py"):
        if re.search(r"^class \w+\([^)]*(Error|Failure|TooLarge|Promise)\b[^)]*\):", file.read_text(), re.MULTILINE):
            name = ".".join(file.relative_to(source.parent).with_suffix("").parts)
            importlib.import_module(name.removesuffix(".__init__"))
    found: set[type[TidegateError]] = set()
    waiting: list[type[TidegateError]] = [TidegateError]
    while waiting:
        kind = waiting.pop()
        found.add(kind)
        waiting += kind.__subclasses__()
    return {kind for kind in found if kind.__module__.startswith("tidegate.")}


def test_every_error_class_of_the_runtime_has_a_decision() -> None:
    """S9.1: a new class fails here until somebody has decided, in `curability` and in this table."""
    found = {kind.__name__: kind for kind in error_classes()}
    assert sorted(found) == sorted(DECISIONS)
    assert {name: curability(kind.code) for name, kind in found.items()} == DECISIONS


@pytest.mark.parametrize(
    ("error", "decision"),
    [
        (TidegateError("the database took another number of rows"), "counted"),
        (DataError("an event time of 5 us"), "counted"),
        (SinkConflictError("a file that this transaction did not write"), "incurable"),
        (OutageError("no answer in 5 s"), "curable"),
        (StoreError("503"), "curable"),
        (NotFoundError("no object"), "counted"),
        (RecordError("damaged"), "counted"),
        (OSError(28, "No space left on device"), "curable"),
        (MemoryError(), "curable"),
    ],
)
def test_what_a_slot_reports_is_decided_by_its_error(error: Exception, decision: Curability) -> None:
    assert curability(failure_code(error)) == decision
    assert (curability(USER_ERROR), curability(RUNTIME_ERROR), curability(SLOT_MEMORY)) == ("counted",) * 3


@pytest.mark.parametrize("outage", [ConnectionResetError("reset"), StoreError("503"), OutageError("no answer")])
@pytest.mark.parametrize("wrapped", [TidegateError("rows could not be staged"), DataError("a row")])
def test_what_an_outage_has_caused_is_never_counted(wrapped: Exception, outage: Exception) -> None:
    try:
        raise wrapped from outage
    except TidegateError as caught:
        assert curability(failure_code(caught)) == "curable"
    wrapped.__cause__ = None


def failures_until_given_up(failures: list[RunFailed]) -> int | None:
    restarts = RetryPolicy(restart_strategy(JobOptions()))
    for number, failure in enumerate(failures, 1):
        if restarts.on_failure(failure, 1_000 * number) is None:
            return number
    return None


def memory_exceeded(mib: int, slot: int = 0) -> RunFailed:
    return RunFailed(f"slot {slot} exceeded slot_memory: {mib} MiB resident", subtask=slot, code=SLOT_MEMORY)


def test_a_slot_that_exceeds_its_memory_three_times_in_a_row_is_given_up() -> None:
    """However much it was each time."""
    assert failures_until_given_up([memory_exceeded(1_025 + n) for n in range(9)]) == 3
    assert failures_until_given_up([memory_exceeded(1_025, slot=n % 2) for n in range(9)]) is None


def test_a_slot_that_exceeds_its_memory_after_progress_is_restarted() -> None:
    restarts = RetryPolicy(restart_strategy(JobOptions()))
    for n in range(9):
        assert restarts.on_failure(memory_exceeded(1_025), 1_000 * n) is not None
        restarts.on_progress()


def test_a_runtime_error_that_names_its_run_is_the_same_error_in_the_next_run() -> None:
    """Transactions, checkpoints and runs have new ids in every run."""

    def refused(n: int, rows: int = 7) -> RunFailed:
        transaction = f"job,0011aabb,out,0,{n + 4},1,{n:06d}0a1b2c3d,1"
        text = f"rows could not be staged [job job, sink 'out', {transaction}, checkpoint {n + 4}]: given {rows}"
        return RunFailed(text, "out", 0, code=RUNTIME_ERROR)

    assert failures_until_given_up([refused(n) for n in range(9)]) == 3
    assert failures_until_given_up([refused(n, rows=n) for n in range(9)]) is None


def test_an_outage_is_restarted_from_for_ever() -> None:
    assert failures_until_given_up([RunFailed("no answer in 5 s", "calls", 0, code="outage")] * 100) is None
