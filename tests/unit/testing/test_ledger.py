"""The comparison of a ledger with what a reader sees: a test that cannot fail would prove nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ledger import REPORT_VARIABLE, compared, deaths


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (range(5), (0, 0)),
        ([], (5, 0)),
        ([0, 1, 2, 3], (1, 0)),
        ([0, 1, 2, 3, 4, 4], (0, 1)),
        ([0, 1, 2, 3, 9], (1, 1)),
    ],
)
def test_rows_that_are_lost_repeated_or_foreign_are_counted(
    seen: list[int], expected: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPORT_VARIABLE, str(tmp_path / "report"))
    assert compared("A, B", range(5), seen) == expected
    noted = json.loads((tmp_path / "report").read_text())
    assert (noted["lost"], noted["duplicated"]) == expected and noted["rows"] == 5
    assert noted["checked_itself"] is bool(list(seen))


def log(*words: str) -> list[Any]:
    """Entries: "claim 1", "status RESTARTING", "fence"."""
    found = []
    for text in words:
        kind, _, value = text.partition(" ")
        data: dict[str, Any] = {"status": value} if kind == "status" else {}
        if kind not in ("status", "fence"):
            data = {"checkpoint_id": int(value), "kind": "checkpoint", "sinks": {"out": "Parquet('/x')"}}
        found.append(SimpleNamespace(kind=kind, data=data))
    return found


BEGUN = ("fence", "status RUNNING", "claim 1", "complete 1")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (BEGUN, (0, 0)),
        ((*BEGUN, "status RESTARTING"), (1, 1)),
        ((*BEGUN, "committed 1", "status RESTARTING"), (1, 0)),
        ((*BEGUN, "committed 1", "claim 2", "status RESTARTING"), (1, 1)),
        ((*BEGUN, "committed 1", "claim 2", "abort 2", "status RESTARTING"), (1, 1)),
        ((*BEGUN, "committed 1", "claim 2", "abort 2", "status RUNNING", "status RESTARTING"), (1, 0)),
        ((*BEGUN, "fence", "committed 1", "status RUNNING", "fence"), (2, 1)),
        ((*BEGUN, "committed 1", "status FINISHED", "fence"), (0, 0)),
    ],
)
def test_deaths_within_a_commit_are_counted_by_the_log(words: tuple[str, ...], expected: tuple[int, int]) -> None:
    assert deaths(log(*words)) == expected
