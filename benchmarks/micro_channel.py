"""Measures the loopback throughput of one data channel between two processes: 64k-row batches of three int64 columns.

    python benchmarks/micro_channel.py [seconds]

Prints rows/s, GB/s and the CPU seconds of both processes per GB. The receiver reads one value of each column.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import sys
import threading
import time
from multiprocessing.connection import Connection

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import EndOfPartition
from tidegate.channel.tcp.data_transport import DataTransport

ROWS = 65_536
CAPACITY_BYTES = 4 * 2**20
SWITCH_INTERVAL_S = 0.0005
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])


def transport(slot: int, secret: bytes, wake: threading.Event) -> DataTransport:
    """Return a transport of this benchmark's run."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return DataTransport(slot, secret, 1, "micro-channel", CAPACITY_BYTES, wake.set)


def send(pipe: Connection, secret: bytes, duration_s: float) -> None:
    """Send the same batch for `duration_s`; runs in its own process."""
    wake = threading.Event()
    own = transport(0, secret, wake)
    output = own.open_output(0, 1)
    peers = {0: own.listen("127.0.0.1"), 1: pipe.recv()}
    own.connect(peers, timeout_s=10)
    own.start()
    batch = pa.record_batch([np.arange(ROWS), np.arange(ROWS), np.arange(ROWS)], schema=SCHEMA)
    cpu_before_s = sum(os.times()[:2])
    end = time.monotonic() + duration_s
    while time.monotonic() < end and own.failure is None:
        if output.has_capacity():
            output.send(batch)
        else:
            wake.wait(0.05)
            wake.clear()
    output.send(EndOfPartition())
    own.flush()
    pipe.send(sum(os.times()[:2]) - cpu_before_s)
    own.close()


def main(duration_s: float) -> None:
    """Receive, and print the figures."""
    secret = secrets.token_bytes(32)
    wake = threading.Event()
    own = transport(1, secret, wake)
    received = own.open_input(0, SCHEMA)
    address = own.listen("127.0.0.1")
    context = multiprocessing.get_context("spawn")
    pipe, far_end = context.Pipe()
    sender = context.Process(target=send, args=(far_end, secret, duration_s))
    sender.start()
    pipe.send(address)
    own.connect({0: ("127.0.0.1", 0), 1: address}, timeout_s=30)
    cpu_before_s = sum(os.times()[:2])
    started = time.monotonic()
    own.start()
    rows = size_bytes = 0
    while own.failure is None:
        element = received.poll()
        if element is None:
            wake.wait(0.05)
            wake.clear()
        elif isinstance(element, pa.RecordBatch):
            rows += element.num_rows
            size_bytes += element.nbytes
            assert element.column(2)[-1].as_py() == ROWS - 1
        else:
            break
    elapsed_s = time.monotonic() - started
    own.flush()
    cpu_s = sum(os.times()[:2]) - cpu_before_s
    sender_cpu_s = pipe.recv()
    sender.join()
    own.close()
    gigabytes = size_bytes / 1e9
    print(
        f"{rows / elapsed_s / 1e6:.0f} M rows/s, {gigabytes / elapsed_s:.2f} GB/s, CPU s per GB: "
        f"sender {sender_cpu_s / gigabytes:.2f}, receiver {cpu_s / gigabytes:.2f}"
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
