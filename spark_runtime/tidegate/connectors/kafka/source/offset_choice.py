"""Where a Kafka source starts and ends, as the user writes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from tidegate.clock import iso
from tidegate.errors import OptionError

Isolation = Literal["read_committed", "read_uncommitted"]
"""Which records are read: no records of open and aborted transactions, or all."""
WithoutGroupOffset = Literal["fail", "earliest", "latest"]
"""Where a partition starts for which the consumer group has committed no offset."""
Offsets = Mapping[str, Mapping[int, int]] | Mapping[int, int]
"""Topic -> partition -> offset. For a source of one topic also partition -> offset."""
OffsetValue = str | datetime | Offsets

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class OffsetChoice:
    """A rule that gives an offset for each partition.

    Attributes:
        kind: `earliest` record that exists; `latest`: the end; first record of `time_ms` or later (the end if there is
            none); these `offsets`; or the offset that the `group` has committed.
        time_ms: milliseconds since the epoch.
        offsets: topic -> partition -> offset.
    """

    kind: Literal["earliest", "latest", "timestamp", "offsets", "group"]
    time_ms: int = 0
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.kind == "timestamp":
            return iso(_EPOCH + timedelta(milliseconds=self.time_ms))
        return f"given {self.kind}" if self.kind == "offsets" else self.kind


def start_choice(value: OffsetValue, topics: tuple[str, ...]) -> OffsetChoice:
    """Parse `start`. Raises OptionError."""
    return _choice(value, topics, "start", ("earliest", "latest", "group"))


def end_choice(value: OffsetValue, topics: tuple[str, ...]) -> OffsetChoice:
    """Parse `until`. Raises OptionError."""
    return _choice(value, topics, "until", ("latest",))


def _choice(value: OffsetValue, topics: tuple[str, ...], option: str, words: tuple[str, ...]) -> OffsetChoice:
    if isinstance(value, str) and value in words:
        return OffsetChoice(value)  # type: ignore[arg-type]
    if isinstance(value, str | datetime):
        return OffsetChoice("timestamp", time_ms=_time_ms(value, option, words))
    if isinstance(value, Mapping) and value:
        return OffsetChoice("offsets", offsets=_offsets(value, topics, option))
    raise _unknown(value, option, words)


def _time_ms(value: str | datetime, option: str, words: tuple[str, ...]) -> int:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise _unknown(value, option, words) from None
    if moment.tzinfo is None:
        raise OptionError(
            f"{option}={str(value)!r} has no time zone",
            where=f"Kafka({option}=)",
            remedy='Add the zone, such as "2026-01-01T00:00:00Z"',
        )
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _offsets(value: Mapping[Any, Any], topics: tuple[str, ...], option: str) -> dict[str, dict[int, int]]:
    nested = value if len(topics) != 1 or any(isinstance(key, str) for key in value) else {topics[0]: value}
    found: dict[str, dict[int, int]] = {}
    for topic, offsets in nested.items():
        if not isinstance(topic, str) or not isinstance(offsets, Mapping) or not all(map(_is_offset, offsets.items())):
            raise OptionError(
                f"{option} does not give an offset for each partition",
                where=f"Kafka({option}=)",
                remedy='Write {"topic": {0: 1200, 1: 1300}}, for one topic also {0: 1200, 1: 1300}',
            )
        if topics and topic not in topics:
            raise OptionError(
                f"{option} names the topic {topic!r}, which the source does not read",
                where=f"Kafka({option}=)",
                remedy=f"Use one of {', '.join(map(repr, topics))}",
            )
        found[topic] = dict(offsets)
    return found


def _is_offset(entry: tuple[Any, Any]) -> bool:
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in entry)


def _unknown(value: object, option: str, words: tuple[str, ...]) -> OptionError:
    return OptionError(
        f"{option}={value!r} is unknown",
        where=f"Kafka({option}=)",
        remedy=f"Use {', '.join(map(repr, words))}, a time with its zone, or offsets by partition",
    )
