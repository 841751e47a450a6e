"""What sinks behind a commit gate have staged: where it lies, so that it can be read before anybody approves it (S7.8).

A sink says it when it stages a transaction; the snapshot's `_metadata` holds it beside the transaction's handle. So
whoever reads the job directory can audit a checkpoint, without the runtime, its pipeline or its Arrow files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tidegate.errors import NotFoundError, RecordError, SnapshotError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.history.submissions import entries_by_submission, may_have_run, next_submission_that_ran
from tidegate.jobs.history.verdicts import Verdicts, find_verdicts
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder
from tidegate.jobs.stores.store import Store

StagedKind = Literal["files", "table", "opaque"]
MANIFEST_VERSION = 1
"""Of the notes in `quarantine/`."""
FORMATS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "json"}
"""Suffix of a file, without that of its compression -> its format."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A whole, closed file.

    Attributes:
        path: absolute path or URL. It ends in `.staged`: name the format to readers.
        rows: in it.
        bytes: its size; None: not told.
        partition: values of the partition columns, which are not in the file; None is null.
    """

    path: str
    rows: int
    bytes: int | None = None
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StagedData:
    """What one sink has staged for one checkpoint.

    Attributes:
        uid: of the sink.
        checkpoint_id: the oldest checkpoint whose approval publishes it.
        kind: `files`: read `paths`; `table`: rows of a database table; `opaque`: the sink does not tell where it is.
        rows: None: not told.
        bytes: of the files; None: not told.
        format: of the files: parquet, csv or json (one document a line).
        compression: of text files: gz, zst or "".
        files: in no order.
        relation: the table, with schema, quoted as SQL needs it.
        where: SQL condition that picks the rows out of `relation`.
        place: for people, without secrets: which database.
    """

    uid: str
    checkpoint_id: int
    kind: StagedKind = "opaque"
    rows: int | None = None
    bytes: int | None = None
    format: str = ""
    compression: str = ""
    files: tuple[StagedFile, ...] = ()
    relation: str = ""
    where: str = ""
    place: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files, for `pyarrow.dataset.dataset(paths, format="parquet")` or `pandas.read_parquet`."""
        return tuple(file.path for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """As in `_metadata`; what is empty is left out."""
        told = {name: getattr(self, name) for name in ("uid", "checkpoint_id", "kind", *_OPTIONAL)}
        files = [
            {
                "path": f.path,
                "rows": f.rows,
                "bytes": f.bytes,
                **({"partition": dict(f.partition)} if f.partition else {}),
            }
            for f in self.files
        ]
        return {name: value for name, value in {**told, "files": files}.items() if value not in (None, "", [])}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StagedData:
        """Inverse of `to_json`. Raises KeyError, TypeError for anything else."""
        files = tuple(
            StagedFile(str(f["path"]), int(f["rows"]), f.get("bytes"), dict(f.get("partition", {})))
            for f in document.get("files", ())
        )
        told = {name: document[name] for name in _OPTIONAL if name in document}
        return cls(str(document["uid"]), int(document["checkpoint_id"]), document["kind"], files=files, **told)


_OPTIONAL = ("rows", "bytes", "format", "compression", "relation", "where", "place")


def staged_files_of(uid: str, checkpoint_id: int, suffix: str, files: Sequence[StagedFile]) -> StagedData:
    """Files of one format. Args: suffix: that all would have once published, from its first dot on: `.csv.gz`."""
    name, _, compression = suffix[1:].partition(".")
    sizes = [file.bytes for file in files]
    return StagedData(
        uid,
        checkpoint_id,
        "files",
        rows=sum(file.rows for file in files),
        bytes=None if None in sizes else sum(size or 0 for size in sizes),
        format=FORMATS.get(f".{name}", name),
        compression=compression,
        files=tuple(files),
    )


def merge_staged(parts: Iterable[StagedData]) -> tuple[StagedData, ...]:
    """One for each sink, checkpoint and way to read, by checkpoint and sink: what subtasks tell each of its own."""
    by_key: dict[tuple[Any, ...], list[StagedData]] = {}
    for part in parts:
        key = (part.checkpoint_id, part.uid, part.kind, part.format, part.compression, part.relation, part.place)
        by_key.setdefault(key, []).append(part)
    return tuple(_sum(by_key[key]) for key in sorted(by_key))


def _sum(parts: Sequence[StagedData]) -> StagedData:
    rows, sizes = [part.rows for part in parts], [part.bytes for part in parts]
    return replace(
        parts[0],
        rows=None if None in rows else sum(n or 0 for n in rows),
        bytes=None if None in sizes else sum(n or 0 for n in sizes),
        files=tuple(file for part in parts for file in part.files),
        where=" OR ".join(sorted({part.where for part in parts if part.where})),
    )


def quarantined_data(store: Store, quarantine: str, checkpoint_id: int) -> tuple[StagedData, ...]:
    """What sinks had staged for a checkpoint that was rejected with then=quarantine, and where it lies now.

    Args:
        quarantine: the job's folder (`JobLayout.quarantine`).

    Raises:
        RecordError: a note there cannot be read.
    """
    found = []
    for path in store.walk(f"{quarantine}/chk-{checkpoint_id}"):
        name = path.rsplit("/", 1)[-1]
        if not (name.startswith("_") and name.endswith(".json")):
            continue
        try:
            document = json.loads(store.read(path))
            if document["v"] > MANIFEST_VERSION:
                raise ValueError(f"a newer tidegate wrote it, version {document['v']}")
            found.append(StagedData.from_json(document["data"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError("a note of the quarantine cannot be read", where=path, cause=repr(error)) from error
    return merge_staged(found)


def staged_data(job: JobDirectory, checkpoint_id: int | None) -> tuple[StagedData, ...]:
    """See `JobClient.staged`."""
    specs, decisions = job.specs() or (job.spec(1),), job.decisions()
    ran = may_have_run(entries_by_submission(decisions))
    verdicts = find_verdicts(specs, decisions, next_submission_that_ran(len(specs) + 1, ran))
    wanted = checkpoint_id if checkpoint_id is not None else max(verdicts.waiting, default=None)
    if wanted is None:
        return ()
    if wanted in verdicts.quarantined:
        return quarantined_data(job.store, job.layout.quarantine, wanted)
    _check(verdicts, wanted, f"job {job.job_id}")
    if wanted not in verdicts.waiting:
        return ()
    found = []
    for part in _in_snapshot(job, verdicts.views[wanted].path):
        covering = [n for n in verdicts.waiting if n >= part.checkpoint_id]
        withheld = any(one.covers(part.checkpoint_id) for one in verdicts.withheld)
        if part.checkpoint_id > verdicts.approved and covering and not withheld:
            found.append(replace(part, checkpoint_id=covering[0]))
    return merge_staged(found)


def _check(verdicts: Verdicts, wanted: int, where: str) -> None:
    """Raise SnapshotError for one that never waits for a verdict, or never did."""
    view = verdicts.views.get(wanted)
    remedy = f"Waiting for a verdict: {', '.join(map(str, verdicts.waiting)) or 'none'}"
    if view is None or view.status != "completed":
        what = f"there is no checkpoint {wanted}" if view is None else f"checkpoint {wanted} is {view.status}"
        raise SnapshotError(what, where=where, remedy=remedy)
    if wanted in verdicts.rejected:
        raise SnapshotError(f"checkpoint {wanted} was rejected", where=where, remedy=remedy)
    if view.kind == "savepoint":
        cause = "a savepoint commits nothing, so that nothing waits for a verdict on it"
        raise SnapshotError(f"{wanted} is a savepoint", where=where, cause=cause, remedy=remedy)


def _in_snapshot(job: JobDirectory, path: str) -> Iterator[StagedData]:
    """What the snapshot's metadata tells, transaction by transaction."""
    store, folder = open_snapshot_folder(job.store, job.storage_options, path)
    where = JobLayout.metadata(folder)
    try:
        body = json.loads(store.read(where))["body"]
        for operator in body["operators"]:
            for subtask in operator["subtasks"]:
                for document in (subtask["handle"] or {}).get("staged", ()):
                    yield StagedData.from_json(document)
    except (NotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(
            "what the checkpoint has staged cannot be told",
            where=f"job {job.job_id}, {where}",
            cause=str(error) or repr(error),
            remedy="Look again: it may have been approved or rejected meanwhile, and deleted",
        ) from error
