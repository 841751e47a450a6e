"""One list says which operator runs a spec, and packages from outside add to it."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate
from tidegate.api.draft.graph_draft import DraftNode
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.errors import EnvironmentProblemError, PipelineError
from tidegate.operators import operator_registry
from tidegate.operators.operator_registry import BUILT_IN, create_operator
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.row_operators import FilterOperator, UnionOperator
from tidegate.operators.row_specs import FilterSpec, UnionSpec
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

RUNTIME = Path(str(tidegate.__file__)).parent
SCHEMA = pa.schema([("v", pa.int64())])


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_target_of_the_list_can_be_loaded(name: str) -> None:
    assert issubclass(pkgutil.resolve_name(name), OperatorSpec)
    assert callable(pkgutil.resolve_name(BUILT_IN[name]))


def test_every_spec_of_the_package_is_in_the_list() -> None:
    for path in RUNTIME.rglob("*_specs.py"):
        importlib.import_module(".".join(path.relative_to(RUNTIME.parent).with_suffix("").parts))
    known = {f"{spec.__module__}.{spec.__qualname__}" for spec in OperatorSpec.__subclasses__()}
    assert {name for name in known if name.startswith("tidegate.")} - BUILT_IN.keys() == set()


def test_drawing_a_pipeline_loads_no_operator() -> None:
    """They are slow to load, with all that they compile."""
    modules = sorted({target.partition(":")[0] for target in BUILT_IN.values()})
    program = f"import sys, tidegate.api.pipeline; print([m for m in {modules} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


DRAWING = """
import sys
import pyarrow as pa
import pyarrow.compute as pc
import tidegate

names = [name for name in tidegate.__all__ if not name.startswith("read_state")]
assert all(hasattr(tidegate, name) for name in names)


class Remember(tidegate.KeyedProcess):
    states = (tidegate.value_state("last", {"v": pa.int64()}),)

    def process(self, rows, ctx): ...


SCHEMA = pa.schema([("v", pa.int64()), ("t", pa.timestamp("us"))])
p = tidegate.Pipeline()
numbers = p.read(tidegate.DataGen(lambda n: {"v": n, "t": n}, SCHEMA, rows=5), uid="numbers")
numbers = numbers.with_watermark("t", "1 s").filter(pc.field("v") > 1)
numbers.group_by("v").process(Remember(), schema=SCHEMA, uid="remember").write(tidegate.Discard(), uid="out")
p.build()
print("numba" in sys.modules)
"""


def test_drawing_a_pipeline_without_aggregates_compiles_nothing() -> None:
    """Numba takes half a second to import. Built-in aggregates load it: they lie beside their kernels."""
    run = subprocess.run([sys.executable, "-c", DRAWING], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "False", run.stderr


class WithoutOperator(OperatorSpec):
    def describe(self) -> str:
        return "nothing"


def test_a_spec_that_nobody_registered_is_refused_with_the_name_that_is_missing() -> None:
    with pytest.raises(PipelineError, match="no operator is registered for .*WithoutOperator"):
        create_operator(WithoutOperator())


@dataclass(frozen=True, eq=False)
class FilterOfMine(FilterSpec):
    """A spec without an operator of its own."""


def test_a_spec_has_the_operator_of_its_base_where_it_has_none_of_its_own() -> None:
    assert isinstance(create_operator(FilterOfMine(pa.compute.field("v") > 1, SCHEMA)), FilterOperator)


def test_every_call_makes_another_operator() -> None:
    first, second = create_operator(UnionSpec()), create_operator(UnionSpec())
    assert isinstance(first, UnionOperator)
    assert first is not second


# ------------------------------------------------------------ from outside

PACKAGE = """
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import Output, StreamOperator


@dataclass(frozen=True)
class TimesSpec(OperatorSpec):
    factor: int

    def describe(self) -> str:
        return f"times {self.factor}"


class Times(StreamOperator):
    def __init__(self, spec: TimesSpec) -> None:
        self._factor = spec.factor

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        product = pc.multiply(batch.column("v"), self._factor)
        yield pa.RecordBatch.from_arrays([product], schema=batch.schema)
"""


def install(folder: Path, source: str) -> None:
    """A package as pip leaves it."""
    (folder / "times_operator.py").write_text(source)
    metadata = folder / "times_operator-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: times-operator\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[tidegate.operators]\ntimes_operator.TimesSpec = times_operator:Times\n"
    )


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An installed package with a spec, its operator and the entry point that names it."""
    install(tmp_path, PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    operator_registry._installed.cache_clear()
    yield importlib.import_module("times_operator")
    operator_registry._installed.cache_clear()
    del sys.modules["times_operator"]


def test_an_operator_of_another_package_runs_in_a_job(package: Any) -> None:
    def build() -> Pipeline:
        p = Pipeline()
        numbers = p.read(DataGen(lambda n: {"v": n}, SCHEMA, rows=5), uid="numbers")
        times = DraftNode("times", "times", numbers._forward(), SCHEMA, "t.py:1", spec=package.TimesSpec(10))
        numbers._then(times, numbers._event_time).write(CollectSink("times"), uid="out")
        return p

    InProcessJob(build).submit().to_end()
    assert sorted(collected("times").rows()) == [(0,), (10,), (20,), (30,), (40,)]


BROKEN = {
    "no class": (PACKAGE.replace("class Times(", "class Product("), "cannot be loaded.*AttributeError.*Times"),
    "no spec accepted": (
        PACKAGE.replace("__init__(self, spec: TimesSpec)", "__init__(self)"),
        "cannot be created from its spec.*TypeError",
    ),
    "no operator": (
        PACKAGE.replace("class Times(StreamOperator)", "class Times"),
        "does not fit.*it is a Times, not a subclass of tidegate.operators.stream_operator.StreamOperator",
    ),
}


@pytest.mark.parametrize(("source", "told"), BROKEN.values(), ids=BROKEN)
def test_a_package_with_a_broken_operator_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    install(tmp_path, source)
    monkeypatch.syspath_prepend(tmp_path)
    operator_registry._installed.cache_clear()
    try:
        spec = importlib.import_module("times_operator").TimesSpec(10)
        with pytest.raises(EnvironmentProblemError, match=f"operator of times_operator.TimesSpec {told}") as raised:
            create_operator(spec)
        assert "package times-operator, entry point times_operator.TimesSpec" in raised.value.where
    finally:
        operator_registry._installed.cache_clear()
        del sys.modules["times_operator"]
