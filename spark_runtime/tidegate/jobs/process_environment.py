"""Environment variables that drivers and the command line read: storage options, and the caller."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

STORAGE_OPTIONS_VARIABLE = "TIDEGATE_STORAGE_OPTIONS"
"""Environment variable of drivers and the command line: the root's storage options as JSON, with references to
secrets."""
CALLER_VARIABLE = "TIDEGATE_CALLER"
"""Environment variable of the command line: name of the caller, which is recorded in the job directory."""
BASE64 = "base64:"
"""Prefix of a STORAGE_OPTIONS_VARIABLE value whose JSON is encoded."""


def storage_options_text(options: Mapping[str, Any]) -> str:
    """Return the value of TIDEGATE_STORAGE_OPTIONS without quotes, dollars and backslashes. YARN puts environment
    variables into a shell script without quoting them."""
    return BASE64 + base64.b64encode(json.dumps(dict(options), sort_keys=True).encode()).decode()


def storage_options_from(text: str) -> dict[str, Any]:
    """Parse TIDEGATE_STORAGE_OPTIONS: JSON, or the form of `storage_options_text`. Raises ValueError."""
    if text.startswith(BASE64):
        text = base64.b64decode(text.removeprefix(BASE64), validate=True).decode()
    return dict(json.loads(text or "{}"))
