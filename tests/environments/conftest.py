"""Environments as users make them: this checkout's wheel, installed with an extra and the versions of the lock.

They need the package index or uv's cache. Each is made once for all tests of the layer.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from environment import Environment

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

PIPELINE = '''
"""Counts numbers by their last digit."""

import pyarrow as pa
from tidegate import DataGen, JsonLines, Pipeline, count, tumbling

SCHEMA = pa.schema([("number", pa.int64()), ("digit", pa.int64()), ("time", pa.timestamp("ms"))])


def rows(numbers):
    return {"number": numbers, "digit": numbers % 10, "time": pa.array(numbers).cast(pa.timestamp("ms"))}


def build(out: str, count_rows: int = 0, by: str = "digit"):
    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=count_rows or None, rate=None if count_rows else 2000.0)
    (
        p.read(source, uid="numbers")
        .with_watermark("time", "0 s")
        .group_by(by)
        .window(tumbling("1 s"))
        .agg(n=count(), uid="counted")
        .write(JsonLines(out), uid="out")
    )
    return p
'''


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    from house import build_wheel

    return build_wheel(str(tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="session")
def make_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """Makes an environment: `make_environment("airflow", "another-package")`; "": no extra."""
    import airflow_image

    def make(extra: str, *packages: str) -> Environment:
        folder = airflow_image.make_environment(tmp_path_factory.mktemp(extra or "client") / "env")
        named = f"tidegate[{extra}]" if extra else "tidegate"
        airflow_image.install(folder, f"{named} @ {wheel.resolve().as_uri()}", *packages)
        return Environment(folder)

    return make


@pytest.fixture(scope="session")
def client(make_environment: Callable[..., Environment]) -> Environment:
    """`pip install tidegate`."""
    return make_environment("")


@pytest.fixture(scope="session")
def runtime(make_environment: Callable[..., Environment], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install "tidegate[spark]"`, but for pyspark: this environment's own is linked.

    pyspark has no wheel: each installation would build one of 0.5 GB.
    """
    without = tmp_path_factory.mktemp("overrides") / "overrides.txt"
    without.write_text('pyspark ; python_version < "3"\n')
    made = make_environment("spark", "--override", str(without))
    for name in ("pyspark", "py4j"):
        found = importlib.metadata.distribution(name)
        for folder in {file.parts[0] for file in found.files or () if ".." not in file.parts}:
            (made.site_packages / folder).symlink_to(found.locate_file(folder))
    return made


@pytest.fixture(scope="session")
def slim_airflow(make_environment: Callable[..., Environment]) -> Environment:
    """`pip install "tidegate[airflow]" apache-airflow-providers-apache-spark`, which brings pyspark-client."""
    return make_environment("airflow", "apache-airflow-providers-apache-spark")


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a pipeline."""
    file = tmp_path_factory.mktemp("pipelines") / "digits.py"
    file.write_text(PIPELINE)
    return file
