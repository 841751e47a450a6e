"""The launcher of docs/airflow/launchers.md passes the suite that the page shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import other_package
import pytest

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch import launcher_registry
from tidegate.jobs.launch.launcher import LauncherSettings
from tidegate.jobs.launch.launcher_registry import make_launcher, make_launchers
from tidegate.testing import LauncherConformance

_PAGE = Path(__file__).parents[3] / "docs" / "airflow" / "launchers.md"
_SECTION = _PAGE.read_text(encoding="utf-8").partition("## A launcher of your own")[2]
_SOURCE, _SUITE = re.findall(r"```python\n(.*?)```", _SECTION, re.DOTALL)[:2]
_MODULE = ModuleType("slurm_launcher")
exec(compile(_SOURCE, str(_PAGE), "exec"), vars(_MODULE))
_NAMES: dict[str, Any] = {"__name__": "test_slurm_launcher"}
with pytest.MonkeyPatch.context() as _patch:
    _patch.setitem(sys.modules, _MODULE.__name__, _MODULE)
    exec(compile(_SUITE, str(_PAGE), "exec"), _NAMES)

if TYPE_CHECKING:
    Documented = LauncherConformance
else:
    Documented = _NAMES["TestSlurmLauncher"]


class TestSlurmLauncher(Documented):
    """As it is shown."""


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ((name, target),) = re.findall(r'^(\w+) = "(slurm_launcher:.*)"$', _SECTION, re.MULTILINE)
    other_package.install(
        tmp_path / "site",
        monkeypatch,
        module="slurm_launcher",
        source=_SOURCE,
        group=launcher_registry.GROUP,
        names={name: target},
    )
    launcher_registry.forget_packages()
    yield
    launcher_registry.forget_packages()


@pytest.mark.usefixtures("_installed")
def test_it_is_found_by_its_entry_point_and_starts_the_driver_that_the_job_directory_names(tmp_path: Path) -> None:
    assert "slurm" in make_launchers(LauncherSettings())
    for name, text in _NAMES["PROGRAMS"].items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "pipeline.py").write_text("def build(args): ...\n")
    job = JobClient(str(tmp_path / "root"), "sales")
    spec = job.submit(pipeline=f"{tmp_path}/pipeline.py:build", master="local[1]")
    launcher = make_launcher(LauncherSettings("slurm", extra={"slurm_bin": str(tmp_path)}))
    launch = launcher.launch(job, spec)
    assert launch.external_id == "17"
    assert launch.command[-1] == (
        f"--wrap=exec python3 -m tidegate.spark.driver --root {job.root} --job sales --spec 1 --launch 1"
    )
