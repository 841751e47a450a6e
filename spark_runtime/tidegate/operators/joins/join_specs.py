"""Frozen descriptions of joins, as a JobGraph holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.backend_shapes import backend_shapes
from tidegate.operators.operator_spec import EndOfInput, KeyedStatePlace, OperatorSpec
from tidegate.operators.time.calendar import CALENDAR, Calendar
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.snapshot.evolved_columns import schema_columns
from tidegate.state.keyed_state import StateDescriptor
from tidegate.state.keys.key_types import stored_field

JoinKind = Literal["inner", "left", "semi", "anti"]
BUILD_SIDE = 1
"""Input of a broadcast join that brings the bounded side; 0 is the probe side."""
StreamJoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
LEFT, RIGHT = 0, 1
"""Inputs of a join: the stream that was called, and the one that was given."""
SPAN_START = "span_start_us"
"""Key column of states that are cut by time, after the user's: the start of a window or span, microseconds."""
SIDES = ("left", "right")
"""Names of the states with the rows of each side."""
MATCHED = "{}.matched"
"""Names of the states with the positions, in the list of their key, of rows that found a match later."""
MATCHED_COLUMN = "matched_at_once"
OPEN_SESSIONS = "sessions"
"""Name of the state with the sessions of both sides that are open."""
SESSION_COLUMNS = pa.schema([("first_us", pa.int64()), ("last_us", pa.int64())])
"""Times of a session's first and last row."""
FORM_STATE = "join:form"
"""What is kept, and in which spans: another kind of join, or one with other bounds, cannot use it."""
POSITIONS = pa.schema([("position", pa.int64())])


@dataclass(frozen=True)
class BroadcastJoinSpec(OperatorSpec):
    """Equi-join of a stream (input 0, probe) with a complete bounded side (input 1, build) that every subtask holds.

    Attributes:
        on: key columns of the probe side; a null key matches nothing.
        how: `inner`; `left`: probe rows without a match stay, with nulls; `semi`, `anti`: probe rows alone, those that
            have a match, or have none.
        left_schema: of the probe side.
        right_schema: of the build side.
        schema: of the output: probe columns, then those of the build side that a pair has; not with `semi` and `anti`.
        renamed: (column of either side in older snapshots, its name now).
        right_on: key columns of the build side; None: those of the probe side.
        added: (build column, its name in a pair) of those that a pair has; None: all that are not keys.
        where: further condition, over the columns of a pair; null counts as false.
    """

    on: tuple[str, ...]
    how: JoinKind
    left_schema: pa.Schema
    right_schema: pa.Schema
    schema: pa.Schema
    renamed: tuple[tuple[str, str], ...] = ()
    right_on: tuple[str, ...] | None = None
    added: tuple[tuple[str, str], ...] | None = None
    where: pc.Expression | None = field(default=None, compare=False)

    @property
    def build_keys(self) -> tuple[str, ...]:
        """Key columns of the build side."""
        return self.on if self.right_on is None else self.right_on

    @property
    def build_columns(self) -> tuple[tuple[str, str], ...]:
        """(build column, its name) of those that a pair has."""
        if self.added is not None:
            return self.added
        return tuple((name, name) for name in self.right_schema.names if name not in self.build_keys)

    @property
    def pairs(self) -> pa.Schema:
        """Columns of a pair."""
        added = [self.right_schema.field(column).with_name(name) for column, name in self.build_columns]
        return pa.schema([*self.left_schema, *(field.with_nullable(True) for field in added)])

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Rows that have waited for the build side to be whole."""
        return BUILD_SIDE

    def states(self) -> tuple[StateShape, ...]:
        """Both sides."""
        renamed = dict(self.renamed)
        return (
            StateShape("build", "broadcast", schema_columns(self.right_schema), renamed=renamed),
            StateShape("buffered", "list", schema_columns(self.left_schema), renamed=renamed),
            StateShape("progress", "broadcast"),
            StateShape("held", "list"),
        )

    def describe(self) -> str:
        """Kind and keys."""
        pairs = zip(self.on, self.build_keys, strict=True)
        keys = ", ".join(left if left == right else f"{left} = {right}" for left, right in pairs)
        return f"{self.how} broadcast join on {keys}" + (f" where {self.where}" if self.where is not None else "")


@dataclass(frozen=True)
class IntervalMatch:
    """A right row matches a left one when its time is in [left + lower_us, left + upper_us], both ends included."""

    lower_us: int
    upper_us: int

    def __str__(self) -> str:
        return f"between {self.lower_us / 1e6:g} s and {self.upper_us / 1e6:g} s"


@dataclass(frozen=True)
class WindowMatch:
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
class SessionMatch:
    """Rows match that are in one session of both sides: rows of a key that are at most a gap apart."""

    gap_us: int

    @property
    def reach_us(self) -> int:
        """How long after its last row a session is over: a row at exactly `gap_us` still belongs to it (S4.4)."""
        return self.gap_us + 1

    def __str__(self) -> str:
        return f"in sessions, gap {self.gap_us / 1e6:g} s"


@dataclass(frozen=True)
class AsOfMatch:
    """A left row matches the latest right one that is not later than it, nor earlier by more than `tolerance_us`."""

    tolerance_us: int | None

    def __str__(self) -> str:
        return "as of its time"


Bounds: TypeAlias = IntervalMatch | WindowMatch | SessionMatch | AsOfMatch | None
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
class StreamJoinSpec(OperatorSpec):
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

    keyed_state: ClassVar[KeyedStatePlace] = "backend"

    how: StreamJoinKind
    inputs: tuple[JoinInput, JoinInput]
    bounds: Bounds
    pairs: pa.Schema
    schema: pa.Schema
    where: pc.Expression | None = None
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """The states: rows of each side, marks where matches are tracked, and open sessions."""
        found: list[StateDescriptor] = []
        for side, name in enumerate(SIDES):
            columns = self.kept_columns(side)
            renamed = {old: new for old, new in self.renamed if new in columns.names}
            found.append(StateDescriptor(name, "list", columns, renamed=renamed))
            if self.tracks_matches(side):
                found.append(StateDescriptor(MATCHED.format(name), "list", POSITIONS))
        if isinstance(self.bounds, SessionMatch):
            found.append(StateDescriptor(OPEN_SESSIONS, "list", SESSION_COLUMNS))
        return tuple(found)

    def kept_columns(self, side: int) -> pa.Schema:
        """Columns of a side's rows in state: all, or what is needed to know of a match. Nullable: sources may give more
        nulls than they declare."""
        given = self.inputs[side]
        fields = list(given.schema)
        if side == RIGHT and not self.emits_pairs and self.where is None:
            fields = [given.schema.field(given.time_column or given.keys[0])]
        fields = [field.with_nullable(True).remove_metadata() for field in fields]
        if self.tracks_matches(side):
            fields.append(pa.field(matched_column(given.schema), pa.bool_()))
        return pa.schema(fields)

    @property
    def key_schema(self) -> pa.Schema:
        """Key columns of the states, named as on the left."""
        left = self.inputs[LEFT]
        keys = [stored_field(left.schema.field(key)).with_nullable(True).remove_metadata() for key in left.keys]
        return pa.schema([*keys, pa.field(SPAN_START, pa.int64())] if self.has_spans else keys)

    @property
    def has_spans(self) -> bool:
        """The state of a key is cut by time."""
        return isinstance(self.bounds, IntervalMatch | WindowMatch)

    def emits_unmatched(self, side: int) -> bool:
        """Rows of this side come out when they have no match."""
        return self.how in (("left", "full", "anti") if side == LEFT else ("right", "full"))

    @property
    def has_windows(self) -> bool:
        """Its rows say in which window or session they are."""
        return isinstance(self.bounds, WindowMatch | SessionMatch)

    def tracks_matches(self, side: int) -> bool:
        """Which rows of this side have a match is kept."""
        at_once = not isinstance(self.bounds, AsOfMatch | SessionMatch)
        return at_once and (self.emits_unmatched(side) or (self.how == "semi" and side == LEFT))

    @property
    def emits_pairs(self) -> bool:
        """A match gives a row of both sides."""
        return self.how not in ("semi", "anti")

    @property
    def fires_at_end(self) -> bool:
        """The end of its input brings rows out, or takes a side for complete."""
        return not self.has_spans or self.emits_unmatched(LEFT) or self.emits_unmatched(RIGHT)

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Rows without a match, or a side that is complete."""
        return "any" if self.fires_at_end else "none"

    def form(self) -> str:
        """What must stay for the state to be of use."""
        if isinstance(self.bounds, AsOfMatch):
            return str(self.bounds)
        kept = "" if self.emits_pairs else " of times" if self.where is None else " of rows"
        return f"{self.how}{kept} {self.bounds if self.bounds is not None else 'at any time'}"

    def states(self) -> tuple[StateShape, ...]:
        """The rows of both sides, and timers."""
        keys, form = self.key_schema, StateShape(FORM_STATE, "keyed", form=self.form())
        of_keys = [(old, new) for old, new in self.renamed if new in keys.names]
        shapes = backend_shapes(self.descriptors, keys, of_keys, others=[form])
        follows = isinstance(self.bounds, WindowMatch) and self.bounds.calendar is not None
        return (*shapes, StateShape(CALENDAR, "list")) if follows else shapes

    def describe(self) -> str:
        """Kind, keys and bounds."""
        if isinstance(self.bounds, AsOfMatch):
            within = self.bounds.tolerance_us
            tolerance = "" if within is None else f" within {within / 1e6:g} s"
            return f"{self.how} join as of {self.inputs[LEFT].time_column}{tolerance} on {self._keys_text()}"
        bounds = f" {self.bounds}" if self.bounds is not None else ""
        where = f" where {self.where}" if self.where is not None else ""
        return f"{self.how} join on {self._keys_text()}{bounds}{where}"

    def _keys_text(self) -> str:
        pairs = zip(self.inputs[LEFT].keys, self.inputs[RIGHT].keys, strict=True)
        return ", ".join(left if left == right else f"{left} = {right}" for left, right in pairs)


def matched_column(schema: pa.Schema) -> str:
    """The column that says of a row that it found a match when it came; no column of the user's has the name."""
    name = MATCHED_COLUMN
    while name in schema.names:
        name += "_"
    return name
