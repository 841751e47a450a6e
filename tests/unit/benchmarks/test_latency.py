"""What the latency benchmark's figures rest on: its checks and its last line."""

from __future__ import annotations

from typing import Any

import latency
import pytest

from tidegate.errors import JobFailedError

ROWS = [
    latency.Row("tidegate", slots, rate, "total", 1.0, p99_ms, 0.5, "")
    for slots, rate, p99_ms in ((1, 20_000, 1.5), (2, 5_000, 4.25), (2, 20_000, 5.0), (4, 200_000, 90.0))
]


def test_the_last_line_is_about_two_slots() -> None:
    theirs = latency.Row("Structured Streaming", 2, 200_000, "total", 900.0, 1500.0, 1.9, "")
    assert latency.last_line([*ROWS, theirs]) == "latency: p99_5k=4.2 p99_20k=5.0 p99_200k=- cores_20k=0.50"


def reports(**change: Any) -> list[dict[str, Any]]:
    half = latency.KEYS // 2
    first = {"rows": 3 * half, "sum": 6 * half, "totals": [3] * half + [0] * half}
    second = {"rows": 3 * half, "sum": 6 * half, "totals": [0] * half + [3] * half}
    return [first, {**second, **change}]


@pytest.mark.parametrize(("work", "rows"), [("total", 3), ("window", 12), ("join", 6)])
def test_right_results_are_accepted(work: str, rows: int) -> None:
    sums = 3 * latency.KEYS if work == "join" else 12 * latency.KEYS
    right = [{**facts, "sum": sums // 2} for facts in reports()]
    latency.check(right, slots=2, rows=rows * latency.KEYS, work=work)


@pytest.mark.parametrize(
    ("work", "rows", "change"),
    [
        ("total", 3, {"rows": 1}),
        ("total", 3, {"totals": [0] * latency.KEYS}),
        ("window", 6, {"sum": 1}),
        ("join", 6, {"rows": 1}),
    ],
)
def test_a_result_that_is_missing_is_noticed(work: str, rows: int, change: dict[str, Any]) -> None:
    with pytest.raises(JobFailedError, match="are wrong"):
        latency.check(reports(**change), slots=2, rows=rows * latency.KEYS, work=work)
