"""Compares the ledger of a generator with what an independent reader of a system sees."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Hashable, Iterable

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
    note(kind="ledger", connectors=connectors, rows=wanted.total(), lost=lost, duplicated=duplicated)
    return lost, duplicated


def _difference(wanted: Counter[Hashable], found: Counter[Hashable]) -> tuple[int, int]:
    return (wanted - found).total(), (found - wanted).total()
