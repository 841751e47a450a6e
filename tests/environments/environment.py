"""A virtual environment as a user has it, and the commands that tests run in it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

COMMAND_LIMIT_S = 240.0
"""Longest time for one command in an environment: a driver's start on a busy machine is the longest of them."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with tidegate."""

    folder: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def site_packages(self) -> Path:
        """Where packages are."""
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS` in a folder without code, with nothing of this process's own Python."""
        foreign = ("PYTHON", "PYTEST", "COV", "AIRFLOW", "TIDEGATE", "PYSPARK")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return subprocess.run(
            [self.python, *words],
            env={**inherited, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )

    def tidegate(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `tidegate WORDS`."""
        return self.run("-m", "tidegate.cli.main", *words)

    def distributions(self) -> set[str]:
        """Names of what is installed."""
        code = "from importlib.metadata import distributions as d; print(*{i.name.lower() for i in d()})"
        return set(self.run("-c", code).stdout.split())
