"""Frozen descriptions of the joins of two streams, as a JobGraph holds them; see `specs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.stream_operator import EndOfInput, StreamOperator
from tidegate.operators.time.calendar import CALENDAR, Calendar
from tidegate.state.keys.key_types import stored_field

if TYPE_CHECKING:
    from tidegate.operators.specs import TimeUnit

StreamJoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
LEFT, RIGHT = 0, 1
"""Inputs of a join: the stream that was called, and the one that was given."""
SPAN_START = "span_start_us"
"""Key column of states that are cut by time, after the user's: the start of a window or span, microseconds."""


@dataclass(frozen=True)
class Between:
    """A right row matches a left one when its time is in [left + lower_us, left + upper_us], both ends included."""

    lower_us: int
    upper_us: int

    def __str__(self) -> str:
        return f"between {self.lower_us / 1e6:g} s and {self.upper_us / 1e6:g} s"


@dataclass(frozen=True)
class Windows:
    """Rows match that are in one window [start, start + size_us), start a multiple of `slide_us` plus `offset_us`; or
    in one that a calendar cuts."""

    size_us: int
    slide_us: int
    offset_us: int
    calendar: Calendar | None = None

    def __str__(self) -> str:
        if self.calendar is not None:
            return f"in windows of {self.calendar}"
        sliding = f" every {self.slide_us / 1e6:g} s" if self.slide_us != self.size_us else ""
        offset = f" from {self.offset_us / 1e6:g} s" if self.offset_us else ""
        return f"in windows of {self.size_us / 1e6:g} s{sliding}{offset}"


@dataclass(frozen=True)
class Sessions:
    """Rows match that are in one session of both sides: rows of a key that are at most a gap apart."""

    gap_us: int

    @property
    def reach_us(self) -> int:
        """How long after its last row a session is over: a row at exactly `gap_us` still belongs to it (S4.4)."""
        return self.gap_us + 1

    def __str__(self) -> str:
        return f"in sessions, gap {self.gap_us / 1e6:g} s"


@dataclass(frozen=True)
class AsOf:
    """A left row matches the latest right one that is not later than it, nor earlier by more than `tolerance_us`."""

    tolerance_us: int | None

    def __str__(self) -> str:
        return "as of its time"


Bounds: TypeAlias = Between | Windows | Sessions | AsOf | None
"""Which rows of one key may match by their times; None: all."""


@dataclass(frozen=True)
class JoinInput:
    """One side of a join.

    Attributes:
        schema: of its rows, in stored types (`keytypes.stored_type`); batches may have others for them.
        keys: key columns; a null key matches nothing.
        columns: (column, its name in a pair) of those that pairs have, in order.
        time_column: event time; None: times do not count.
        time_unit: of the time column.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    time_column: str | None = None
    time_unit: TimeUnit = "us"


@dataclass(frozen=True, eq=False)
class StreamJoinSpec:
    """Equi-join of two streams, both sides in keyed state.

    Attributes:
        how: `inner`; `left`, `right`, `full`: rows of this side, or of both, stay without a match, with nulls; `semi`,
            `anti`: left rows alone, those that have a match, once, or that have none.
        inputs: left and right.
        bounds: on their times.
        pairs: columns of a pair: those of the left, of the right, and `window_start`, `window_end` with windows and
            sessions.
        schema: of the output: `pairs`; with `semi` and `anti` without those of the right.
        where: further condition, over `pairs`; null counts as false.
        renamed: (column of either side in older snapshots, its name now).
    """

    how: StreamJoinKind
    inputs: tuple[JoinInput, JoinInput]
    bounds: Bounds
    pairs: pa.Schema
    schema: pa.Schema
    where: pc.Expression | None = None
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def key_schema(self) -> pa.Schema:
        """Key columns of the states, named as on the left."""
        left = self.inputs[LEFT]
        keys = [stored_field(left.schema.field(key)).with_nullable(True).remove_metadata() for key in left.keys]
        return pa.schema([*keys, pa.field(SPAN_START, pa.int64())] if self.has_spans else keys)

    @property
    def has_spans(self) -> bool:
        """The state of a key is cut by time."""
        return isinstance(self.bounds, Between | Windows)

    def stands_alone(self, side: int) -> bool:
        """Rows of this side come out when they have no match."""
        return self.how in (("left", "full", "anti") if side == LEFT else ("right", "full"))

    @property
    def has_windows(self) -> bool:
        """Its rows say in which window or session they are."""
        return isinstance(self.bounds, Windows | Sessions)

    def is_tracked(self, side: int) -> bool:
        """Which rows of this side have a match is kept."""
        at_once = not isinstance(self.bounds, AsOf | Sessions)
        return at_once and (self.stands_alone(side) or (self.how == "semi" and side == LEFT))

    @property
    def gives_pairs(self) -> bool:
        """A match gives a row of both sides."""
        return self.how not in ("semi", "anti")

    @property
    def fires_at_end(self) -> bool:
        """The end of its input brings rows out, or takes a side for complete."""
        return not self.has_spans or self.stands_alone(LEFT) or self.stands_alone(RIGHT)

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Rows without a match, or a side that is complete."""
        return "any" if self.fires_at_end else "none"

    def form(self) -> str:
        """What must stay for the state to be of use."""
        if isinstance(self.bounds, AsOf):
            return str(self.bounds)
        kept = "" if self.gives_pairs else " of times" if self.where is None else " of rows"
        return f"{self.how}{kept} {self.bounds if self.bounds is not None else 'at any time'}"

    def create(self) -> StreamOperator:
        """A fresh join."""
        if isinstance(self.bounds, AsOf):
            from tidegate.operators.joins.as_of_join import AsOfJoin

            return AsOfJoin(self)
        if isinstance(self.bounds, Sessions):
            from tidegate.operators.joins.session_join import SessionJoin

            return SessionJoin(self)
        from tidegate.operators.joins.stream_join import StreamJoin

        return StreamJoin(self)

    def states(self) -> tuple[StateShape, ...]:
        """The rows of both sides, and timers."""
        from tidegate.operators.joins.join_state import join_descriptors, stream_join_shapes

        shapes = stream_join_shapes(self.key_schema, join_descriptors(self), self.form(), self.renamed)
        follows = isinstance(self.bounds, Windows) and self.bounds.calendar is not None
        return (*shapes, StateShape(CALENDAR, "list")) if follows else shapes

    def describe(self) -> str:
        """Kind, keys and bounds."""
        if isinstance(self.bounds, AsOf):
            within = self.bounds.tolerance_us
            tolerance = "" if within is None else f" within {within / 1e6:g} s"
            return f"{self.how} join as of {self.inputs[LEFT].time_column}{tolerance} on {self._keys_text()}"
        bounds = f" {self.bounds}" if self.bounds is not None else ""
        where = f" where {self.where}" if self.where is not None else ""
        return f"{self.how} join on {self._keys_text()}{bounds}{where}"

    def _keys_text(self) -> str:
        pairs = zip(self.inputs[LEFT].keys, self.inputs[RIGHT].keys, strict=True)
        return ", ".join(left if left == right else f"{left} = {right}" for left, right in pairs)
