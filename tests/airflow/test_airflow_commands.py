"""What Airflow's own commands tell of the provider, as it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.gate]

PACKAGE = "tidegate"
TIMEOUT_S = 120.0


def airflow(home: Path, *words: str) -> str:
    """Output of an `airflow` command."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *words],
        env={**os.environ, "AIRFLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_airflow_lists_the_provider_its_connection_type_and_its_plugin(tmp_path: Path) -> None:
    (provider,) = json.loads(airflow(tmp_path, "providers", "get", PACKAGE, "--full", "--output", "json"))
    assert provider["package-name"] == PACKAGE
    hooks = json.loads(airflow(tmp_path, "providers", "hooks", "--output", "json"))
    assert [hook["package_name"] for hook in hooks if hook["connection_type"] == "tidegate"] == [PACKAGE]
    plugins = json.loads(airflow(tmp_path, "plugins", "--output", "json"))
    assert [plugin["name"] for plugin in plugins].count("tidegate") == 1
