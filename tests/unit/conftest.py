"""What several folders of unit tests share."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from builders.folders import quick_root


@pytest.fixture(scope="session")
def quick_folder() -> Iterator[Path]:
    """A folder in memory where the machine has that, else on disk."""
    with TemporaryDirectory(prefix="tidegate-unit-", dir=quick_root(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path(quick_folder: Path) -> Iterator[Path]:
    """pytest's, in the `quick_folder`, and gone when the test has ended: memory is scarce."""
    with TemporaryDirectory(dir=quick_folder, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def own_signal_handlers() -> Iterator[None]:
    """Put back the handlers that the test replaces by running a driver or an agent in this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, how in before.items():
        signal.signal(number, how)


@pytest.fixture
def quick_thread_switches() -> Iterator[None]:
    """Threads take turns often: a loop that never sleeps would hardly let others run."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval_s)


@pytest.fixture
def dead_process() -> int:
    """Id of a process of this machine that has ended. Each test makes its own: ids are used again soon."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
