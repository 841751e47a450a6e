"""The pipelines of the recipes in dags/: what a recipe says of its results is so, whenever the job is stopped."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from tidegate.channel.elements import StopMode
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

DAYS = 6
AIRPORTS = ("EWR", "JFK", "LGA")
FIRST = datetime(2013, 1, 1)


def pipeline_file(name: str) -> ModuleType:
    """A module of dags/pipelines, by its path: other layers have a package of that name, too."""
    path = Path(__file__).parents[3] / "dags" / "pipelines" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pipelines() -> ModuleType:
    return pipeline_file("daily_totals")


@pytest.fixture
def flights(tmp_path: Path) -> list[dict[str, Any]]:
    """Every hour a flight from each airport; some without a delay."""
    rows = [
        {"time_hour": FIRST + timedelta(hours=h), "origin": a, "dep_delay": None if (h + n) % 7 == 0 else h * (n + 1)}
        for h in range(DAYS * 24)
        for n, a in enumerate(AIRPORTS)
    ]
    schema = pa.schema([("time_hour", pa.timestamp("us")), ("origin", pa.string()), ("dep_delay", pa.int64())])
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "flights.parquet")
    return rows


def totals(flights: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """(airport, day) -> minutes late."""
    found: Counter[tuple[str, str]] = Counter()
    for f in flights:
        if f["dep_delay"] is not None:
            found[f["origin"], f"{f['time_hour']:%d}"] += f["dep_delay"]
    return found


def table(folder: Path) -> list[dict[str, Any]]:
    return list(pyarrow.dataset.dataset(sorted(folder.glob("*.parquet"))).to_table().to_pylist())


def written(folder: Path) -> Counter[tuple[str, str]]:
    """The same, of a table, its rows added up."""
    found: Counter[tuple[str, str]] = Counter()
    for row in table(folder):
        found[row["origin"], f"{row['window_start']:%d}"] += row["minutes_late"]
    return found


class Recipe:
    """A job that plays a day in a second, whose version may change between two submissions."""

    def __init__(self, build: Callable[..., Any], folder: Path) -> None:
        self.out = folder / "out"
        self.arguments = {"flights": str(folder / "flights.parquet"), "out": str(self.out), "speed": "1.0"}
        self.build = build
        self.job = InProcessJob(lambda: self.build(self.arguments))

    def play(self, run: InProcessRun, days: float) -> None:
        """Let so many days pass."""
        for _ in range(round(days * 10)):
            run.tick(100)
            while run.pump():
                pass

    def stop(self, run: InProcessRun, mode: StopMode) -> str:
        """The savepoint's path."""
        run.ask(ev.SnapshotRequest("stop-savepoint", request_id=f"stop-{len(self.job.specs)}", stop=mode))
        outcome = run.to_end()
        assert isinstance(outcome, RunEnded) and outcome.path is not None, outcome
        return outcome.path


@pytest.mark.parametrize(("mode", "rows_of_the_open_day"), [("drain", 2), ("suspend", 1)])
def test_a_day_that_was_open_at_night_adds_up_and_has_a_second_row_only_after_a_drain(
    pipelines: ModuleType, flights: list[dict[str, Any]], tmp_path: Path, mode: StopMode, rows_of_the_open_day: int
) -> None:
    """S7.2, S7.5."""
    recipe = Recipe(pipelines.build, tmp_path)
    run = recipe.job.submit()
    recipe.play(run, 2.5)
    path = recipe.stop(run, mode)
    run = recipe.job.submit(RestoreFrom("savepoint", path=path, allow_drained=True))
    recipe.play(run, DAYS)
    recipe.stop(run, "drain")
    assert written(recipe.out) == totals(flights)
    rows = Counter(f"{row['window_start']:%d}" for row in table(recipe.out) if row["origin"] == "JFK")
    assert sorted(rows.values()) == sorted([rows_of_the_open_day] + [1] * (DAYS - 1))


def test_the_next_version_goes_on_with_the_totals_and_writes_late_flights_from_then_on(
    pipelines: ModuleType, flights: list[dict[str, Any]], tmp_path: Path
) -> None:
    """S5.5."""
    recipe = Recipe(pipelines.build, tmp_path)
    run = recipe.job.submit()
    recipe.play(run, 2.5)
    path = recipe.stop(run, "suspend")
    recipe.build = pipelines.with_late_flights
    run = recipe.job.submit(RestoreFrom("savepoint", path=path))
    recipe.play(run, DAYS)
    recipe.stop(run, "drain")
    assert written(recipe.out) == totals(flights)
    late = sorted(row["time_hour"] for row in table(tmp_path / "out-late"))
    every = sorted(f["time_hour"] for f in flights if (f["dep_delay"] or 0) > pipelines.LATE_MINUTES)
    assert late == every[-len(late) :]
    assert 0 < len(late) < len(every)


def test_the_broken_version_fails_at_once(pipelines: ModuleType, flights: list[dict[str, Any]], tmp_path: Path) -> None:
    recipe = Recipe(pipelines.broken, tmp_path)
    with pytest.raises(OperatorFailure, match="this version was never tested"):
        recipe.play(recipe.job.submit(), 1)


@pytest.mark.parametrize("until_day", [None, 5])
def test_an_interval_from_a_savepoint_has_the_days_since_it_whole_and_ends(
    pipelines: ModuleType, flights: list[dict[str, Any]], tmp_path: Path, until_day: int | None
) -> None:
    """S7.4: the day that was open in the savepoint, too."""
    recipe = Recipe(pipelines.build, tmp_path)
    run = recipe.job.submit()
    recipe.play(run, 2.5)
    path = recipe.stop(run, "suspend")
    recipe.build, recipe.out = pipelines.interval, tmp_path / "again"
    until = None if until_day is None else f"2013-01-{until_day:02d}"
    recipe.arguments |= {"out": str(recipe.out), "until": until}
    fork = InProcessJob(recipe.job.build, job_id="fork", lineage="lineage-2", root=recipe.job.root)
    began = RestoreFrom("savepoint", path=path, fork_of="job")
    assert isinstance(fork.submit(began).to_end(), RunEnded)
    truth = totals(flights)
    found = written(recipe.out)
    last = DAYS if until_day is None else until_day - 1
    assert found == {key: truth[key] for key in truth if 3 <= int(key[1]) <= last}


def test_a_report_has_the_hours_of_its_interval_and_no_other(tmp_path: Path) -> None:
    at = [FIRST + timedelta(minutes=30 * n) for n in range(48)]
    columns = {"time_hour": at, "origin": ["JFK"] * 48, "dep_delay": list(range(48))}
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "table" / "part-0.parquet")
    interval = {"start": "2013-01-01T06:00:00.000000+00:00", "end": "2013-01-01T08:00:00.000000+00:00"}
    places = {"table": str(tmp_path / "table"), "out": str(tmp_path / "report")}
    report = InProcessJob(lambda: pipeline_file("hourly_report").build({**interval, **places}))
    assert isinstance(report.submit().to_end(), RunEnded)
    found = sorted((row["window_start"].hour, row["flights"], row["latest"]) for row in table(tmp_path / "report"))
    assert found == [(6, 2, 13), (7, 2, 15)]
