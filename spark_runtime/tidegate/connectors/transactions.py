"""Transactions of two-phase-commit sinks: ids, handles and writers (S7.4)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from tidegate.errors import SinkConflictError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Spec
from tidegate.jobs.stores.store import Store

TOKEN_SEPARATOR = "--"
"""Separator of tokens in a file name."""
_PLAIN_TOKEN = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True)
class Committable:
    """Handle of one pre-committed transaction. It is part of the snapshot.

    Attributes:
        transaction_id: made by `transaction_id`; unique; contains job, lineage, sink uid, subtask and checkpoint
            (S7.4), by which verdicts and late commits find it (S7.8).
        data: JSON-able: what commit needs, without secrets.
    """

    transaction_id: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class SinkContext:
    """Place of a writer in the job.

    Attributes:
        run_id: of two runs of one generation, the later run has the greater id in text order.
    """

    job_id: str
    lineage: str
    uid: str
    subtask: int
    parallelism: int
    generation: int
    run_id: str
    schema: pa.Schema
    scratch: str = ""
    """Private writable directory on local disk; empty: make a temporary one."""
    staging: tuple[str, Mapping[str, Any]] | None = None
    """In batch mode: URL and storage options of the checkpoint's folder, which is deleted with its files; else None."""
    storage: tuple[str, Mapping[str, Any]] | None = None
    """URL and storage options of a folder of the job, for sinks whose target has no place to stage output (ADR 0042).

    Every context of one job has the same folder, and nothing else is in it. Its sinks share it, and the runtime deletes
    nothing in it. None: the caller checks targets only, or has no job directory (tests).
    """


@dataclass(frozen=True)
class TransactionId:
    """Parts of a transaction id. `number` counts the transactions of one writer, from 1."""

    job_id: str
    lineage: str
    uid: str
    subtask: int
    checkpoint_id: int
    generation: int
    run_id: str
    number: int

    @property
    def writer(self) -> str:
        """Return the id of the sink's subtask that wrote the transaction, the same over all runs and generations."""
        # `quote` escapes commas, so that a comma in a name is never read as a separator.
        names = [quote(v, safe="") for v in (self.job_id, self.lineage, self.uid)]
        return ",".join([*names, str(self.subtask)])

    def __str__(self) -> str:
        run = quote(self.run_id, safe="")
        return ",".join([self.writer, str(self.checkpoint_id), str(self.generation), run, str(self.number)])


def transaction_id(ctx: SinkContext, checkpoint_id: int, number: int) -> str:
    """Return the id of the writer's `number`-th transaction, pre-committed for `checkpoint_id`."""
    return str(
        TransactionId(ctx.job_id, ctx.lineage, ctx.uid, ctx.subtask, checkpoint_id, ctx.generation, ctx.run_id, number)
    )


def parse_transaction_id(text: str) -> TransactionId:
    """Return the parts of a transaction id. Raises SinkConflictError when the text is no transaction id."""
    parts = text.split(",")
    try:
        job_id, lineage, uid, subtask, checkpoint_id, generation, run_id, number = parts
        return TransactionId(
            unquote(job_id),
            unquote(lineage),
            unquote(uid),
            int(subtask),
            int(checkpoint_id),
            int(generation),
            unquote(run_id),
            int(number),
        )
    except ValueError as e:
        raise SinkConflictError(
            "the state of a sink holds an invalid transaction id",
            where=text,
            cause="the state of the sink is damaged, or another sink wrote it",
            remedy="Restore an earlier snapshot, or give the sink a new uid",
        ) from e


def job_storage(root: Store, spec: Spec) -> tuple[str, Mapping[str, Any]]:
    """Return `SinkContext.storage` for a job. Args: root: store of the job root."""
    return f"{root.url.rstrip('/')}/{JobLayout(spec.job_id).sinks}", spec.storage_options


def check_writer(ctx: SinkContext, committable: Committable) -> None:
    """Raise unless this job, lineage and sink wrote the transaction.

    A fork never commits or removes transactions of its original (S7.4).
    """
    made = parse_transaction_id(committable.transaction_id)
    if (made.job_id, made.lineage, made.uid) != (ctx.job_id, ctx.lineage, ctx.uid):
        raise SinkConflictError(
            "refused to commit or abort a transaction of another job, lineage or sink",
            where=f"job {ctx.job_id}, lineage {ctx.lineage}, sink {ctx.uid!r}, subtask {ctx.subtask}",
            cause=f"the job, lineage or sink in transaction {committable.transaction_id} differs",
            remedy="Restore in the lineage that wrote the transaction, or as a fork, which ignores it",
        )


def owns_leftovers_of(ctx: SinkContext, subtask: int) -> bool:
    """Return whether this writer cleans up the staged data of subtask index `subtask`.

    A writer cleans up its own index. If the job ran at a higher parallelism, it also cleans up the indices congruent to
    its own, so that each index has exactly one writer (S7.4).
    """
    return subtask % ctx.parallelism == ctx.subtask


def is_leftover(ctx: SinkContext, transaction: str) -> bool:
    """Return whether an earlier run left a staged transaction of a subtask index that this writer cleans up.

    Transactions of this run and of newer runs are no leftovers: a zombie that recovers late must not harm its successor
    (S9.2).
    """
    made = parse_transaction_id(transaction)
    if (made.job_id, made.lineage, made.uid) != (ctx.job_id, ctx.lineage, ctx.uid):
        return False
    return owns_leftovers_of(ctx, made.subtask) and (made.generation, made.run_id) < (ctx.generation, ctx.run_id)


def file_name_token(text: str) -> str:
    """Return `text` as a part of a file name.

    Plain text is returned unchanged. Other text is cleaned and gets a digest, so that no two texts share a token. A
    token holds no separator.
    """
    if _PLAIN_TOKEN.fullmatch(text) and TOKEN_SEPARATOR not in text:
        return text
    return f"{re.sub('[^A-Za-z0-9_]', '_', text)}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
