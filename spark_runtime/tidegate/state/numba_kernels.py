"""Compilation of kernels: numba, without the interpreter lock, cached in a private writable directory.

Import this module before numba, because it sets numba's cache directory. The cache holds machine code that later
processes load and run, so the directory must belong to this user alone. If none can be created, a temporary directory
exists as long as the process.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

CACHE_VARIABLE = "NUMBA_CACHE_DIR"
"""Environment variable that names another directory for compiled kernels."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def private_cache_directory(base: Path, digest: str) -> Path | None:
    """Return `base`/tidegate/kernels/`digest`, and create missing levels with mode 0700.

    Returns None if that fails, or if another user owns a level or can write to it.
    """
    directory = base
    for name in ("tidegate", "kernels", digest):
        directory = directory / name
        try:
            base.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            found = directory.stat()
        except OSError:
            return None
        if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            return None
        if not os.access(directory, os.W_OK | os.X_OK):
            return None
    return directory


def sources_digest() -> str:
    """Return the digest of the sources of all modules with kernels, which are the modules that import this one.

    numba's cache notices changes in the file of a kernel, but not in functions of other files that the kernel calls.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        source = path.read_bytes()
        if b"tidegate.state.numba_kernels" in source or path == Path(__file__):
            digest.update(source)
    return digest.hexdigest()[:16]


def _user_cache() -> Path | None:
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def _settle_cache_directory() -> None:
    if os.environ.get(CACHE_VARIABLE):
        return
    base = _user_cache()
    directory = private_cache_directory(base, sources_digest()) if base is not None else None
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="tidegate-kernels-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ[CACHE_VARIABLE] = str(directory)
    # If numba was imported before this module, it has read the variable already.
    config = getattr(sys.modules.get("numba"), "config", None)
    if config is not None and not config.CACHE_DIR:
        config.CACHE_DIR = str(directory)


_settle_cache_directory()

import numba  # noqa: E402


def kernel(*signatures: str) -> Callable[[_Function], _Function]:
    """Compile for exactly `signatures` when the module is imported, or load the kernel from the cache.

    Signatures use read-only arrays. Writable arrays convert to them, so Arrow's arrays and our own need one version.
    Kernels do not hold the interpreter lock, do not check bounds and wrap around on integer overflow.
    """
    compile_: Any = numba.njit([_signature(text) for text in signatures], cache=True, nogil=True, error_model="numpy")
    return compile_


def inlined(function: _Function) -> _Function:
    """Return a device function for use in kernels of any signature."""
    compiled: Any = numba.njit(inline="always", error_model="numpy")(function)
    return compiled


_ARRAYS: dict[str, Any] = {
    "u1[]": numba.types.Array(numba.uint8, 1, "C", readonly=True),
    "u2[]": numba.types.Array(numba.uint16, 1, "C", readonly=True),
    "i4[]": numba.types.Array(numba.int32, 1, "C", readonly=True),
    "i8[]": numba.types.Array(numba.int64, 1, "C", readonly=True),
    "u8[]": numba.types.Array(numba.uint64, 1, "C", readonly=True),
    "f8[]": numba.types.Array(numba.float64, 1, "C", readonly=True),
    "u1[]!": numba.uint8[::1],
    "u2[]!": numba.uint16[::1],
    "i4[]!": numba.int32[::1],
    "u4[]!": numba.uint32[::1],
    "i8[]!": numba.int64[::1],
    "u8[]!": numba.uint64[::1],
    "f8[]!": numba.float64[::1],
    "u1": numba.uint8,
    "i4": numba.int32,
    "i8": numba.int64,
    "u8": numba.uint64,
    "f8": numba.float64,
    "b1": numba.boolean,
    "void": numba.void,
}
"""Words of a signature: `i8[]` is a read-only array of int64, `i8[]!` is one that the kernel writes."""


def _signature(text: str) -> Any:
    returns, _, arguments = text.partition("(")
    return _ARRAYS[returns.strip()](*(_ARRAYS[word.strip()] for word in arguments.rstrip(")").split(",")))
