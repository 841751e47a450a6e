"""Sends text rows to programs that connect, each when it is due, and checks the results of these rows."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import numpy.typing as npt

TICK_S = 0.005
"""Seconds between sends, as in tidegate's source with a rate."""
CONNECT_S = 120.0


class PacedLines:
    """Sends rows `key due_us` over one connection for each slot, and closes the connections after the last row.

    Row i has the key i modulo `keys`, and is due i / `rate` seconds after all have connected. Its due time does not
    depend on when it is sent, so the delay of a slow receiver counts as latency.

    Attributes:
        ports: of each slot, on the loopback interface.
        start_s: the time of the first row; 0 before it.
    """

    def __init__(self, rows: int, rate: int, keys: int, slots: int) -> None:
        self._rows, self._rate, self._keys, self._slots = rows, rate, keys, slots
        self._listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(slots)]
        self.ports = [int(server.getsockname()[1]) for server in self._listening]
        self.start_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Wait for connections, then send, on the thread."""
        self._thread.start()

    def _run(self) -> None:
        connections = []
        for server in self._listening:
            server.settimeout(CONNECT_S)
            connections.append(server.accept()[0])
            server.close()
        self.start_s = time.time()
        sent = 0
        with contextlib.ExitStack() as stack:
            for connection in connections:
                stack.enter_context(connection)
            while sent < self._rows:
                due = min(self._rows, int((time.time() - self.start_s) * self._rate))
                for slot, connection in enumerate(connections):
                    connection.sendall(self.lines(sent, due, slot))
                sent = due
                time.sleep(TICK_S)

    def lines(self, begin: int, end: int, slot: int) -> bytes:
        """Return the rows of one slot, which are every `slots`-th of begin <= i < end."""
        first = begin + (slot - begin) % self._slots
        start_us, us_per_row, keys = self.start_s * 1e6, 1e6 / self._rate, self._keys
        rows = (f"{i % keys} {int(start_us + i * us_per_row)}\n" for i in range(first, end, self._slots))
        return "".join(rows).encode()


def are_right(k: npt.NDArray[np.int64], total: npt.NDArray[np.int64], work: str, rows: int, keys: int) -> bool:
    """Return whether results belong to the rows 0 <= i < `rows`.

    Args:
        k, total: of each result.
        work: "total": a running count of the key for each row; "window": counts of windows.
        rows, keys: as sent; each key has as many rows.
    """
    if work == "window":
        return int(total.sum()) == rows
    greatest = np.zeros(keys, np.int64)
    np.maximum.at(greatest, k, total)
    return len(total) == rows and bool((greatest == rows // keys).all())
