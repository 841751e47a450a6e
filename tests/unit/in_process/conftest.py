"""What jobs in one process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from builders.sinks import forget_sinks, new_sink_name


@pytest.fixture
def sink() -> Iterator[str]:
    """A name for the `CollectSink`s of a test, which may add a hyphen and more; afterwards they are empty."""
    name = new_sink_name()
    yield name
    forget_sinks(name)
