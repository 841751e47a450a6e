"""A launcher that another package registers by an entry point, from the registry to a launch's record."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import launcher_package
import other_package
import pytest

from tidegate.errors import EnvironmentProblemError, OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.launcher import Launcher, LauncherSettings
from tidegate.jobs.launch.launcher_registry import (
    BUILT_IN,
    GROUP,
    check_launcher,
    check_launcher_kind,
    connection_kinds,
    find_running_driver,
    kinds,
    launcher_class,
    make_launcher,
    make_launchers,
    runs_on_this_host,
    settings,
)
from tidegate.jobs.launch.lost_driver import lost_driver_report
from tidegate.jobs.launches import read_launch
from tidegate.jobs.records import Spec
from tidegate.testing import LauncherConformance


@pytest.fixture
def nomad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with launcher_package.installed(tmp_path / "site-packages", monkeypatch):
        yield


@pytest.mark.usefixtures("nomad")
def test_a_launcher_of_another_package_launches_and_is_found_again(client: JobClient, spec: Spec) -> None:
    assert kinds() == (*BUILT_IN, "nomad")
    assert connection_kinds() == (*BUILT_IN, "nomad", "agent")
    assert check_launcher_kind("nomad", "connection c") == "nomad"
    assert not runs_on_this_host("nomad")
    given = LauncherSettings("nomad", extra={"nomad_address": "http://here:4646"})
    launch = make_launchers(given)["nomad"].launch(client, spec)
    recorded = read_launch(client.store, client.layout, 1, 1)
    assert recorded == launch
    assert (recorded.launcher, recorded.host) == ("nomad", "http://here:4646")
    assert recorded.command[:4] == ("nomad", "job", "run", "-address=http://here:4646")
    found = find_running_driver(client, spec, make_launchers(LauncherSettings()))
    assert found is not None and found.launch == launch
    assert (
        lost_driver_report(client, spec)[0]
        == f"launch 1 by nomad, `nomad alloc logs {launch.external_id}` shows its log"
    )
    assert found.launcher.kill(launch)
    assert find_running_driver(client, spec, make_launchers(LauncherSettings())) is None


@pytest.mark.usefixtures("nomad")
def test_its_settings_stand_beside_those_of_the_built_in_ones() -> None:
    assert [setting.name for setting in settings()] == ["yarn", "driver_script", "nomad_address"]


def test_a_driver_of_a_launcher_that_is_not_installed_here_is_told_by_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: JobClient, spec: Spec
) -> None:
    with launcher_package.installed(tmp_path / "site-packages", monkeypatch):
        launch = make_launchers(LauncherSettings("nomad"))["nomad"].launch(client, spec)
    assert lost_driver_report(client, spec)[0] == f"launch 1 by nomad, {launch.external_id} on http://nomad:4646"
    assert find_running_driver(client, spec, make_launchers(LauncherSettings())) is None
    with pytest.raises(OptionError, match="no launcher 'nomad'"):
        launcher_class("nomad")


CLASS = launcher_package.SOURCE
BROKEN = {
    "no import": ("import no_such_library\n", r"cannot be loaded.*ModuleNotFoundError.*no_such_library"),
    "an error at import": ("raise RuntimeError('too old')\n", r"cannot be loaded.*RuntimeError: too old"),
    "no class of this name": ("", r"cannot be loaded.*AttributeError.*NomadLauncher"),
    "a function": ("def NomadLauncher(settings): ...\n", r"does not fit.*it is a function, not a class"),
    "no settings": (CLASS.replace("settings = (ADDRESS,)", ""), r"does not fit.*lacks settings\b"),
    "no log_place": (CLASS.replace("log_place", "place"), r"does not fit.*lacks log_place\b"),
    "another kind": (CLASS.replace('kind = "nomad"', 'kind = "mesos"'), r"the class has the kind 'mesos'"),
    "plain settings": (CLASS.replace("(ADDRESS,)", '("nomad_address",)'), r"not a tuple of LauncherSetting"),
    "a reserved setting": (CLASS.replace('"nomad_address"', '"restarts"'), r"names that are reserved.*restarts"),
    "a setting with a dash": (CLASS.replace('"nomad_address"', '"nomad-address"'), r"not lower case: nomad-address"),
}
"""Source of the package, and the error."""


@pytest.mark.parametrize(("source", "told"), BROKEN.values(), ids=BROKEN)
def test_a_package_with_a_broken_launcher_keeps_no_other_launcher_from_its_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, source: str, told: str
) -> None:
    with launcher_package.installed(tmp_path / "site-packages", monkeypatch, source), caplog.at_level(logging.WARNING):
        assert set(make_launchers(LauncherSettings())) == set(BUILT_IN)
        assert [setting.name for setting in settings()] == ["yarn", "driver_script"]
        assert len(caplog.records) == 1, "one warning in a process"
        assert "package nomad_launcher, entry point nomad = nomad_launcher:NomadLauncher" in caplog.text
        with pytest.raises(EnvironmentProblemError, match=f"the launcher 'nomad' .*{told}") as raised:
            launcher_class("nomad")
        assert "uninstall it" in raised.value.remedy


@pytest.mark.parametrize("error", ["TypeError", "EnvironmentProblemError"])
def test_a_constructor_that_fails_keeps_no_other_launcher_from_its_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: str
) -> None:
    source = CLASS.replace("self._address = settings", f"raise {error}('no server')\n        self._address = settings")
    with launcher_package.installed(tmp_path / "site-packages", monkeypatch, source), caplog.at_level(logging.WARNING):
        assert set(make_launchers(LauncherSettings())) == set(BUILT_IN)
        told = f"package nomad_launcher.*must accept a LauncherSettings, and raised {error}: no server"
        with pytest.raises(EnvironmentProblemError, match=told):
            make_launcher(LauncherSettings("nomad"))
        with pytest.raises(EnvironmentProblemError, match=told):
            check_launcher(LauncherSettings("nomad"), "nomad", {})
        assert "the launcher 'nomad' cannot be created" in caplog.text


def test_two_packages_with_one_kind_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_package.install(
        tmp_path / "other", monkeypatch, module="other", source="", group=GROUP, names={"nomad": "other:Other"}
    )
    with launcher_package.installed(tmp_path / "site-packages", monkeypatch):
        assert set(make_launchers(LauncherSettings())) == set(BUILT_IN)
        with pytest.raises(OptionError, match="several packages register a launcher 'nomad'.*nomad_launcher:.*other:"):
            launcher_class("nomad")


def test_a_lost_driver_is_reported_though_its_launcher_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: JobClient, spec: Spec
) -> None:
    source = CLASS.replace('return f"`nomad alloc', 'raise LookupError\n        return f"`nomad alloc')
    with launcher_package.installed(tmp_path / "site-packages", monkeypatch, source):
        launch = make_launchers(LauncherSettings("nomad"))["nomad"].launch(client, spec)
        assert lost_driver_report(client, spec)[0] == f"launch 1 by nomad, {launch.external_id} on http://nomad:4646"


def test_another_package_does_not_replace_a_built_in_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_package, "KIND", "yarn")
    with launcher_package.installed(tmp_path / "site-packages", monkeypatch):
        assert kinds() == tuple(BUILT_IN)
        assert launcher_class("yarn").__name__ == "YarnLauncher"


@pytest.mark.usefixtures("nomad")
class TestLauncherOfAnotherPackage(LauncherConformance):
    master = "nomad"

    def make_launcher(self) -> Launcher:
        return launcher_class("nomad")(LauncherSettings("nomad"))

    def make_broken_launcher(self) -> Launcher:
        return launcher_class("nomad")(LauncherSettings("nomad", extra={"nomad_address": "http://broken"}))
