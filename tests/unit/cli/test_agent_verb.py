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
