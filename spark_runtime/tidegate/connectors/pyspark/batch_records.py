"""Records of the batches of a stream: commit markers, and notes of transactions that a run has adopted.

.../commits/<job>,<lineage>,<uid>,0,<batch>.json                                      the batch is committed
.../staging/<job>/<lineage>/<uid>/adopted/g<generation>--<run>--<subtask>--<batch>.adopted.staged
    the run restored this transaction, which waits for a verdict (S7.8)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.marker_packs import MarkerPacks
from tidegate.connectors.files.sink.sink_layout import FileLayout, StagedName, parse_staged_name
from tidegate.connectors.storage import list_folder, put_durably
from tidegate.connectors.transactions import SinkContext, TransactionId, file_name_token, parse_transaction_id

MARKER_VERSION = 1
MARKER_PARENTS = 2
"""Folders between a marker and the sink's own folder, which the first marker may create."""
ADOPTED_FOLDER = "adopted"
"""No index of a subtask, so that no recovery looks here."""
ADOPTED_SUFFIX = ".adopted"
ADOPTED_PARENTS = 6
"""Folders between a note and the sink's own folder, which the first note may create."""


class BatchRecords:
    """Records of one sink. From any thread; may block."""

    def __init__(self, filesystem: AbstractFileSystem, layout: FileLayout, ctx: SinkContext) -> None:
        self._fs = filesystem
        self._layout = layout
        self._ctx = ctx
        self._packs = MarkerPacks(filesystem, layout.committed)

    # ------------------------------------------------------------ markers

    def is_committed(self, batch: int) -> bool:
        """Return whether the batch has a marker."""
        # In this order, because a marker is packed before it is removed.
        return self._fs.exists(self._marker(batch)) or self._packs.holds(0, batch)

    def mark(self, batch: int, transactions: Sequence[TransactionId]) -> None:
        """Write the marker of a batch durably."""
        document = {"version": MARKER_VERSION, "transactions": [str(one) for one in transactions]}
        marker = self._marker(batch)
        put_durably(
            self._fs,
            marker,
            json.dumps(document).encode(),
            unfinished=self._layout.unfinished_marker(marker),
            parents=MARKER_PARENTS,
        )

    def marked(self, batch: int) -> Sequence[str] | None:
        """Return the ids of the transactions that a marker names; None: it is packed, or there is none."""
        with suppress(FileNotFoundError):
            return [str(one) for one in json.loads(self._fs.cat_file(self._marker(batch)))["transactions"]]
        return None

    def _marker(self, batch: int) -> str:
        # A batch has one marker, under the name of subtask 0, so that all its transactions are marked at one instant.
        ctx = self._ctx
        writer = TransactionId(ctx.job_id, ctx.lineage, ctx.uid, 0, 0, 0, "", 0).writer
        return self._layout.marker(f"{writer},{batch}")

    # ------------------------------------------------------------ adopted transactions

    def adopt(self, made: TransactionId) -> None:
        """Note that this run restored a transaction that waits for a verdict."""
        run = file_name_token(self._ctx.run_id)
        name = StagedName(self._ctx.generation, run, made.subtask, made.checkpoint_id, ADOPTED_SUFFIX)
        document = {"transaction_id": str(made)}
        put_durably(self._fs, f"{self.adopted_folder}/{name}", json.dumps(document).encode(), parents=ADOPTED_PARENTS)

    def adopted(self, by: TransactionId) -> list[TransactionId]:
        """Return the transactions that the run of `by` adopted and that are not committed."""
        found = []
        for path in list_folder(self._fs, self.adopted_folder)[0]:
            name = parse_staged_name(path.rsplit("/", 1)[-1])
            if name is not None and (name.generation, name.run) == (by.generation, file_name_token(by.run_id)):
                with suppress(FileNotFoundError):
                    found.append(parse_transaction_id(json.loads(self._fs.cat_file(path))["transaction_id"]))
        return found

    def forget_adopted(self, batch: int) -> None:
        """Remove the notes of a batch, of all runs."""
        for path in list_folder(self._fs, self.adopted_folder)[0]:
            name = parse_staged_name(path.rsplit("/", 1)[-1])
            if name is not None and name.file == batch:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(path)

    @property
    def adopted_folder(self) -> str:
        """Folder of the notes."""
        return f"{self._layout.staging_of_all}/{ADOPTED_FOLDER}"
