"""Groups of staged upserts: which subtasks commit together, and what must be committed before (S7.4, S7.8).

Upserts of one key must reach the table in the order of their checkpoints. All rows of a key pass through one subtask,
which commits its transactions in order. Only two cases need more: a subtask that commits for others, and a job whose
parallelism has changed while transactions wait for a verdict.

A rewind restores the table before the first commit that it removes (S9.3). So a subtask also waits some time for older
transactions of its run with other keys. It cannot commit them itself: they may belong to a rejected checkpoint (S7.8).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from tidegate.connectors.files.sink.commit_group import RECORD_SUFFIX, CommitGroups
from tidegate.connectors.files.sink.sink_layout import StagedName, parse_staged_name
from tidegate.connectors.transactions import (
    Committable,
    SinkContext,
    TransactionId,
    file_name_token,
    owns_leftovers_of,
    parse_transaction_id,
)
from tidegate.connectors.upserts.key_set import KeySet
from tidegate.errors import OutageError, TidegateError

ORDER_TIMEOUT_S = 60.0
"""Longest wait, in seconds, for an older checkpoint that another subtask must commit after a rescale."""
LEADER_TIMEOUT_S = 20.0
"""Longest wait, in seconds, for the leader of a group, which may rewrite many files; then a subtask commits itself."""
SHORTEST_POLL_S, LONGEST_POLL_S = 0.05, 1.0
"""Pauses of a wait, after which the table is read again, seconds: doubled each time."""
REQUESTS_AT_ONCE = 16
"""Most requests of one commit to the table's storage at a time."""

logger = logging.getLogger("tidegate.connectors")


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


class Wait:
    """A wait of one commit for other subtasks, in pauses.

    Args:
        limit_s: longest time of all pauses together, seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s
        self._next_s = SHORTEST_POLL_S

    @property
    def is_over(self) -> bool:
        """Return whether the limit is reached."""
        return self._left_s <= 0

    def step(self) -> float:
        """Return the next pause, seconds, and count it."""
        pause, self._next_s = self._next_s, min(2 * self._next_s, LONGEST_POLL_S)
        self._left_s -= pause
        return pause


@dataclass(frozen=True)
class GroupMember:
    """A transaction that is committed together with others, and the keys that it changes."""

    handle: Committable
    keys: pa.Table

    @property
    def made(self) -> TransactionId:
        """The id of the transaction."""
        return parse_transaction_id(self.handle.transaction_id)


class GroupSearch:
    """The group of one transaction; the search is repeated until nothing has to be awaited.

    Args:
        handle: the transaction, staged in upsert mode.
        where: the sink and transaction, for messages.
        keys_of: reads the keys of a transaction; raises TidegateError if they are lost.
        pause: waits for a time in seconds; raises if the run ends.
    """

    def __init__(
        self,
        groups: StagedGroups,
        ctx: SinkContext,
        handle: Committable,
        where: str,
        keys_of: Callable[[Committable], pa.Table],
        pause: Callable[[float], None],
    ) -> None:
        self._groups = groups
        self._ctx = ctx
        self._handle = handle
        self._made = parse_transaction_id(handle.transaction_id)
        self._where = where
        self._keys_of = keys_of
        self._pause = pause
        self._order = Wait(ORDER_TIMEOUT_S)
        self._older = Wait(LEADER_TIMEOUT_S)
        self._is_late = False
        self._leader = Wait(LEADER_TIMEOUT_S)

    def found(
        self, is_committed: Callable[[int, int], bool], make_ready: Callable[[Committable], bool]
    ) -> list[GroupMember] | None:
        """Return the transactions to commit together, this one among them, in order of their subtasks.

        None: another subtask should commit first, and was awaited; read the table again.

        Args:
            is_committed: whether the transaction of a subtask and checkpoint is committed in the table that was read.
            make_ready: moves the files of another transaction to their places; whether they can be committed now.

        Raises:
            OutageError: an older checkpoint is not committed in time.
        """
        made, records = self._made, self._groups.records()
        known = [r for r in records if r.checkpoint_id <= made.checkpoint_id]
        open_ones = [r for r in known if not is_committed(r.subtask, r.checkpoint_id)]
        older = [r for r in open_ones if r.checkpoint_id < made.checkpoint_id]
        if any(self._must_precede(record) for record in older):
            self._await_order(older[0].checkpoint_id)
            return None
        if self._awaits_older([r for r in older if r.is_of_run(made) and r.subtask != made.subtask]):
            return None
        # A subtask with an older transaction commits both itself, in their order.
        behind = {record.subtask for record in older}
        group = [r for r in open_ones if r.is_of_group(made) and r.subtask != made.subtask]
        mates = [record for record in group if record.subtask not in behind]
        if mates and mates[0].subtask < made.subtask and not self._leader.is_over:
            self._pause(self._leader.step())
            return None
        first = GroupMember(self._handle, self._keys_of(self._handle))
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            loaded = threads.map(lambda record: self._loaded(record, first, make_ready), mates)
            others = [member for member in loaded if member is not None]
        return sorted(self._distinct(first, others), key=lambda member: member.made.subtask)

    def _must_precede(self, record: StagedRecord) -> bool:
        """Return whether another subtask must commit an older transaction first, because it may have the same keys.

        It was staged at another parallelism: there a key belonged to another subtask. This subtask has committed its
        own older transactions before. Records that failed runs left are removed when a run starts.
        """
        if record.is_of_run(self._made) or owns_leftovers_of(self._ctx, record.subtask):
            return False
        return self._groups.parallelism_of(record) not in (None, int(self._handle.data["of"]))

    def _awaits_older(self, records: Sequence[StagedRecord]) -> bool:
        """Pause while other subtasks have older transactions of this run. Return False if none are awaited any more."""
        if not records or self._is_late:
            return False
        if not self._older.is_over:
            self._pause(self._older.step())
            return True
        self._is_late = True
        logger.warning(
            "%s: subtask %d has not committed its rows of checkpoint %d for %.0f s, so a rewind to checkpoints from %d "
            "to %d may be refused",
            self._where,
            records[0].subtask,
            records[0].checkpoint_id,
            LEADER_TIMEOUT_S,
            records[0].checkpoint_id,
            self._made.checkpoint_id - 1,
        )
        return False

    def _await_order(self, oldest: int) -> None:
        if self._order.is_over:
            raise OutageError(
                f"rows of checkpoint {oldest} are not committed, so the upsert cannot begin",
                where=self._where,
                cause="other subtasks staged these rows at another parallelism, and have not committed them within "
                f"{ORDER_TIMEOUT_S:.0f} s",
                remedy="Check in the log why the other subtasks do not commit. The next start repeats the commit",
            )
        self._pause(self._order.step())

    def _loaded(
        self, record: StagedRecord, first: GroupMember, make_ready: Callable[[Committable], bool]
    ) -> GroupMember | None:
        """Return another subtask's transaction if it can be committed now. If not, its own subtask commits it."""
        mate = self._groups.read(record.path)
        if mate is None or "keys" not in mate.data:
            return None
        other = parse_transaction_id(mate.transaction_id)
        if replace(other, subtask=self._made.subtask, number=self._made.number) != self._made:
            return None
        try:
            keys = self._keys_of(mate)
            same = keys.schema.equals(first.keys.schema)
            return GroupMember(mate, keys) if same and make_ready(mate) else None
        except (TidegateError, OSError):
            return None

    def _distinct(self, first: GroupMember, others: Sequence[GroupMember]) -> list[GroupMember]:
        """Return members without common keys. Who is left out commits itself, so that a later row replaces an earlier
        one.
        """
        members = [first, *others]
        if not others or KeySet(all_keys(members)).count == sum(member.keys.num_rows for member in members):
            return members
        found = [first]
        for member in others:
            if not KeySet(all_keys(found)).overlaps(member.keys):
                found.append(member)
                continue
            logger.warning(
                "%s: subtask %d has rows of the same keys, so it is undefined which one is stored; repartition the "
                "stream by the key",
                self._where,
                member.made.subtask,
            )
        return found


def all_keys(members: Sequence[GroupMember]) -> pa.Table:
    """Return the keys of all members."""
    return pa.concat_tables([member.keys for member in members])
