"""Names for the commands of an Airflow task instance, so that a retry finds its own command and answer.

A name contains dag id, run id, task id, map index and the run's clear number. A retry of the task instance computes
the same name. Every clear makes Airflow increase the clear number of the whole run, so a cleared task gets a new name.
"""

from __future__ import annotations

from typing import Any

from tidegate.jobs.layout import stable_id


def make_command_id(context: Any, verb: str) -> str:
    """Return the deterministic id of this task instance's command `verb`; safe as a file name.

    Args:
        context: the Airflow task context.
        verb: `submit`, `checkpoint`, `savepoint`, `stop` or `cancel`.
    """
    instance = context["ti"]
    map_index = getattr(instance, "map_index", -1)
    clear_number = getattr(context.get("dag_run"), "clear_number", None) or 0
    return stable_id(
        verb,
        instance.task_id,
        instance.dag_id,
        instance.run_id,
        -1 if map_index is None else map_index,
        clear_number,
    )


def numbered_command_id(ask: str, attempt: int) -> str:
    """Return the id of the `attempt`-th command of one task instance; the first has the plain name."""
    return ask if attempt == 1 else f"{ask}-{attempt}"


def issued_by(context: Any) -> str:
    """Return the sender of a command, for the job directory's records: `airflow:<dag>/<run>/<task>`."""
    instance = context["ti"]
    return f"airflow:{instance.dag_id}/{instance.run_id}/{instance.task_id}"
