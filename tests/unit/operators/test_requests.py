"""Functions asked on threads and on an event loop: at once, each answer once, and nothing waits for what hangs."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tidegate.operators.async_requests import MAX_THREADS, LoopRequests, ThreadRequests, start_requests
from tidegate.operators.stream_operator import AsyncRequests

BATCH = pa.record_batch({"v": [1]})
PATIENCE_S = 30.0


class Answers:
    """What `done` was told, in order of arrival."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[tuple[int, object, BaseException | None]] = queue.SimpleQueue()

    def __call__(self, number: int, answer: object, error: BaseException | None) -> None:
        self._told.put((number, answer, error))

    def take(self, n: int) -> dict[int, Any]:
        """The next n, number -> answer or error."""
        told = [self._told.get(timeout=PATIENCE_S) for _ in range(n)]
        return {number: error or answer for number, answer, error in told}


@pytest.fixture
def answers() -> Answers:
    return Answers()


def test_requests_on_threads_go_on_at_once(answers: Answers) -> None:
    together = threading.Barrier(5)
    requests = start_requests(lambda batch: together.wait(PATIENCE_S), 5, answers)  # type: ignore[arg-type, return-value]
    assert isinstance(requests, ThreadRequests)
    for number in range(5):
        requests.submit(number, BATCH)
    assert sorted(answers.take(5).values()) == [0, 1, 2, 3, 4], "each got past the barrier that all five wait at"
    requests.close()


def test_a_thread_that_is_free_is_used_again_and_there_are_never_more_than_allowed(answers: Answers) -> None:
    used: set[int] = set()

    def ask(batch: pa.RecordBatch) -> pa.RecordBatch:
        used.add(threading.get_ident())
        return batch

    requests = ThreadRequests(ask, 2, answers)
    for number in range(50):
        requests.submit(number, BATCH)
    assert set(answers.take(50)) == set(range(50))
    assert len(used) <= 2
    requests.close()
    assert MAX_THREADS >= 1


def test_coroutines_go_on_at_once_on_one_thread(answers: Answers) -> None:
    waiting: list[asyncio.Future[None]] = []

    async def ask(batch: pa.RecordBatch) -> int:
        """The last of five lets all go."""
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        if len(waiting) == 5:
            for other in waiting:
                other.set_result(None)
        await mine
        return threading.get_ident()

    requests = start_requests(ask, 5, answers)  # type: ignore[arg-type]
    assert isinstance(requests, LoopRequests)
    for number in range(5):
        requests.submit(number, BATCH)
    assert len(set(answers.take(5).values())) == 1
    requests.close()


def raising(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise KeyError("no such customer")


async def raising_later(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise KeyError("no such customer")


@pytest.mark.parametrize("function", [raising, raising_later])
def test_what_the_function_raises_is_the_answer(answers: Answers, function: Callable[..., Any]) -> None:
    requests: AsyncRequests = start_requests(function, 1, answers)
    requests.submit(7, BATCH)
    error = answers.take(1)[7]
    assert isinstance(error, KeyError) and error.__traceback__ is not None
    requests.close()


def test_a_coroutine_that_is_not_wanted_any_more_is_broken_off(answers: Answers) -> None:
    broken_off, begun = threading.Event(), threading.Event()

    async def hang(batch: pa.RecordBatch) -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            broken_off.set()
            raise

    for end in ("cancel", "close"):
        broken_off.clear(), begun.clear()
        requests = start_requests(hang, 1, answers)
        requests.submit(1, BATCH)
        assert begun.wait(PATIENCE_S)
        requests.cancel(1) if end == "cancel" else requests.close()
        assert broken_off.wait(PATIENCE_S)


def test_an_object_whose_call_is_a_coroutine_runs_on_a_loop(answers: Answers) -> None:
    class Service:
        async def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch

    requests = start_requests(Service(), 1, answers)
    requests.submit(1, BATCH)
    assert answers.take(1)[1] == BATCH
    requests.close()


def test_a_generator_function_runs_on_the_thread_to_its_end(answers: Answers) -> None:
    """Else its code, and what it waits for, would run on the slot's loop when that goes through the answer."""

    def ask(batch: pa.RecordBatch) -> Iterator[int]:
        yield threading.get_ident()

    requests = start_requests(ask, 1, answers)  # type: ignore[arg-type]
    requests.submit(1, BATCH)
    (ran_on,) = answers.take(1)[1]
    assert ran_on != threading.get_ident()
    requests.close()


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
def test_a_coroutine_that_breaks_itself_off_is_over_and_the_loop_goes_on(
    answers: Answers, error: type[BaseException]
) -> None:
    """As a future does that somebody else has cancelled: nobody would ever hear of the request."""

    async def ask(batch: pa.RecordBatch) -> pa.RecordBatch:
        if len(asked) < 1:
            asked.append(batch)
            raise error
        return batch

    asked: list[pa.RecordBatch] = []
    requests = start_requests(ask, 1, answers)
    requests.submit(1, BATCH)
    assert isinstance(answers.take(1)[1], error)
    requests.submit(2, BATCH)
    assert answers.take(1)[2] == BATCH
    requests.close()
    requests.close()


def test_what_waits_for_a_thread_is_not_asked_any_more_after_the_end(answers: Answers) -> None:
    begun, go_on, asked = threading.Event(), threading.Event(), []

    def ask(batch: pa.RecordBatch) -> None:
        asked.append(threading.current_thread())
        begun.set()
        assert go_on.wait(PATIENCE_S)

    requests = start_requests(ask, 1, answers)
    for number in range(5):
        requests.submit(number, BATCH)
    assert begun.wait(PATIENCE_S)
    requests.close()
    go_on.set()
    asked[0].join(PATIENCE_S)
    assert len(asked) == 1
