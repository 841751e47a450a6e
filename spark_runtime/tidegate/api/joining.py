"""The stream that a join, or a process, takes whole in every subtask."""

from __future__ import annotations

from tidegate.api.stream_base import StreamBase


class BroadcastStream(StreamBase):
    """A stream marked by `Stream.broadcast()`: every subtask gets all of it. It has no calls."""
