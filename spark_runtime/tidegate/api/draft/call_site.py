"""The place of a call in the user's code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PACKAGE = "tidegate"
_code_root: ContextVar[str | None] = ContextVar("code_root", default=None)


@contextmanager
def code_root(folder: str) -> Iterator[None]:
    """Report locations below `folder` relative to it while the context lasts, so that they are equal on every
    machine."""
    token = _code_root.set(os.path.realpath(folder))
    try:
        yield
    finally:
        _code_root.reset(token)


def user_location() -> str:
    """Return `file:line` of the innermost frame outside this package; `unknown` if there is none."""
    # Not `inspect.stack`, which reads the source file of every frame.
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != _PACKAGE and not module.startswith(_PACKAGE + "."):
            return format_location(frame.f_code.co_filename, frame.f_lineno)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "unknown"


def format_location(file: str, line: int | None) -> str:
    """Return `file:line`, relative to the code root if the file is below it."""
    root = _code_root.get()
    if root is not None and is_below(file, root):
        file = os.path.relpath(os.path.realpath(file), root)
    return f"{file}:{line}" if line is not None else file


def is_below(file: str, folder: str) -> bool:
    """Return whether `file` is in `folder` or below it, after symbolic links are resolved."""
    folder = os.path.realpath(folder)
    return os.path.realpath(file).startswith(folder.rstrip(os.sep) + os.sep)
