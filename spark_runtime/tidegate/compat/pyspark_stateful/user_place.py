"""Where the user's code stands while an operator runs it."""

from __future__ import annotations

import sys

_PACKAGE = "tidegate."


def calling_line() -> str:
    """`file:line` of the innermost frame outside this package; `unknown` when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "unknown"
