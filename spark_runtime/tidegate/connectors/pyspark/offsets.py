"""Offsets of Python data sources, which snapshots hold as JSON."""

from __future__ import annotations

import json
from typing import Any

from tidegate.errors import PipelineError


def plain_offset(where: str, offset: Any) -> Any:
    """Return an offset as a snapshot will hold it.

    Args:
        where: name of the data source, for the error.

    Raises:
        PipelineError: it cannot be stored as JSON.
    """
    try:
        return json.loads(json.dumps(offset, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise PipelineError(
            "an offset of a Python data source cannot be stored",
            where=where,
            cause=f"{type(error).__name__}: {error}",
            remedy="Return offsets of texts, numbers, booleans, lists and dicts",
        ) from error
