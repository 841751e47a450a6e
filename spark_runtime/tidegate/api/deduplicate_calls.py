"""Dropping records that repeat others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Self, get_args

from tidegate.errors import PipelineError
from tidegate.operators.deduplicate_specs import DeduplicateSpec
from tidegate.api.draft.column_checks import checked_renames, refuse_duplicates, require_column, require_key
from tidegate.api.draft.graph_draft import DraftNode, DraftOutput, place, require_uid
from tidegate.api.draft.call_site import user_location
from tidegate.api.stream_base import StreamBase
from tidegate.api.windows import duration_us, session
from tidegate.plan.job_graph import Edge

Keep = Literal["first", "last"]
LATE = "late"
"""Side output of a deduplication within a time."""


class DeduplicateCalls(StreamBase):
    """Calls of `Stream`; see there."""

    def deduplicate(
        self,
        on: str | Sequence[str],
        *,
        within: str | timedelta | None = None,
        ttl: str | timedelta | None = None,
        keep: Keep = "first",
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Self:
        """One record of those that are equal in `on`.

        Args:
            on: columns, one or several; null equals null.
            within: of event time. keep="first": records whose event time is so much later than that of the one that was
                kept, or more, are no repeats; a key is forgotten when the watermark has come so far, and a record
                behind the watermark whose key is not known is late (`.side_output("late")`, else `late_dropped`).
                keep="last": once nothing has come for so long. Default: without end, with state for every key.
            ttl: keep="first": a key is forgotten so long, in processing time, after its record was kept.
            keep: "first": the first to arrive, at once. "last": the one with the latest event time, of equal ones the
                first to arrive, once the watermark has come `within` behind it; the result has no event time of its
                own.
            uid: required.
            renamed: column of `on` in older snapshots -> its name now (S5.5).

        Raises:
            PipelineError: no such column, no uid, no event time where it is needed, or durations that do not fit.
        """
        location = user_location()
        uid = require_uid(uid, "deduplicate", location)
        where = place("deduplicate", uid, location)
        keys = (on,) if isinstance(on, str) else tuple(on)
        if not keys:
            raise PipelineError("deduplicate on no columns", where=where, remedy="Name at least one")
        refuse_duplicates(keys, where, remedy="Name each column once")
        for key in keys:
            require_key(require_column(self.schema, key, where), where)
        if keep not in get_args(Keep):
            raise PipelineError(f"{keep!r} cannot be kept", where=where, remedy='Write keep="first" or keep="last"')
        within_us = 0 if within is None else _positive_us(within, "within", where)
        ttl_us = 0 if ttl is None else _positive_us(ttl, "ttl", where)
        if keep == "last":
            return self._last(keys, within, ttl, uid, location)
        time_column = self._event_time.require(where) if within_us else None
        spec = DeduplicateSpec(
            keys,
            time_column,
            self._event_time.unit,
            within_us,
            -(-ttl_us // 1000),
            self.schema,
            checked_renames(renamed, keys, where),
        )
        late = (DraftOutput(LATE, self.schema, self._event_time),) if within_us else ()
        edge = Edge(self._node_id, "hash", keys)
        node = DraftNode(
            uid, "deduplicate", (edge,), self.schema, location, stateful=True, spec=spec, side_outputs=late
        )
        return self._then(node, self._event_time)

    def _last(self, keys: tuple[str, ...], within: Any, ttl: object, uid: str, location: str) -> Self:
        from tidegate.api.running_aggregates import RANK, without
        from tidegate.api.grouped_stream import WINDOW_END, WINDOW_START, GroupedStream

        where = place("deduplicate", uid, location)
        if within is None or ttl is not None:
            raise PipelineError(
                'keep="last" needs within, and takes no ttl',
                where=where,
                cause="the last record is known when nothing has come for a time",
                remedy='Write within="1 hour", or take updates: .group_by(...).top_n(1, by="time")',
            )
        time_column = self._event_time.require(where)
        stream: Any = self
        held = GroupedStream(stream, keys, location).window(session(within)).top_n(1, by=time_column, uid=uid)
        rows = without(held, (WINDOW_START, WINDOW_END, RANK), location)
        last: Self = rows.select(*self.schema.names)
        return last


def _positive_us(value: str | timedelta, name: str, where: str) -> int:
    found = duration_us(value, name, where)
    if found <= 0:
        raise PipelineError(f"{name} of {value} is none", where=where, remedy=f'Give {name} such as "1 hour"')
    return found
