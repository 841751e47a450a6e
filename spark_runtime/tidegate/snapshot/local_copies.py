"""Copies of state files on the slot's own disk, for a faster restart (S5.4, `local_recovery`).

Names of state files are never reused, because they contain generation, run and a nonce. A copy with the same name is a
copy of the same file, and its checksum shows whether it is complete. So a copy may be missing, truncated or outdated at
any time, and is ignored then. Copies never make a snapshot fail, and are never the only place of any data.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from tidegate.jobs.layout import stable_id

FOLDER = "tidegate-local"
"""Folder below the machine's folder of temporary files. It outlives the slot's process, for the slots of the next run.
"""


class LocalCopies:
    """Copies of the files that one slot's checkpoints use.

    Reads copies of all slots of the job on this machine. Safe from several threads. Never raises.
    """

    def __init__(self, folder: str, slot: int) -> None:
        """Args: folder: folder of the job on this machine; created if it is missing. slot: number of the slot."""
        self._folder = folder
        self._own = os.path.join(folder, str(slot))
        self._lock = threading.Lock()
        self._written: dict[int, set[str]] = {}
        self._usable = _made_private(self._own)

    @classmethod
    def of_job(cls, root_url: str, job_id: str, slot: int) -> LocalCopies:
        """Return the copies of a job on this machine."""
        return cls(os.path.join(tempfile.gettempdir(), FOLDER, stable_id(root_url, job_id)), slot)

    def put(self, name: str, pieces: Iterable[Any]) -> None:
        """Store a copy of these buffers, in order. Does nothing if the disk does not accept it."""
        if not self._usable:
            return
        temporary = os.path.join(self._own, f".{secrets.token_hex(8)}")
        try:
            # No fsync: after a crash of the machine, the checksum detects a truncated copy.
            with open(temporary, "wb") as file:
                file.writelines(pieces)
            os.replace(temporary, os.path.join(self._own, name))
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)

    def read(self, name: str, offset: int, size_bytes: int) -> bytes | None:
        """Return these bytes of the copy, unchecked; None: there is no copy.

        A file has at most one copy, in the folder of the slot that wrote it.
        """
        with suppress(OSError):
            for slot in os.listdir(self._folder):
                with suppress(OSError), open(os.path.join(self._folder, slot, name), "rb") as file:
                    file.seek(offset)
                    return file.read(size_bytes)
        return None

    def on_written(self, checkpoint_id: int, names: Collection[str]) -> None:
        """Record that checkpoint `checkpoint_id` uses these files of one subtask."""
        with self._lock:
            self._written.setdefault(checkpoint_id, set()).update(names)

    def completed(self, checkpoint_id: int) -> None:
        """Record the completion of a checkpoint. Delete copies that neither it nor a newer checkpoint uses."""
        with self._lock:
            self._written = {n: names for n, names in self._written.items() if n >= checkpoint_id}
            kept = {name for names in self._written.values() for name in names}
        with suppress(OSError):
            for name in set(os.listdir(self._own)) - kept:
                with suppress(OSError):
                    os.unlink(os.path.join(self._own, name))

    def clear(self) -> None:
        """Delete all copies, because the slot does not need them any more."""
        shutil.rmtree(self._own, ignore_errors=True)
        with suppress(OSError):
            # Fails while another slot has copies in the folder, which must stay.
            os.rmdir(self._folder)


def _made_private(folder: str) -> bool:
    """Create the folder and return whether only this user owns it. Other users can write to its parent folder."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # A link might lead to a folder that another user controls.
        parents = (folder, os.path.dirname(folder))
        return all(not os.path.islink(path) and os.stat(path).st_uid == os.getuid() for path in parents)
    except OSError:
        return False
