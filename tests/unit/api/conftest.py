"""What the tests of the drawing API share."""

from __future__ import annotations

import pytest

from tidegate import Pipeline


@pytest.fixture
def p() -> Pipeline:
    """An empty pipeline."""
    return Pipeline()
