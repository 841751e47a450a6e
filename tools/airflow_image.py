"""Measures what `tidegate[airflow]` adds to an Airflow image: the installed size with it minus the size without it.

In one fresh environment, Airflow is installed with the versions of requirements.lock, then the wheel with its extra.
Both need the package index, or uv's cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LOCK = REPOSITORY / "requirements.lock"


def uv_environment() -> dict[str, str]:
    """Return this process's environment with pip's mirror and certificates for uv, as `make setup` passes them."""
    command = ["bash", "-c", ". tools/uv_settings.sh; env -0"]
    environment = {**os.environ, "python": sys.executable}
    output = subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True, text=True).stdout
    return dict(line.split("=", 1) for line in output.split("\0") if "=" in line)


def install(environment: Path, *packages: str) -> None:
    """Install packages into a virtual environment, with the versions of the lock."""
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*command, "--constraints", str(LOCK), *packages], check=True, env=uv_environment())


def installed_bytes(environment: Path) -> int:
    """Return the size of all files; links are not followed."""
    return sum(
        os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(environment) for name in names
    )


def make_environment(folder: Path) -> Path:
    """Create an empty virtual environment of this interpreter."""
    subprocess.run([sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    return folder


def added_bytes(wheel: Path) -> int:
    """Return how many bytes the wheel with its extra `airflow` adds to an environment with Airflow."""
    with tempfile.TemporaryDirectory(prefix="airflow-image-") as folder:
        environment = make_environment(Path(folder) / "env")
        install(environment, "apache-airflow")
        before = installed_bytes(environment)
        install(environment, f"tidegate[airflow] @ {wheel.resolve().as_uri()}")
        return installed_bytes(environment) - before
