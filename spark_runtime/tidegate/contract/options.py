"""`JobOptions`: every setting of a job, the same names in Python, Airflow, the command line and the docs."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar, overload

from tidegate.contract.errors import OptionError
from tidegate.contract.units import (
    ByteSize,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

__all__ = ["JobOptions", "format_duration", "format_size", "parse_duration", "parse_size"]

MAX_KEY_GROUPS = 32_768
"""Upper bound of `max_parallelism`: key groups travel as uint16, with room to spare."""

ExecutionMode = Literal["streaming"]
CheckpointMode = Literal["exactly_once", "at_least_once"]
Retention = Literal["keep", "delete"]
Commit = Literal["automatic"]

T = TypeVar("T")
G = TypeVar("G")


class _Setting(Generic[T, G]):
    """A field that takes what users write (`G`) and gives what programs use (`T`)."""

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
        if options is None:
            return self.default
        value: T = vars(options)[self.name]
        return value

    def __set__(self, options: object, value: G) -> None:
        vars(options)[self.name] = self.parse(value)

    def parse(self, value: G) -> T:
        """`value` checked, or OptionError."""
        raise NotImplementedError

    def plain(self, value: T) -> Any:
        """JSON form that `parse` takes back."""
        return value

    def refuse(self, value: object, allowed: str) -> OptionError:
        """The error for a wrong value."""
        return OptionError(
            f"{value!r} is not a value of {self.name}", where=f"option {self.name}", remedy=f"Give {allowed}"
        )


class Count(_Setting[int, int | str]):
    """A whole number within bounds."""

    def __init__(self, default: int, least: int, most: int | None = None) -> None:
        self._least, self._most = least, most
        super().__init__(default)

    def parse(self, value: int | str) -> int:
        """See `_Setting.parse`."""
        allowed = f"a whole number from {self._least}" + (f" to {self._most}" if self._most is not None else " upwards")
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            raise self.refuse(value, allowed) from None
        good = isinstance(number, int) and not isinstance(number, bool) and number >= self._least
        if not good or (self._most is not None and number > self._most):
            raise self.refuse(value, allowed)
        return number


class Duration(_Setting[timedelta, timedelta | str]):
    """A duration, at least `least`."""

    def __init__(self, default: str, least: str = "0 s") -> None:
        self._least = parse_duration(least)
        super().__init__(default)

    def parse(self, value: timedelta | str) -> timedelta:
        """See `_Setting.parse`."""
        duration = parse_duration(value, where=f"option {self.name}")
        if duration < self._least:
            raise self.refuse(value, f"at least {format_duration(self._least)}")
        return duration

    def plain(self, value: timedelta) -> Any:
        """See `_Setting.plain`."""
        return format_duration(value)


class OptionalDuration(_Setting[timedelta | None, timedelta | str | None]):
    """A duration of at least a millisecond, or None: off."""

    def parse(self, value: timedelta | str | None) -> timedelta | None:
        """See `_Setting.parse`."""
        if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        duration = parse_duration(value, where=f"option {self.name}")
        if duration < timedelta(milliseconds=1):
            raise self.refuse(value, "at least 1 ms, or none")
        return duration

    def plain(self, value: timedelta | None) -> Any:
        """See `_Setting.plain`."""
        return None if value is None else format_duration(value)


class Size(_Setting[ByteSize, ByteSize | str]):
    """A number of bytes, at least `least`."""

    def __init__(self, default: str, least: str = "0 B") -> None:
        self._least = parse_size(least)
        super().__init__(default)

    def parse(self, value: ByteSize | str) -> ByteSize:
        """See `_Setting.parse`."""
        size = parse_size(value, where=f"option {self.name}")
        if size < self._least:
            raise self.refuse(value, f"at least {format_size(self._least)}")
        return size

    def plain(self, value: ByteSize) -> Any:
        """See `_Setting.plain`."""
        return format_size(value)


class Choice(_Setting[T, T]):
    """One of a few words; words of rules that this version does not offer yet are refused as such."""

    def __init__(self, default: T, *others: T, not_offered: tuple[str, ...] = ()) -> None:
        self._allowed: tuple[T, ...] = (default, *others)
        self._not_offered = not_offered
        super().__init__(default)

    def parse(self, value: T) -> T:
        """See `_Setting.parse`."""
        if value in self._allowed:
            return value
        allowed = " or ".join(map(repr, self._allowed))
        if value in self._not_offered:
            raise OptionError(
                f"{self.name}={value!r} is not offered by this version",
                where=f"option {self.name}",
                remedy=f"Use {allowed}",
            )
        near = difflib.get_close_matches(str(value), map(str, self._allowed), n=1)
        raise self.refuse(value, f"{allowed}; did you mean {near[0]!r}?" if near else allowed)


class OptionalText(_Setting[str | None, str | None]):
    """A text that is not empty, or None."""

    def parse(self, value: str | None) -> str | None:
        """See `_Setting.parse`."""
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.refuse(value, "a text, or leave it out")
        return value


@dataclass(frozen=True)
class JobOptions:
    """Settings of one submission. Durations are `timedelta` or texts such as "10 min", sizes texts such as "4 MiB";
    bare numbers are refused. A wrong value raises OptionError.

    Attributes:
        parallelism: subtasks per operator, and slots; 1 to `max_parallelism`.
        max_parallelism: key groups; fixed for the life of a job (S5.1).
        slot_memory: resident memory a slot may use.
        execution_mode: "streaming" (S8.1).
        checkpoint_mode: "exactly_once" or "at_least_once" of records on state (S3.2, S3.3).
        checkpoint_interval: time between periodic checkpoints; None: no periodic ones (S1.1).
        min_pause_between_checkpoints: least time from a completion to the next periodic trigger (S1.2).
        checkpoint_timeout: a pending checkpoint older than this is aborted (S1.4).
        max_concurrent_checkpoints: pending at once (S1.2).
        max_queued_requests: checkpoint requests that may wait (S1.2).
        tolerable_checkpoint_failures: failures in a row before the job fails over (S2.2).
        retained_checkpoints: newest completed checkpoints kept (S2.3).
        retention: "keep" or "delete" checkpoints when the job is cancelled (S2.3).
        state_size_threshold: smaller state streams live in the snapshot's metadata (S5.4).
        restart_attempts: restarts since the last completed checkpoint before the job fails (S9.1).
        restart_delay: pause before a restart.
        slots_timeout: how long to wait for slots.
        idle_after: a source without records for this long no longer holds the watermark back; None: it always does
            (S4.4).
        channel_capacity: bytes buffered per channel.
        heartbeat_interval: between heartbeats of slots and driver.
        heartbeat_timeout: silence after which a slot or driver counts as dead; longer than `heartbeat_interval`.
        stop_timeout: for a stop, from command to end.
        sigterm_timeout: for a graceful end after SIGTERM.
        commit: "automatic": completion permits the commit (S7.4).
        savepoint_directory: absolute folder or URL for savepoints; None: the job's own folder.
    """

    parallelism: Count = Count(1, 1, MAX_KEY_GROUPS)
    max_parallelism: Count = Count(128, 1, MAX_KEY_GROUPS)
    slot_memory: Size = Size("1 GiB", least="128 MiB")
    execution_mode: Choice[ExecutionMode] = Choice("streaming", not_offered=("batch",))
    checkpoint_mode: Choice[CheckpointMode] = Choice("exactly_once", "at_least_once")
    checkpoint_interval: OptionalDuration = OptionalDuration(None)
    min_pause_between_checkpoints: Duration = Duration("0 s")
    checkpoint_timeout: Duration = Duration("10 min", least="1 ms")
    max_concurrent_checkpoints: Count = Count(1, 1, 100)
    max_queued_requests: Count = Count(1000, 1, 100_000)
    tolerable_checkpoint_failures: Count = Count(0, 0)
    retained_checkpoints: Count = Count(1, 1, 10_000)
    retention: Choice[Retention] = Choice("keep", "delete")
    state_size_threshold: Size = Size("20 KiB")
    restart_attempts: Count = Count(3, 0)
    restart_delay: Duration = Duration("1 s")
    slots_timeout: Duration = Duration("10 min", least="1 ms")
    idle_after: OptionalDuration = OptionalDuration(None)
    channel_capacity: Size = Size("4 MiB", least="64 KiB")
    heartbeat_interval: Duration = Duration("1 s", least="10 ms")
    heartbeat_timeout: Duration = Duration("30 s", least="20 ms")
    stop_timeout: Duration = Duration("10 min", least="1 ms")
    sigterm_timeout: Duration = Duration("20 s")
    commit: Choice[Commit] = Choice("automatic", not_offered=("on_request",))
    savepoint_directory: OptionalText = OptionalText(None)

    def __post_init__(self) -> None:
        if self.parallelism > self.max_parallelism:
            raise OptionError(
                f"parallelism {self.parallelism} is more than max_parallelism {self.max_parallelism}",
                where="option parallelism",
                remedy="Lower parallelism, or raise max_parallelism before the job's first start",
            )
        if self.heartbeat_timeout <= self.heartbeat_interval:
            raise OptionError(
                "heartbeat_timeout must be longer than heartbeat_interval",
                where="option heartbeat_timeout",
                remedy=f"Give more than {format_duration(self.heartbeat_interval)}",
            )

    @property
    def slot_memory_bytes(self) -> int:
        """`slot_memory` in bytes."""
        return int(self.slot_memory)

    @property
    def state_size_threshold_bytes(self) -> int:
        """`state_size_threshold` in bytes."""
        return int(self.state_size_threshold)

    @property
    def channel_capacity_bytes(self) -> int:
        """`channel_capacity` in bytes."""
        return int(self.channel_capacity)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any] | None) -> JobOptions:
        """Options from names and values, as in a file, a DAG or on the command line; numbers may be texts.

        Raises OptionError naming the nearest right name, or what the option allows.
        """
        given = dict(mapping or {})
        names = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
                raise OptionError(
                    f"there is no option {name!r}",
                    where="options",
                    remedy=f"Did you mean {near[0]!r}?" if near else f"The options are: {', '.join(names)}",
                )
        return cls(**given)

    def to_mapping(self) -> dict[str, str | int | None]:
        """Every option as JSON; `from_mapping` gives equal options back."""
        mapping: dict[str, str | int | None] = {}
        for field in dataclasses.fields(self):
            setting: Any = vars(type(self))[field.name]
            mapping[field.name] = setting.plain(getattr(self, field.name))
        return mapping
