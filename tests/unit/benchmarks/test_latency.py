"""What the latency benchmark's figures rest on: its checks and its last line."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import latency
import numpy as np
import pytest
from bench_rows import own_rows
from engines.paced_lines import PacedLines, are_right
from real_time_mode_latency import summary

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


def row(engine: str, rate: int, p50_ms: float, p99_ms: float, *, slots: int = 2, work: str = "total") -> latency.Row:
    return latency.Row(engine, slots, rate, work, p50_ms, p99_ms, 0.5, "")


def test_the_ratio_to_another_engine_is_the_least_one_of_the_same_work() -> None:
    rows = [
        row("tidegate", 20_000, 2.0, 10.0),
        row("tidegate", 20_000, 1.0, 1.0, work="join"),
        row("tidegate", 20_000, 1.0, 1.0, slots=4),
        row("tidegate", 200_000, 4.0, 5.0),
        row("Flink SQL", 20_000, 20.0, 90.0),
        row("Flink SQL, flush 5 ms", 20_000, 14.0, 80.0),
        row("Flink SQL", 200_000, 40.0, 40.0),
        row("Structured Streaming", 20_000, 1.0, 1.0),
    ]
    assert latency.least_ratio(rows, "Flink SQL") == 8.0
    assert latency.least_ratio(rows[:-2], "Flink SQL") == 9.0
    assert latency.least_ratio(rows, "Flink SQL, flush 5 ms") == 7.0
    with pytest.raises(ValueError, match="empty"):
        latency.least_ratio(rows, "another engine")


def test_a_chart_of_latency_has_the_engines_with_the_same_work_and_rate() -> None:
    rows = [
        row("tidegate", 20_000, 2.0, 10.0),
        row("tidegate", 20_000, 2.0, 11.0, work="join"),
        row("tidegate", 20_000, 2.0, 12.0, slots=4),
        row("Flink SQL", 20_000, 20.0, 90.0),
        row("Flink SQL", 200_000, 20.0, 91.0),
    ]
    assert latency.bars(rows, 20_000, "total") == [("tidegate", 10.0), ("Flink SQL", 90.0)]


def test_every_paced_row_is_sent_once_to_its_slot_with_its_due_time() -> None:
    sender = PacedLines(rows=1_001, rate=100_000, keys=7, slots=2)
    connections = [socket.create_connection(("127.0.0.1", port)) for port in sender.ports]
    sender.start()
    received = []
    for connection in connections:
        with connection, connection.makefile() as lines:
            received.append([tuple(map(int, line.split())) for line in lines])
    for slot, rows in enumerate(received):
        numbers = range(slot, 1_001, 2)
        assert [k for k, _ in rows] == [i % 7 for i in numbers]
        assert [due for _, due in rows] == [int(sender.start_s * 1e6 + i * 10.0) for i in numbers]


@pytest.mark.parametrize(
    ("work", "k", "total", "expected"),
    [
        ("total", [0, 1, 0, 1], [1, 1, 2, 2], True),
        ("total", [0, 1, 0], [1, 1, 2], False),
        ("total", [0, 1, 0, 1], [1, 1, 2, 1], False),
        ("window", [0, 1, 1], [2, 1, 1], True),
        ("window", [0, 1], [2, 1], False),
    ],
)
def test_results_of_paced_rows_are_checked(work: str, k: list[int], total: list[int], expected: bool) -> None:
    assert are_right(np.array(k), np.array(total), work, rows=4, keys=2) is expected


def test_results_before_the_end_of_the_warm_up_are_no_latencies() -> None:
    arrivals = np.array([[0, 1, 1_000_000, 9_000], [1, 1, 2_000_000, 2_010], [0, 2, 3_000_000, 3_030]])
    facts = summary(arrivals, 2, np.array([2_000.0, 3_000.0]), stopped_ms=5_000.0)
    assert (facts["p50_ms"], facts["note"]) == (20.0, "2 of 2 rows have results")


def test_rows_without_results_count_until_the_query_is_stopped() -> None:
    arrivals = np.array([[0, 1, 2_000_000, 2_010]])
    facts = summary(arrivals, 2, np.array([2_000.0, 3_000.0, 4_000.0]), stopped_ms=10_000.0)
    assert (facts["p50_ms"], facts["note"]) == (6_000.0, "1 of 3 rows have results")


def test_totals_that_skip_a_row_are_refused() -> None:
    arrivals = np.array([[0, 1, 1_000_000, 1_010], [0, 3, 2_000_000, 2_010]])
    with pytest.raises(ValueError, match="the greatest totals"):
        summary(arrivals, 2, np.array([1_000.0, 2_000.0]), stopped_ms=3_000.0)


def test_repetitions_are_shown_with_their_spread() -> None:
    rows = [row("tidegate", 20_000, p50_ms, 2 * p50_ms) for p50_ms in (3.0, 1.0, 2.0)]
    assert latency.medians(rows)[2:] == [
        "| 2 | 20,000 | total | tidegate | 2.0 (1.0-3.0) | 4.0 (2.0-6.0) | 0.50 (0.50-0.50) | 3 |"
    ]


def test_rows_of_latency_have_their_slots_and_peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ours(slots: int, rate: int, seconds: float, warm_up_s: float, folder: str, work: str = "total") -> latency.Row:
        return row("tidegate", rate, 1.0, 2.0, slots=slots, work=work)

    def peer(name: str, command: list[str], slots: int, rate: int, kind: str, work: str) -> latency.Row:
        factor = {"Flink SQL": 10.0, "Flink SQL, flush 5 ms": 3.0, "Structured Streaming": 50.0}.get(name, 5.0)
        return row(name, rate, factor, 2.0 * factor, slots=slots, work=kind)

    monkeypatch.setattr(latency, "ours", ours)
    monkeypatch.setattr(latency, "_peer", peer)
    monkeypatch.setattr(latency, "flink_python", lambda: "python")
    monkeypatch.setattr(latency, "flink_jars", lambda: "a.jar")
    beside = own_rows.latencies_beside(tmp_path, False, 2)
    assert beside.figures == {"latency_flink": 10.0, "latency_flink_flushed": 3.0, "latency_ss": 50.0}
    assert [len(bars) for bars in beside.charts.values()] == [4, 3]
    assert sum("Spark Real-Time Mode" in line for line in beside.lines) == 1
    full, quick = (own_rows.latencies(tmp_path, is_quick, 3) for is_quick in (False, True))
    assert full.figures == quick.figures == {"latency_p99_20k": 2.0}
    assert (len(full.runs), len(full.lines)) == (3 * 9, 2 + 9)
    assert (len(quick.runs), len(quick.lines)) == (3, 2 + 1)
    assert len(own_rows.latencies_of_slots(tmp_path, False, 1).runs) == 3 * 3
