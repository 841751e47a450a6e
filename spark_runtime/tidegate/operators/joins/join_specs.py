"""Frozen descriptions of joins, as a JobGraph holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.jobs.options import ProcessingTimeOnEnd, StateBackend
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.backend_shapes import backend_shapes
from tidegate.operators.operator_spec import ChangeInputs, EndOfInput, KeyedStatePlace, OperatorSpec
from tidegate.operators.time.calendar import CALENDAR, Calendar
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.snapshot.evolved_columns import schema_columns
from tidegate.state.keyed_state import StateDescriptor
from tidegate.state.keys.key_types import stored_field

JoinKind = Literal["inner", "left", "semi", "anti"]
BUILD_SIDE = 1
"""Number of the build input of a broadcast join, the bounded side; input 0 is the probe side."""
StreamJoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
LEFT, RIGHT = 0, 1
"""Inputs of a join: the stream on which the join was called, and the stream that was passed to it."""
SPAN_START = "span_start_us"
"""Last key column of states that are divided by time: the start of a window or span, microseconds."""
SIDES = ("left", "right")
"""Names of the states with the rows of each side."""
MATCHED = "{}.matched"
"""Name of the state with the positions of rows that found a match after they were stored. A position is an index into
the list of the row's key."""
MATCHED_COLUMN = "matched_at_once"
OPEN_SESSIONS = "sessions"
"""Name of the state with the open sessions of both sides."""
SESSION_COLUMNS = pa.schema([("first_us", pa.int64()), ("last_us", pa.int64())])
"""Times of a session's first and last row."""
FORM_STATE = "join:form"
"""State that records the kind of join and its bounds. A join of another kind or with other bounds cannot restore it."""
POSITIONS = pa.schema([("position", pa.int64())])


@dataclass(frozen=True)
class BroadcastJoinSpec(OperatorSpec):
    """Equi-join of a stream (input 0, probe) with a complete bounded side (input 1, build) that every subtask holds.

    Attributes:
        on: key columns of the probe side; a null key matches nothing.
        how: `inner`; `left`: probe rows without a match are emitted with nulls; `semi`, `anti`: only probe rows are
            emitted, those with a match or those without one.
        left_schema: of the probe side.
        right_schema: of the build side.
        schema: of the output: probe columns, then the build columns of a pair; `semi` and `anti` have no build columns.
        renamed: (column of either side in older snapshots, its name now).
        right_on: key columns of the build side; None: the same names as on the probe side.
        added: (build column, its name in a pair) for the build columns of a pair; None: all that are not keys.
        where: further condition, over the columns of a pair; null counts as false.
        left_out: columns of the probe side that nothing reads. `left_schema` and `schema` do not contain them.
    """

    change_inputs: ClassVar[ChangeInputs] = "first"

    on: tuple[str, ...]
    how: JoinKind
    left_schema: pa.Schema
    right_schema: pa.Schema
    schema: pa.Schema
    renamed: tuple[tuple[str, str], ...] = ()
    right_on: tuple[str, ...] | None = None
    added: tuple[tuple[str, str], ...] | None = None
    where: pc.Expression | None = field(default=None, compare=False)
    left_out: tuple[str, ...] = ()

    @property
    def build_keys(self) -> tuple[str, ...]:
        """Return the key columns of the build side."""
        return self.on if self.right_on is None else self.right_on

    @property
    def build_columns(self) -> tuple[tuple[str, str], ...]:
        """Return (build column, its name) for the build columns of a pair."""
        if self.added is not None:
            return self.added
        return tuple((name, name) for name in self.right_schema.names if name not in self.build_keys)

    @property
    def pairs(self) -> pa.Schema:
        """Return the columns of a pair."""
        added = [self.right_schema.field(column).with_name(name) for column, name in self.build_columns]
        return pa.schema([*self.left_schema, *(field.with_nullable(True) for field in added)])

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return the build side: its end emits the rows that waited for it."""
        return BUILD_SIDE

    def states(self) -> tuple[StateShape, ...]:
        """Return the states of both sides and the progress."""
        renamed = dict(self.renamed)
        return (
            StateShape("build", "broadcast", schema_columns(self.right_schema), renamed=renamed),
            StateShape("buffered", "list", schema_columns(self.left_schema), renamed=renamed),
            StateShape("progress", "broadcast"),
            StateShape("held", "list"),
        )

    def describe(self) -> str:
        """Return kind and keys."""
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
    """Rows in the same window match. A window is [start, start + size_us), with start a multiple of `slide_us` plus
    `offset_us`; or a window of the calendar."""

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
    """Rows in the same session of both sides match. A session holds rows of a key that are at most a gap apart."""

    gap_us: int

    @property
    def reach_us(self) -> int:
        """Return how long after its last row a session closes: a row at exactly `gap_us` still belongs to it (S4.4)."""
        return self.gap_us + 1

    def __str__(self) -> str:
        return f"in sessions, gap {self.gap_us / 1e6:g} s"


@dataclass(frozen=True)
class AsOfMatch:
    """A left row matches the latest right row that is not later than it, and at most `tolerance_us` earlier."""

    tolerance_us: int | None

    def __str__(self) -> str:
        return "as of its time"


Bounds: TypeAlias = IntervalMatch | WindowMatch | SessionMatch | AsOfMatch | None
"""Which rows of one key may match by their times; None: all."""


@dataclass(frozen=True)
class JoinInput:
    """One side of a join.

    Attributes:
        schema: of its rows, in stored types (`keytypes.stored_type`); batches may have equivalent types.
        keys: key columns; a null key matches nothing.
        columns: (column, its name in a pair) for the columns of a pair, in order.
        time_column: event time; None: the join does not use times.
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
        how: `inner`; `left`, `right`, `full`: rows of this side, or of both, without a match are emitted with nulls;
            `semi`, `anti`: only left rows are emitted, those with a match (once), or those without one.
        inputs: left and right.
        bounds: on their times.
        pairs: columns of a pair: left columns, right columns, and `window_start`, `window_end` with windows and
            sessions.
        schema: of the output: `pairs`; without the right columns for `semi` and `anti`.
        where: further condition, over `pairs`; null counts as false.
        renamed: (column of either side in older snapshots, its name now).
    """

    keyed_state: ClassVar[KeyedStatePlace] = "backend"
    change_inputs: ClassVar[ChangeInputs] = "none"

    how: StreamJoinKind
    inputs: tuple[JoinInput, JoinInput]
    bounds: Bounds
    pairs: pa.Schema
    schema: pa.Schema
    where: pc.Expression | None = None
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """Return the states: rows of each side, marks for matches if they are tracked, and open sessions."""
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
        """Return the columns of a side's rows in the state: all, or only those needed to detect a match.

        They are nullable, because sources may emit more nulls than they declare.
        """
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
        """Return the key columns of the states, with the names of the left side."""
        left = self.inputs[LEFT]
        keys = [stored_field(left.schema.field(key)).with_nullable(True).remove_metadata() for key in left.keys]
        return pa.schema([*keys, pa.field(SPAN_START, pa.int64())] if self.has_spans else keys)

    @property
    def has_spans(self) -> bool:
        """Return whether the state of a key is divided by time."""
        return isinstance(self.bounds, IntervalMatch | WindowMatch)

    def emits_unmatched(self, side: int) -> bool:
        """Return whether rows of this side without a match are emitted."""
        return self.how in (("left", "full", "anti") if side == LEFT else ("right", "full"))

    @property
    def has_windows(self) -> bool:
        """Return whether output rows contain their window or session."""
        return isinstance(self.bounds, WindowMatch | SessionMatch)

    def tracks_matches(self, side: int) -> bool:
        """Return whether the state records which rows of this side have a match."""
        at_once = not isinstance(self.bounds, AsOfMatch | SessionMatch)
        return at_once and (self.emits_unmatched(side) or (self.how == "semi" and side == LEFT))

    def uses_tables(self, state_backend: StateBackend) -> bool:
        """Return whether the rows are kept in tables in memory (`SpanRows`), and not in the back end.

        The back end `memory` has no tables, because it limits the size of a snapshot (S5.2).
        """
        return self.has_spans and state_backend == "heap"

    def uses_backend(self, state_backend: StateBackend) -> bool:
        """See `OperatorSpec`."""
        return not self.uses_tables(state_backend)

    def backend_in_batch(self, state_backend: StateBackend) -> StateBackend:
        """See `OperatorSpec`. Without watermarks, rows of all times are stored at once, in more tables than are
        cheap."""
        return "memory" if self.uses_tables(state_backend) else state_backend

    @property
    def emits_pairs(self) -> bool:
        """Return whether a match emits a row with columns of both sides."""
        return self.how not in ("semi", "anti")

    @property
    def fires_at_end(self) -> bool:
        """Return whether the end of the input emits rows, or completes a side."""
        return not self.has_spans or self.emits_unmatched(LEFT) or self.emits_unmatched(RIGHT)

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "any" if the end of the input emits rows without a match, or completes a side."""
        return "any" if self.fires_at_end else "none"

    def form(self) -> str:
        """Return the properties of the join that must not change if its state is to be restored."""
        if isinstance(self.bounds, AsOfMatch):
            return str(self.bounds)
        kept = "" if self.emits_pairs else " of times" if self.where is None else " of rows"
        return f"{self.how}{kept} {self.bounds if self.bounds is not None else 'at any time'}"

    def states(self) -> tuple[StateShape, ...]:
        """Return the rows of both sides, and timers."""
        keys, form = self.key_schema, StateShape(FORM_STATE, "keyed", form=self.form())
        of_keys = [(old, new) for old, new in self.renamed if new in keys.names]
        shapes = backend_shapes(self.descriptors, keys, of_keys, others=[form])
        follows = isinstance(self.bounds, WindowMatch) and self.bounds.calendar is not None
        return (*shapes, StateShape(CALENDAR, "list")) if follows else shapes

    def describe(self) -> str:
        """Return kind, keys and bounds."""
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
    """Return the name of the column that records whether a row found a match on arrival. No user column has this
    name."""
    name = MATCHED_COLUMN
    while name in schema.names:
        name += "_"
    return name
