"""Types of job options. Each parses the form that users write, and returns the form that programs use.

A wrong value raises OptionError with the allowed values.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, overload

from tidegate.errors import OptionError
from tidegate.units import ByteSize, format_duration, format_size, parse_duration, parse_size

AUTO: Final[Any] = "auto"
"""Value of an option that the user did not set, when the value is derived later."""

T = TypeVar("T")
G = TypeVar("G")


class OptionType(Generic[T, G]):
    """A field of JobOptions that accepts the form users write (`G`) and returns the form programs use (`T`)."""

    def __init__(self, default: G) -> None:
        self._given_default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.default = self.parse(self._given_default)

    @overload
    def __get__(self, options: None, owner: type) -> T: ...
    @overload
    def __get__(self, options: object, owner: type) -> T: ...
    def __get__(self, options: object | None, owner: type) -> T:
        # `dataclass` reads the class attribute to find the default of the field.
        if options is None:
            return self.default
        return self.effective(vars(options)[self.name], options)

    def __set__(self, options: object, value: G) -> None:
        # Into the dictionary of the object, because `setattr` would call this method again.
        vars(options)[self.name] = self.parse(value)

    def parse(self, value: G) -> T:
        """Check and convert a value. Raises OptionError."""
        raise NotImplementedError

    def plain(self, value: T) -> Any:
        """Return the JSON form of a value. `parse` accepts it."""
        return value

    def effective(self, value: T, options: object) -> T:
        """Return the value that programs see for a stored value. `options` is the object that holds it."""
        return value

    def refuse(self, value: object, allowed: str) -> OptionError:
        """Make the error for a wrong value."""
        return OptionError(
            f"option {self.name} cannot have the value {value!r}", where=f"option {self.name}", remedy=f"Give {allowed}"
        )


class Count(OptionType[int, int | str]):
    """A whole number within limits."""

    def __init__(self, default: int, least: int, most: int | None = None) -> None:
        self._least, self._most = least, most
        super().__init__(default)

    def parse(self, value: int | str) -> int:
        """See `OptionType.parse`."""
        allowed = f"a whole number from {self._least}" + (f" to {self._most}" if self._most is not None else " upwards")
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            raise self.refuse(value, allowed) from None
        good = isinstance(number, int) and not isinstance(number, bool) and number >= self._least
        if not good or (self._most is not None and number > self._most):
            raise self.refuse(value, allowed)
        return number


class OptionalCount(OptionType[int | None, int | str | None]):
    """A whole number of at least `least`, or None: no limit."""

    def __init__(self, default: int | None, least: int) -> None:
        self._least = least
        super().__init__(default)

    def parse(self, value: int | str | None) -> int | None:
        """See `OptionType.parse`."""
        if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = self._least - 1
        # `int()` accepts these, too: it turns true into 1, and cuts 2.7 to 2.
        if isinstance(value, bool | float) or number < self._least:
            raise self.refuse(value, f"a whole number from {self._least} upwards, or none")
        return number


class Factor(OptionType[float, float | str]):
    """A number of at least `least`."""

    def __init__(self, default: float, least: float) -> None:
        self._least = least
        super().__init__(default)

    def parse(self, value: float | str) -> float:
        """See `OptionType.parse`."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not (math.isfinite(number) and number >= self._least):
            raise self.refuse(value, f"a number from {self._least:g} upwards")
        return number


class Flag(OptionType[bool, bool | str]):
    """True or False, or the words "true" and "false"."""

    def parse(self, value: bool | str) -> bool:
        """See `OptionType.parse`."""
        if isinstance(value, bool):
            return value
        known = {"true": True, "false": False}
        if isinstance(value, str) and value.strip().lower() in known:
            return known[value.strip().lower()]
        raise self.refuse(value, "true or false")


class Duration(OptionType[timedelta, timedelta | str]):
    """A duration of at least `least`."""

    def __init__(self, default: str, least: str = "0 s") -> None:
        self._least = parse_duration(least)
        super().__init__(default)

    def parse(self, value: timedelta | str) -> timedelta:
        """See `OptionType.parse`."""
        duration = parse_duration(value, where=f"option {self.name}")
        if duration < self._least:
            raise self.refuse(value, f"at least {format_duration(self._least)}")
        return duration

    def plain(self, value: timedelta) -> Any:
        """See `OptionType.plain`."""
        return format_duration(value)


class OptionalDuration(OptionType[timedelta | None, timedelta | str | None]):
    """A duration of at least 1 ms, or None: off."""

    OFF = "none"
    """The word that switches the option off."""

    def parse(self, value: timedelta | str | None) -> timedelta | None:
        """See `OptionType.parse`."""
        if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        duration = parse_duration(value, where=f"option {self.name}")
        if duration < timedelta(milliseconds=1):
            raise self.refuse(value, f"at least 1 ms, or {self.OFF}")
        return duration

    def plain(self, value: timedelta | None) -> Any:
        """See `OptionType.plain`."""
        return None if value is None else format_duration(value)


class AutoDuration(OptionalDuration):
    """An optional duration with the value "auto", for an option that the user did not set. Programs then see None, and
    `JobOptions.left_open` contains its name."""

    OFF = "off"

    def parse(self, value: timedelta | str | None) -> timedelta | None:
        """See `OptionType.parse`."""
        word = value.strip().lower() if isinstance(value, str) else ""
        if word == AUTO:
            return AUTO
        return None if word == self.OFF else super().parse(value)

    def effective(self, value: timedelta | None, options: object) -> timedelta | None:
        """See `OptionType.effective`."""
        return None if value == AUTO else value

    def plain(self, value: timedelta | None) -> Any:
        """See `OptionType.plain`."""
        return AUTO if value == AUTO else super().plain(value)


class AutoCount(OptionalCount):
    """An optional count with the value "auto", for an option that the user did not set. Programs see the result of
    `derive` on the other options. Records store "auto", so that the count follows a later change of these options."""

    def __init__(self, derive: Callable[[Any], int | None], least: int) -> None:
        self._derive = derive
        super().__init__(AUTO, least)

    def parse(self, value: int | str | None) -> int | None:
        """See `OptionType.parse`."""
        return AUTO if isinstance(value, str) and value.strip().lower() == AUTO else super().parse(value)

    def effective(self, value: int | None, options: object) -> int | None:
        """See `OptionType.effective`."""
        return self._derive(options) if value == AUTO else value


class Size(OptionType[ByteSize, ByteSize | str]):
    """A number of bytes of at least `least`."""

    def __init__(self, default: str, least: str = "0 B") -> None:
        self._least = parse_size(least)
        super().__init__(default)

    def parse(self, value: ByteSize | str) -> ByteSize:
        """See `OptionType.parse`."""
        size = parse_size(value, where=f"option {self.name}")
        if size < self._least:
            raise self.refuse(value, f"at least {format_size(self._least)}")
        return size

    def plain(self, value: ByteSize) -> Any:
        """See `OptionType.plain`."""
        return format_size(value)


class OptionalSize(OptionType[ByteSize | None, ByteSize | str | None]):
    """A number of bytes of at least `least`, or None."""

    def __init__(self, default: str | None, least: str) -> None:
        self._least = parse_size(least)
        super().__init__(default)

    def parse(self, value: ByteSize | str | None) -> ByteSize | None:
        """See `OptionType.parse`."""
        if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        size = parse_size(value, where=f"option {self.name}")
        if size < self._least:
            raise self.refuse(value, f"at least {format_size(self._least)}, or none")
        return size

    def plain(self, value: ByteSize | None) -> Any:
        """See `OptionType.plain`."""
        return None if value is None else format_size(value)


class Choice(OptionType[T, T]):
    """One of a few fixed values."""

    def __init__(self, default: T, *others: T) -> None:
        self._allowed: tuple[T, ...] = (default, *others)
        super().__init__(default)

    def parse(self, value: T) -> T:
        """See `OptionType.parse`."""
        if value in self._allowed:
            return value
        allowed = " or ".join(map(repr, self._allowed))
        near = difflib.get_close_matches(str(value), map(str, self._allowed), n=1)
        raise self.refuse(value, f"{allowed}; did you mean {near[0]!r}?" if near else allowed)


class OptionalText(OptionType[str | None, str | None]):
    """A text that is not empty, or None."""

    def parse(self, value: str | None) -> str | None:
        """See `OptionType.parse`."""
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.refuse(value, "a text, or leave it out")
        return value
