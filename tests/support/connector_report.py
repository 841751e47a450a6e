"""pytest plugin (`-p connector_report`): notes the result of each conformance test, by the class of the connector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from batch_sink_suite import BatchSinkConformance
from ledger import note

from tidegate.connectors.interface import Sink, Source
from tidegate.testing import SinkConformance, SourceConformance

SUITES = (SourceConformance, SinkConformance, BatchSinkConformance)
OWN, CONTRACT = "tidegate.connectors.", "tidegate.connectors.interface"

_connectors: dict[str, str] = {}
"""Id of a test -> its connector."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Ask the suite for its connector while its fixtures are there, whatever becomes of the test."""
    suite = getattr(item, "instance", None)
    if isinstance(suite, SUITES):
        made: Source | Sink = (
            suite.make_source() if isinstance(suite, SourceConformance) else suite.make_sink(fresh=True)
        )
        _connectors[item.nodeid] = connector_of(made)
    return (yield)


def connector_of(made: Source | Sink) -> str:
    """Module and class of the connector; of a test's subclass, the class of tidegate that it extends."""
    own = (cls for cls in type(made).__mro__ if cls.__module__.startswith(OWN) and cls.__module__ != CONTRACT)
    cls = next(own, type(made))
    return f"{cls.__module__}:{cls.__name__}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[pytest.TestReport]:
    """Note the result of the test itself, or of its failed set-up."""
    report: pytest.TestReport = yield
    suite = getattr(item, "instance", None)
    if isinstance(suite, SUITES) and (report.when == "call" or report.failed):
        role = "source" if isinstance(suite, SourceConformance) else "sink"
        connector = _connectors.get(item.nodeid, f"unknown:{type(suite).__name__}")
        note(kind="conformance", role=role, connector=connector, outcome=report.outcome)
    return report
