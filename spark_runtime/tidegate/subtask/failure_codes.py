"""What a failure of a subtask says about another try (S9.1). Pure."""

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
"""A file that is read is not there."""
USER_ERROR = "user_error"
"""What code raises about its data, and raises again for the same data."""
RUNTIME_ERROR = "runtime_error"
"""An error of the runtime that has no code of its own, and of which nothing says that it may pass."""
SLOT_MEMORY = "slot_memory"
"""A slot used more than its `slot_memory`."""

_ABOUT_DATA = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, NameError),
    *(NotImplementedError, RecursionError, pa.ArrowCapacityError),
)
_OF_DATA = frozenset({"tidegate", "pyarrow", "numpy", "pandas", "dateutil", "pytz"})
"""Packages whose such errors are about data, beside Python's own: other packages derive errors of networks and services
from ValueError, too."""
_CLIENTS = frozenset({"aiobotocore", "aiohttp", "botocore", "deltalake", "httpx", "psycopg", "requests", "urllib3"})
"""Packages that talk to stores and services: what they raise may pass, except `_REFUSALS`."""
_REFUSALS = frozenset({"DataError", "IntegrityError", "ProgrammingError"})
"""Classes of PEP 249: the database answered, and refuses the row or the statement. It will refuse them again."""
_INSTALLED = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), *tidegate.__path__)
)
"""Code that is not the user's."""


def failure_code(error: BaseException) -> str:
    """A code for `RunFailed`, found in the error or in what caused it; "": another try may go well, for all that can be
    seen: networks, databases, memory. Whatever an outage has caused may go well, too, also where the pipeline could not
    be built or a file could not be read for it."""
    chain = list(_with_causes(error))
    if any(_may_pass(one) for one in chain):
        return error.code if isinstance(error, StoreError | OutageError) else ""
    ours = [one.code for one in chain if isinstance(one, TidegateError)]
    if ours:
        named = next((code for code in ours if code != TidegateError.code), "")
        lost = any(isinstance(one, FileNotFoundError) for one in chain)  # staged files, which no run stages again
        return named or (MISSING_FILE if lost else RUNTIME_ERROR)
    if isinstance(error, OSError):  # a file of the job's own, such as a scratch file, is made again by the next run
        return MISSING_FILE if _is_raised_by_user(error) else ""
    return USER_ERROR if _is_about_data(error) or _is_raised_by_user(error) else ""


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from or while handling, newest first."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
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
    """Whether a line of the pipeline's own code raised it, whatever its class."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    file = "" if frame is None else os.path.realpath(frame.tb_frame.f_code.co_filename)
    return os.path.isfile(file) and not file.startswith(_INSTALLED)
