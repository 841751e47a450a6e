"""Marks user functions whose results depend on the execution mode (S8.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

BATCH_SENSITIVE_ATTRIBUTE = "__tidegate_batch_sensitive__"

T = TypeVar("T", bound=Callable[..., Any])


def batch_sensitive(function: T) -> T:
    """Mark a `map_in_arrow` function, or the class of a process, whose results depend on the division of rows into
    batches
    or on their order of arrival. Batch mode then requires `allow_mode_dependent` (S8.2)::

        @batch_sensitive
        def first_of_each_batch(batches): ...
    """
    setattr(function, BATCH_SENSITIVE_ATTRIBUTE, True)
    return function


def batch_sensitivity_reason(function: object) -> str:
    """Return the `mode_dependence` of an operator that calls a user's function or process."""
    marked = getattr(function, BATCH_SENSITIVE_ATTRIBUTE, False)
    return "the user's code is marked batch_sensitive" if marked else ""
