"""Names of questions: the same for a retry, another for everything else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tidegate.task_identity import make_command_id
from tidegate.jobs.layout import JobLayout


def context(**changes: Any) -> dict[str, Any]:
    facts = {
        "dag_id": "d",
        "run_id": "manual__2026-01-01T00:00:00+00:00",
        "task_id": "g.stop",
        "map_index": -1,
        **changes,
    }
    clear_number = facts.pop("clear_number", 0)
    return {"ti": SimpleNamespace(**facts), "dag_run": SimpleNamespace(clear_number=clear_number)}


def test_a_retry_asks_under_the_same_name() -> None:
    assert make_command_id(context(try_number=1), "stop") == make_command_id(context(try_number=2), "stop")


@pytest.mark.parametrize(
    "other",
    [{"dag_id": "e"}, {"run_id": "r2"}, {"task_id": "g.stop2"}, {"map_index": 0}, {"clear_number": 1}],
    ids=lambda change: next(iter(change)),
)
def test_another_task_instance_or_a_clear_asks_under_another_name(other: dict[str, Any]) -> None:
    assert make_command_id(context(**other), "stop") != make_command_id(context(), "stop")


def test_another_verb_of_the_same_task_instance_has_another_name() -> None:
    assert make_command_id(context(), "cancel") != make_command_id(context(), "submit")


def test_parts_that_run_together_are_told_apart() -> None:
    assert make_command_id(context(dag_id="ab", run_id="c"), "stop") != make_command_id(
        context(dag_id="a", run_id="bc"), "stop"
    )


def test_a_name_is_a_legal_command_id_whatever_the_task_is_called() -> None:
    name = make_command_id(context(task_id="größe/../x" * 30), "stop")
    assert JobLayout("j").command(name).endswith(f"{name}.json")
    assert name.isascii()
    assert len(name) < 100


def test_a_context_without_a_clear_number_counts_as_never_cleared() -> None:
    bare = context()
    bare["dag_run"] = SimpleNamespace()
    assert make_command_id(bare, "stop") == make_command_id(context(), "stop")
