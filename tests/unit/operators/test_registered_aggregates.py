"""Aggregates by name: the built-in ones, and those of other packages, found by their entry points."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tidegate as td
from tidegate.api.aggregates import Aggregate
from tidegate.errors import EnvironmentProblemError, PipelineError
from tidegate.state.aggregates.aggregate_registry import BUILT_IN, find_aggregate
from tidegate.state.aggregates.aggregation import AggregateFunction
from tidegate.testing import AggregateConformance
from tidegate.testing.aggregate_conformance import Rows

DOCUMENT = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text(encoding="utf-8")
(MODULE,) = (block for block in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL) if "MEDIAN = " in block)
"""The aggregate that the documents show."""
ENTRY_POINTS = """
[tidegate.aggregates]
median = shop_aggregates:MEDIAN
mode = shop_aggregates:MEDIAN
sum = shop_aggregates:MEDIAN
quantile = shop_aggregates:QUANTILE
"""


def install(folder: Path, name: str, module: str, entry_points: str) -> None:
    """A package as pip leaves it."""
    (folder / f"{name}.py").write_text(module)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture(scope="module", autouse=True)
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An installed package with an aggregate of its own."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "shop_aggregates", MODULE, ENTRY_POINTS)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        yield
    find_aggregate.cache_clear()


class TestMedian(AggregateConformance):
    """In windows, without them, through snapshots, rescales, and in batch."""

    def make_aggregate(self) -> Aggregate:
        """See `AggregateConformance`."""
        return td.aggregate("median", "delay")

    def make_input(self) -> pa.RecordBatch:
        """See `AggregateConformance`."""
        return pa.record_batch({"delay": pa.array([n % 11 if n % 5 else None for n in range(60)], pa.int64())})

    def expected(self, rows: Rows) -> object:
        """See `AggregateConformance`."""
        values = [row["delay"] for row in rows if row["delay"] is not None]
        return float(statistics.median(values)) if values else None


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_aggregate_is_where_the_registry_says(name: str) -> None:
    found = find_aggregate(name)
    assert isinstance(found, AggregateFunction)
    assert found.name == {"bool_and": "min", "bool_or": "max"}.get(name, name)


def refused(aggregate: Aggregate) -> PipelineError:
    p = td.Pipeline()
    stream = p.read(td.DataGen(lambda n: {}, pa.schema([("k", pa.int64()), ("s", pa.string())]), rows=1), uid="in")
    with pytest.raises(PipelineError) as error:
        stream.group_by("k").agg(x=aggregate, uid="a")
    return error.value


def test_an_aggregate_of_another_package_names_itself_in_errors() -> None:
    error = refused(td.aggregate("median", "s"))
    assert "median does not support column 's' of type string" in error.what
    assert error.remedy.startswith("median takes numbers; ")
    assert "median() needs a column" in refused(td.aggregate("median")).what


def test_an_unknown_name_is_refused_where_it_is_used() -> None:
    with pytest.raises(PipelineError, match="there is no aggregate 'medain', did you mean 'median'") as error:
        td.aggregate("medain", "delay")
    assert Path(__file__).name in error.value.where


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mode", "'mode' does not fit.*shop_aggregates:MEDIAN.*it is the aggregate 'median', not an Aggregate"),
        ("quantile", "'quantile' cannot be loaded.*shop_aggregates:QUANTILE.*AttributeError"),
        ("range", "'range' cannot be loaded.*too_old_aggregates:RANGE.*RuntimeError: too old"),
    ],
)
def test_a_package_with_a_broken_aggregate_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    points = "[tidegate.aggregates]\nrange = too_old_aggregates:RANGE\n"
    install(tmp_path, "too_old_aggregates", "raise RuntimeError('too old')\n", points)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentProblemError, match=f"package (shop|too_old)_aggregates, entry point {name} = "):
        td.aggregate(name, "delay")
    with pytest.raises(EnvironmentProblemError, match=says):
        td.aggregate(name, "delay")


def test_a_built_in_aggregate_cannot_be_replaced() -> None:
    assert find_aggregate("sum").name == "sum"


def test_two_packages_with_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "other_aggregates", MODULE, "[tidegate.aggregates]\nmedian = other_aggregates:MEDIAN\n")
    monkeypatch.syspath_prepend(tmp_path)
    find_aggregate.cache_clear()
    with pytest.raises(PipelineError, match="several packages.*'median': other_aggregates:MEDIAN, shop_aggregates"):
        find_aggregate("median")
    find_aggregate.cache_clear()


@pytest.mark.parametrize("name", ["key", "value", "my:median", ""])
def test_a_name_that_cannot_be_a_prefix_of_columns_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name for an aggregate"):
        AggregateFunction(
            name=name,
            result_type=lambda types, _: None,
            state_schema=lambda aggregation: pa.schema([]),
            accumulator=find_aggregate("sum").accumulator,
        )


@pytest.mark.parametrize("name", ["min_by", "max_by"])
def test_an_aggregate_that_compares_another_column_needs_one(name: str) -> None:
    assert f"{name} needs by=" in refused(td.aggregate(name, "s")).what
    with pytest.raises(PipelineError, match="no column to aggregate"):
        td.aggregate(name, by="s")


def test_columns_that_an_aggregate_does_not_take_are_refused() -> None:
    assert "count_distinct(...) has 2 columns" in refused(td.aggregate("count_distinct", "k", "s")).what
    assert "sum(...) does not support by=" in refused(td.aggregate("sum", "k", by="s")).what


@pytest.mark.parametrize("name", ["top_rows", "bottom_rows"])
def test_the_rows_of_top_n_are_no_aggregate_by_themselves(name: str) -> None:
    assert f"{name} cannot be used as an aggregate" in refused(td.aggregate(name, "s")).what
