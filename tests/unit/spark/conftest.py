"""What tests of the driver share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tidegate.log_format import PACKAGE, StandardError


@pytest.fixture(autouse=True)
def _logging_of_the_test_process() -> Iterator[None]:
    """A driver and a slot configure the logging of their process, which is here that of all tests."""
    yield
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, StandardError)]:
        root.removeHandler(handler)
    logging.getLogger(PACKAGE).setLevel(logging.NOTSET)
