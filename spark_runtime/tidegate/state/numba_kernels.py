"""Compilation of kernels: numba, without the interpreter lock, cached in a private writable directory.

numba's cache holds machine code that later processes load and run, so the directory must belong to this user alone. If
none can be created, a temporary directory exists as long as the process.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from tidegate.private_cache import private_cache_directory, user_cache

CACHE_VARIABLE = "NUMBA_CACHE_DIR"
"""Environment variable that names another directory for compiled kernels."""

_TYPES = {
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "i4": "int32",
    "i8": "int64",
    "f8": "float64",
    "b1": "boolean",
    "void": "void",
}
"""Words of a signature, and numba's names."""
_compiling = threading.RLock()

_Function = TypeVar("_Function", bound=Callable[..., Any])


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


def _settle_cache_directory() -> None:
    if os.environ.get(CACHE_VARIABLE):
        return
    directory = private_cache_directory(user_cache(), "kernels", sources_digest())
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="tidegate-kernels-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ[CACHE_VARIABLE] = str(directory)
    # If numba was imported before this module, it has read the variable already.
    config = getattr(sys.modules.get("numba"), "config", None)
    if config is not None and not config.CACHE_DIR:
        config.CACHE_DIR = str(directory)


class Kernel:
    """A function that numba compiles, or loads from its cache, at the first call or in `compile_kernels`.

    So a process that only builds a pipeline does not import numba, which takes a second of CPU.

    Args:
        function: may use other kernels and inlined functions that are globals of its module.
        compile_: makes numba's function from numba and the function.
    """

    def __init__(self, function: Callable[..., Any], compile_: Callable[[Any, Callable[..., Any]], Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._compile = function, compile_
        self._compiled: Any = None

    def compiled(self) -> Any:
        """Return numba's function. Afterwards, the kernel's own module calls it directly."""
        with _compiling:
            if self._compiled is None:
                names = self._function.__globals__
                for name in self._function.__code__.co_names:
                    if isinstance(names.get(name), Kernel):
                        names[name] = names[name].compiled()
                self._compiled = self._compile(_numba(), self._function)
                if names.get(self._function.__name__) is self:
                    names[self._function.__name__] = self._compiled
        return self._compiled

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel."""
        return (self._compiled or self.compiled())(*arguments)


_kernels: list[Kernel] = []


def compile_kernels() -> None:
    """Compile every kernel of the modules imported so far, or load it from the cache.

    Afterwards, these modules call numba's functions directly.
    """
    for found in _kernels:
        found.compiled()
    for name, module in list(sys.modules.items()):
        if name.startswith("tidegate."):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, Kernel):
                    setattr(module, attribute, value.compiled())


def kernel(*signatures: str) -> Callable[[_Function], _Function]:
    """Make a function a kernel, compiled for exactly `signatures`.

    Signatures use read-only arrays. Writable arrays convert to them, so Arrow's arrays and our own need one version.
    Kernels do not hold the interpreter lock, do not check bounds and wrap around on integer overflow.
    """

    def compile_(numba: Any, function: Callable[..., Any]) -> Any:
        given = [_signature(numba, text) for text in signatures]
        return numba.njit(given, cache=True, nogil=True, error_model="numpy")(function)

    def make(function: _Function) -> _Function:
        made = Kernel(function, compile_)
        _kernels.append(made)
        return cast(_Function, made)

    return make


def inlined(function: _Function) -> _Function:
    """Return a device function for use in kernels of any signature."""
    return cast(_Function, Kernel(function, lambda numba, f: numba.njit(inline="always", error_model="numpy")(f)))


def instruction(function: Callable[..., Any]) -> Any:
    """Return a function made of LLVM's instructions for use in kernels. Args: function: see numba's `intrinsic`."""
    return Kernel(function, lambda _, f: importlib.import_module("numba.extending").intrinsic(f))


@functools.cache
def _numba() -> Any:
    """Return numba, which reads its cache directory when it is imported."""
    _settle_cache_directory()
    return importlib.import_module("numba")


def _signature(numba: Any, text: str) -> Any:
    """Return numba's form of a signature: `i8[]` is a read-only array of int64, `i8[]!` one that the kernel writes,
    and `i8*2` a tuple of two."""
    returns, _, arguments = text.partition("(")
    return _type(numba, returns.strip())(*(_type(numba, word.strip()) for word in arguments.rstrip(")").split(",")))


def _type(numba: Any, word: str) -> Any:
    item, _, array = word.partition("[]")
    item, _, length = item.partition("*")
    type_ = getattr(numba, _TYPES[item])
    if length:
        return numba.types.UniTuple(type_, int(length))
    return numba.types.Array(type_, 1, "C", readonly=not array) if "[]" in word else type_
