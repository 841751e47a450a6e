"""`_metadata`: the file that makes a folder a snapshot (S2.1). Written last, create-only; read first.

It is one JSON object: `{"record": "snapshot", "v": 4, "sha256": <of the body's canonical JSON>, "body": {...}}`. Paths
in it are relative to its folder, so that a savepoint can be moved or copied as a whole. Since version 2, state handles
may have files of blobs; for checkpoints they are in the folder `shared` next to the job's `checkpoints`. Since version
3, the checksum of a blob may be a CRC-32 (`blobs.matches`), and a handle records `formats` other than rows. Since
version 4, it has `counters`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tidegate.errors import NotFoundError, RecordError, SnapshotError
from tidegate.jobs.json_documents import MAX_METADATA_BYTES, parse_json, read_bounded
from tidegate.jobs.stores.store import Store
from tidegate.snapshot.handles import OpenLocation, SnapshotStreams, StateHandle, full_location, relative_location

METADATA_NAME = "_metadata"
METADATA_VERSION = 5
READABLE_UNTIL = "readable_until_ms"
"""Key of an enumerator's part: time until which it can continue, milliseconds since the epoch. Absent: no limit."""

OperatorStatus = Literal["running", "partially_finished", "finished"]
_STATUSES = ("running", "partially_finished", "finished")


@dataclass(frozen=True)
class SubtaskState:
    """The part of one operator subtask.

    Attributes:
        index: index of the subtask.
        finished: it had ended, or had processed all its data, when it took its snapshot (S6.2).
        handle: its state stream; None: no state.
    """

    index: int
    finished: bool
    handle: StateHandle | None


@dataclass(frozen=True)
class OperatorState:
    """The part of one operator.

    Attributes:
        uid: uid of the operator.
        status: `running`, `partially_finished` or `finished` (S6.2).
        subtasks: subtasks by index, ascending.
    """

    uid: str
    status: OperatorStatus
    subtasks: tuple[SubtaskState, ...]

    def __post_init__(self) -> None:
        assert self.status in _STATUSES, f"unknown operator status {self.status!r}"


@dataclass(frozen=True)
class SnapshotMetadata:
    """All facts about a snapshot that a restore needs.

    Attributes:
        checkpoint_id: its claimed id.
        kind: checkpoint, savepoint, stop-savepoint or final.
        job_id: the job that wrote it.
        lineage: its lineage (S7.4).
        generation: the generation that completed it.
        run_id: the run within the generation.
        parent: folder of the previous snapshot of the lineage: the previous one of this run, else the snapshot from
            which the run was restored; None: there is none.
        parallelism: subtasks per operator.
        max_parallelism: number of key groups; fixed for the life of a job (S5.1).
        created_at: ISO 8601 with zone.
        graph: document of the JobGraph that wrote it.
        operators: one entry per operator of the graph, with stateless ones, in the graph's order.
        splits: source uid -> all splits as JSON, whichever subtask reads them (S4.3). Empty for a source that discovers
            splits while the job runs.
        stop_mode: `suspend` or `drain` for a stop-savepoint.
        drained_operators: uids of operators that a drain fired early: windows over event time or processing time,
            processes with timers, and joins whose build side had not been read to its end (S7.5).
        version: version of this document.
        counters: source uid -> counts, such as bad records, that no position in this snapshot holds: counts of subtasks
            that had ended, and of sources that had ended as a whole. Since version 4.
        enumerators: uid of a source that discovers splits while the job runs -> its state, and the splits that no
            reader has (`coordinator.enumeration.EnumerationState`). Since version 5.
    """

    checkpoint_id: int
    kind: str
    job_id: str
    lineage: str
    generation: int
    run_id: str
    parent: str | None
    parallelism: int
    max_parallelism: int
    created_at: str
    graph: Mapping[str, Any]
    operators: tuple[OperatorState, ...]
    splits: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    stop_mode: str | None = None
    drained_operators: tuple[str, ...] = ()
    version: int = METADATA_VERSION
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    enumerators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def operator(self, uid: str) -> OperatorState | None:
        """Return the state of operator `uid`, or None if the snapshot does not contain it."""
        return next((operator for operator in self.operators if operator.uid == uid), None)

    def handles(self) -> tuple[StateHandle, ...]:
        """Return every state handle, operator by operator."""
        return tuple(s.handle for operator in self.operators for s in operator.subtasks if s.handle is not None)

    @property
    def drained_kinds(self) -> tuple[str, ...]:
        """`drained_operators`, each with its kind, such as "daily (window)"."""
        kinds = {operator["uid"]: operator["kind"] for operator in self.graph.get("operators", ())}
        return tuple(f"{uid} ({kinds.get(uid, 'unknown')})" for uid in self.drained_operators)

    @property
    def size_bytes(self) -> int:
        """Bytes of all state, whichever snapshot wrote them."""
        return sum(handle.full_bytes for handle in self.handles())

    @property
    def readable_until_ms(self) -> int | None:
        """Time until which all sources can continue from the snapshot, milliseconds since the epoch; None: no limit is
        known.
        """
        known = [handle.readable_until_ms for handle in self.handles()]
        known += [part.get(READABLE_UNTIL) for part in self.enumerators.values()]
        return min((until_ms for until_ms in known if until_ms is not None), default=None)

    def shared_files(self) -> frozenset[str]:
        """Return the names of the files that it uses in the job's shared folder."""
        files = (file for handle in self.handles() for file in handle.files)
        return frozenset(file.name for file in files if file.shared and file.name is not None)


def encode_metadata(metadata: SnapshotMetadata) -> bytes:
    """Return the document, ending in a newline. Deterministic."""
    body = {
        "checkpoint_id": metadata.checkpoint_id,
        "kind": metadata.kind,
        "job_id": metadata.job_id,
        "lineage": metadata.lineage,
        "generation": metadata.generation,
        "run_id": metadata.run_id,
        "parent": metadata.parent,
        "parallelism": metadata.parallelism,
        "max_parallelism": metadata.max_parallelism,
        "created_at": metadata.created_at,
        "stop_mode": metadata.stop_mode,
        "drained_operators": list(metadata.drained_operators),
        "graph": metadata.graph,
        "operators": [_operator_to_json(operator) for operator in metadata.operators],
        "splits": {uid: [dict(split) for split in splits] for uid, splits in metadata.splits.items()},
        "counters": {uid: dict(counts) for uid, counts in metadata.counters.items()},
        "enumerators": {uid: dict(part) for uid, part in metadata.enumerators.items()},
    }
    canonical = _canonical(body)
    sha256 = hashlib.sha256(canonical).hexdigest()
    # Written around the bytes of the checksum, so that the body, which may have megabytes, is encoded once.
    start = f'{{"record":"snapshot","v":{METADATA_VERSION},"sha256":"{sha256}","body":'.encode()
    return start + canonical + b"}\n"


def decode_metadata(data: bytes, *, where: str = "") -> SnapshotMetadata:
    """Inverse of `encode_metadata`.

    Args:
        data: the document.
        where: path to name in errors.

    Raises:
        SnapshotError: the data is not a snapshot's metadata, is damaged, or has a newer version.
    """
    try:
        document = parse_json(data, max_bytes=MAX_METADATA_BYTES)
        record, version = document["record"], document["v"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged("is not readable as JSON", where) from error
    if record != "snapshot" or not isinstance(version, int) or version < 1:
        raise _damaged("has the content of another kind of file", where)
    if version > METADATA_VERSION:
        raise SnapshotError(
            f"the snapshot's metadata has version {version}, but this tidegate reads only up to {METADATA_VERSION}",
            where=where,
            cause="a newer tidegate wrote it",
            remedy="Upgrade tidegate, or restore an older snapshot",
        )
    body = document.get("body")
    if hashlib.sha256(_canonical(body)).hexdigest() != document.get("sha256"):
        raise _damaged("does not match its checksum", where)
    try:
        return _from_body(body, version)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise _damaged(f"is incomplete ({error!r})", where) from error


def write_metadata(store: Store, folder: str, metadata: SnapshotMetadata) -> None:
    """Write `_metadata` into `folder`, create-only, after every state file.

    Raises:
        AlreadyExistsError: the folder already contains a snapshot.
        StoreError: the store cannot write.
    """
    store.create(relative_location(folder, METADATA_NAME), encode_metadata(metadata))


def read_metadata(store: Store, folder: str) -> SnapshotMetadata:
    """Return the metadata of the snapshot in `folder`.

    Raises:
        SnapshotError: there is no `_metadata`, or it is damaged or of a newer version.
        StoreError: the store cannot read.
    """
    where = full_location(store, folder, METADATA_NAME)
    try:
        data = read_bounded(store, relative_location(folder, METADATA_NAME), max_bytes=MAX_METADATA_BYTES)
    except NotFoundError as error:
        raise SnapshotError(
            f"{full_location(store, folder)} is not a complete snapshot: it has no {METADATA_NAME}",
            where=where,
            cause="the path is wrong, or the snapshot was never completed",
            remedy="Name the folder of a completed checkpoint or savepoint",
        ) from error
    except RecordError as error:
        raise _damaged(f"has more than {MAX_METADATA_BYTES:,} bytes", where) from error
    return decode_metadata(data, where=where)


def verify(open_location: OpenLocation, location: str) -> SnapshotMetadata:
    """Check that the snapshot at `location` is complete: its metadata is readable, and every state file has its size.

    On a local store only sizes are compared. On other stores each file is also read, and its checksum compared. A
    restore always checks every checksum.

    Raises:
        SnapshotError: names the first file that is missing or damaged.
    """
    metadata = read_metadata(*open_location(location))
    streams = SnapshotStreams.at(location, open_location)
    for handle in metadata.handles():
        if handle.path is None or streams.local_size(handle.path) != handle.size_bytes:
            streams.load(handle)
        for file in handle.files:
            if file.name is None or streams.local_size(file.name, shared=file.shared) != file.size_bytes:
                for blob in file.blobs:
                    streams.load_blob(file, blob)
    return metadata


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _operator_to_json(operator: OperatorState) -> dict[str, Any]:
    subtasks = [
        {"index": s.index, "finished": s.finished, "handle": None if s.handle is None else s.handle.to_json()}
        for s in operator.subtasks
    ]
    return {"uid": operator.uid, "status": operator.status, "subtasks": subtasks}


def _operator_from_json(document: Mapping[str, Any]) -> OperatorState:
    subtasks = tuple(
        SubtaskState(s["index"], s["finished"], None if s["handle"] is None else StateHandle.from_json(s["handle"]))
        for s in document["subtasks"]
    )
    return OperatorState(document["uid"], document["status"], subtasks)


def _from_body(body: Mapping[str, Any], version: int) -> SnapshotMetadata:
    return SnapshotMetadata(
        checkpoint_id=body["checkpoint_id"],
        kind=body["kind"],
        job_id=body["job_id"],
        lineage=body["lineage"],
        generation=body["generation"],
        run_id=body["run_id"],
        parent=body["parent"],
        parallelism=body["parallelism"],
        max_parallelism=body["max_parallelism"],
        created_at=body["created_at"],
        graph=body["graph"],
        operators=tuple(_operator_from_json(operator) for operator in body["operators"]),
        splits=body["splits"],
        stop_mode=body["stop_mode"],
        drained_operators=tuple(body["drained_operators"]),
        version=version,
        counters=body.get("counters", {}),
        enumerators=body.get("enumerators", {}),
    )


def _damaged(what: str, where: str) -> SnapshotError:
    return SnapshotError(
        f"the snapshot's metadata {what}",
        where=where,
        cause="the file was changed or truncated after it was written",
        remedy="Restore another snapshot",
    )
