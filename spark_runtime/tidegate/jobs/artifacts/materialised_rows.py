"""Which files hold the rows of a bounded DataFrame that a submission reads: decided once (S4.2)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.errors import AlreadyExistsError, NotFoundError
from tidegate.jobs.codec import decode, encode
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.stores.store import Store


@dataclass(frozen=True, slots=True)
class Materialised:
    """`materialised/<submission>/<source>.json`; create-only, by the driver whose files are all there. Those that
    others wrote meanwhile are read by nobody.

    Attributes:
        spec: submission.
        source: uid.
        files: {"path", "rows", "size_bytes"} of each, in order; the path is relative to the root. Parquet.
        at: time.
    """

    RECORD: ClassVar[str] = "materialised"
    VERSION: ClassVar[int] = 1

    spec: int
    source: str
    files: tuple[Mapping[str, Any], ...]
    at: str


def record_materialised(store: Store, layout: JobLayout, made: Materialised) -> Materialised:
    """Put it on record, unless another is; gives the one that counts. Raises StoreError."""
    path = layout.materialised_record(made.spec, made.source)
    with suppress(AlreadyExistsError):
        store.create(path, encode(made))
    return decode(store.read(path), Materialised, path)


def find_materialised(store: Store, layout: JobLayout, spec: int, source: str) -> Materialised | None:
    """The one on record; None: there is none yet. Raises RecordError, StoreError."""
    path = layout.materialised_record(spec, source)
    try:
        return decode(store.read(path), Materialised, path)
    except NotFoundError:
        return None


def submissions_read(
    splits: Mapping[str, Iterable[Mapping[str, Any]]], finished: Collection[str], job_id: str
) -> frozenset[int]:
    """Numbers of the submissions of job `job_id` whose rows a snapshot has positions in.

    Args:
        splits: of the snapshot's metadata, by source.
        finished: operators that have ended: what they had to read they have read.
    """
    folder = re.compile(rf"/{re.escape(JobLayout(job_id).all_materialised)}/(\d+)/")
    urls = (
        str((split.get("data") or {}).get("url", ""))
        for uid, of_source in splits.items()
        if uid not in finished
        for split in of_source
    )
    return frozenset(int(found[1]) for found in map(folder.search, urls) if found is not None)
