"""One look serves all who wait for a job: how often the store is asked, and what waits may do to each other."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.triggers.job_triggers import TidegateCheckpointTrigger, TidegateCommandTrigger
from airflow_tidegate.waits import shared_reader
from airflow_tidegate.waits.job_reader import LIVENESS_REQUESTS, REQUESTS_PER_READ, JobObservation, JobReader
from airflow_tidegate.waits.job_waits import CheckpointWait, CommandWait
from airflow_tidegate.waits.shared_reader import (
    MAX_CONCURRENT_READS,
    MAX_PAUSE_S,
    STORE_RETRIES,
    PollInterval,
    shared_job,
)
from tidegate.errors import StoreError
from tidegate.jobs.client.job_client import JobClient

POLL_S = 0.01
PATIENCE_S = 60
"""For what comes at once; only a defect makes a test wait so long."""


@pytest.fixture
def requests(job: Job, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests to the store since the test cleared it, by method."""
    counted: Counter[str] = Counter()
    store = type(job.client.store)

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any) -> Any:
            counted[name] += 1
            return real(self, *arguments)

        return call

    for name in ("read_range", "list", "exists", "walk", "create", "replace"):
        monkeypatch.setattr(store, name, counting(name, getattr(store, name)))
    return counted


class Ask:
    """An observer that answers when `condition` holds, and notes what it saw."""

    def __init__(
        self, condition: Callable[[JobObservation], Any] = lambda observed: None, poll_s: float = POLL_S
    ) -> None:
        self.condition, self.poll_s = condition, poll_s
        self.deadline_at: float | None = None
        self.looks: list[JobObservation] = []

    def evaluate(self, client: JobClient, observed: JobObservation) -> Any:
        self.looks.append(observed)
        return self.condition(observed)


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def first(job: Job, *observers: Ask, job_id: str = "j1") -> list[Any]:
    """What each observer gets, exceptions included."""

    async def ask() -> list[Any]:
        async with shared_job(str(job.root), job_id) as shared:
            return await asyncio.gather(*(shared.first(o) for o in observers), return_exceptions=True)

    return list(run(ask()))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def checkpoint_trigger(job: Job, **wait: Any) -> TidegateCheckpointTrigger:
    return TidegateCheckpointTrigger(
        root=str(job.root), job_id="j1", wait=CheckpointWait(**wait).fields(), poll_s=POLL_S
    )


# ------------------------------------------------------------ how often the store is asked


def test_a_look_at_a_living_job_costs_three_requests_however_long_its_log(
    job: Job, driver: ScriptedDriver, requests: Counter[str]
) -> None:
    for number in range(1, 40):
        driver.checkpoint(number)
    reader = JobReader(JobClient(str(job.root), "j1"))
    reader.read()
    for _ in range(3):
        driver.beat()
        requests.clear()
        assert not reader.read().moved
        assert requests == {"read_range": REQUESTS_PER_READ}


def test_a_look_asks_for_the_process_of_a_driver_that_gives_no_sign_of_life_for_three_intervals(
    job: Job, driver: ScriptedDriver, requests: Counter[str]
) -> None:
    now = [0.0]
    reader = JobReader(job.client, lambda: now[0])
    job.client.view()  # reads the log
    for quiet_s, asks in ((0.0, True), (2.9, False), (0.1, True), (1.0, True)):
        now[0] += quiet_s
        requests.clear()
        moved = reader.read().moved
        assert moved is asks, "a silent job is to be looked at again soon"
        more = sum(requests.values()) - REQUESTS_PER_READ
        assert 1 <= more <= LIVENESS_REQUESTS if asks else more == 0
    driver.beat()
    requests.clear()
    assert not reader.read().moved
    assert requests == {"read_range": REQUESTS_PER_READ}


def test_a_new_entry_of_the_log_costs_one_request_once(
    job: Job, driver: ScriptedDriver, requests: Counter[str]
) -> None:
    reader = JobReader(job.client)
    reader.read()
    driver.checkpoint(1)
    driver.beat()
    requests.clear()
    assert reader.read().moved
    assert requests == {"read_range": REQUESTS_PER_READ + 2}
    driver.beat()
    requests.clear()
    assert not reader.read().moved
    assert requests == {"read_range": REQUESTS_PER_READ}


def test_fifty_waits_on_a_job_cost_no_more_than_one(job: Job, driver: ScriptedDriver, requests: Counter[str]) -> None:
    observers = [Ask(lambda observed: len(observed.view.completed) or None) for _ in range(50)]

    async def wait() -> None:
        async with shared_job(str(job.root), "j1") as shared:
            waits = [asyncio.create_task(shared.first(o)) for o in observers]
            await until(lambda: all(len(o.looks) >= 3 for o in observers))
            driver.checkpoint(1)
            await asyncio.gather(*waits)

    requests.clear()
    run(wait())
    looks = {id(observed) for o in observers for observed in o.looks}
    assert {len(o.looks) for o in observers} == {len(looks)}
    log_length, opening = 5, 20
    assert (
        requests["read_range"] + requests["list"]
        <= len(looks) * (REQUESTS_PER_READ + LIVENESS_REQUESTS) + log_length + opening
    )


def test_a_command_that_is_waited_for_costs_one_request_a_look(
    job: Job, driver: ScriptedDriver, requests: Counter[str]
) -> None:
    reader, wait = JobReader(job.client), CommandWait(command_id="c")
    reader.read()
    driver.beat()
    requests.clear()
    observed = reader.read()
    assert wait.check(job.client, observed.view) is None
    assert requests == {"read_range": REQUESTS_PER_READ + 1}


def test_there_is_one_look_at_a_job_at_a_time_and_never_more_than_the_limit_over_all_jobs(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"job-{n}" for n in range(MAX_CONCURRENT_READS + 4)]
    for job_id in ids:
        client = JobClient(str(job.root), job_id)
        Job(job.root, job.dag_file, client).submit()
        ScriptedDriver(client).status("RUNNING")
    lock, now, most, full = threading.Lock(), Counter[str](), Counter[str](), threading.Event()
    real = JobReader.read

    def observed(self: JobReader) -> JobObservation:
        with lock:
            now[self.client.job_id] += 1
            most[self.client.job_id] = max(most[self.client.job_id], now[self.client.job_id])
            most["all"] = max(most["all"], sum(now.values()))
            if most["all"] == MAX_CONCURRENT_READS:
                full.set()
        assert full.wait(PATIENCE_S), "looks at several jobs are not taken side by side"
        try:
            return real(self)
        finally:
            with lock:
                now[self.client.job_id] -= 1

    monkeypatch.setattr(JobReader, "read", observed)

    async def one(job_id: str) -> None:
        async with shared_job(str(job.root), job_id) as shared:
            await asyncio.gather(*(shared.first(Ask(lambda observed: True)) for _ in range(3)))

    async def everything() -> None:
        await asyncio.gather(*(one(job_id) for job_id in ids))

    run(everything())
    assert most.pop("all") == MAX_CONCURRENT_READS
    assert set(most.values()) == {1}


# ------------------------------------------------------------ pace


def test_pauses_double_while_nothing_changes_up_to_a_limit_and_begin_anew_after_a_change() -> None:
    pace = PollInterval()
    pauses = [pace.next_pause_s(1.0, 60.0, moved=False) for _ in range(6)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, MAX_PAUSE_S, MAX_PAUSE_S]
    assert pace.next_pause_s(1.0, 60.0, moved=True) == 1.0
    assert pace.next_pause_s(1.0, 60.0, moved=False) == 2.0


def test_a_driver_that_may_be_silent_for_a_short_time_only_is_looked_at_more_often() -> None:
    pace = PollInterval()
    assert max(pace.next_pause_s(1.0, 8.0, moved=False) for _ in range(9)) == 4.0


def test_nobody_is_asked_more_often_than_the_most_impatient_wants() -> None:
    pace = PollInterval()
    assert pace.next_pause_s(60.0, 30.0, moved=True) == 60.0
    assert pace.next_pause_s(5.0, 30.0, moved=False) == 15.0


# ------------------------------------------------------------ living together


def test_each_wait_notices_a_dead_driver_although_looks_are_shared_and_rare(job: Job) -> None:
    job.submit(options={"heartbeat_interval": "50 ms", "heartbeat_timeout": "300 ms"})
    driver = ScriptedDriver(job.client)
    driver.status("RUNNING")
    driver.beat()

    async def fire(trigger: Any) -> TriggerEvent:
        return await anext(trigger.run())

    async def both() -> list[TriggerEvent]:
        late = asyncio.create_task(fire(checkpoint_trigger(job, count=2)))
        return [await fire(checkpoint_trigger(job, count=1)), await late]

    for event in run(both()):
        assert "wrote no heartbeat for " in event.payload["failure"]["message"]


def test_a_wait_that_is_cancelled_leaves_the_others_alone_and_the_last_one_ends_the_looking(
    job: Job, driver: ScriptedDriver
) -> None:
    async def live() -> tuple[int, int]:
        own = asyncio.all_tasks()
        stays, goes = Ask(lambda observed: len(observed.view.completed) or None), Ask()

        async def wait(observer: Ask) -> Any:
            async with shared_job(str(job.root), "j1") as shared:
                return await shared.first(observer)

        staying, going = asyncio.create_task(wait(stays)), asyncio.create_task(wait(goes))
        await until(lambda: bool(goes.looks))
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        seen = len(goes.looks)
        driver.checkpoint(1)
        assert await staying == 1
        last = asyncio.create_task(wait(lost := Ask()))
        await until(lambda: bool(lost.looks))
        last.cancel()
        await asyncio.gather(last, return_exceptions=True)
        assert not asyncio.all_tasks() - own, "a look goes on although nobody waits"
        assert not shared_reader._of_loop[asyncio.get_running_loop()].jobs
        return seen, len(goes.looks)

    before, after = run(live())
    assert after <= before + 1, "at most the look that was under way"


def test_every_event_loop_has_its_own_looks(job: Job, driver: ScriptedDriver) -> None:
    driver.checkpoint(1)
    for _ in range(2):
        assert first(job, Ask(lambda observed: len(observed.view.completed))) == [1]


def test_a_store_that_keeps_failing_is_told_to_everybody_after_some_tries(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def failing(self: JobReader) -> JobObservation:
        looks.append(1)
        raise StoreError("503")

    monkeypatch.setattr(JobReader, "read", failing)
    found = first(job, Ask(), Ask())
    assert [type(f) for f in found] == [StoreError, StoreError]
    assert len(looks) == STORE_RETRIES + 1


def test_an_observer_that_breaks_ends_alone(job: Job, driver: ScriptedDriver) -> None:
    def breaks(observed: JobObservation) -> Any:
        raise ZeroDivisionError

    answers = first(job, Ask(breaks), Ask(lambda observed: "fine"))
    assert isinstance(answers[0], ZeroDivisionError)
    assert answers[1] == "fine"


def test_a_job_that_is_not_there_is_told_at_once(job: Job) -> None:
    [answer] = first(job, Ask(), job_id="nobody")
    assert "no job with the id" in str(answer)


def test_a_wait_that_comes_while_looks_are_rare_is_served_at_once(job: Job, driver: ScriptedDriver) -> None:
    async def live() -> Any:
        async with shared_job(str(job.root), "j1") as shared:
            sleepy = asyncio.create_task(shared.first(rare := Ask(poll_s=1000.0)))
            await until(lambda: bool(rare.looks))
            found = await shared.first(Ask(lambda observed: "now", poll_s=1000.0))
            sleepy.cancel()
            return found, len(rare.looks)

    assert run(live()) == ("now", 2), "one look each has asked for"


def test_a_deadline_is_kept_although_looks_are_rare(job: Job, driver: ScriptedDriver) -> None:
    trigger = TidegateCommandTrigger(
        root=str(job.root),
        job_id="j1",
        wait=CommandWait(command_id="c").fields(),
        poll_s=1000.0,
        deadline_at=job.client.now().timestamp() + 0.2,
        timeout_s=0.2,
    )

    async def fire() -> TriggerEvent:
        return await anext(trigger.run())

    assert run(fire()).payload["failure"]["code"] == "timeout"


def test_neither_newcomers_nor_a_deadline_use_up_the_tries_at_a_failing_store(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failing = JobReader.read, [True]

    def observed(self: JobReader) -> JobObservation:
        if failing[0]:
            raise StoreError("503")
        return real(self)

    monkeypatch.setattr(JobReader, "read", observed)
    overdue = Ask(lambda observed: "late", poll_s=0.1)
    overdue.deadline_at = 0.0

    async def live() -> list[Any]:
        async with shared_job(str(job.root), "j1") as shared:
            waits = [asyncio.create_task(shared.first(overdue))]
            for _ in range(3 * STORE_RETRIES):
                waits.append(asyncio.create_task(shared.first(Ask(lambda observed: "there", poll_s=0.1))))
                await asyncio.sleep(0.01)
            failing[0] = False
            return await asyncio.gather(*waits)

    assert set(run(live())) == {"late", "there"}


def test_a_store_that_hangs_holds_up_neither_another_root_nor_the_loops_own_threads(
    job: Job, driver: ScriptedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, hanging = threading.Event(), threading.Semaphore(0)
    real = JobReader.read

    def observed(self: JobReader) -> JobObservation:
        if self.client.job_id.startswith("stuck"):
            hanging.release()
            released.wait(PATIENCE_S)
        return real(self)

    monkeypatch.setattr(JobReader, "read", observed)

    async def ask(root: Path, job_id: str) -> Any:
        async with shared_job(str(root), job_id) as shared:
            return await shared.first(Ask(lambda observed: "there"))

    async def live() -> tuple[Any, int]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        stuck = [asyncio.create_task(ask(tmp_path / "other", f"stuck-{n}")) for n in range(2 * MAX_CONCURRENT_READS)]
        while sum(hanging.acquire(blocking=False) for _ in stuck) == 0:
            await asyncio.sleep(0.01)
        try:
            async with asyncio.timeout(PATIENCE_S / 2):
                return await ask(job.root, "j1"), await asyncio.to_thread(lambda: 7)
        finally:
            released.set()
            await asyncio.gather(*stuck, return_exceptions=True)

    assert run(live()) == ("there", 7)
