"""Errors that name a missing extra."""

from __future__ import annotations

import importlib
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import tidegate
from tidegate.errors import EnvironmentProblemError, MissingExtraError
from tidegate.extras import extra_required_by, require_runtime


@pytest.fixture
def without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the test has no pyarrow to import anew."""

    def no_pyarrow(module: str) -> None:
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")

    monkeypatch.setattr(importlib, "import_module", no_pyarrow)
    monkeypatch.delitem(vars(tidegate), "Pipeline", raising=False)


@pytest.mark.usefixtures("without_pyarrow")
def test_a_public_name_without_its_extra_raises_one_line_that_names_the_extra() -> None:
    with pytest.raises(MissingExtraError) as caught:
        tidegate.Pipeline  # noqa: B018
    assert str(caught.value) == (
        'tidegate.Pipeline needs the runtime: the package pyarrow is not installed. Run: pip install "tidegate[spark]"'
    )


def test_the_error_is_an_import_error_with_the_exit_code_of_the_environment() -> None:
    error = MissingExtraError("x")
    assert isinstance(error, ImportError)
    assert (error.code, error.exit_code) == ("environment", EnvironmentProblemError.exit_code)


@pytest.mark.parametrize(
    ("module", "extra"),
    [("deltalake.exceptions", "delta"), ("psycopg", "postgres"), ("rocksdict", "rocksdb"), ("s3fs.core", "s3")],
)
def test_a_module_below_a_package_belongs_to_the_extra_of_the_package(module: str, extra: str) -> None:
    with pytest.raises(MissingExtraError, match=rf"sink x needs the extra '{extra}'.*tidegate\[{extra}\]"):
        with extra_required_by("sink x"):
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


@pytest.mark.parametrize("name", [None, "tidegate.gone", "numba_of_somebody", "users_package"])
def test_a_module_of_no_extra_is_reported_as_it_is(name: str | None) -> None:
    error = ModuleNotFoundError("No module", name=name)
    with pytest.raises(ModuleNotFoundError) as caught, extra_required_by("`tidegate gc`"):
        raise error
    assert caught.value is error


class TestRuntime:
    """`require_runtime` on stand-ins for installed packages."""

    @pytest.fixture
    def installed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, ModuleSpec | None]:
        """The packages that are found, by name."""
        found: dict[str, ModuleSpec | None] = {}
        for name in ("numba", "numpy", "pyarrow", "pyspark"):
            (tmp_path / name).mkdir()
            spec = found[name] = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(tmp_path / name)]
        (tmp_path / "pyspark" / "core").mkdir()
        (tmp_path / "pyspark" / "core" / "__init__.py").touch()
        monkeypatch.setattr("importlib.util.find_spec", lambda name: found[name])
        return found

    def test_the_whole_runtime_is_enough(self, installed: dict[str, ModuleSpec | None]) -> None:
        require_runtime("a driver")

    def test_a_missing_package_is_named(self, installed: dict[str, ModuleSpec | None]) -> None:
        installed["numba"] = None
        with pytest.raises(MissingExtraError, match="a driver needs the runtime: the package numba is not installed"):
            require_runtime("a driver")

    def test_pyspark_client_is_no_pyspark(self, installed: dict[str, ModuleSpec | None], tmp_path: Path) -> None:
        (tmp_path / "pyspark" / "core" / "__init__.py").unlink()
        (tmp_path / "pyspark" / "core").rmdir()
        with pytest.raises(MissingExtraError, match="pyspark-client is installed instead of pyspark"):
            require_runtime("a driver")

    def test_pyspark_may_lie_in_a_zip_as_it_does_for_slots(
        self, installed: dict[str, ModuleSpec | None], tmp_path: Path
    ) -> None:
        with zipfile.ZipFile(tmp_path / "pyspark.zip", "w") as archive:
            archive.writestr("pyspark/core/__init__.py", "")
        spec = installed["pyspark"]
        assert spec is not None
        spec.submodule_search_locations = [str(tmp_path / "pyspark.zip" / "pyspark")]
        require_runtime("a slot")

    def test_a_package_that_comes_from_elsewhere_may_be_missing(self, installed: dict[str, ModuleSpec | None]) -> None:
        installed["pyspark"] = None
        require_runtime("a driver", apart_from={"pyspark"})


def test_this_environment_has_the_runtime() -> None:
    require_runtime("a driver")
