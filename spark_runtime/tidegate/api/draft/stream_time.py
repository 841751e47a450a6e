"""Event time of a stream: the column that holds it, followed from `with_watermark` to the window that needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import PipelineError
from tidegate.operators.time.watermark_specs import TimeUnit

UNITS: tuple[TimeUnit, ...] = ("s", "ms", "us", "ns")


@dataclass(frozen=True)
class StreamEventTime:
    """The event-time column of a stream.

    Attributes:
        column: its name; None: the stream has no event time, or lost it.
        unit: of the column.
        assigned: place of the `with_watermark`, for errors; empty if there is none upstream.
        lost: how the stream lost the column, for errors.
    """

    column: str | None = None
    unit: TimeUnit = "us"
    assigned: str = ""
    lost: str = ""

    def after_projection(self, sources: Mapping[str, str], call: str) -> StreamEventTime:
        """Return the event time after a projection.

        Args:
            sources: output column -> the input column that it equals.
            call: for errors.
        """
        if self.column is None or sources.get(self.column) == self.column:
            return self
        for output, source in sources.items():
            if source == self.column:
                return StreamEventTime(output, self.unit, self.assigned)
        return self.without_column(f"the event-time column {self.column!r} is dropped or changed by {call}")

    def without_column(self, how: str) -> StreamEventTime:
        """Return this event time as lost, with the reason, unless it was lost before."""
        return self if self.column is None else StreamEventTime(None, self.unit, self.assigned, how)

    def require(self, where: str, what: str = "the window") -> str:
        """Return the column. Raises PipelineError with how it was lost. Args: what: what needs it, for the error."""
        if self.column is not None:
            return self.column
        if self.lost:
            raise PipelineError(
                f"{what} has no event time",
                where=where,
                cause=f"{self.lost} (with_watermark at {self.assigned})",
                remedy=f"Keep the column up to {what}, or call .with_watermark directly before {what}",
            )
        clock = '; or use windows of the clock: tumbling(..., time="processing")' if what == "the window" else ""
        raise PipelineError(
            f"{what} has no event time",
            where=where,
            cause="there is no with_watermark upstream",
            remedy=f'Name its column and how late records may be: .with_watermark("time", "10 min"){clock}',
        )


def common_event_time(times: Sequence[StreamEventTime], call: str) -> StreamEventTime:
    """Return the event time of a union: the inputs' common one, or none with the reason."""
    first = times[0]
    if all((t.column, t.unit) == (first.column, first.unit) for t in times):
        return next((t for t in times if t.lost), first)
    names = ", ".join(repr(t.column) if t.column else "none" for t in times)
    with_time = next(t for t in times if t.column is not None)
    return with_time.without_column(f"the inputs of {call} have different event-time columns: {names}")


def time_unit(field: pa.Field, unit: object, where: str) -> TimeUnit:
    """Return the unit of an event-time column: a timestamp's own, or the unit passed for an int64."""
    if unit is not None and unit not in UNITS:
        raise PipelineError(f"unit={unit!r} is unknown", where=where, remedy=f"Use one of {', '.join(UNITS)}")
    type_ = field.type
    if pt.is_timestamp(type_):
        own: TimeUnit = type_.unit
        if unit is not None and unit != own:
            raise PipelineError(
                f"unit={unit!r} does not fit column {field.name!r}, whose type is {type_}",
                where=where,
                remedy="Remove unit=: the type of a timestamp column has a unit",
            )
        return own
    if pt.is_int64(type_):
        for known in UNITS:
            if unit == known:
                return known
        raise PipelineError(
            f"column {field.name!r} is int64, and unit= is not set",
            where=where,
            remedy=f'Set unit=: .with_watermark({field.name!r}, ..., unit="ms"), or cast the column to a timestamp',
        )
    if pt.is_string(type_) or pt.is_large_string(type_):
        name = field.name
        raise PipelineError(
            f"column {name!r} of type {type_} cannot be event time",
            where=where,
            cause="it must be a timestamp, or int64 with unit=",
            remedy=f'Cast it first: .with_columns({name}=pc.field({name!r}).cast(pa.timestamp("us"))) reads ISO 8601; '
            "for other text formats, pass the format: "
            f'pc.strptime(pc.field({name!r}), format="%d.%m.%Y", unit="us")',
        )
    cast = "pa.int64()" if pt.is_integer(type_) else 'pa.timestamp("us")'
    raise PipelineError(
        f"column {field.name!r} of type {type_} cannot be event time",
        where=where,
        cause="it must be a timestamp, or int64 with unit=",
        remedy=f"Cast it first: .with_columns({field.name}=pc.field({field.name!r}).cast({cast}))",
    )
