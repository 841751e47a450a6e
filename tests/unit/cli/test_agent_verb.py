"""`tidegate agent`: what it is told on its command line."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import launcher_package
import pytest
from cli_caller import Caller

from tidegate.jobs.launch.agent import Agent

pytestmark = pytest.mark.usefixtures("own_signal_handlers")


def test_an_agent_looks_after_its_root_until_it_is_terminated(
    tidegate: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_after: list[Agent] = []

    def run(agent: Agent, over: threading.Event) -> None:
        looked_after.append(agent)
        signal.raise_signal(signal.SIGTERM)
        assert over.wait(10)

    monkeypatch.setattr(Agent, "run", run)
    answer = tidegate("agent", "--launcher", "kubernetes", "--restarts", "0", "--within", "10 min")
    assert answer.code == 0, answer.err
    assert "launcher kubernetes" in answer.out and "the drivers keep running" in answer.out
    assert len(looked_after) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--restarts", "-1"], "'-1' is not a whole number of relaunches"),
        (["--restarts", "many"], "'many' is not a whole number of relaunches"),
        (["--within", "10"], "10"),
        (["--launcher", "agent"], "agent"),
        (["--launcher", "mesos"], "mesos"),
    ],
)
def test_a_wrong_word_is_refused(tidegate: Caller, words: list[str], told: str) -> None:
    answer = tidegate("agent", *words)
    assert answer.code == 2
    assert told in answer.err


def test_the_settings_of_a_launcher_are_options(
    tidegate: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a launcher that another package registers."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(Agent, "run", lambda agent, over: made.append(agent._launchers))
    with launcher_package.installed(tmp_path, monkeypatch):
        answer = tidegate("agent", "--launcher", "nomad", "--nomad-address", "http://here", "--yarn", "/opt/yarn")
        assert answer.code == 0, answer.err
        assert "launcher nomad" in answer.out
    assert made[0]["nomad"]._address == "http://here"
    assert made[0]["yarn"]._settings.extra == {"nomad_address": "http://here", "yarn": "/opt/yarn"}


@pytest.mark.parametrize(
    "source",
    ["import no_such_library\n", launcher_package.SOURCE.replace("(self, settings)", "(self)")],
    ids=["no import", "no constructor"],
)
def test_a_broken_launcher_of_another_package_blocks_only_itself(
    tidegate: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr(Agent, "run", lambda agent, over: None)
    with launcher_package.installed(tmp_path, monkeypatch, source):
        assert tidegate("agent", "--launcher", "yarn").code == 0
        answer = tidegate("agent", "--launcher", "nomad")
    assert answer.code == 12, answer.err
    assert "package nomad_launcher" in answer.err and "uninstall it" in answer.err


def test_a_percent_sign_in_the_description_of_a_setting_is_shown_in_the_help(
    tidegate: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = launcher_package.SOURCE.replace("URL of Nomad's server.", "URL; 5 % of the jobs need it.")
    with launcher_package.installed(tmp_path, monkeypatch, source), pytest.raises(SystemExit):
        tidegate("agent", "--help")


def test_an_agent_of_a_root_that_does_not_exist_says_so(
    tidegate: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits: another process may create the root."""
    monkeypatch.setattr(Agent, "run", lambda agent, over: None)
    tidegate.root = str(tmp_path / "jbos")
    assert f"agent: the root does not exist [{tidegate.root}]" in tidegate("agent").err
    tidegate.root = str(tmp_path)
    assert tidegate("agent").err == ""


def test_an_interpreter_without_the_runtime_is_refused_by_the_name_of_the_flag(
    tidegate: Caller, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho the package numba is not installed; exit 1\n")
    python.chmod(0o755)
    answer = tidegate("agent", "--python", str(python))
    assert answer.code == 12
    assert "Set --python to an interpreter with tidegate[spark]" in answer.err and '"python"' not in answer.err
