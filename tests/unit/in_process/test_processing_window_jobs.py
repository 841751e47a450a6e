"""S7.6: whole jobs with windows over processing time, ended in every way, crashed, restored and rescaled. The clock is
the test's."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from builders.batches import numbered_rows

from tidegate.api.aggregates import count
from tidegate.api.aggregates import sum as total_of
from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import tumbling
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.snapshot.metadata import read_metadata
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

ROWS = 600
KEYS = 7
rows = numbered_rows(KEYS, "k", "v")
WINDOW_MS = 100
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NAMES = pa.schema([("k", pa.int64()), ("w", pa.int64())])


def windows(sink: str, *, total: int | None = ROWS, rate: float | None = 1_000, size: str = "100 ms") -> Pipeline:
    p = Pipeline()
    (
        p.read(DataGen(rows, SCHEMA, rows=total, splits=3, batch_rows=8, rate=rate), uid="numbers")
        .group_by("k")
        .window(tumbling(size, time="processing"))
        .agg(n=count(), total=total_of("v"), uid="windows")
        .write(CollectSink(sink), uid="out")
    )
    return p


def of_windows(sink: str, *, event_time: bool) -> Pipeline:
    """Windows over windows: per minute of event time, or of processing time."""
    p = Pipeline()
    first = (
        p.read(DataGen(rows, SCHEMA, rows=ROWS, splits=3, batch_rows=8, rate=1_000), uid="numbers")
        .group_by("k")
        .window(tumbling("100 ms", time="processing"))
        .agg(n=count(), total=total_of("v"), uid="windows")
    )
    if event_time:
        first = first.with_watermark("window_start", "0 s")
    (
        first.group_by("k")
        .window(tumbling("1 min", time="event" if event_time else "processing"))
        .agg(n=total_of("n"), total=total_of("total"), uid="of-windows")
        .write(CollectSink(sink), uid="out")
    )
    return p


def job(build: Any, **options: Any) -> InProcessJob:
    return InProcessJob(build, {"parallelism": 2, **options})


def committed(sink: str) -> list[dict[str, Any]]:
    return list(collected(sink).table().to_pylist())


def totals(sink: str) -> dict[int, tuple[int, int]]:
    """key -> rows and sum over all its windows."""
    found: dict[int, tuple[int, int]] = {}
    for row in committed(sink):
        n, total = found.get(row["k"], (0, 0))
        found[row["k"]] = (n + row["n"], total + row["total"])
    return found


def expected(rows: int = ROWS) -> dict[int, tuple[int, int]]:
    return {k: (len(range(k, rows, KEYS)), sum(range(k, rows, KEYS))) for k in range(KEYS)}


def stopped(run: InProcessRun, how: Any) -> str:
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id=f"stop-{how}", stop=how))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    return outcome.path


def dropped(run: InProcessRun) -> int:
    return sum(c.get("processing_time_dropped", 0) for s in run.slot.metrics().subtasks for c in s.counters.values())


def read(run: InProcessRun) -> int:
    """Rows that the sources gave."""
    return sum(s.source.records for s in run.slot.metrics().subtasks if s.source is not None)


def test_windows_fire_while_the_job_runs_by_the_clock_it_was_given(sink: str) -> None:
    """Also with no input at all any more: the loop comes round when the first window ends."""
    a_job = job(lambda: windows(sink, total=None, rate=1_000), checkpoint_interval="50 ms")
    run = a_job.submit()
    start_ms = a_job.now_ms
    run.until(lambda: len(committed(sink)) >= 3 * KEYS)
    assert a_job.now_ms - start_ms < 600
    bounds = Counter((row["k"], row["window_start"]) for row in committed(sink))
    assert set(bounds.values()) == {1}, "one result for each key and window"
    assert all((row["window_end"] - row["window_start"]).total_seconds() == 0.1 for row in committed(sink))
    run.crash()


def test_an_idle_loop_is_told_when_the_next_window_ends(sink: str) -> None:
    a_job = job(lambda: windows(sink, total=None, rate=100))
    run = a_job.submit()
    run.until(lambda: any(s.rows_in and s.source_input is None for s in run.slot._subtasks))
    while run.pump():
        continue
    times = [s.retry_at_ms(a_job.now_ms) for s in run.slot._subtasks if s.source_input is None]
    assert set(times) - {None} == {(a_job.now_ms // WINDOW_MS + 1) * WINDOW_MS}
    run.crash()


@pytest.mark.parametrize("on_end", ["fire", "drop"])
def test_a_natural_end_fires_open_windows_or_drops_and_counts_them(sink: str, on_end: str) -> None:
    """S7.6."""
    a_job = job(lambda: windows(sink), processing_time_on_end=on_end)
    run = a_job.submit()
    assert isinstance(run.to_end(), RunEnded)
    if on_end == "fire":
        assert totals(sink) == expected() and dropped(run) == 0
    else:
        assert dropped(run) > 0
        assert 0 < sum(n for n, _ in totals(sink).values()) < ROWS, "windows that ended in time did fire"


def test_by_default_they_fire(sink: str) -> None:
    """S7.6."""
    assert isinstance(job(lambda: windows(sink, size="1 h")).submit().to_end(), RunEnded)
    assert totals(sink) == expected()


@pytest.mark.parametrize("on_end", ["fire", "drop"])
def test_a_drain_fires_open_windows_or_drops_and_counts_them(sink: str, on_end: str) -> None:
    """S7.5, S7.6."""
    a_job = job(lambda: windows(sink, total=None, size="1 h"), processing_time_on_end=on_end)
    run = a_job.submit()
    run.until(lambda: read(run) > 100)
    stopped(run, "drain")
    if on_end == "fire":
        assert sum(n for n, _ in totals(sink).values()) == read(run) > 0 and dropped(run) == 0
    else:
        assert committed(sink) == [] and dropped(run) == KEYS


@pytest.mark.parametrize("on_end", ["fire", "drop"])
@pytest.mark.parametrize("parallelisms", [(2, 2), (1, 3), (3, 2)])
def test_suspended_windows_stay_in_the_savepoint_and_fire_after_the_restore(
    sink: str, on_end: str, parallelisms: tuple[int, int]
) -> None:
    """S7.2, S7.6: the window ends while the job is down, and whoever gets its key groups fires it."""
    a_job = InProcessJob(lambda: windows(sink), {"parallelism": parallelisms[0], "processing_time_on_end": on_end})
    run = a_job.submit()
    run.until(lambda: read(run) > 300)
    path = stopped(run, "suspend")
    before = {(row["k"], row["window_start"]) for row in committed(sink)}
    assert dropped(run) == 0 and sum(n for n, _ in totals(sink).values()) < 300
    a_job.now_ms += 3_600_000
    a_job.options = {"parallelism": parallelisms[1], "processing_time_on_end": "fire"}
    run = a_job.submit(RestoreFrom("savepoint", path=path))
    run.to_end()
    assert totals(sink) == expected()
    after = Counter((row["k"], row["window_start"]) for row in committed(sink))
    assert set(after.values()) == {1} and set(after) > before


def test_a_window_that_ended_while_the_job_was_down_fires_before_the_next_end(sink: str) -> None:
    a_job = job(lambda: windows(sink, total=None, rate=100, size="1 h"), checkpoint_interval="50 ms")
    run = a_job.submit()
    run.until(lambda: read(run) > 50)
    path = stopped(run, "suspend")
    assert committed(sink) == []
    a_job.now_ms += 3_600_000
    back_ms = a_job.now_ms
    run = a_job.submit(RestoreFrom("savepoint", path=path))
    run.until(lambda: len(committed(sink)) == KEYS)
    assert a_job.now_ms - back_ms < 500
    run.crash()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("unaligned", [False, True])
def test_crashes_at_random_moments_lose_and_repeat_nothing(sink: str, seed: int, unaligned: bool) -> None:
    """S3.2, S9.1: each record affects one window once, though which one it is differs from run to run."""
    rng = random.Random(seed)
    options = {"checkpoint_interval": "50 ms", "retained_checkpoints": 2, "unaligned_checkpoints": unaligned}
    a_job = job(lambda: windows(sink), **options)
    run = a_job.submit()
    for _ in range(5):
        for _ in range(rng.randint(0, 60)):
            run.pump()
            if rng.random() < 0.4:
                run.tick(rng.randint(1, 60))
            if run.outcome is not None:
                break
        if run.outcome is not None:
            break
        run.crash()
        run = a_job.relaunch() if rng.random() < 0.5 else a_job.rerun()
    assert isinstance(run.to_end(), RunEnded)
    assert totals(sink) == expected()


@pytest.mark.parametrize("event_time", [False, True])
@pytest.mark.parametrize("stop", [False, True])
def test_windows_that_fire_at_the_end_are_in_time_for_windows_downstream(
    sink: str, event_time: bool, stop: bool
) -> None:
    """S7.6: no record disappears in silence, also where the results meet a watermark on its way to the end."""
    run = job(lambda: of_windows(sink, event_time=event_time)).submit()
    if stop:
        run.until(lambda: read(run) > 300)
        stopped(run, "drain")
    else:
        run.to_end()
    assert sum(n for n, _ in totals(sink).values()) == read(run) >= 300
    assert stop or totals(sink) == expected()


def test_no_timer_fires_between_a_suspend_and_its_savepoint(sink: str) -> None:
    """S7.2: the data has ended; what a window would emit then is in no snapshot's reach."""
    run = job(lambda: windows(sink, total=None)).submit()
    run.until(lambda: read(run) > 50)
    run.writers.held = True
    run.run.handle_command(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    for _ in range(50):
        run.pump()
    written = collected(sink).rows_written
    run.tick(300_000)
    run.pump(50)
    assert collected(sink).rows_written == written
    run.crash()


def drained(build: Any, **options: Any) -> tuple[InProcessJob, InProcessRun, str]:
    """A job stopped with drain, and its savepoint."""
    a_job = job(build, **options)
    run = a_job.submit()
    run.until(lambda: read(run) > 100)
    return a_job, run, stopped(run, "drain")


def all_kinds(sink: str) -> Pipeline:
    """Both kinds of windows, and joins: one with a side that is read out, one with a side that hardly begins."""
    p = Pipeline()
    names = [
        p.read(DataGen(lambda n: {"k": n, "w": n}, NAMES, rows=KEYS, batch_rows=1, splits=1, rate=rate), uid=uid)
        for uid, rate in (("known", None), ("slow", 0.01))
    ]
    numbers = p.read(DataGen(rows, SCHEMA, splits=2, batch_rows=8, rate=1_000), uid="numbers")
    processing = numbers.group_by("k").window(tumbling("1 h", time="processing")).agg(n=count(), uid="by-clock")
    event = numbers.with_watermark("v", "0 s", unit="ms").group_by("k").window(tumbling("1 h"))
    full = numbers.join(names[0].broadcast(), on="k", uid="full-join")
    half = numbers.join(names[1].broadcast(), on="k", uid="half-join")
    outs = (processing, event.agg(n=count(), uid="by-event"), full, half)
    for number, stream in enumerate(outs):
        stream.write(CollectSink(f"{sink}-{number}"), uid=f"out-{number}")
    return p


def test_a_drained_savepoint_names_the_operators_that_fired_early_and_no_others(sink: str) -> None:
    """S7.5: the refusal says of each what it is."""
    a_job, _, path = drained(lambda: all_kinds(sink))
    metadata = read_metadata(a_job.store, path)
    assert sorted(metadata.drained_operators) == ["by-clock", "by-event", "half-join"]
    with pytest.raises(SnapshotError, match="allow_drained") as refused:
        a_job.submit(RestoreFrom("savepoint", path=path))
    for named in ("by-clock (processing-window)", "by-event (window)", "half-join (join)"):
        assert named in str(refused.value)
    assert "full-join" not in str(refused.value) and "numbers" not in str(refused.value)
    a_job.submit(RestoreFrom("savepoint", path=path, allow_drained=True)).crash()


def test_a_drain_that_dropped_windows_fired_none_and_needs_no_leave_to_go_on(sink: str) -> None:
    """S7.5, S7.6."""
    a_job, run, path = drained(lambda: windows(sink, total=None, size="1 h"), processing_time_on_end="drop")
    assert read_metadata(a_job.store, path).drained_operators == () and dropped(run) == KEYS
    before = read(run)
    run = a_job.submit(RestoreFrom("savepoint", path=path))
    run.until(lambda: read(run) > 100)
    stopped(run, "drain")
    assert dropped(run) == KEYS and before > 0


def test_a_drained_job_goes_on_when_allowed_and_its_window_emits_again(sink: str) -> None:
    """S7.5: two results for one window, which together hold every row once."""
    a_job, first, path = drained(lambda: windows(sink, total=None, size="1 h"))
    second = a_job.submit(RestoreFrom("savepoint", path=path, allow_drained=True))
    second.until(lambda: read(second) > 100)
    stopped(second, "drain")
    assert set(Counter((row["k"], row["window_start"]) for row in committed(sink)).values()) == {2}
    assert sum(n for n, _ in totals(sink).values()) == read(first) + read(second)
