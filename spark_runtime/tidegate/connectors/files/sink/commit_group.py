"""Groups of transactions that subtasks of one run staged for one checkpoint, so that one commit can publish them all.

The contract knows no common committer: each subtask commits its own transactions. But a permit for a transaction also
permits the transactions of all subtasks that the same run staged for the same checkpoint: the completed checkpoint
holds all of them, and verdicts concern whole checkpoints (S7.4, S7.8). So one subtask may commit for the others.

A subtask writes a record of its handle beside its staged files, or as its only staged file. When a checkpoint is
complete, every subtask has done so, because an acknowledgement follows the record.

    .../staging/<job>/<lineage>/<uid>/<subtask>/g<generation>--<run>--<number>--<checkpoint>.handle.json.staged

Its name is a staged file's, so that whatever removes leftovers of a run also removes its records.
"""

from __future__ import annotations

import json
from contextlib import suppress

from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.sink_layout import FileLayout, StagedName, parse_staged_name
from tidegate.connectors.storage import put_durably
from tidegate.connectors.transactions import Committable, TransactionId, file_name_token, parse_transaction_id

RECORD_SUFFIX = ".handle.json"
FOLDERS_ABOVE = 6
"""Folders between a record and the sink's own folder, which the first record may create."""


class CommitGroups:
    """Records of staged transactions of one sink. From any thread; may block."""

    def __init__(self, filesystem: AbstractFileSystem, layout: FileLayout) -> None:
        self._fs = filesystem
        self._layout = layout

    def record(self, handle: Committable, *, durable: bool = False) -> int:
        """Write the record of a handle whose files are staged. Return its size in bytes.

        Args:
            durable: the record survives a crash of the machine. Needed unless the subtask can commit without it.
        """
        document = {"transaction_id": handle.transaction_id, "data": dict(handle.data)}
        content = json.dumps(document).encode()
        path = self._path(parse_transaction_id(handle.transaction_id))
        if durable:
            put_durably(self._fs, path, content, parents=FOLDERS_ABOVE)
        else:
            self._fs.pipe_file(path, content)
        return len(content)

    def forget(self, made: TransactionId) -> None:
        """Remove the record of a transaction."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(made))

    def members(self, made: TransactionId) -> dict[int, str]:
        """Return the records of a transaction's group: index of the subtask -> path. One listing."""
        return self.of_run(made).get(made.checkpoint_id, {})

    def of_run(self, made: TransactionId) -> dict[int, dict[int, str]]:
        """Return the records of the run that staged a transaction: checkpoint -> subtask -> path. One listing."""
        found: dict[int, dict[int, str]] = {}
        wanted = (made.generation, file_name_token(made.run_id), RECORD_SUFFIX)
        for path in self._fs.find(self._layout.staging_of_all):
            _, folder, name = f"/{path}".rsplit("/", 2)
            staged = parse_staged_name(name)
            if staged is None or not folder.isdecimal():
                continue
            if (staged.generation, staged.run, staged.suffix) == wanted:
                found.setdefault(staged.file, {})[int(folder)] = path
        return found

    def read(self, path: str) -> Committable | None:
        """Return the handle of a record; None: it was removed, or cannot be read."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            document = json.loads(self._fs.cat_file(path))
            return Committable(str(document["transaction_id"]), dict(document["data"]))
        return None

    def _path(self, made: TransactionId) -> str:
        return self._layout.staged(record_name(made), made.subtask)


def record_name(made: TransactionId) -> str:
    """Return the name of a transaction's record in the staging folder of its subtask."""
    return str(
        StagedName(made.generation, file_name_token(made.run_id), made.number, made.checkpoint_id, RECORD_SUFFIX)
    )
