"""Folder of a job for data that sinks had staged for rejected checkpoints (S7.8).

    quarantine/chk-<checkpoint>/<sink>/[<column>=<value>/...]<writer>-<n>.<suffix>   data, where the sink wrote files
    quarantine/chk-<checkpoint>/<sink>/_<writer>.json                                description, and who rejected it

The runtime neither deletes nor reads anything here. Readers of datasets skip names that begin with an underscore.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from fsspec import AbstractFileSystem

from tidegate.connectors.storage import is_local, sync_to_disk
from tidegate.connectors.transactions import TransactionId, file_name_token
from tidegate.errors import AlreadyExistsError
from tidegate.jobs.client.staged_data import MANIFEST_VERSION, StagedData
from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.stores.store import Store


class Quarantine:
    """Writer of one verdict's data to the quarantine folder.

    Every step may be repeated, by this run or a later one, and by two runs at once.
    """

    def __init__(self, store: Store, folder: str, withheld: WithheldRange) -> None:
        """Create the writer. Args: folder: `quarantine` of the job, relative to the store."""
        self._store = store
        self._folder = folder
        self._withheld = withheld

    def checkpoint_of(self, made: TransactionId) -> int:
        """Return the rejected checkpoint that a transaction belongs to."""
        return self._withheld.checkpoint_of(made.checkpoint_id)

    def take_file(self, filesystem: AbstractFileSystem, path: str, made: TransactionId, name: str) -> str | None:
        """Move a file here as `<writer>-<name>`; the part of `name` before its last slash names folders.

        Returns:
            The new path or URL; None when the file is at neither place: a user has removed it.
        """
        folders, _, last = name.rpartition("/")
        target = f"{self._of_sink(made)}/{folders + '/' if folders else ''}{_writer(made)}-{last}"
        try:
            if not self._store.exists(target):
                self._copy(filesystem, path, target)
            with suppress(FileNotFoundError):
                filesystem.rm_file(path)
        except FileNotFoundError:
            if not self._store.exists(target):  # another run may have moved it first
                return None
        return self._store.local_path(target) or f"{self._store.url.rstrip('/')}/{target}"

    def _copy(self, filesystem: AbstractFileSystem, path: str, target: str) -> None:
        local = self._store.local_path(target) if is_local(filesystem) else None
        if local is not None:
            os.makedirs(os.path.dirname(local), exist_ok=True)
            with suppress(OSError):  # on another device, or missing: the copy below decides
                os.replace(path, local)
                sync_to_disk(os.path.dirname(local))
                return
        with suppress(AlreadyExistsError):
            self._store.create(target, filesystem.cat_file(path))

    def note(self, made: TransactionId, data: StagedData) -> None:
        """Record what was moved. Call it after the move."""
        document: dict[str, Any] = {
            "record": "quarantined",
            "v": MANIFEST_VERSION,
            "transaction_id": str(made),
            "by": self._withheld.by,
            "reason": self._withheld.reason,
            "rejected": list(self._withheld.checkpoints),
            "data": data.to_json(),
        }
        with suppress(AlreadyExistsError):
            text = json.dumps(document, sort_keys=True, indent=1) + "\n"
            self._store.create(f"{self._of_sink(made)}/_{_writer(made)}.json", text.encode())

    def _of_sink(self, made: TransactionId) -> str:
        return f"{self._folder}/chk-{self.checkpoint_of(made)}/{file_name_token(made.uid)}"


def _writer(made: TransactionId) -> str:
    """Return a name part that no two transactions of a sink share."""
    return f"{made.subtask}-g{made.generation}-{file_name_token(made.run_id)}-{made.number}"
