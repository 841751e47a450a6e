"""One provider for Airflow 3.1, 3.2 and 3.3: what differs is looked for in one place, and what is missing is said.

`make test-airflow VERSION=3.1` runs this whole folder on another Airflow than the one of .venv.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted_job import PIPELINE, Job

import airflow_tidegate
from airflow_tidegate.operators.start import TidegateRunJobOperator
from airflow_tidegate.version_compat import TaskDeferred

PROVIDER = Path(airflow_tidegate.__file__).parent
TESTS = Path(__file__).parent
EXAMPLES = TESTS.parents[2] / "dags"
MOVED = ("airflow.exceptions", "airflow.sdk.exceptions", "airflow.sdk.configuration")
"""Modules that not every supported Airflow has, or not with everything in them."""
SINCE_3_3 = ("airflow.sdk.ResumableJobMixin", "airflow.sdk.NEVER_EXPIRE", "airflow.sdk.RetryPolicy")


def imported(path: Path) -> Iterator[str]:
    """Dotted names that a module imports, and of each the module that it is taken from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_what_differs_between_versions_is_imported_in_one_module() -> None:
    modules = [*PROVIDER.rglob("*.py"), *TESTS.glob("*.py"), *EXAMPLES.rglob("*.py")]
    elsewhere = {
        f"{path.name}: {name}"
        for path in modules
        if path != PROVIDER / "version_compat.py"
        for name in imported(path)
        if name in (*MOVED, *SINCE_3_3)
    }
    assert elsewhere == set(), "import it from airflow_tidegate.version_compat"
    assert len(modules) > 20


@pytest.mark.parametrize("heard", [True, False])
def test_a_kill_that_a_trigger_would_not_hear_of_is_announced_when_the_task_is_deferred(
    job: Job, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    """Before Airflow 3.3 a deferred task that a user ends says nothing to its trigger."""
    warnings: list[str] = []
    log = SimpleNamespace(info=lambda *_: None, warning=lambda text, *values: warnings.append(text % values))
    monkeypatch.setattr(TidegateRunJobOperator, "log", log)
    monkeypatch.setattr("airflow_tidegate.operators.job_operator.TRIGGERS_SUPPORT_ON_KILL", heard)
    run = TidegateRunJobOperator(task_id="run", job_id="j1", pipeline=PIPELINE, deferrable=True)
    with pytest.raises(TaskDeferred):
        run.execute(job.context())
    announced = [said for said in warnings if "deferrable=False" in said]
    assert len(announced) == (0 if heard else 1)
    assert heard or "(cancel)" in announced[0]
