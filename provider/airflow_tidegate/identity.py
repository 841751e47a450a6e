"""Names that an Airflow task instance gives to what it asks for, so that a retry finds its own question and answer.

The name is a digest of dag id, run id, task id, map index and the run's clear number. A retry of the task instance
computes the same name; Airflow raises the clear number of the whole run with every clear, so that a cleared task asks
anew.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

DIGEST_HEX = 20
"""Hex digits of the digest in a name: 80 bits, far beyond the number of commands a job ever sees."""
SLUG_CHARACTERS = 40
"""How much of the task id is kept readable in a name."""


def ask_id(context: Any, verb: str) -> str:
    """The deterministic id of what this task instance asks for with `verb`; safe as a file name.

    Args:
        context: the Airflow task context.
        verb: `submit`, `checkpoint`, `savepoint`, `stop` or `cancel`.
    """
    instance = context["ti"]
    dag_run = context.get("dag_run")
    map_index = getattr(instance, "map_index", -1)
    parts = (
        verb,
        instance.dag_id,
        instance.run_id,
        instance.task_id,
        str(-1 if map_index is None else map_index),
        str(getattr(dag_run, "clear_number", None) or 0),
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGEST_HEX]
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", instance.task_id)[:SLUG_CHARACTERS].strip("-")
    return f"{verb}-{slug}-{digest}"


def numbered(ask: str, attempt: int) -> str:
    """The id of the `attempt`-th question of one task instance; the first keeps the plain name."""
    return ask if attempt == 1 else f"{ask}-{attempt}"


def asked_by(context: Any) -> str:
    """Who asks, for the job directory's records: `airflow:<dag>/<run>/<task>`."""
    instance = context["ti"]
    return f"airflow:{instance.dag_id}/{instance.run_id}/{instance.task_id}"
