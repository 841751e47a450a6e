"""The comparison of a ledger with what a reader sees: a test that cannot fail would prove nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ledger import REPORT_VARIABLE, compared


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
