"""Staged output of sinks with a commit gate: its place, so that it can be read before an approval (S7.8).

A sink reports the place when it stages a transaction. The snapshot's `_metadata` contains it beside the transaction's
handle. So a reader of the job directory can audit a checkpoint without the runtime, its pipeline or its Arrow files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tidegate.errors import NotFoundError, RecordError, SnapshotError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.history.submissions import entries_by_submission, may_have_run, next_submission_that_ran
from tidegate.jobs.history.verdicts import Verdicts, find_verdicts
from tidegate.jobs.json_documents import parse_json, read_bounded, read_metadata_document
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder
from tidegate.jobs.stores.store import Store

StagedKind = Literal["files", "table", "opaque"]
MANIFEST_VERSION = 1
"""Version of the notes in `quarantine/`."""
FORMATS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "json"}
"""Format of a file by its suffix, without the suffix of a compression."""
_OPTIONAL = ("rows", "bytes", "format", "compression", "relation", "where", "place")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A complete, closed file.

    path: absolute path or URL. It ends in `.staged`, so readers must name the format.
    rows: number of rows.
    bytes: size; None: not reported.
    partition: values of the partition columns, which the file does not contain; None is null.
    """

    path: str
    rows: int
    bytes: int | None = None
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StagedData:
    """Output that one sink has staged for one checkpoint.

    uid: uid of the sink.
    checkpoint_id: the oldest checkpoint whose approval publishes it.
    kind: `files`: read `paths`; `table`: rows of a database table; `opaque`: the sink does not report the place.
    rows: number of rows; None: not reported.
    bytes: size of the files; None: not reported.
    format: format of the files: parquet, csv, json (one document per line) or arrow (IPC).
    compression: compression of text files: gz, zst or "".
    files: files in any order.
    relation: the table, with schema, quoted for SQL.
    where: SQL condition that selects the rows of `relation`.
    place: name of the database for readers, without secrets.
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
        """Return the form of `_metadata`. Empty values are left out."""
        fields = {name: getattr(self, name) for name in ("uid", "checkpoint_id", "kind", *_OPTIONAL)}
        files = [
            {
                "path": f.path,
                "rows": f.rows,
                "bytes": f.bytes,
                **({"partition": dict(f.partition)} if f.partition else {}),
            }
            for f in self.files
        ]
        return {name: value for name, value in {**fields, "files": files}.items() if value not in (None, "", [])}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StagedData:
        """Parse the result of `to_json`. Raises KeyError or TypeError for any other document."""
        files = tuple(
            StagedFile(str(f["path"]), int(f["rows"]), f.get("bytes"), dict(f.get("partition", {})))
            for f in document.get("files", ())
        )
        optional = {name: document[name] for name in _OPTIONAL if name in document}
        return cls(str(document["uid"]), int(document["checkpoint_id"]), document["kind"], files=files, **optional)


def staged_files_of(uid: str, checkpoint_id: int, suffix: str, files: Sequence[StagedFile]) -> StagedData:
    """Describe staged files of one format. `suffix` is their suffix once published, such as `.csv.gz`."""
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
    """Merge the data that subtasks reported: one item per sink, checkpoint and form, ordered by checkpoint and sink."""
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
    """Return the staged output of a checkpoint that was rejected with then=quarantine, at its current place.

    Args:
        quarantine: folder of the job's quarantined data (`JobLayout.quarantine`).

    Raises:
        RecordError: a note in the folder cannot be read.
    """
    found = []
    for path in store.walk(f"{quarantine}/chk-{checkpoint_id}"):
        name = path.rsplit("/", 1)[-1]
        if not (name.startswith("_") and name.endswith(".json")):
            continue
        try:
            document = parse_json(read_bounded(store, path))
            if document["v"] > MANIFEST_VERSION:
                raise ValueError(f"the file has version {document['v']}, which only a newer tidegate reads")
            found.append(StagedData.from_json(document["data"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(
                "the list of rejected output in quarantine/ cannot be read",
                where=path,
                cause=repr(error),
                remedy="Upgrade tidegate here if a newer version wrote the file. Otherwise restore the file from a "
                "backup",
            ) from error
    return merge_staged(found)


def staged_data(job: JobDirectory, checkpoint_id: int | None) -> tuple[StagedData, ...]:
    """See `JobClient.staged`."""
    # Without a submission, `spec(1)` raises the JobNotFoundError.
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
        # A snapshot may also hold output that was approved before it: sinks drop a handle only after its commit.
        if part.checkpoint_id > verdicts.approved and covering and not withheld:
            found.append(replace(part, checkpoint_id=covering[0]))
    return merge_staged(found)


def _check(verdicts: Verdicts, wanted: int, where: str) -> None:
    """Raise SnapshotError for a checkpoint that does not exist, was rejected, or is a savepoint."""
    view = verdicts.views.get(wanted)
    remedy = (
        f"Name a checkpoint that waits for approval or rejection: {', '.join(map(str, verdicts.waiting)) or 'none'}"
    )
    if view is None or view.status != "completed":
        what = f"there is no checkpoint {wanted}" if view is None else f"checkpoint {wanted} is {view.status}"
        raise SnapshotError(what, where=where, remedy=remedy)
    if wanted in verdicts.rejected:
        raise SnapshotError(f"checkpoint {wanted} was rejected", where=where, remedy=remedy)
    if view.kind == "savepoint":
        cause = "a savepoint commits no output, so there is nothing to approve or reject"
        raise SnapshotError(f"snapshot {wanted} is a savepoint", where=where, cause=cause, remedy=remedy)


def _in_snapshot(job: JobDirectory, path: str) -> Iterator[StagedData]:
    """Yield the staged data in the snapshot's metadata, by transaction."""
    store, folder = open_snapshot_folder(job.store, job.storage_options, path)
    where = JobLayout.metadata(folder)
    try:
        body = read_metadata_document(store, where)["body"]
        for operator in body["operators"]:
            for subtask in operator["subtasks"]:
                for document in (subtask["handle"] or {}).get("staged", ()):
                    yield StagedData.from_json(document)
    except (NotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(
            "the staged output of the checkpoint cannot be read",
            where=f"job {job.job_id}, {where}",
            cause=str(error) or repr(error),
            remedy="Try again: the checkpoint may have been approved or rejected, and then deleted, during the read",
        ) from error
