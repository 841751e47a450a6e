"""Groups of transactions that subtasks of one run staged for one checkpoint, so that one snapshot can hold them all.

Each subtask commits its own transactions: the contract knows no common committer. But a permit for a transaction also
permits the transactions of all subtasks that the same run staged for the same checkpoint: the completed checkpoint
holds all of them, and verdicts concern whole checkpoints (S7.4, S7.8). So one subtask, the leader, may commit for the
others.

A subtask writes a record of its handle beside its staged files. The leader is the subtask with the lowest index that
has a record of a transaction that is not committed. Records only save snapshots: without a record, or if the leader is
late, a subtask commits its own transaction.

    .../staging/<job>/<lineage>/<uid>/<subtask>/g<generation>--<run>--<number>--<checkpoint>.handle.json.staged

Its name is a staged file's, so that whatever removes leftovers of a run also removes its records.
"""

from __future__ import annotations

import json
from contextlib import suppress

from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.sink_layout import FileLayout, StagedName, parse_staged_name
from tidegate.connectors.transactions import Committable, TransactionId, file_name_token, parse_transaction_id

RECORD_SUFFIX = ".handle.json"


class CommitGroups:
    """Records of staged transactions of one sink. From any thread; may block."""

    def __init__(self, filesystem: AbstractFileSystem, layout: FileLayout) -> None:
        self._fs = filesystem
        self._layout = layout

    def record(self, handle: Committable) -> None:
        """Write the record of a handle whose files are staged. It need not survive a crash of the machine."""
        document = {"transaction_id": handle.transaction_id, "data": dict(handle.data)}
        self._fs.pipe_file(self._path(parse_transaction_id(handle.transaction_id)), json.dumps(document).encode())

    def forget(self, made: TransactionId) -> None:
        """Remove the record of a transaction."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(made))

    def members(self, made: TransactionId) -> dict[int, str]:
        """Return the records of a transaction's group: index of the subtask -> path. One listing."""
        found: dict[int, str] = {}
        wanted = (made.generation, file_name_token(made.run_id), made.checkpoint_id, RECORD_SUFFIX)
        for path in self._fs.find(self._layout.staging_of_all):
            _, folder, name = f"/{path}".rsplit("/", 2)
            staged = parse_staged_name(name)
            if staged is not None and (staged.generation, staged.run, staged.file, staged.suffix) == wanted:
                found[int(folder)] = path
        return found

    def read(self, path: str) -> Committable | None:
        """Return the handle of a record; None: it was removed, or cannot be read."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            document = json.loads(self._fs.cat_file(path))
            return Committable(str(document["transaction_id"]), dict(document["data"]))
        return None

    def _path(self, made: TransactionId) -> str:
        run = file_name_token(made.run_id)
        name = StagedName(made.generation, run, made.number, made.checkpoint_id, RECORD_SUFFIX)
        return self._layout.staged(str(name), made.subtask)
