"""The conformance suites name what they need: packages, and the methods of a subclass."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

import tidegate.testing
from tidegate.errors import MissingExtraError

SUITES = {
    "AggregateConformance": ("make_aggregate", "make_input", "expected"),
    "LauncherConformance": ("make_launcher", "make_broken_launcher"),
    "SinkConformance": ("make_sink", "visible"),
    "SourceConformance": ("make_source",),
}
"""Methods that a subclass implements."""


def hide(monkeypatch: pytest.MonkeyPatch, package: str, name: str) -> None:
    """Let the rest of the test run without a package. Args: name: the public name, which is imported again."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda it: None if it == package else found(it))
    monkeypatch.delitem(vars(tidegate.testing), name, raising=False)


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("package", ["pytest", "hypothesis"])
def test_a_suite_without_its_test_tool_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    hide(monkeypatch, package, name)
    if (name, package) == ("LauncherConformance", "hypothesis"):
        assert getattr(tidegate.testing, name).__name__ == name
        return
    told = f"tidegate.testing.{name} needs pytest.*: the package {package} is not installed. Run: pip install pytest"
    with pytest.raises(MissingExtraError, match=told):
        getattr(tidegate.testing, name)


def test_the_suite_of_aggregates_without_pyspark_speaks_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "pyspark", "AggregateConformance")
    told = "tidegate.testing.AggregateConformance needs the runtime: the package pyspark is not installed"
    with pytest.raises(MissingExtraError, match=told):
        tidegate.testing.AggregateConformance  # noqa: B018


@pytest.mark.parametrize(("name", "methods"), SUITES.items(), ids=SUITES)
def test_a_test_class_that_lacks_methods_is_refused_because_pytest_would_skip_it(
    name: str, methods: tuple[str, ...]
) -> None:
    suite = getattr(tidegate.testing, name)
    with pytest.raises(
        TypeError, match=f"no test of TestMine would run, because it lacks {methods[0]}.*which {name} needs"
    ):
        type("TestMine", (suite,), {})
    last: dict[str, Any] = dict.fromkeys(methods[:-1], lambda self: None)
    base = type("Base", (suite,), last)
    with pytest.raises(TypeError, match=f"because it lacks {methods[-1]}, which {name} needs. Implement it"):
        type("TestMine", (base,), {})
    whole = type("TestMine", (base,), {methods[-1]: lambda self: None})
    assert not whole.__abstractmethods__
