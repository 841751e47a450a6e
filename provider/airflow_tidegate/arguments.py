"""Arguments as Airflow hands them over: values, or the text that a template was rendered to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tidegate.errors import OptionError
from tidegate.jobs.options import parse_duration

NOTHING = (None, "", "None")
"""What a template that has nothing to say renders to."""


def duration(value: Any, name: str) -> timedelta:
    """`value` as a timedelta. Raises OptionError naming the argument; bare numbers are refused."""
    if isinstance(value, timedelta):
        return value
    try:
        return parse_duration(value)
    except OptionError as error:
        raise OptionError(error.what, where=f"argument {name}", cause=error.cause, remedy=error.remedy) from None


def optional_duration(value: Any, name: str) -> timedelta | None:
    """`duration`, or None for what names none."""
    return None if value in NOTHING else duration(value, name)


def flag(value: Any, name: str) -> bool:
    """`value` as a boolean; the words "true" and "false" in any case. Raises OptionError naming the argument."""
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise OptionError(f"{value!r} is neither true nor false", where=f"argument {name}", remedy="use true or false")
    return word == "true"


def whole_number(value: Any, name: str, least: int) -> int:
    """`value` as a whole number from `least` upwards. Raises OptionError naming the argument."""
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) < least:
        raise OptionError(
            f"{value!r} is not a whole number from {least} upwards", where=f"argument {name}", remedy="give such a one"
        )
    return int(text)
