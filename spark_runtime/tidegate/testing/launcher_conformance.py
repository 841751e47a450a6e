"""Conformance suite for launchers: subclass it, define how to create the launcher, and pytest runs the tests.

Needs pytest. A launcher that passes records a launch before it starts anything. It finds its drivers again from these
records, after the process that launched them has died (S9.2).
"""

from __future__ import annotations

import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tidegate.errors import AlreadyExistsError, EnvironmentProblemError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.launcher import DriverState, Launcher, World
from tidegate.jobs.launch.launcher_registry import RESERVED_SETTINGS, RunningDriver, find_running_driver
from tidegate.jobs.launch.programs import Answer
from tidegate.jobs.launches import find_local_driver, launched_process, read_launch, record_launch
from tidegate.jobs.records import Launch, Spec
from tidegate.testing.conformance import Conformance

END_LIMIT_S = 60.0
"""How long a killed driver may take to end, seconds; generous for a busy machine."""
_POLL_S = 0.02
_PLAIN_SECRET = "conformance-plain-secret"


class LauncherConformance(Conformance, ABC):
    """Subclass it, named `Test...`, and implement the two methods.

    Attributes:
        master: Spark master of the launched submissions; one that the launcher accepts.
        spark_conf: Spark properties of these submissions.
    """

    master = "local[1]"
    spark_conf: Mapping[str, str] = {}

    @abstractmethod
    def make_launcher(self) -> Launcher:
        """Return a launcher that starts stand-ins for drivers, which run until they are ended.

        Called several times in one test; all returned launchers must reach the same host or cluster.
        """

    @abstractmethod
    def make_broken_launcher(self) -> Launcher:
        """Return a launcher that cannot start anything: its program is missing, or its cluster refuses.

        It reaches the same host or cluster as the launchers of `make_launcher`.
        """

    @pytest.fixture(autouse=True)
    def _submitted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("CONFORMANCE_SECRET", _PLAIN_SECRET)
        (tmp_path / "conformance_pipeline.py").write_text("def build(args): ...\n")
        self.job = JobClient(str(tmp_path / "root"), "conformance", {"secret": "secret:env/CONFORMANCE_SECRET"})
        self.spec: Spec = self.job.submit(
            pipeline=f"{tmp_path}/conformance_pipeline.py:build",
            master=self.master,
            spark_conf={**self.spark_conf, "spark.hadoop.conformance.secret": "secret:env/CONFORMANCE_SECRET"},
        )
        self._launched: list[tuple[Launcher, Launch]] = []
        yield
        for launcher, launch in self._launched:  # reuse these launchers: fixtures of the subclass may be closed by now
            launcher.kill(launch, graceful=False)

    def test_its_kind_and_its_settings_can_be_named(self) -> None:
        """The kind is valid in a launch's record; settings are valid in a connection and on the command line."""
        launcher = self.make_launcher()
        assert re.fullmatch(r"[a-z][a-z0-9-]*", launcher.kind)
        names = [setting.name for setting in launcher.settings]
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names) and len(set(names)) == len(names)
        assert RESERVED_SETTINGS.isdisjoint(names)
        assert all(setting.label and setting.description and setting.metavar for setting in launcher.settings)

    def test_a_launch_is_recorded_with_what_it_has_started(self) -> None:
        launcher = self.make_launcher()
        launch = self._launch(launcher)
        assert launch == self._recorded(1) == launched_process(self.job.store, self.job.layout, 1, 1)
        assert (launch.launcher, launch.spec, launch.attempt) == (launcher.kind, 1, 1)
        assert (launch.pid is None) != (launch.external_id is None), "a process of this host, or the cluster's id"
        assert (launch.pid is not None) == launcher.runs_on_this_host
        assert (find_local_driver(self.job.store, self.job.layout, 1) is not None) == launcher.runs_on_this_host

    def test_a_driver_is_found_again_by_its_record(self) -> None:
        """S9.2: another process with the same settings finds the driver."""
        launch = self._launch(self.make_launcher())
        again = self.make_launcher()
        assert again.state(launch) is DriverState.RUNNING
        found = find_running_driver(JobClient(self.job.root, self.job.job_id), self.spec, {again.kind: again})
        assert found == RunningDriver(launch, again)

    def test_a_launch_is_recorded_before_anything_starts(self) -> None:
        """S9.2: no driver runs without a record in the job directory."""
        with pytest.raises(EnvironmentProblemError):
            self.make_broken_launcher().launch(self.job, self.spec)
        assert self.job.launches() == [(1, 1)]
        assert launched_process(self.job.store, self.job.layout, 1, 1) is None

    def test_a_launch_that_has_started_nothing_is_no_driver(self) -> None:
        with pytest.raises(EnvironmentProblemError):
            self.make_broken_launcher().launch(self.job, self.spec)
        launcher, launch = self.make_launcher(), self._recorded(1)
        assert launcher.state(launch) is not DriverState.RUNNING
        assert not launcher.kill(launch, graceful=False)
        assert isinstance(launcher.log(launch), str)
        _check_one_line(launcher.log_place(launch))

    def test_an_attempt_of_somebody_else_is_refused_and_nothing_is_started(self) -> None:
        record_launch(self.job.store, self.job.layout, 1, launcher="somebody-elses", host="elsewhere", attempt=1)
        launcher = self.make_launcher()
        with pytest.raises(AlreadyExistsError):
            launcher.launch(self.job, self.spec, attempt=1)
        assert self.job.launches() == [(1, 1)]
        assert launched_process(self.job.store, self.job.layout, 1, 1) is None

    def test_the_next_attempt_is_taken_where_none_is_named(self) -> None:
        record_launch(self.job.store, self.job.layout, 1, launcher="somebody-elses", host="elsewhere", attempt=3)
        assert self._launch(self.make_launcher()).attempt == 4

    @pytest.mark.parametrize("graceful", [True, False])
    def test_a_driver_that_was_ended_is_gone(self, graceful: bool) -> None:
        launch = self._launch(self.make_launcher())
        launcher = self.make_launcher()
        assert launcher.kill(launch, graceful=graceful)
        self._wait_until_gone(launcher, launch)
        assert not launcher.kill(launch, graceful=graceful)

    def test_a_driver_that_ended_does_not_hide_the_next_one(self) -> None:
        launcher = self.make_launcher()
        first = self._launch(launcher)
        launcher.kill(first, graceful=False)
        self._wait_until_gone(launcher, first)
        second = self._launch(launcher)
        assert (launcher.state(first), launcher.state(second)) == (DriverState.GONE, DriverState.RUNNING)

    def test_its_log_can_be_read_or_it_says_where(self) -> None:
        launcher = self.make_launcher()
        launch = self._launch(launcher)
        assert isinstance(launcher.log(launch), str)
        _check_one_line(launcher.log_place(launch))

    def test_no_secret_is_in_the_record(self) -> None:
        """The driver resolves references itself."""
        launch = self._launch(self.make_launcher())
        assert _PLAIN_SECRET not in " ".join(launch.command)

    def test_its_check_reports_a_host_without_anything(self) -> None:
        """A check never raises: the Test button of a connection shows its findings."""
        checks = self.make_launcher().check(self.master, {}, World(_runs_nothing, lambda host, port: "refused", {}))
        assert all(check.text for check in checks)

    def _launch(self, launcher: Launcher) -> Launch:
        launch = launcher.launch(self.job, self.spec)
        self._launched.append((launcher, launch))
        return launch

    def _recorded(self, attempt: int) -> Launch:
        return read_launch(self.job.store, self.job.layout, 1, attempt)

    def _wait_until_gone(self, launcher: Launcher, launch: Launch) -> None:
        deadline = time.monotonic() + END_LIMIT_S
        while launcher.state(launch) is not DriverState.GONE:
            assert time.monotonic() < deadline, f"not gone after {END_LIMIT_S:g} s"
            threading.Event().wait(_POLL_S)


def _runs_nothing(command: Sequence[str], limit_s: float) -> Answer:
    raise EnvironmentProblemError(f"{command[0]} cannot be run")


def _check_one_line(text: str) -> None:
    assert text.strip() == text != "" and len(text.splitlines()) == 1
