"""One list of built-in connectors; others come from distributions of their own, by entry points."""

from __future__ import annotations

import ast
import itertools
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate.api.pipeline import Pipeline
from tidegate.cli.upkeep.installation_checks import check_connector
from tidegate.connectors.connector_registry import BUILT_IN, find_connector, registered_connectors
from tidegate.connectors.interface import Sink, Source
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import EnvironmentProblemError, OptionError
from tidegate.testing.in_process_job import InProcessJob
from tidegate.testing.sink_conformance import SinkConformance
from tidegate.testing.source_conformance import SourceConformance

MODULE = Path(__file__).parent / "foreign" / "acme_lines.py"


def install(site: Path, distribution: str, entry_points: str) -> None:
    """What pip leaves of a distribution in a folder of sys.path."""
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tidegate.connectors]\n{entry_points}\n")


@pytest.fixture(scope="module", autouse=True)
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A distribution with two connectors."""
    site = tmp_path_factory.mktemp("site-packages")
    install(site, "acme-lines", "Lines = acme_lines:Lines\nNumberLines = acme_lines:NumberLines")
    shutil.copy(MODULE, site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield
    sys.modules.pop("acme_lines", None)


def numbers(folder: Path) -> str:
    """Two files of numbers, of which no two are the same."""
    folder.mkdir()
    for file in range(2):
        (folder / f"{file}.txt").write_text("".join(f"{n}\n" for n in range(file, 400, 2)))
    return str(folder)


def shown(folder: Path) -> list[int]:
    return [int(line) for file in folder.glob("shown/*") for line in file.read_text().splitlines()]


class TestForeignSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path) -> None:
        self.folder = numbers(tmp_path / "numbers")

    def make_source(self) -> Source:
        source: Source = find_connector("NumberLines")(self.folder)
        return source


class TestForeignSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def folders(self, tmp_path: Path) -> None:
        self.targets = (tmp_path / str(n) for n in itertools.count())

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.target = next(self.targets)
        sink: Sink = find_connector("Lines")(str(self.target))
        return sink

    def visible(self) -> list[int]:
        return shown(self.target)


def test_a_job_runs_with_connectors_of_another_distribution(tmp_path: Path) -> None:
    source, out = numbers(tmp_path / "numbers"), tmp_path / "out"

    def build() -> Pipeline:
        p = Pipeline()
        read = p.read(find_connector("NumberLines")(source), uid="numbers")
        read.write(find_connector("Lines")(str(out)), uid="out")
        return p

    job = InProcessJob(build, {"parallelism": 2})
    assert isinstance(job.submit().to_end(), RunEnded)
    assert sorted(shown(out)) == list(range(400))
    (complete,) = (entry for entry in job.log.read() if entry.kind == "complete")
    assert complete.data["sinks"] == {"out": f"Lines({str(out)!r})"}


def test_connectors_of_other_distributions_are_found_without_importing_them() -> None:
    sys.modules.pop("acme_lines", None)
    assert registered_connectors() == ["Lines", "NumberLines"]
    assert "acme_lines" not in sys.modules
    assert find_connector("Lines").__module__ == "acme_lines"


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_connector_is_a_public_name(name: str) -> None:
    found = find_connector(name)
    assert issubclass(found, Source | Sink) and found.__name__ == name
    assert getattr(tidegate, name) is found
    assert name in tidegate.__all__


def test_type_checkers_see_the_built_in_connectors_where_the_registry_has_them() -> None:
    assert tidegate.__file__ is not None
    tree = ast.parse(Path(tidegate.__file__).read_text(encoding="utf-8"))
    stubs: dict[str, Any] = {
        alias.name: f"{node.module}:{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name: stubs.get(name) for name in BUILT_IN} == BUILT_IN


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="no connector 'Parqet'") as caught:
        find_connector("Parqet")
    assert "'Parquet'" in caught.value.remedy
    with pytest.raises(OptionError) as other:
        find_connector("NumberLine")
    assert "'NumberLines'" in other.value.remedy


def test_a_connector_that_cannot_be_loaded_is_reported_with_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "Broken = acme_missing:Broken\nGone = acme_lines:Gone\nOld = acme_old:Old"
    install(tmp_path, "acme-broken", points)
    (tmp_path / "acme_old.py").write_text("raise RuntimeError('too old')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, cause in (("Broken", "acme_missing"), ("Gone", "Gone"), ("Old", "RuntimeError: too old")):
        with pytest.raises(EnvironmentProblemError, match=f"connector '{name}' cannot be loaded") as caught:
            find_connector(name)
        assert cause in caught.value.cause
        assert f"package acme-broken, entry point {name} = acme_" in caught.value.where
        finding = check_connector(name)
        assert not finding.ok and cause in finding.detail and finding.remedy
    assert check_connector("Lines").ok


@pytest.mark.parametrize("name", ["json", "Path"])
def test_an_entry_point_without_a_source_or_sink_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install(tmp_path, "acme-wrong", "json = json:dumps\nPath = pathlib:Path")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvironmentProblemError, match=f"connector '{name}' does not fit.*acme-wrong.*not a subclass"):
        find_connector(name)


def test_a_name_that_two_distributions_register_is_refused_and_a_built_in_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "acme-other", "Lines = other_lines:Lines\nParquet = other_lines:Parquet")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(OptionError, match="several distributions register a connector 'Lines'"):
        find_connector("Lines")
    assert find_connector("Parquet").__module__.startswith("tidegate.")
    assert "Parquet" not in registered_connectors()
