"""`with_watermark(group=, max_drift=)`: sources that go on together."""

from __future__ import annotations

from datetime import timedelta

from tidegate.errors import PipelineError
from tidegate.operators.specs import AlignmentGroup
from tidegate.api.draft.graph_draft import UID
from tidegate.api.windows import duration_us


def alignment_group(group: object, max_drift: str | timedelta | None, where: str) -> AlignmentGroup | None:
    """The group of a source, or None; PipelineError when its name or drift is missing or wrong."""
    if group is None and max_drift is None:
        return None
    if group is None or max_drift is None:
        raise PipelineError(
            "group and max_drift belong together",
            where=where,
            remedy='Give both: group="orders-and-payments", max_drift="5 min"',
        )
    if not isinstance(group, str) or not UID.fullmatch(group):
        raise PipelineError(
            f"{group!r} cannot be the name of a group",
            where=where,
            remedy="Use letters, digits and ._- , a letter or digit first",
        )
    drift_us = duration_us(max_drift, "max_drift", where)
    if drift_us == 0:
        raise PipelineError(f"a drift of {max_drift}", where=where, remedy='Give a duration such as "5 min"')
    return AlignmentGroup(group, drift_us)
