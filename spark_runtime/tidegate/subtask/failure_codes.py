"""What a failure of a subtask says about another try (S9.1). Pure."""

from __future__ import annotations

import os
import sysconfig
from types import TracebackType

import tidegate
from tidegate.contract.errors import TidegateError

MISSING_FILE = "missing_file"
"""A file that is read is not there."""
USER_ERROR = "user_error"
"""What code raises about its data, and raises again for the same data."""

_ABOUT_DATA = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, NameError)
_OWN_MODULES = ("builtins", "pyarrow.lib")
"""Where such an error must be defined: packages derive errors of networks and services from ValueError, too."""
_INSTALLED = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), *tidegate.__path__)
)
"""Code that is not the user's."""


def failure_code(error: BaseException) -> str:
    """A code for `RunFailed`, found in the error or in what caused it; "": another try may go well, for all that can be
    seen: networks, databases, memory."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, TidegateError) and found.code != TidegateError.code:
            return found.code
        if isinstance(found, FileNotFoundError):
            return MISSING_FILE
        found = found.__cause__
    about_data = isinstance(error, _ABOUT_DATA) and type(error).__module__ in _OWN_MODULES
    return USER_ERROR if about_data or _is_raised_by_user(error) else ""


def _is_raised_by_user(error: BaseException) -> bool:
    """Whether a line of the pipeline's own code raised it, whatever its class. What a client of a network or a database
    raises comes from an installed package; OSError from anywhere may pass."""
    if isinstance(error, OSError):
        return False
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    file = "" if frame is None else os.path.realpath(frame.tb_frame.f_code.co_filename)
    return os.path.isfile(file) and not file.startswith(_INSTALLED)
