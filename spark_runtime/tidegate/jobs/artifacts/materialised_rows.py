"""Records of the files with the rows of a bounded DataFrame that a submission reads. They never change (S4.2)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.errors import AlreadyExistsError, NotFoundError
from tidegate.jobs.codec import encode, read_record
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.stores.store import Store


@dataclass(frozen=True, slots=True)
class Materialised:
    """Record `materialised/<submission>/<source>.json`. Create-only, by the first driver that has written its files.
    Nobody reads files that other drivers wrote in the meantime.

    Attributes:
        spec: number of the submission.
        source: uid of the source.
        files: {"path", "rows", "size_bytes"} of each Parquet file, in order; paths are relative to the root.
        at: time.
    """

    RECORD: ClassVar[str] = "materialised"
    VERSION: ClassVar[int] = 1

    spec: int
    source: str
    files: tuple[Mapping[str, Any], ...]
    at: str


def record_materialised(store: Store, layout: JobLayout, made: Materialised) -> Materialised:
    """Record the files unless there is a record. Return the record that is valid. Raises StoreError."""
    path = layout.materialised_record(made.spec, made.source)
    with suppress(AlreadyExistsError):
        store.create(path, encode(made))
    return read_record(store, path, Materialised)


def find_materialised(store: Store, layout: JobLayout, spec: int, source: str) -> Materialised | None:
    """Return the record; None when there is none yet. Raises RecordError, StoreError."""
    path = layout.materialised_record(spec, source)
    try:
        return read_record(store, path, Materialised)
    except NotFoundError:
        return None


def submissions_read(
    splits: Mapping[str, Iterable[Mapping[str, Any]]], finished: Collection[str], job_id: str
) -> frozenset[int]:
    """Return the numbers of the submissions of job `job_id` from whose stored rows a snapshot still reads.

    Args:
        splits: splits in the snapshot's metadata, by source.
        finished: operators that have finished, and so have read all their rows.
    """
    folder = re.compile(rf"/{re.escape(JobLayout(job_id).all_materialised)}/(\d+)/")
    urls = (
        str((split.get("data") or {}).get("url", ""))
        for uid, of_source in splits.items()
        if uid not in finished
        for split in of_source
    )
    return frozenset(int(found[1]) for found in map(folder.search, urls) if found is not None)
