"""Checks that a pipeline's function has the arguments of a submission, by reading the function's source.

It works where the code cannot be imported, such as in Airflow. The driver checks types, and everything that the source
does not show for certain.
"""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from tidegate.errors import PipelineError
from tidegate.jobs.artifacts.artifact import resolve_pipeline

Names = dict[str, bool]
"""Arguments by name, each with whether it may be left out."""

_PLAIN_TYPES = frozenset({"str", "int", "float", "bool"})
_NO_FIELD = ("ClassVar", "InitVar", "KW_ONLY")
_IN_A_CLASS = (ast.AnnAssign, ast.Assign, ast.Expr, ast.Pass, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""Statements of a class body that cannot add a field unnoticed. After any other statement the fields are unknown."""


def check_argument_names(pipeline: str, code_root: str | None, arguments: Mapping[str, object]) -> None:
    """Raise PipelineError when the function does not have an argument, naming the nearest, or when one is missing.

    Args:
        pipeline, code_root: as in `resolve_pipeline`. Only code in a single file is checked.
    """
    artifact, target = resolve_pipeline(pipeline, code_root)
    found = _source_of(artifact, target)
    if found is None:
        return
    file, function = found
    # Code that cannot be parsed here is no reason to refuse a submission: the driver may have a newer Python.
    with suppress(OSError, SyntaxError, ValueError, RecursionError), open(file, encoding="utf-8") as source:
        tree = ast.parse(source.read())
        defined = _definition(tree, function)
        taken = _accepted_names(tree, defined) if defined is not None else None
        if defined is None or taken is None:
            return
        where = f"pipeline {target} in {file}:{defined.lineno}"
        _check(taken, arguments, where, open_ended=defined.args.kwarg is not None)


def _check(taken: Names, arguments: Mapping[str, object], where: str, *, open_ended: bool) -> None:
    cause = f"the function's arguments are {', '.join(taken) or 'none'}"
    for name in arguments:
        if name not in taken and not open_ended:
            near = difflib.get_close_matches(name, taken, 1)
            raise PipelineError(
                f"there is no argument {name!r}" + (f", did you mean {near[0]!r}?" if near else ""),
                where=where,
                cause=cause,
                remedy="Correct the name, or leave the argument out",
            )
    missing = [name for name, optional in taken.items() if not optional and name not in arguments]
    if missing:
        raise PipelineError(
            f"the argument {missing[0]!r} is missing",
            where=where,
            cause=cause,
            remedy=f"Pass it: --arg {missing[0]}=..., or in the arguments of the operator",
        )


def _source_of(artifact: str, target: str) -> tuple[str, str] | None:
    """Return the file and the function's name; None when the code is packed."""
    module, _, function = target.partition(":")
    if os.path.isfile(artifact):
        return (artifact, function) if artifact.endswith(".py") else None
    is_package = os.path.isfile(os.path.join(artifact, "__init__.py"))  # pinned under its own name
    base = os.path.join(os.path.dirname(artifact) if is_package else artifact, *module.split("."))
    for file in (os.path.join(base, "__init__.py"), f"{base}.py"):  # in the order of Python's imports
        if os.path.isfile(file):
            return file, function
    return None


def _definition(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """Return the definition of the function; None when anything else may bind its name, such as a later `import *`."""
    bound = [node for node in tree.body if name in set(_bound(node))]
    if len(bound) != 1 or not isinstance(bound[0], ast.FunctionDef) or bound[0].decorator_list:
        return None
    behind = tree.body[tree.body.index(bound[0]) :]
    return None if any("*" in _bound(node) for node in behind) else bound[0]


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of the module may bind. "*" is yielded as it is."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            yield part.name
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, ast.alias):
            yield (part.asname or part.name).partition(".")[0]


def _accepted_names(tree: ast.Module, function: ast.FunctionDef) -> Names | None:
    """Return the function's arguments by name; None: it accepts a mapping, or the arguments are unknown."""
    given = function.args
    if given.posonlyargs or given.vararg is not None:
        return None
    required = len(given.args) - len(given.defaults)
    taken = {arg.arg: n >= required for n, arg in enumerate(given.args)}
    taken |= {arg.arg: value is not None for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    every = [*given.args, *given.kwonlyargs]
    needed = [arg for arg in every if not taken[arg.arg]]
    is_alone = len(every) == 1 and given.kwarg is None
    if not is_alone and (len(needed) != 1 or needed[0] is not every[0] or needed[0] in given.kwonlyargs):
        return taken
    if not every:
        return taken
    hint = every[0].annotation
    if not isinstance(hint, ast.Name):
        return None
    if hint.id in _PLAIN_TYPES:
        return taken
    return _fields(tree, hint.id) if is_alone else None


def _fields(tree: ast.Module, name: str) -> Names | None:
    """Return the fields of a dataclass that this file defines without bases; None when it is not such a class."""
    classes = [node for node in tree.body if name in set(_bound(node))]
    imported = {alias.name for n in tree.body if isinstance(n, ast.ImportFrom | ast.Import) for alias in n.names
                if isinstance(n, ast.Import) or n.module == "dataclasses"}  # fmt: skip
    if len(classes) != 1 or not isinstance(classes[0], ast.ClassDef) or classes[0].bases or classes[0].keywords:
        return None
    written = [ast.unparse(part).partition("(")[0] for part in classes[0].decorator_list]
    known = {"dataclass": "dataclass", "dataclasses.dataclass": "dataclasses"}
    if len(written) != 1 or known.get(written[0]) not in imported:
        return None
    found: Names = {}
    for node in classes[0].body:
        if not isinstance(node, _IN_A_CLASS):
            return None
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if any(word in ast.unparse(node.annotation) for word in _NO_FIELD):
            return None
        options: set[str | None] = set()
        called = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
        is_field = {"field": "field", "dataclasses.field": "dataclasses"}.get(called) in imported
        if is_field and isinstance(node.value, ast.Call):
            options = {keyword.arg for keyword in node.value.keywords}
            # `None` stands for `**options` in the call, which may
            # contain `init`. A field without `init` is no argument.
            if options & {"init", None}:
                return None
        found[node.target.id] = bool(options & {"default", "default_factory"}) if is_field else node.value is not None
    return found
