"""Upgrading: the new version runs or the old one does, however often and wherever Airflow is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.operators.upgrade import TidegateUpgradeJobOperator
from airflow_tidegate.version_compat import AirflowException, AirflowFailException, TaskDeferred
from tidegate.clock import utc_now
from tidegate.errors import WaitTimeoutError
from tidegate.jobs.records import RestoreFrom

Steps = list[Callable[[], None]]
NEW = "new.py:build"


class World:
    """A job whose drivers live as long as the test says."""

    def __init__(self, job: Job, secrets: dict[str, str] | None = None) -> None:
        self.job = job
        self.client = job.client
        self.drivers: list[ScriptedDriver] = []
        self.is_alive = True
        (job.dag_file.parent / "new.py").write_text("def build(args):\n    raise AssertionError\n")
        job.submit(options={"parallelism": 2}, secrets=secrets)
        self.on_new: Callable[[ScriptedDriver], None] = lambda driver: driver.status("RUNNING")
        job.on_launch = self.launched
        self.launched(1, 1)
        self.drivers[0].status("RUNNING")
        self.drivers[0].checkpoint(1)

    def launched(self, spec: int, attempt: int) -> None:
        self.drivers.append(ScriptedDriver(self.client, spec, attempt))
        if spec > 1:
            self.on_new(self.drivers[-1])

    def suspends(self) -> None:
        """The driver carries out the one stop that waits."""
        [command] = [c for c in self.drivers[-1].commands() if self.client.result(c) is None]
        self.drivers[-1].checkpoint(2, "stop-savepoint")
        data = {"outcome": "committed", "mode": "suspend", "checkpoint_id": 2, "path": self.savepoint}
        self.drivers[-1].answer(command, **data)
        self.drivers[-1].status("STOPPED", stop=data)

    def is_cancelled(self) -> None:
        """The driver carries out the one cancel that waits."""
        [command] = [c for c in self.drivers[-1].commands() if self.client.result(c) is None]
        assert command.startswith("upgrade-end")
        self.drivers[-1].status("CANCELED", reason="cancelled")
        self.drivers[-1].answer(command, code="canceled")

    @property
    def savepoint(self) -> str:
        return self.client.layout.checkpoint(2, 1)


@pytest.fixture
def world(job: Job, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(job)
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: made.is_alive)
    return made


def upgrade(**changes: Any) -> TidegateUpgradeJobOperator:
    plain: dict[str, Any] = {"task_id": "u", "job_id": "j1", "pipeline": NEW, "options": {"parallelism": 4}}
    return TidegateUpgradeJobOperator(**{**plain, **changes})


def time_is_up(operator: TidegateUpgradeJobOperator) -> Callable[[], None]:
    """A step at which the wait for the first checkpoint is over."""

    def step() -> None:
        at = (utc_now() + timedelta(hours=1)).timestamp()
        operator.now = lambda: at  # type: ignore[method-assign]
        raise WaitTimeoutError("the task waited 900 s for the first completed checkpoint, without success")

    return step


def test_the_new_version_goes_on_from_the_savepoint(job: Job, world: World, between_looks: Steps) -> None:
    """S9.3: in the same lineage."""
    between_looks += [world.suspends, lambda: world.drivers[1].checkpoint(3)]
    result = upgrade().execute(job.context("u"))
    assert result == {
        "job_id": "j1",
        "spec": 2,
        "generation": 2,
        "status": "RUNNING",
        "upgraded_from": 1,
        "savepoint": world.savepoint,
        "checkpoint_id": 3,
        "path": world.client.layout.checkpoint(3, 2),
    }
    old, new = job.client.specs()
    assert new.restore == RestoreFrom("savepoint", world.savepoint, 2)
    assert (new.lineage, new.arguments) == (old.lineage, old.arguments)
    assert new.artifact != old.artifact and new.options["parallelism"] == 4
    assert upgrade().execute(job.context("u")) == result, "a retry finds what was done"
    late = upgrade(first_checkpoint_timeout="0 s")
    assert late.execute(job.context("u")) == result, "also one that comes when the time would be up"
    assert job.launches == [2] and len(world.drivers[1].commands()) == 1


def test_a_new_version_that_fails_is_rolled_back_and_the_task_says_what_happened(
    job: Job, world: World, between_looks: Steps
) -> None:
    """S9.3: it has committed nothing."""

    def fails(driver: ScriptedDriver) -> None:
        driver.generation_log.append("failure", {"message": "no column 'delay'", "operator": None, "subtask": None})
        driver.status("FAILED")
        world.on_new = lambda back: back.status("RUNNING")

    world.on_new = fails
    between_looks.append(world.suspends)
    with pytest.raises(AirflowFailException) as caught:
        upgrade(arguments={"out": "new"}).execute(job.context("u"))
    text = str(caught.value)
    for words in ("submission 2 ended as FAILED", "no column 'delay'", "submission 3 runs the old version"):
        assert words in text
    old, new, back = job.client.specs()
    assert (back.artifact, back.pipeline, back.arguments) == (old.artifact, old.pipeline, old.arguments)
    assert (back.options, back.lineage) == (old.options, old.lineage)
    assert back.restore == new.restore == RestoreFrom("savepoint", world.savepoint, 2)
    with pytest.raises(AirflowFailException, match="The old version is restored"):
        upgrade().execute(job.context("u"))
    assert job.launches == [2, 3]


def test_a_rollback_starts_the_old_version_with_its_own_secrets(
    job: Job, between_looks: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_K", '{"conn_type": "kafka", "login": "etl-user", "password": "quite-secret"}')
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: True)
    before = {"PASSWORD": "conn:k/password"}
    world = World(job, before)

    def fails(driver: ScriptedDriver) -> None:
        driver.status("FAILED")
        world.on_new = lambda back: back.status("RUNNING")

    world.on_new = fails
    between_looks.append(world.suspends)
    with pytest.raises(AirflowFailException, match="submission 3 runs the old version"):
        upgrade(secrets={**before, "USER": "conn:k/login"}).execute(job.context("u"))
    _, new, back = job.client.specs()
    assert (set(new.secrets), dict(back.secrets)) == ({"PASSWORD", "USER"}, before)


def test_a_new_version_without_a_checkpoint_in_time_is_ended_and_rolled_back(
    job: Job, world: World, between_looks: Steps
) -> None:
    operator = upgrade()
    between_looks += [world.suspends, time_is_up(operator), world.is_cancelled]
    with pytest.raises(AirflowFailException, match="submission 2 ended as CANCELED.*submission 3 runs the old"):
        operator.execute(job.context("u"))
    assert job.launches == [2, 3]


def test_a_new_version_whose_driver_dies_is_fenced_off_and_rolled_back(
    job: Job, world: World, between_looks: Steps
) -> None:
    """S9.2."""
    world.on_new = lambda driver: driver.status("WAITING_FOR_SLOTS")
    between_looks.append(world.suspends)
    operator = upgrade(deferrable=True)
    with pytest.raises(TaskDeferred):
        operator.execute(job.context("u"))
    between_looks.clear()
    world.suspends()
    stopped = {"wait": {}, "found": {"outcome": "committed"}}
    with pytest.raises(TaskDeferred):
        upgrade(deferrable=True).execute_complete(job.context("u"), stopped)
    world.is_alive = False
    world.on_new = lambda driver: driver.status("RUNNING")
    lost = {"wait": {}, "failure": {"code": "driver_lost", "message": "gone", "final": False}}
    with pytest.raises(
        AirflowFailException, match="ended as CANCELED.*after its driver had died.*The old version is restored"
    ):
        upgrade(deferrable=True).execute_complete(job.context("u"), lost)
    assert [d.kind for d in job.client.decisions()].count("fence") == 4


def test_a_new_version_that_is_silent_though_its_process_is_there_is_asked_to_end(
    job: Job, world: World, between_looks: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.4: it pauses, or its machine is overloaded; it finds the command when it goes on."""
    operator = upgrade()

    def freezes() -> None:
        world.is_alive = False
        monkeypatch.setattr("tidegate.jobs.client.submission.find_local_driver", lambda *_: object())
        time_is_up(operator)()

    between_looks += [world.suspends, freezes, world.is_cancelled]
    with pytest.raises(AirflowFailException, match="The old version is restored: submission 3 runs the old version"):
        operator.execute(job.context("u"))


def test_a_checkpoint_that_completes_while_the_new_version_is_ended_keeps_it(
    job: Job, world: World, between_looks: Steps
) -> None:
    """S9.3: it may have committed, so there is no way back; its latest checkpoint is gone on from."""

    def late() -> None:
        world.drivers[-1].checkpoint(3)
        world.is_cancelled()

    operator = upgrade()
    between_looks += [world.suspends, time_is_up(operator), late]
    result = operator.execute(job.context("u"))
    assert (result["spec"], result["checkpoint_id"]) == (3, 3)
    _, new, again = job.client.specs()
    assert again.restore == RestoreFrom("latest") and again.artifact == new.artifact


def test_a_job_that_cannot_be_suspended_goes_on_and_a_retry_asks_anew(
    job: Job, world: World, between_looks: Steps
) -> None:
    """S7.7."""

    def refuses() -> None:
        [command] = [c for c in world.drivers[0].commands() if job.client.result(c) is None]
        code = "savepoint_failed_job_continues"
        world.drivers[0].answer(command, ok=False, code=code, message="disk full", outcome=code)

    between_looks.append(refuses)
    with pytest.raises(AirflowException, match="disk full"):
        upgrade().execute(job.context("u"))
    assert len(job.client.specs()) == 1
    between_looks += [world.suspends, lambda: world.drivers[1].checkpoint(3)]
    assert upgrade().execute(job.context("u"))["spec"] == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pipeline": None, "options": None}, "the new version of the job equals the old version"),
        ({"pipeline": "nowhere.py:build"}, "nowhere.py"),
        ({"options": {"paralelism": 1}}, "parallelism"),
        ({"arguments": {"x": {1}}}, "arguments"),
        ({"first_checkpoint_timeout": 5}, "first_checkpoint_timeout"),
        ({"stop_timeout": "5"}, "stop_timeout"),
        ({"on_kill": "x"}, "on_kill"),
    ],
    ids=str,
)
def test_what_would_be_refused_is_refused_before_the_job_is_stopped(
    job: Job, world: World, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(AirflowFailException, match=words):
        upgrade(**changes).execute(job.context("u"))
    assert world.drivers[0].commands() == [] and len(job.client.specs()) == 1


def test_code_that_is_gone_when_the_job_has_stopped_rolls_back(job: Job, world: World, between_looks: Steps) -> None:
    def vanishes() -> None:
        world.suspends()
        (job.dag_file.parent / "new.py").unlink()

    between_looks.append(vanishes)
    with pytest.raises(AirflowFailException, match="it could not be submitted.*submission 2 runs the old version"):
        upgrade().execute(job.context("u"))
    old, back = job.client.specs()
    assert back.artifact == old.artifact
    with pytest.raises(AirflowFailException, match="submission 2 runs the old version"):
        upgrade().execute(job.context("u"))


def test_a_job_that_was_suspended_before_is_upgraded_from_that_savepoint(
    job: Job, world: World, between_looks: Steps
) -> None:
    job.client.send("stop", {}, command_id="by-hand", issued_by="test")
    world.suspends()
    between_looks.append(lambda: world.drivers[1].checkpoint(3))
    assert upgrade().execute(job.context("u"))["savepoint"] == world.savepoint


@pytest.mark.parametrize(
    ("status", "data", "words"),
    [
        ("FINISHED", {}, "the job is FINISHED"),
        ("FAILED", {}, "the job is FAILED"),
        ("STOPPED", {"stop": {"outcome": "committed", "mode": "drain", "path": "p"}}, "the job was drained"),
    ],
)
def test_a_job_that_cannot_be_gone_on_with_is_no_upgrade(
    job: Job, world: World, status: str, data: dict[str, Any], words: str
) -> None:
    world.drivers[0].status(status, **data)
    with pytest.raises(AirflowFailException, match=words):
        upgrade().execute(job.context("u"))
    assert len(job.client.specs()) == 1


def test_somebody_elses_submission_ends_the_upgrade(job: Job, world: World, between_looks: Steps) -> None:
    def restored() -> None:
        world.drivers[1].status("FAILED")
        job.client.submit(submission_id="theirs", restore=RestoreFrom("latest"), submitted_by="somebody")

    between_looks += [world.suspends, restored]
    with pytest.raises(AirflowFailException, match="submission 3 by somebody took over"):
        upgrade().execute(job.context("u"))
    assert job.launches == [2]


class Killed(BaseException):
    """The worker's process is gone."""


def tried_until_it_ends(job: Job, deferrable: bool, writes: list[int], job_goes_on: Callable[[], None]) -> Any:
    """What the operator gives, or its error, at the first try that is not killed; `writes[0]`: those it may do."""
    for attempt in range(100):
        writes[0] = attempt
        try:
            return upgrade(deferrable=deferrable).execute(job.context("u"))
        except Killed:
            continue
        except TaskDeferred:
            job_goes_on()
        except AirflowFailException as error:
            return str(error)
    raise AssertionError("it came to no end in 100 tries")


@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
def test_a_worker_may_be_killed_at_every_write(
    job: Job, world: World, monkeypatch: pytest.MonkeyPatch, deferrable: bool, fails: bool
) -> None:
    """S9.4, S9.3: every try is killed one write later than the one before; there is one stop, one new version, one roll
    back."""
    store = type(job.client.store)
    real_create, budget = store.create, [0]
    mine = [True]

    def create(self: Any, path: str, data: bytes) -> None:
        if mine[0] and not path.startswith("."):
            budget[0] -= 1
            if budget[0] == -1:
                raise Killed
        real_create(self, path, data)

    def by_the_job(action: Callable[[], None]) -> None:
        mine[0] = False
        try:
            action()
        finally:
            mine[0] = True

    def on_new(driver: ScriptedDriver) -> None:
        failing = fails and driver.client.specs()[-1].number == 2
        driver.status("FAILED" if failing else "RUNNING")
        if not failing and len(driver.client.specs()) == 2:
            driver.checkpoint(3)

    world.on_new = on_new
    launched = job.on_launch
    job.on_launch = lambda spec, attempt: by_the_job(lambda: launched(spec, attempt))

    def job_goes_on(_: float = 0.0) -> None:
        waiting = [c for c in world.drivers[-1].commands() if job.client.result(c) is None]
        if waiting and not job.client.view().is_terminal:
            by_the_job(world.suspends)

    monkeypatch.setattr(store, "create", create)
    monkeypatch.setattr(TidegateUpgradeJobOperator, "sleep", staticmethod(job_goes_on))
    outcome = tried_until_it_ends(job, deferrable, budget, job_goes_on)
    specs = job.client.specs()
    stops = [c for c in world.drivers[0].commands() if c.startswith("stop")]
    assert len(stops) == 1
    assert [s.number for s in specs] == ([1, 2, 3] if fails else [1, 2])
    assert "The old version is restored" in outcome if fails else outcome["checkpoint_id"] == 3
