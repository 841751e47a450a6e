"""The benchmark harness's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import bench
import bench_compare
import charts
import duckdb
import engine_runs
import generated_runs
import pytest
from bench_rows import flink_rows, parquet_rows
from bench_rows.parquet_rows import BESIDE_FLINK, BESIDE_SPARK, per_key_lines, rate_of, warm_ratio
from bench_rows.row import Row
from engine_runs import PER_KEY, WINDOWS, EngineRun, digest_of
from nexmark import beside_flink
from nexmark.queries import QUERIES
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


def run_of(warm_cpu_s: float) -> EngineRun:
    return EngineRun("e", 9.0, 8.0, 2.0, warm_cpu_s, "")


def test_engines_of_python_for_each_key_are_compared_without_their_start() -> None:
    found = {"streaming-process": [run_of(0.5), run_of(2.0), run_of(1.0)], "flink-thread": [run_of(10.0)]}
    assert warm_ratio(found, "streaming-process", "flink-thread") == pytest.approx(10.0)
    assert per_key_lines(found, 4_000_000) == [
        "| tidegate, streaming-process | 0.500 | 4.000 | 2.0 | 0.5, 2.0, 1.0 |",
        "| flink-thread | 0.500 | 0.400 | 2.0 | 10.0 |",
    ]


def test_bars_of_generated_rows_are_without_the_cost_of_the_source() -> None:
    found: generated_runs.Costs = {}
    for engine, whole, source in (("tidegate", 3.0, 1.0), ("flink", 20.0, 10.0)):
        found[(1_000, engine, False)], found[(1_000, engine, True)] = [run_of(whole)], [run_of(source)]
    assert generated_runs.bars(found, {1_000: 20_000_000}) == [
        ("tidegate, 1,000 keys", 10.0),
        ("flink, 1,000 keys", 2.0),
    ]


def test_only_engines_of_flink_run_in_its_environment() -> None:
    assert [engine for engine in (*BESIDE_SPARK, *BESIDE_FLINK) if engine_runs.is_flink(engine)] == ["flink-thread"]


def test_every_peer_has_its_script() -> None:
    scripts = {module for query in (WINDOWS, PER_KEY) for module, *_ in query.peers.values()}
    assert {script for script in scripts if not (engine_runs.HERE / "engines" / script).exists()} == set()
    assert {"per_key_flink.py", "per_key_spark.py"} <= scripts


def test_the_last_line_of_a_quick_run_has_the_figures_of_its_rows_in_their_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def producer(name: str) -> Callable[[Path, bool, int], Row]:
        return lambda folder, quick, repeat: Row(name, name, figures={f"{name}_{quick}_{repeat}": 1.0})

    monkeypatch.setattr(bench, "ROWS", {name: producer(name) for name in bench.ROWS})
    assert bench.main(["--quick"]) == 0
    rows = ("latency", "windows", "pruned", "rocksdb", "perkey", "start")
    assert capsys.readouterr().out.splitlines()[-1] == "bench: " + " ".join(f"{name}_True_1=1.00" for name in rows)


def stub_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all engines by runs that need 2 CPU seconds (tidegate) or 8 (others), and nothing for their sources."""

    def in_turn(
        query: object, folder: Path, given: Input, engines: Sequence[str], repeat: int, row: Row
    ) -> dict[str, list[EngineRun]]:
        return {engine: [run_of(2.0 if engine.startswith(("streaming", "batch")) else 8.0)] for engine in engines}

    def measure(folder: Path, back_end: str, rows: generated_runs.Rows, repeat: int) -> generated_runs.Costs:
        return {
            (count, engine, only): [run_of(0.0 if only else 2.0 if engine == "tidegate" else 8.0)]
            for count in rows
            for engine in generated_runs.ENGINES
            for only in (False, True)
        }

    monkeypatch.setattr(parquet_rows, "in_turn", in_turn)
    monkeypatch.setattr(generated_runs, "measure", measure)


def test_the_rows_of_rocksdb_have_charts_beside_both_peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub_engines(monkeypatch)
    row, beside_flink = parquet_rows.rocksdb(tmp_path, False, 1), flink_rows.rocksdb_flink(tmp_path, False, 1)
    (parquet,), (generated,) = row.charts.values(), beside_flink.charts.values()
    assert parquet[:2] == [("tidegate, 100,000 keys", 5.0), ("structured streaming, 100,000 keys", 1.25)]
    assert generated[:2] == [("tidegate, 100,000 keys", 5.0), ("flink, 100,000 keys", 1.25)]
    assert row.figures["rocksdb_ss"] == beside_flink.figures["rocksdb_flink_100000"] == 4.0
    assert set(parquet_rows.rocksdb(tmp_path, True, 1).figures) == {"rocksdb_ss"}


def test_windows_of_all_engines_are_equally_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Row `rocksdb` has longer windows."""
    stub_engines(monkeypatch)
    row, of_keys = parquet_rows.windows(tmp_path, False, 1), parquet_rows.windows_of_keys(tmp_path, False, 1)
    lines = [line.split(" | ")[:3] for line in (*row.lines, *of_keys.lines) if line.startswith("| 1")]
    engines = ["streaming", "batch", "spark", "structured_streaming", "duckdb", "polars"]
    keys = {"100,000": 20, "100,000 texts": 20, "10": 50, "1,000,000": 10}
    assert lines == [[f"| {count}", f"{rows} M", engine] for count, rows in keys.items() for engine in engines]
    figures = {**row.figures, **of_keys.figures}
    ratios = [figures[name] for name in ("w1_parquet_limit_100000", "w1_parquet_spark_10", "w1_text_ss")]
    assert ratios == pytest.approx([4.0, 4.0, 4.0])
    assert set(parquet_rows.windows(tmp_path, True, 1).figures) == {"batch_spark", "w1_text", "w1_parquet_duckdb"}


def test_nexmark_has_two_rows_of_ten_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured: list[str] = []

    def measure(events: Path, folder: Path, queries: Sequence[str]) -> list[beside_flink.QueryRun]:
        measured.extend(queries)
        return [beside_flink.QueryRun(engine, query, 1.0, 1.0) for query in queries for engine in ("tidegate", "flink")]

    monkeypatch.setattr(beside_flink, "check_both", lambda folder, queries: None)
    monkeypatch.setattr(beside_flink, "write_events", lambda folder, events: None)
    monkeypatch.setattr(beside_flink, "measured", measure)
    flink_rows.nexmark(tmp_path, False, 1)
    flink_rows.nexmark_more(tmp_path, False, 1)
    assert measured == list(QUERIES)


def test_only_a_full_run_of_python_for_each_key_includes_pyflink(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub_engines(monkeypatch)
    row = parquet_rows.per_key(tmp_path, False, 1)
    assert row.figures == {"twspark": 4.0, "pyflink": 4.0}
    assert [line.split(" | ")[0] for line in row.lines if "flink" in line] == ["| flink-thread", "| flink-process"]
    assert len(row.charts) == 3
    assert parquet_rows.per_key(tmp_path, True, 1).figures == {"twspark": 4.0}


def test_the_row_of_flink_has_a_chart_without_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub_engines(monkeypatch)
    row = flink_rows.flink(tmp_path, False, 1)
    (bars,) = row.charts.values()
    assert bars[:2] == [("tidegate, 10 keys", 10.0), ("flink, 10 keys", 2.5)]
