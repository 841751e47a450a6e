"""Read the state of a slot's subtasks from the restore part of a deployment message, split per subtask (S5.5)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.stores.store import Store
from tidegate.operators.stream_operator import CommitPermit
from tidegate.plan.execution_plan import ExecutionPlan
from tidegate.snapshot.blobs import BlobFile
from tidegate.snapshot.handles import OpenLocation, SnapshotStreams
from tidegate.snapshot.local_copies import LocalCopies
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.redistribution import Rescale, RestoreShare, redistributed


@dataclass(frozen=True)
class RestoredState:
    """The state that a slot restores.

    Attributes:
        permit: the right to commit the snapshot's transactions; None in a fork, which commits nothing of its original
            (S7.4).
        parts: (uid, index) -> state parts of the new subtask.
        finished: (chain id, index) of subtasks that run no user code (S6.2).
        drained: uids of operators whose input a drain ended early, and whose input continues now (S7.5).
        after_drain: a drain took the snapshot, whether or not it made an operator fire early.
        files: (uid, index) -> files of blobs that checkpoints of this run may use again (S7.4), and inline ones.
        withheld: transactions that are never committed, and move to `quarantine`, a store and a folder in it (S7.8).
    """

    permit: CommitPermit | None
    parts: Mapping[tuple[str, int], Sequence[StatePart]]
    finished: Collection[tuple[int, int]]
    drained: Collection[str] = ()
    after_drain: bool = False
    files: Mapping[tuple[str, int], Sequence[BlobFile]] = field(default_factory=dict)
    withheld: Sequence[WithheldRange] = ()
    quarantine: Callable[[], tuple[Store, str]] | None = None


def load_restored_state(
    documents: Mapping[int, Mapping[str, Any]],
    open_location: OpenLocation,
    plan: ExecutionPlan,
    copies: LocalCopies | None = None,
) -> RestoredState | None:
    """Read and split the state of every subtask index of this slot. Blocks on the store.

    Blobs are read later, when the operator reads them.

    Args:
        documents: index -> `coordinator.recovery.restore.RestoreState.for_slot(index)`, all of one restore; empty: a
            fresh start.
        copies: local copies, which are tried first (S5.4).

    Raises:
        SnapshotError: a state stream is missing, damaged or of a newer version; names snapshot, operator and subtask.
        StoreError: the store cannot be read.
    """
    if not documents:
        return None
    parts: dict[tuple[str, int], Sequence[StatePart]] = {}
    files: dict[tuple[str, int], Sequence[BlobFile]] = {}
    finished: set[tuple[int, int]] = set()
    for index, document in documents.items():
        factory = SnapshotStreams.at(document["location"], open_location, copies=copies)
        place = Rescale(document["parallelism"], plan.parallelism, plan.max_parallelism, index)
        for uid, share_document in document["shares"].items():
            where = f"snapshot {document['location']}, operator {uid!r}"
            share = RestoreShare.from_json(share_document)
            if document.get("may_share"):
                of_share = [file for _, handle in share.handles for file in handle.files]
                files[(uid, index)] = [file for file in of_share if file.shared or file.inline is not None]
            former = {
                former_index: factory.parts(handle, where=f"{where}, subtask {former_index}")
                for former_index, handle in share.handles
            }
            given_up = document.get("dropped", {}).get(uid, ())
            restored = redistributed(former, share.broadcast_from, place, where=where)
            parts[(uid, index)] = [part for part in restored if part.name not in given_up]
        finished |= {(chain_id, i) for chain_id, i in document["finished"]}
    any_document = next(iter(documents.values()))
    permit = CommitPermit(any_document["checkpoint_id"], any_document["generation"], any_document["log_number"])
    withheld = [WithheldRange.from_json(w) for w in any_document.get("withheld", ())]
    quarantine = partial(open_location, any_document["quarantine"]) if withheld else None
    return RestoredState(
        None if any_document["is_fork"] else permit,
        parts,
        finished,
        frozenset(any_document["drained"]),
        any_document["after_drain"],
        files,
        withheld,
        quarantine,
    )
