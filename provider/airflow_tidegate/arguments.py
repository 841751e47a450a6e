"""Parses arguments as Airflow passes them: values, or the text of a rendered template."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tidegate.errors import OptionError
from tidegate.jobs.options import parse_duration

NOTHING = (None, "", "None")
"""Renderings of a template without a value."""


def duration(value: Any, name: str) -> timedelta:
    """Return `value` as a timedelta. Raises OptionError that names the argument; bare numbers are refused."""
    if isinstance(value, timedelta):
        return value
    try:
        return parse_duration(value)
    except OptionError as error:
        raise OptionError(error.what, where=f"argument {name}", cause=error.cause, remedy=error.remedy) from None


def optional_duration(value: Any, name: str) -> timedelta | None:
    """Return `value` as a timedelta, or None if it is empty."""
    return None if value in NOTHING else duration(value, name)


def flag(value: Any, name: str) -> bool:
    """Return `value` as a boolean; "true" and "false" in any case. Raises OptionError that names the argument."""
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise OptionError(
            f"the value must be true or false, but is {value!r}", where=f"argument {name}", remedy="Use true or false"
        )
    return word == "true"


def whole_number(value: Any, name: str, least: int) -> int:
    """Return `value` as an integer of at least `least`. Raises OptionError that names the argument."""
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) < least:
        raise OptionError(
            f"the value must be an integer of {least} or more, but is {value!r}",
            where=f"argument {name}",
            remedy=f"Use {least} or more",
        )
    return int(text)
