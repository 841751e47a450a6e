"""Tools for tests of pipelines and extensions.

`run` runs a pipeline in this process. The conformance suites test sources, sinks, formats, aggregates and launchers.
Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from tidegate.errors import MissingExtraError
from tidegate.extras import extra_required_by, missing_packages, not_installed, require_runtime

if TYPE_CHECKING:
    from tidegate.testing.aggregate_conformance import AggregateConformance
    from tidegate.testing.fed_source import Fed
    from tidegate.testing.format_conformance import FormatConformance
    from tidegate.testing.launcher_conformance import LauncherConformance
    from tidegate.testing.pipeline_run import Completed, Outcome, run
    from tidegate.testing.script import Advance, Checkpoint, Crash, End, Watermark
    from tidegate.testing.sink_conformance import SinkConformance
    from tidegate.testing.source_conformance import DiscoveringSourceConformance, SourceConformance

__all__ = [
    "Advance",
    "AggregateConformance",
    "Checkpoint",
    "Completed",
    "Crash",
    "DiscoveringSourceConformance",
    "End",
    "Fed",
    "FormatConformance",
    "LauncherConformance",
    "Outcome",
    "SinkConformance",
    "SourceConformance",
    "Watermark",
    "run",
]

_HOMES = {
    "Advance": "script",
    "AggregateConformance": "aggregate_conformance",
    "Checkpoint": "script",
    "Completed": "pipeline_run",
    "Crash": "script",
    "DiscoveringSourceConformance": "source_conformance",
    "End": "script",
    "Fed": "fed_source",
    "FormatConformance": "format_conformance",
    "LauncherConformance": "launcher_conformance",
    "Outcome": "pipeline_run",
    "SinkConformance": "sink_conformance",
    "SourceConformance": "source_conformance",
    "Watermark": "script",
    "run": "pipeline_run",
}

_SUITES = (
    "aggregate_conformance",
    "format_conformance",
    "launcher_conformance",
    "sink_conformance",
    "source_conformance",
)
if "_pytest.assertion" in sys.modules:  # before the suites are imported: else failed assertions would show no values
    importlib.import_module("pytest").register_assert_rewrite(*(f"{__name__}.{suite}" for suite in _SUITES))


_TOOLS = {
    "AggregateConformance": ("pytest", "hypothesis"),
    "DiscoveringSourceConformance": ("pytest", "hypothesis"),
    "FormatConformance": ("pytest", "hypothesis"),
    "LauncherConformance": ("pytest",),
    "SinkConformance": ("pytest", "hypothesis"),
    "SourceConformance": ("pytest", "hypothesis"),
}
"""Packages that no extra installs, and that a suite needs."""


def __getattr__(name: str) -> Any:
    """Import a public name from its module. Raises MissingExtraError if the runtime or a test tool is not installed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "AggregateConformance":  # runs batch mode: without this check, the error would be about a driver
        require_runtime(f"tidegate.testing.{name}")
    tools = _TOOLS.get(name, ())
    absent = missing_packages(tools)
    if absent:
        raise MissingExtraError(
            f"tidegate.testing.{name} needs {' and '.join(tools)}",
            cause=not_installed(absent),
            remedy=f"Run: pip install {' '.join(tools)}",
        )
    with extra_required_by(f"tidegate.testing.{name}"):
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
