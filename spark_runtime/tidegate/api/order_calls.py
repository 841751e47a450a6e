"""What PySpark users look for and streams cannot have: an order over all records."""

from __future__ import annotations

from typing import Never

from tidegate.errors import PipelineError
from tidegate.api.draft.graph_draft import place
from tidegate.api.draft.call_site import user_location
from tidegate.api.stream_base import StreamBase


class OrderCalls(StreamBase):
    """Calls of `Stream`; see there."""

    def sort(self, *columns: object, **_: object) -> Never:
        """Not offered: the first record of an order is known when the last one has come.

        Raises:
            PipelineError: always.
        """
        raise self._unsorted("sort")

    def order_by(self, *columns: object, **_: object) -> Never:
        """As `sort`.

        Raises:
            PipelineError: always.
        """
        raise self._unsorted("order_by")

    def _unsorted(self, call: str) -> PipelineError:
        endless = "the stream is unbounded: " if not self.bounded else ""
        return PipelineError(
            f"a stream cannot be sorted as a whole: {call} is not offered",
            where=place(call, None, user_location()),
            cause=f"{endless}the first record of an order is known when the last one has come, and subtasks write side "
            "by side",
            remedy="Sort within keys and windows, where there is an end, or when you read what the sink has written",
        )
