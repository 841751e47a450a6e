"""Settings that a driver and the command line take from their environment: storage options, and the caller."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

STORAGE_OPTIONS_VARIABLE = "TIDEGATE_STORAGE_OPTIONS"
"""Environment variable of a driver and of the command line: JSON of the root's storage options, with references to
secrets."""
CALLER_VARIABLE = "TIDEGATE_CALLER"
"""Environment variable of the command line: on whose behalf it is called, as the job directory shall say it."""
BASE64 = "base64:"
"""Begins a value of STORAGE_OPTIONS_VARIABLE that is not the JSON itself."""


def storage_options_text(options: Mapping[str, Any]) -> str:
    """The value of TIDEGATE_STORAGE_OPTIONS for places that put environment variables into a shell script unquoted, as
    YARN does: no quote, dollar or backslash in it."""
    return BASE64 + base64.b64encode(json.dumps(dict(options), sort_keys=True).encode()).decode()


def storage_options_from(text: str) -> dict[str, Any]:
    """What TIDEGATE_STORAGE_OPTIONS holds: JSON, or what `storage_options_text` made of it. Raises ValueError."""
    if text.startswith(BASE64):
        text = base64.b64decode(text.removeprefix(BASE64), validate=True).decode()
    return dict(json.loads(text or "{}"))
