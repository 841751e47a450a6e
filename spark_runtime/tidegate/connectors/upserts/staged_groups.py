"""Records of staged upserts: which subtasks commit together, and what must be committed before (S7.4, S7.8).

Upserts of one key must reach the table in the order of their checkpoints. All rows of a key pass through one subtask,
which commits its transactions in order. Only two cases need more: a subtask that commits for others, and a job whose
parallelism has changed while transactions wait for a verdict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tidegate.connectors.files.sink.sink_layout import StagedName, parse_staged_name
from tidegate.connectors.iceberg.commit_group import RECORD_SUFFIX, CommitGroups
from tidegate.connectors.transactions import SinkContext, TransactionId, file_name_token, owns_leftovers_of

ORDER_TIMEOUT_S = 60.0
"""Longest wait, in seconds, for an older checkpoint that another subtask must commit after a rescale."""
LEADER_TIMEOUT_S = 20.0
"""Longest wait, in seconds, for the leader of a group, which may rewrite many files; then a subtask commits itself."""
SHORTEST_POLL_S, LONGEST_POLL_S = 0.05, 1.0
"""Pauses between two looks at the table during a wait, seconds: doubled each time."""


@dataclass(frozen=True)
class StagedRecord:
    """A record beside staged files, of the subtask with this index."""

    subtask: int
    name: StagedName
    path: str

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint for which the transaction was pre-committed."""
        return self.name.file

    def is_of_group(self, made: TransactionId) -> bool:
        """Return whether the same run staged it for the same checkpoint as `made`."""
        of = (made.generation, file_name_token(made.run_id), made.checkpoint_id)
        return (self.name.generation, self.name.run, self.name.file) == of

    def is_of_run(self, made: TransactionId) -> bool:
        """Return whether the same run staged it."""
        return (self.name.generation, self.name.run) == (made.generation, file_name_token(made.run_id))


class StagedGroups(CommitGroups):
    """Records of one sink."""

    def record_name(self, made: TransactionId) -> str:
        """Return the name of a transaction's record in the staging folder of its subtask."""
        return self._path(made).rsplit("/", 1)[-1]

    def records(self) -> list[StagedRecord]:
        """Return all records, the oldest checkpoint first. One listing."""
        found = []
        with suppress(FileNotFoundError):
            for path in self._fs.find(self._layout.staging_of_all):
                _, folder, name = f"/{path}".rsplit("/", 2)
                staged = parse_staged_name(name)
                if staged is not None and staged.suffix == RECORD_SUFFIX and folder.isdecimal():
                    found.append(StagedRecord(int(folder), staged, path))
        return sorted(found, key=lambda record: (record.checkpoint_id, record.subtask))

    def parallelism_of(self, record: StagedRecord) -> int | None:
        """Return the parallelism at which a transaction was staged; None: the record was removed."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            return int(json.loads(self._fs.cat_file(record.path))["data"]["of"])
        return None


def mates_of(
    made: TransactionId, records: Sequence[StagedRecord], is_committed: Callable[[StagedRecord], bool]
) -> list[StagedRecord]:
    """Return the records of the other subtasks whose transactions may be committed together with `made`.

    A subtask with an older transaction that is not committed is left out: it commits both itself, in their order.
    """
    behind = {r.subtask for r in records if r.checkpoint_id < made.checkpoint_id and not is_committed(r)}
    return [
        record
        for record in records
        if record.is_of_group(made)
        and record.subtask != made.subtask
        and record.subtask not in behind
        and not is_committed(record)
    ]


def awaited_before(
    made: TransactionId,
    staged_at: int,
    ctx: SinkContext,
    records: Sequence[StagedRecord],
    is_committed: Callable[[StagedRecord], bool],
    parallelism_of: Callable[[StagedRecord], int | None],
) -> Collection[int]:
    """Return the older checkpoints whose rows may have the keys of `made`, and which other subtasks must commit first.

    These are transactions staged at another parallelism, because there a key belonged to another subtask. This
    subtask commits its own ones in their order before. Records that failed runs left are removed when a run starts, so
    a wait for one of them ends.

    Args:
        staged_at: the parallelism at which `made` was staged.
    """
    return {
        record.checkpoint_id
        for record in records
        if record.checkpoint_id < made.checkpoint_id
        and not record.is_of_run(made)
        and not owns_leftovers_of(ctx, record.subtask)
        and parallelism_of(record) not in (None, staged_at)
        and not is_committed(record)
    }
