"""What an operator says of itself that makes its results depend on the execution mode (S8.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

BATCH_SENSITIVE_ATTRIBUTE = "__tidegate_batch_sensitive__"

T = TypeVar("T", bound=Callable[..., Any])


def batch_sensitive(function: T) -> T:
    """Mark a `map_in_arrow` function, or the class of a process, whose results depend on how rows are cut in batches
    or on the order in which they arrive. Batch mode then asks for `allow_mode_dependent` (S8.2)::

        @batch_sensitive
        def first_of_each_batch(batches): ...
    """
    setattr(function, BATCH_SENSITIVE_ATTRIBUTE, True)
    return function


def batch_sensitivity_reason(function: object) -> str:
    """The `mode_dependence` of an operator around a user's function or process."""
    marked = getattr(function, BATCH_SENSITIVE_ATTRIBUTE, False)
    return "the user's code is marked batch_sensitive" if marked else ""
