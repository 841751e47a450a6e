"""Which rows of a state with a TTL are alive (S5.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.state.keyed_state import Mask, TimeToLive


class Lifetime:
    """The TTL of one state against the injected clock."""

    def __init__(self, ttl: TimeToLive, now_ms: Callable[[], int]) -> None:
        self.on_read = ttl.on_read
        self._duration_ms = ttl.duration_ms
        self.now_ms = now_ms

    def alive(self, used_ms: npt.NDArray[Any]) -> Mask:
        """Of rows that were used last at these times."""
        alive: Mask = used_ms.astype(np.int64, copy=False) > self.now_ms() - self._duration_ms
        return alive
