"""Scratch folder of a slot or driver on the local disk. If the process is killed, the next one on the machine removes
it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"tidegate-(?:slot[0-9]+|driver)-([0-9]+)-[a-z0-9_]{8}")


class ScratchFolder:
    """A new folder, whose name contains the process id.

    The process holds a lock on it, because a process id alone means nothing to another container with the same disk.
    """

    def __init__(self, owner: str) -> None:
        """Create the folder, and remove folders of killed processes. Args: owner: `driver`, or `slot` and an index."""
        _remove_abandoned(Path(tempfile.gettempdir()))
        self.path = tempfile.mkdtemp(prefix=f"tidegate-{owner}-{os.getpid()}-")
        self._lock: int | None = os.open(self.path, os.O_RDONLY)
        with contextlib.suppress(OSError):  # on a disk without locks, no folder counts as abandoned
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __enter__(self) -> str:
        """Return the path."""
        return self.path

    def __exit__(self, *_error: object) -> None:
        """Remove the folder."""
        self.remove()

    def remove(self) -> None:
        """Remove the folder, also while files in it are open. Does not raise; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    with contextlib.suppress(OSError):
        for path in parent.iterdir():
            found = _NAME.fullmatch(path.name)
            if found is not None and not _is_alive(int(found.group(1))):
                with contextlib.suppress(OSError):
                    _remove_unlocked(path)


def _is_alive(process_id: int) -> bool:
    try:
        # Signal 0 is not sent; it only tests whether the process exists.
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # the process belongs to another user, or the number is not a process id
    return True


def _remove_unlocked(path: Path) -> None:
    """Remove a folder. Raises OSError if a process holds its lock, or it is not a folder."""
    # Other users can write to the temporary folder, so a link must not lead to a removal elsewhere.
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        owner = os.fstat(folder).st_uid
        if owner == os.getuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)
