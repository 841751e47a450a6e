"""The benchmark harness's own arithmetic."""

from __future__ import annotations

from pathlib import Path

import bench_compare
import charts
import duckdb
import pytest
from bench_rows.parquet_rows import rate_of
from engine_runs import PER_KEY, WINDOWS, EngineRun, digest_of
from parquet_input import Input


def test_the_last_line_of_a_quick_run_is_read_back() -> None:
    text = "| a table |\n\nbench: start_cpu=6.50 pruned=0.85\n"
    assert bench_compare.figures_of(text) == {"start_cpu": 6.5, "pruned": 0.85}
    with pytest.raises(ValueError, match="not one of figures"):
        bench_compare.figures_of("an error")


def test_two_commits_are_compared_by_their_medians() -> None:
    old = [{"start_cpu": value} for value in (10.0, 12.0, 8.0)]
    new = [{"start_cpu": value} for value in (5.0, 4.0, 6.0)]
    lines = bench_compare.table(["a", "b"], [old, new])
    assert lines[-1] == "| start_cpu | 10.00 | 5.00 | 0.50 | 10.00, 12.00, 8.00; 5.00, 4.00, 6.00 |"


def test_rates_are_medians_with_or_without_start() -> None:
    runs = [EngineRun("e", 1.0, cold, 1.0, warm, "") for cold, warm in ((4.0, 1.0), (5.0, 2.0), (10.0, 4.0))]
    assert rate_of(10_000_000, runs) == 2.0
    assert rate_of(10_000_000, runs, warm=True) == 5.0


def test_the_digest_notices_a_changed_result_but_not_the_newest_window(tmp_path: Path) -> None:
    def digest(total: int, newest: int) -> str:
        folder = tmp_path / f"{total}-{newest}"
        folder.mkdir(exist_ok=True)
        first, second = (f"('a', TIMESTAMP '1970-01-01 00:00:0{s}', 2, {n})" for s, n in ((0, total), (1, newest)))
        rows = f"VALUES {first}, {second}"
        with duckdb.connect() as connection:
            connection.execute(f"COPY (SELECT * FROM ({rows}) t(k, window_start, n, total)) TO '{folder}/o.parquet'")
        return digest_of(WINDOWS.results, folder, Input(2_000_000, 1).newest_window_us)

    assert digest(3, 1) == digest(3, 2)
    assert digest(3, 1) != digest(4, 1)


def test_the_digest_of_running_totals_is_that_of_the_last_ones(tmp_path: Path) -> None:
    """Engines call a processor as often as they like, and each call emits a result."""

    def digest(*rows: tuple[int, int, int]) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        values = ", ".join(map(str, rows))
        with duckdb.connect() as connection:
            connection.execute(f"COPY (SELECT * FROM (VALUES {values}) t(k, n, total)) TO '{folder}/o.parquet'")
        return digest_of(PER_KEY.results, folder, Input(2_000_000, 1).newest_window_us)

    once = digest((1, 2, 30), (2, 1, 5))
    assert digest((2, 1, 5), (1, 2, 30), (1, 1, 10)) == once
    assert digest((2, 1, 5), (1, 2, 31), (1, 1, 10)) != once
    assert digest((1, 2, 30)) != once


def test_a_chart_has_a_bar_in_proportion_for_each_value() -> None:
    text = charts.bar_chart("rows <of 2>", [("tidegate", 10.0), ("another & more", 2.5)])
    widths = [int(rect.split('width="')[1].split('"')[0]) for rect in text.split("<rect ")[2:]]
    assert widths == [charts.BAR, round(charts.BAR / 4)]
    assert "rows &lt;of 2&gt;" in text
    assert "another &amp; more" in text
    assert text.count(charts.OWN) == text.count(charts.OTHER) == 1


def test_a_chart_of_zeros_is_no_error() -> None:
    assert charts.bar_chart("nothing", [("a", 0.0)]).count("<rect") == 2
