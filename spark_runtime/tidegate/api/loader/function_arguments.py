"""Checks the arguments of a pipeline's function against its signature, before the call.

A function with one mapping parameter receives the arguments unchanged. If its only parameter is annotated with a
dataclass, it receives an instance of it. Any other function receives the arguments by name. In the last two cases
names and types are checked, and texts, as from the command line, are converted to the annotated types.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tidegate.api.draft.column_checks import nearest
from tidegate.clock import parse_iso
from tidegate.errors import OptionError, PipelineError
from tidegate.units import parse_duration

_MAPPINGS = (dict, Mapping)
_SEQUENCES: Mapping[Any, Callable[[Any], Any]] = {list: list, tuple: tuple, Sequence: tuple}
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclasses.dataclass(frozen=True)
class _Parameter:
    """One argument. Attributes: default: True if it may be omitted."""

    name: str
    type_: Any
    default: bool


def call_function(function: Callable[..., object], arguments: Mapping[str, Any], where: str) -> object:
    """Call a pipeline's function with the arguments of a job.

    Args:
        where: the pipeline, for errors.

    Raises:
        PipelineError: an argument is unknown (names the nearest one), missing, or of another type. Exceptions of the
            function itself are not wrapped.
    """
    taken = _parameters(function)
    if taken is None or _takes_a_mapping(taken):
        return function(dict(arguments))
    only = taken[0].annotation if len(taken) == 1 else None
    if isinstance(only, type) and dataclasses.is_dataclass(only):
        field_hints = get_type_hints(only)
        fields = [
            _Parameter(
                f.name,
                field_hints[f.name],
                f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING,
            )
            for f in dataclasses.fields(only)
            if f.init
        ]
        return function(only(**_checked(fields, arguments, where, open_ended=False)))
    known = [
        _Parameter(p.name, p.annotation, p.default is not inspect.Parameter.empty)
        for p in taken
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken)
    return function(**_checked(known, arguments, where, open_ended=open_ended))


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter] | None:
    """Return the parameters with annotations as types; Any for a missing or unknown annotation; None: no signature."""
    try:
        found = inspect.signature(function, eval_str=True)
    except ValueError:
        return None
    except Exception:  # an annotation is a text that cannot be evaluated here: resolve each one separately
        found = inspect.signature(function)
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return [p.replace(annotation=_looked_up(p.annotation, names)) for p in found.parameters.values()]


def _looked_up(annotation: Any, names: Mapping[str, Any]) -> Any:
    """Return the type of one annotation. Another annotation may exist for type checkers only, so each is evaluated
    alone."""
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(names))
    except Exception:  # an annotation that cannot be evaluated here counts as none
        return Any


def _takes_a_mapping(taken: Sequence[inspect.Parameter]) -> bool:
    """Return whether its only required parameter has no annotation, or is annotated as a mapping."""
    needed = [p for p in taken if p.default is inspect.Parameter.empty and p.kind is not inspect.Parameter.VAR_KEYWORD]
    if len(needed) != 1 or needed[0] is not taken[0] or needed[0].kind is inspect.Parameter.KEYWORD_ONLY:
        return False
    hint = needed[0].annotation
    return hint is Any or (get_origin(hint) or hint) in _MAPPINGS


def _checked(
    known: Sequence[_Parameter], arguments: Mapping[str, Any], where: str, *, open_ended: bool
) -> dict[str, Any]:
    """Convert every argument to the type of its parameter."""
    by_name = {parameter.name: parameter for parameter in known}
    all_names = ", ".join(f"{p.name}: {_type_text(p.type_)}" for p in known) or "none"
    for name in arguments:
        if name not in by_name and not open_ended:
            near = nearest(name, by_name)
            raise PipelineError(
                f"there is no argument {name!r}" + (f", did you mean {near!r}?" if near else ""),
                where=where,
                cause=f"the function's arguments are {all_names}",
                remedy="Correct the name of the argument, or remove it",
            )
    missing = [p for p in known if not p.default and p.name not in arguments]
    if missing:
        raise PipelineError(
            f"the argument {missing[0].name!r} is missing",
            where=where,
            cause=f"the function's arguments are {all_names}",
            remedy=f"Pass it: --arg {missing[0].name}=..., or in the arguments of the Airflow operator",
        )
    return {
        name: _converted(value, by_name[name].type_, f"{where}, argument {name!r}") if name in by_name else value
        for name, value in arguments.items()
    }


def _converted(value: Any, type_: Any, where: str) -> Any:
    """Convert the value to `type_`. Raises PipelineError if that fails."""
    try:
        return _convert(value, type_)
    except (TypeError, ValueError, OptionError) as error:
        cause = error.cause or error.what if isinstance(error, OptionError) else str(error)
        raise PipelineError(
            f"the value {value!r} is not of type {_type_text(type_)}",
            where=where,
            cause=cause,
            remedy=f"Pass a value of type {_type_text(type_)}; the option --args-json accepts numbers and lists",
        ) from error


def _convert(value: Any, type_: Any) -> Any:
    if type_ is Any:
        return value
    origin, inner = get_origin(type_), get_args(type_)
    if origin in (Union, types.UnionType):
        return _as_one_of(value, inner)
    if origin is Literal:
        return (
            next(choice for choice in inner if _is_choice(value, choice))
            if _accepts(value, inner)
            else _type_error(inner)
        )
    if origin is Annotated:
        return _convert(value, inner[0])
    if (origin or type_) in _SEQUENCES:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"a list is needed, but the value is a {type(value).__name__}")
        if origin is tuple and Ellipsis not in inner:
            if len(value) != len(inner):
                raise TypeError(f"a list of {len(inner)} values is needed, but it has {len(value)}")
            return tuple(_convert(v, item) for v, item in zip(value, inner, strict=True))
        item = inner[0] if inner else Any
        return _SEQUENCES[origin or type_]([_convert(v, item) for v in value])
    if (origin or type_) in _MAPPINGS:
        if not isinstance(value, Mapping):
            raise TypeError(f"a mapping of names to values is needed, but the value is a {type(value).__name__}")
        return {name: _convert(v, inner[1] if len(inner) == 2 else Any) for name, v in value.items()}
    if isinstance(type_, type) and issubclass(type_, Enum):
        found = [member for member in type_ if value in (member.value, member.name)]
        return found[0] if found else _type_error(type_)
    return _as_simple(value, type_)


def _as_simple(value: Any, type_: Any) -> Any:
    text = value if isinstance(value, str) else None
    if type_ is bool:
        if isinstance(value, bool):
            return value
        if text is not None and text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
        raise TypeError("true or false is needed")
    if type_ in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if text is not None or whole or (type_ is float and isinstance(value, float)):
            return type_(value)
        raise TypeError("an integer is needed" if type_ is int else "a number is needed")
    if type_ is timedelta:
        return parse_duration(value)
    if type_ is datetime and text is not None:
        return parse_iso(text)
    if type_ is date and text is not None:
        return date.fromisoformat(text)
    if type_ is Path and text is not None:
        return Path(text)
    if type_ is type(None) and value is None:
        return None
    if isinstance(type_, type) and isinstance(value, type_) and not (type_ is not bool and isinstance(value, bool)):
        return value
    raise TypeError(f"the value is of type {type(value).__name__}")


def _as_one_of(value: Any, choices: Sequence[Any]) -> Any:
    """Convert to the first type that fits. None stays None if it is optional; a text stays a text if that is
    allowed."""
    if value is None and type(None) in choices:
        return None
    if isinstance(value, str) and str in choices:
        return value
    errors: list[str] = []
    for choice in choices:
        if choice is not type(None):
            try:
                return _convert(value, choice)
            except (TypeError, ValueError, OptionError) as error:
                errors.append(str(error))
    raise TypeError(errors[0] if errors else "the value fits none of the types")


def _accepts(value: Any, choices: Sequence[Any]) -> bool:
    return any(_is_choice(value, choice) for choice in choices)


def _is_choice(value: Any, choice: Any) -> bool:
    # The types too, because `True == 1` in Python.
    return bool(value == choice and type(value) is type(choice)) or (isinstance(value, str) and value == str(choice))


def _type_error(choices: Any) -> Any:
    raise ValueError(f"the value must be one of {', '.join(str(getattr(c, 'value', c)) for c in choices)}")


def _type_text(type_: Any) -> str:
    if type_ is Any:
        return "any"
    return type_.__name__ if isinstance(type_, type) and not get_args(type_) else str(type_).replace("typing.", "")
