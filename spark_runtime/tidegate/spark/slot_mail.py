"""Where the driver's messages to a slot go: to its loop while that runs, else into a queue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import Any

from tidegate.subtask.slot import Slot

Message = Mapping[str, Any]


class SlotMail:
    """No message is lost between a queue and a loop: what comes before the loop begins is handed to it, and what it has
    not taken when it ends comes back. The driver's last word, `cancel`, may come at any time, and comes once.

    `deliver` may be called from any thread; everything else from the slot's own.
    """

    def __init__(self) -> None:
        self._queue: queue.Queue[Message] = queue.Queue()
        self._switch = threading.Lock()
        self._slot: Slot | None = None

    def deliver(self, message: Message) -> None:
        """From the driver."""
        with self._switch:
            if self._slot is not None:
                self._slot.tell(message)
            else:
                self._queue.put(message)

    def open(self, slot: Slot) -> None:
        """From now on all goes to this loop."""
        with self._switch:
            self._slot = slot
            while not self._queue.empty():
                slot.tell(self._queue.get())

    def close(self) -> None:
        """The loop has ended: from now on all goes into the queue. To be called before the driver hears of the end."""
        with self._switch:
            if self._slot is not None:
                for message in self._slot.untaken():
                    self._queue.put(message)
            self._slot = None

    def take(self, timeout_s: float) -> Message:
        """The next one from the queue. Raises queue.Empty."""
        return self._queue.get(timeout=timeout_s)
