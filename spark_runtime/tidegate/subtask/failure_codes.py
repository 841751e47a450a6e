"""Classify a failure of a subtask by whether another try may succeed (S9.1). Pure."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from types import TracebackType

import pyarrow as pa

import tidegate
from tidegate.errors import NotFoundError, OutageError, RecordError, StoreError, TidegateError

MISSING_FILE = "missing_file"
"""A file to read does not exist."""
USER_ERROR = "user_error"
"""User code raised an error about its data, and will raise it again for the same data."""
RUNTIME_ERROR = "runtime_error"
"""An error of the runtime without a code of its own, and without a sign that it is temporary."""
SLOT_MEMORY = "slot_memory"
"""A slot used more than its `slot_memory`."""

_ABOUT_DATA = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, NameError),
    *(NotImplementedError, RecursionError, pa.ArrowCapacityError),
)
_OF_DATA = frozenset({"tidegate", "pyarrow", "numpy", "pandas", "dateutil", "pytz"})
"""Packages whose errors of these classes are about data, besides Python itself. Other packages derive errors of
networks and services from them."""
_CLIENTS = frozenset({"aiobotocore", "aiohttp", "botocore", "deltalake", "httpx", "psycopg", "requests", "urllib3"})
"""Packages that call stores and services. Their errors may be temporary, except `_REFUSALS`."""
_REFUSALS = frozenset({"DataError", "IntegrityError", "ProgrammingError"})
"""Classes of PEP 249: the database responded, and refuses the row or the statement. It will refuse it again."""
_INSTALLED = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), *tidegate.__path__)
)
"""Folders with code that is not the user's."""


def failure_code(error: BaseException) -> str:
    """Return a code for `RunFailed`, from the error or its causes; "": another try may succeed.

    "" stands for networks, databases and memory, as far as can be seen. Everything that an outage has caused may
    succeed the next time, even if it prevented the build of the pipeline or the reading of a file.
    """
    chain = list(_with_causes(error))
    if any(_may_pass(one) for one in chain):
        return error.code if isinstance(error, StoreError | OutageError) else ""
    ours = [one.code for one in chain if isinstance(one, TidegateError)]
    if ours:
        named = next((code for code in ours if code != TidegateError.code), "")
        lost = any(isinstance(one, FileNotFoundError) for one in chain)  # staged files, which no run stages again
        return named or (MISSING_FILE if lost else RUNTIME_ERROR)
    if isinstance(error, OSError):  # the next run creates the job's own files again, such as scratch files
        return MISSING_FILE if _is_raised_by_user(error) else ""
    return USER_ERROR if _is_about_data(error) or _is_raised_by_user(error) else ""


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that caused it or were being handled, newest first."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        # `raise ... from` may link errors in a cycle.
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return not isinstance(error, FileNotFoundError)
    if isinstance(error, StoreError | OutageError):
        return not isinstance(error, NotFoundError | RecordError)
    return type(error).__module__.partition(".")[0] in _CLIENTS and not _is_refusal(error)


def _is_refusal(error: BaseException) -> bool:
    return any(kind.__name__ in _REFUSALS for kind in type(error).__mro__)


def _is_about_data(error: BaseException) -> bool:
    package = type(error).__module__.partition(".")[0]
    if package in _CLIENTS:
        return _is_refusal(error)
    return isinstance(error, _ABOUT_DATA) and (package in _OF_DATA or package in sys.stdlib_module_names)


def _is_raised_by_user(error: BaseException) -> bool:
    """Return whether the pipeline's own code raised the error, whatever its class."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    file = "" if frame is None else os.path.realpath(frame.tb_frame.f_code.co_filename)
    # Code that has no file has a name such as "<string>", which does not show whose code it is.
    return os.path.isfile(file) and not file.startswith(_INSTALLED)
