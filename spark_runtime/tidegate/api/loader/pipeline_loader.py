"""Loads a JobGraph: imports `module:function` from a folder and calls the user's function."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from tidegate.api.draft.call_site import code_root, format_location, is_below
from tidegate.api.draft.column_checks import nearest
from tidegate.api.loader.function_arguments import call_function
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.found_schema import FoundSchemas, using_found_schemas
from tidegate.connectors.storage import relative_paths
from tidegate.errors import PipelineError, TidegateError
from tidegate.jobs.artifacts.packed_pipeline import SITE_PACKAGES, check_unpacked, is_packed_pipeline
from tidegate.jobs.records import RelativePaths
from tidegate.plan.job_graph import JobGraph

_loaded_roots: list[str] = []
"""Folders that earlier calls added to sys.path; the next call removes them."""
_loaded_modules: set[str] = set()
"""Modules that earlier calls loaded from these folders."""


def load_pipeline(
    root_dir: str,
    target: str,
    arguments: Mapping[str, Any],
    *,
    check_sinks: bool = True,
    paths: RelativePaths | None = None,
    schemas: FoundSchemas | None = None,
) -> JobGraph:
    """Import the module from `root_dir`, call its function with the arguments, and build the returned pipeline.

    From then on, `root_dir` is first on sys.path, followed by the packages of a packed pipeline, until the next call.
    Modules that an earlier call loaded from its folder are removed, so one process can load several versions. Packages
    of packed pipelines that were on sys.path before, for example through Spark's --py-files, come last. Not
    thread-safe.

    Args:
        root_dir: folder with the pipeline's code, such as a materialised artifact.
        target: `module:function`.
        arguments: arguments of the function; see `function_arguments`.
        check_sinks: check that every sink supports its records; this may do I/O.
        paths: base of relative paths; None: the working directory of this process.
        schemas: schemas that the job's sources found before (S5.5); a source without one reads it from its input.

    Raises:
        PipelineError: the module or function is missing; the user's code raised an exception, with its place; or the
            result is not a Pipeline. Other TidegateErrors of the user's calls are not wrapped.
    """
    module_name, colon, function_name = target.partition(":")
    if not (colon and module_name and function_name):
        raise PipelineError(
            f"the pipeline {target!r} is not of the form module:function",
            remedy='Write the file without .py and the function, such as "flight_delays:build"',
        )
    check_unpacked(root_dir)
    with (
        code_root(root_dir),
        _recording_imports(root_dir),
        relative_paths(paths),
        using_found_schemas(schemas or {}),
    ):
        module = _import(root_dir, module_name)
        function = _function(module, function_name)
        where = f"pipeline {target}"
        with _users_errors(root_dir, where, arguments):
            made = call_function(function, arguments, f"{where} in {format_location(*_place_of(function))}")
        if not isinstance(made, Pipeline):
            raise PipelineError(
                f"{function_name} returned {'nothing' if made is None else type(made).__name__}, not a Pipeline",
                where=where,
                remedy="End the function with `return p`, where p = Pipeline()",
            )
        with _users_errors(root_dir, where, arguments):
            return made.build(check_sinks=check_sinks)


def _import(root_dir: str, module_name: str) -> ModuleType:
    where = f"pipeline module {module_name!r}"
    top = module_name.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("tidegate", "pyarrow", "numpy", "pyspark"):
        raise PipelineError(
            f"a pipeline's file cannot be named {top!r}",
            where=where,
            cause="a module of Python's standard library or of tidegate has the same name",
            remedy="Give the file of the pipeline another name",
        )
    _prepend_to_path(root_dir, top, where)
    with _users_errors(root_dir, where, {}):
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # Another module, which the pipeline imports, is missing. `_users_errors` names the line of the import.
            if error.name is None or not (module_name + ".").startswith(error.name + "."):
                raise
            names = sorted(_modules_in(root_dir))
            near = nearest(top, names)
            raise PipelineError(
                f"there is no module {module_name!r}" + (f", did you mean {near!r}?" if near else ""),
                where=f"code folder {root_dir}",
                cause=f"the folder holds {', '.join(names) or 'no Python files'}",
                remedy="Name the file without .py and without its folder",
            ) from error


def _prepend_to_path(root_dir: str, top: str, where: str) -> None:
    """Put `root_dir` first on sys.path. Remove modules of earlier calls, and another module of the name `top`."""
    for name in _loaded_modules:
        sys.modules.pop(name, None)
    _loaded_modules.clear()
    taken = sys.modules.get(top)
    if taken is not None:
        file = getattr(taken, "__file__", None) or "this process"
        if any(part in file for part in ("site-packages", "dist-packages")) and top in _modules_in(root_dir):
            raise PipelineError(
                f"a pipeline's file cannot be named {top!r}",
                where=where,
                cause=f"an installed module has this name: {file}",
                remedy="Give the file of the pipeline another name",
            )
        for name in [n for n in sys.modules if n == top or n.startswith(top + ".")]:
            del sys.modules[name]
    root = os.path.realpath(root_dir)
    # In place, because other modules may hold this list.
    sys.path[:] = [entry for entry in sys.path if entry not in (root, *_loaded_roots)]
    added = [root, *(path for path in [os.path.join(root, SITE_PACKAGES)] if os.path.isdir(path))]
    beside = [os.path.join(entry, SITE_PACKAGES) for entry in sys.path if is_packed_pipeline(entry)]
    sys.path[:0] = added
    sys.path += [path for path in beside if path not in sys.path]
    _loaded_roots[:] = added
    # Python caches the listings of folders, so that files that were just unpacked could seem to be missing.
    importlib.invalidate_caches()


@contextlib.contextmanager
def _recording_imports(root_dir: str) -> Iterator[None]:
    """Record the modules that are loaded from `root_dir` in this context, for removal by the next call."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - before:
            module = sys.modules[name]
            places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
            if any(place and is_below(place, root_dir) for place in places):
                _loaded_modules.add(name)


def _modules_in(root_dir: str) -> set[str]:
    if not os.path.isdir(root_dir):
        return set()
    return {
        entry.removesuffix(".py")
        for entry in os.listdir(root_dir)
        if entry.removesuffix(".py").isidentifier()
        and (entry.endswith(".py") or os.path.isdir(os.path.join(root_dir, entry)))
    }


def _place_of(function: Callable[..., object]) -> tuple[str, int | None]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else (repr(function), None)


def _function(module: ModuleType, name: str) -> Callable[..., object]:
    file = format_location(module.__file__ or module.__name__, None)
    found = getattr(module, name, None)
    if found is None:
        functions = inspect.getmembers(module, inspect.isfunction)
        names = [n for n, value in functions if value.__module__ == module.__name__]
        near = nearest(name, names)
        raise PipelineError(
            f"there is no function {name!r}" + (f", did you mean {near!r}?" if near else ""),
            where=file,
            cause=f"its functions are {', '.join(names)}" if names else "it has no functions",
            remedy="Name the function that takes the arguments and returns the Pipeline",
        )
    if not callable(found):
        raise PipelineError(
            f"{name!r} must be a function, but is a {type(found).__name__}",
            where=file,
            remedy="Name the function that returns the Pipeline",
        )
    return found


@contextlib.contextmanager
def _users_errors(root_dir: str, where: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Convert exceptions of the user's code to a PipelineError with the last place in the user's code."""
    try:
        yield
    except TidegateError:
        raise
    except SyntaxError as error:
        raise PipelineError(
            f"the pipeline's code has a syntax error: {error.msg}",
            where=format_location(error.filename or where, error.lineno),
            cause=(error.text or "").strip(),
            remedy="Correct the line",
        ) from error
    except Exception as error:
        raise _as_pipeline_error(error, root_dir, where, arguments) from error


def _as_pipeline_error(error: Exception, root_dir: str, where: str, arguments: Mapping[str, Any]) -> PipelineError:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_below(frame.filename, root_dir)]
    line = ""
    if own:
        where = f"{where}, {format_location(own[-1].filename, own[-1].lineno)} in {own[-1].name}"
        line = (own[-1].line or "").strip()
    what = f"the pipeline's code raised {type(error).__name__}: {error}"
    remedy = "Correct the code, or the arguments passed to it"
    if isinstance(error, ModuleNotFoundError):
        remedy = (
            "If it is a module of yours, pin its folder with the pipeline: --code-root FOLDER (code_root=). If it is a "
            "package, install it where the driver and the slots run, or pack it with the pipeline (`tidegate pack`)"
        )
    elif isinstance(error, KeyError) and error.args and error.args[0] not in arguments and "[" in line:
        given = ", ".join(map(str, arguments)) or "none"
        near = nearest(str(error.args[0]), map(str, arguments))
        remedy = f"If it is an argument of the job, pass it; the arguments are: {given}" + (
            f". Did you mean {near!r}?" if near else ""
        )
    return PipelineError(what, where=where, cause=f"`{line}`" if line else "", remedy=remedy)
