"""What W1's figures rest on: its closed form, its fingerprint, the CPU of a process tree, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import cpu_timeline
import numpy as np
import pytest
import w1 as benchmark
import w1_workload
from pipelines import w1 as pipeline
from tidegate_w1 import check

from tidegate.connectors.transactions import SinkContext
from tidegate.errors import JobFailedError


@pytest.mark.parametrize(("rows", "keys"), [(5_400_006, 10), (5_100_000, 100_000), (2_000, 7), (1_000_002, 30)])
def test_the_closed_form_equals_counting_the_rows(rows: int, keys: int) -> None:
    i = np.arange(rows, dtype=np.int64)
    k, v, window = (i * 2_654_435_761) % keys, i % 1000, (i % (rows // 2)) // 250 // 10_000
    results = list(w1_workload.expected(rows, keys))
    assert [result.start_ms for result in results] == [10_000 * w for w in range(int(window.max()) + 1)]
    for result in results:
        here = window == result.start_ms // 10_000
        counts = np.bincount(k[here], minlength=keys)
        sums = np.bincount(k[here], weights=v[here], minlength=keys).astype(np.int64)
        assert np.array_equal(result.keys, np.nonzero(counts)[0])
        assert np.array_equal(result.counts, counts[result.keys])
        assert np.array_equal(result.sums, sums[result.keys])


@pytest.mark.parametrize(("rows", "keys"), [(3, 10), (0, 10), (4 * 10**9, 10), (10, 0), (10, 2_654_435_761)])
def test_numbers_for_which_w1_is_not_defined_are_refused(rows: int, keys: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        next(w1_workload.expected(rows, keys))


def test_the_generator_makes_the_rows_of_the_definition_and_notes_its_first_call(tmp_path: Path) -> None:
    generator = pipeline.W1Rows(100_000, 10, str(tmp_path))
    i = np.arange(40_000, 90_000, dtype=np.int64)
    batch = generator(i)
    assert batch.schema.equals(pipeline.SCHEMA)
    assert np.array_equal(batch.column("k").to_numpy(), (i * 2_654_435_761) % 10)
    assert np.array_equal(batch.column("v").to_numpy(), i % 1000)
    assert np.array_equal(batch.column("ts_ms").to_numpy(), (i % 50_000) // 250)
    assert json.loads((tmp_path / "source-40000.json").read_text())["first_s"] > 0


def discarded(rows: int, keys: int, report: Path, *, change: int = 0, parts: int = 1) -> dict[str, int]:
    """Run all results through the sink, `change` added to one sum, in `parts` batches, backwards."""
    import pyarrow as pa

    context = SinkContext("j", "l", "discard", 0, 1, 1, "r", pa.schema([]))
    writer = pipeline.FingerprintSink(str(report)).create_writer(context)
    for window in reversed(list(w1_workload.expected(rows, keys))):
        sums = window.sums.copy()
        sums[0] += change
        for part in reversed(np.array_split(np.arange(len(sums)), parts)):
            start = pa.array(np.full(len(part), window.start_ms * 1000)).cast(pa.timestamp("us"))
            columns = [window.keys[part], start, window.counts[part], sums[part]]
            writer.write(
                pa.RecordBatch.from_arrays([pa.array(c) for c in columns], ["k", "window_start", "rows", "total"])
            )
    writer.close()
    facts = json.loads((report / "sink-0-1-r.json").read_text())
    return {name: facts[name] for name in ("result_rows", "counted", "total", "fingerprint")}


def test_the_fingerprint_of_right_results_is_accepted_in_any_order_and_batches(tmp_path: Path) -> None:
    check(6_000_000, 10, discarded(6_000_000, 10, tmp_path))
    check(6_000_000, 10, discarded(6_000_000, 10, tmp_path, parts=3))


def test_one_wrong_result_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(JobFailedError, match="the results are wrong"):
        check(6_000_000, 10, discarded(6_000_000, 10, tmp_path, change=1))


def test_cpu_between_two_samples_is_interpolated_and_outside_them_refused() -> None:
    timeline = cpu_timeline.CpuTimeline(1)
    for at_s, cpu_s in ((10.0, 1.0), (11.0, 3.0), (13.0, 5.0)):
        timeline.add(at_s, cpu_s)
    assert timeline.between(10.5, 12.0) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="no CPU sample"):
        timeline.cpu_at(9.9)
    with pytest.raises(ValueError, match="no CPU sample"):
        timeline.cpu_at(13.1)


ROWS = [
    benchmark.Row(10, "Structured Streaming", 100, 10.0, 20.0, "a"),
    benchmark.Row(10, "tidegate", 900, 10.0, 20.0, "b"),
    benchmark.Row(100_000, "tidegate", 900, 10.0, 20.0, "b"),
]


def test_the_last_line_has_a_ratio_for_each_k_and_the_overhead() -> None:
    cost = benchmark.Overhead(2.04, 3.0, (2.04, 1.0, 9.0))
    assert benchmark.last_line(ROWS, cost) == "w1 ratio 10=9.0 100k=- 1M=- overhead_100k=2.0"
    assert benchmark.last_line([], None) == "w1 ratio 10=- 100k=- 1M=- overhead_100k=-"


def test_writing_replaces_the_section_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    benchmark.write(["old"], path)
    path.write_text(path.read_text() + "\n## W2\n\nkept\n")
    benchmark.write(benchmark.table(ROWS, None), path)
    text = path.read_text()
    assert text.startswith("# Results\n\n## W1\n") and "old" not in text and text.endswith("## W2\n\nkept\n")
    assert "| 10 | tidegate | 900 | 10.0 | 20.0 |" in text and "| 9.0 | b |" in text
