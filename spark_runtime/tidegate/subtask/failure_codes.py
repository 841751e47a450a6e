"""What a failure of a subtask says about another try (S9.1). Pure."""

from __future__ import annotations

from tidegate.contract.errors import TidegateError

MISSING_FILE = "missing_file"
"""A file that is read is not there."""
USER_ERROR = "user_error"
"""What code raises about its data, and raises again for the same data."""

_ABOUT_DATA = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, NameError)
_OWN_MODULES = ("builtins", "pyarrow.lib")
"""Where such an error must be defined: packages derive errors of networks and services from ValueError, too."""


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
    return USER_ERROR if isinstance(error, _ABOUT_DATA) and type(error).__module__ in _OWN_MODULES else ""
