"""Compares the ledger of a generator with what an independent reader of a system sees."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

REPORT_VARIABLE = "TIDEGATE_CONNECTOR_REPORT"
"""Environment variable with the file to which results are appended, a JSON document in each line."""


def note(**facts: object) -> None:
    """Append a result to the report, if one is written."""
    if path := os.environ.get(REPORT_VARIABLE):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


def compared(connectors: str, written: Iterable[Hashable], seen: Iterable[Hashable]) -> tuple[int, int]:
    """Return how many rows of the ledger are lost, and how many rows are duplicated or were never written.

    Before that it checks itself: without one row, and with one row twice, the comparison must see it.

    Args:
        connectors: names of the source and the sink of the job, for the report.
    """
    wanted, found = Counter(written), Counter(seen)
    one = next(iter(found), None)
    if one is not None:
        assert _difference(found, found - Counter([one])) == (1, 0), "a lost row is not seen"
        assert _difference(found, found + Counter([one])) == (0, 1), "a repeated row is not seen"
    lost, duplicated = _difference(wanted, found)
    facts = {"rows": wanted.total(), "lost": lost, "duplicated": duplicated, "checked_itself": one is not None}
    note(kind="ledger", connectors=connectors, **facts)
    return lost, duplicated


def _difference(wanted: Counter[Hashable], found: Counter[Hashable]) -> tuple[int, int]:
    return (wanted - found).total(), (found - wanted).total()


def deaths(decisions: Sequence[Any]) -> tuple[int, int]:
    """Return how many runs of a job have died, and how many of them while a commit was open. By its decision log.

    A run has died if the job restarts, or another driver takes over before the job has ended. A commit is open from the
    claim of a checkpoint, at which sinks prepare, to the entry that it is committed. A death aborts open checkpoints,
    in the entries directly before it.
    """
    died = interrupted = 0
    has_driver = False
    prepared: set[int] = set()
    completed: set[int] = set()
    aborted: set[int] = set()
    for entry in decisions:
        kind, data = entry.kind, entry.data
        status = data.get("status") if kind == "status" else None
        if status == "RESTARTING" or (kind == "fence" and has_driver):
            died += 1
            interrupted += bool(prepared or completed or aborted)
            prepared.clear()
        if kind == "fence" or status is not None:
            has_driver = kind == "fence" or status not in ("FINISHED", "FAILED", "CANCELED", "STOPPED")
        if kind == "abort":
            aborted |= {data["checkpoint_id"]} & prepared
            prepared.discard(data["checkpoint_id"])
            continue
        aborted.clear()
        if kind == "claim" and data["kind"] != "savepoint":
            prepared.add(data["checkpoint_id"])
        elif kind == "complete" and data["checkpoint_id"] in prepared:
            prepared.discard(data["checkpoint_id"])
            completed |= {data["checkpoint_id"]} if data.get("sinks") else set()
        elif kind == "committed":
            completed = {n for n in completed if n > data["checkpoint_id"]}
    return died, interrupted
