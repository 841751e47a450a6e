"""Packs: commit markers of a file sink combined into a few files that record which transactions are committed (ADR
0018).

    <path>/_tidegate/committed/<job>/<lineage>/<uid>/pack-<first>-<last>-<nonce>.parquet   checkpoints first to last
    <path>/_tidegate/committed/<job>/<lineage>/<uid>/rewound-<after>-<before>.json         a rewind: checkpoints between
    <path>/_tidegate/committed/<job>/<lineage>/<uid>/forgotten-<first>-<last>.json         see `forget_growth`

A pack has a row for each committed transaction: its subtask, its checkpoint, and the number of files it published.
Packs are never changed. The committed transactions are the union of all packs without rewound ones, so a pack may be
written twice, by two processes at once, or in parallel with a rewind. A pack is durable before the markers and packs
that it replaces are removed. So a reader that checks first for a marker, then in the packs, finds every committed
transaction.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tidegate.connectors.storage import list_folder, put_durably
from tidegate.errors import EnvironmentProblemError, OutageError

PACK_VERSION = 1
PACK_SCHEMA = pa.schema(
    [
        pa.field("subtask", pa.int32(), nullable=False),
        pa.field("checkpoint_id", pa.int64(), nullable=False),
        pa.field("files", pa.int32(), nullable=False),
    ],
    {"tidegate_markers": str(PACK_VERSION)},
)
LISTINGS = 10
"""Most listings of the packs until every listed pack can be read: another collection may combine them meanwhile."""
ROWS_PER_GROUP = 64 * 1024
"""Rows read at a time by a search for one transaction."""
FOLDERS_ABOVE = 4
"""Folders between the packs and the sink's own folder, which the first pack creates."""

_PACK = re.compile(r"pack-(\d+)-(\d+)-[0-9a-f]+\.parquet")
_REWOUND = re.compile(r"rewound-(\d+)-(\d+)\.json")
_FORGOTTEN = re.compile(r"forgotten-(\d+)-(\d+)\.json")
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class PackListing:
    """Content of the folder: (path, first, last) of packs; (after, before) of rewinds, both bounds excluded; and
    (first, last) of `forget_growth`.
    """

    packs: tuple[tuple[str, int, int], ...]
    rewound: tuple[tuple[int, int], ...]
    forgotten: tuple[tuple[int, int], ...] = ()

    def is_rewound(self, checkpoint_id: int) -> bool:
        """Return whether a rewind has removed the output of this checkpoint."""
        return any(after < checkpoint_id < before for after, before in self.rewound)


class MarkerPacks:
    """Packs of one sink in one job and lineage. Args: folder: `FileLayout.committed`."""

    def __init__(self, filesystem: AbstractFileSystem, folder: str) -> None:
        self._fs = filesystem
        self._folder = folder

    def listed(self) -> PackListing:
        """Return the present content of the folder; one request."""
        found = [(path, path.rsplit("/", 1)[-1]) for path in list_folder(self._fs, self._folder)[0]]
        packs = [(path, match) for path, name in found if (match := _PACK.fullmatch(name))]
        rewound = [match for _, name in found if (match := _REWOUND.fullmatch(name))]
        forgotten = [match for _, name in found if (match := _FORGOTTEN.fullmatch(name))]
        return PackListing(
            tuple((path, int(match[1]), int(match[2])) for path, match in packs),
            tuple((int(match[1]), int(match[2])) for match in rewound),
            tuple((int(match[1]), int(match[2])) for match in forgotten),
        )

    def holds(self, subtask: int, checkpoint_id: int) -> bool:
        """Return whether the subtask's transaction of this checkpoint is committed.

        For a checkpoint newer than all packs, as in a running job, this takes one request.
        """

        def look(listed: PackListing) -> bool:
            if listed.is_rewound(checkpoint_id):
                return False
            asked = [("subtask", "=", subtask), ("checkpoint_id", "=", checkpoint_id)]
            near = (path for path, first, last in listed.packs if first <= checkpoint_id <= last)
            return any(self._read(path, asked).num_rows for path in near)

        return self._read_stable(look)

    def between(self, after: int, before: int, *, rewound: bool = False) -> pa.Table:
        """Return one row for each committed transaction of the checkpoints between, both excluded.

        Args:
            rewound: also transactions that a rewind has removed, or was about to remove.
        """

        def look(listed: PackListing) -> pa.Table:
            asked = [("checkpoint_id", ">", after), ("checkpoint_id", "<", before)]
            near = [path for path, first, last in listed.packs if last > after and first < before]
            found = [self._read(path, asked) for path in near]
            return merge_packs(found, PackListing(listed.packs, ()) if rewound else listed)

        return self._read_stable(look)

    def _read_stable(self, look: Callable[[PackListing], _Read]) -> _Read:
        for _ in range(LISTINGS):
            with suppress(FileNotFoundError):
                return look(self.listed())
        raise OutageError(
            f"the packed commit markers changed {LISTINGS} times while they were read",
            where=self._folder,
            cause="several runs of gc were active at once, or the store lists files that were removed",
            remedy="Run the command again",
        )

    def _read(self, path: str, filters: list[tuple[str, str, int]] | None = None) -> pa.Table:
        with self._fs.open(path, "rb") as file:
            version = (pq.read_schema(file).metadata or {}).get(b"tidegate_markers", b"0")
            if int(version) > PACK_VERSION:
                remedy = "Upgrade tidegate in this process to the version that wrote them, or a newer one"
                raise EnvironmentProblemError(
                    "a newer version of tidegate wrote these commit markers", where=path, remedy=remedy
                )
            file.seek(0)
            return pq.read_table(file, columns=PACK_SCHEMA.names, filters=filters).cast(PACK_SCHEMA)

    def add(self, markers: pa.Table) -> None:
        """Write a pack of these markers, durably. Args: markers: table of `PACK_SCHEMA`, at least one row."""
        # Sorted, so that a search skips row groups by their statistics, and delta encoding needs few bits for each id.
        ordered = markers.sort_by([("checkpoint_id", "ascending"), ("subtask", "ascending")])
        ids = ordered["checkpoint_id"]
        # The random part keeps collections that run at once from replacing each other's packs.
        name = f"pack-{ids[0].as_py()}-{ids[-1].as_py()}-{secrets.token_hex(8)}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(
            ordered.replace_schema_metadata(PACK_SCHEMA.metadata),
            sink,
            row_group_size=ROWS_PER_GROUP,
            compression="zstd",
            use_dictionary=False,
            column_encoding=dict.fromkeys(PACK_SCHEMA.names, "DELTA_BINARY_PACKED"),
        )
        self._put(name, sink.getvalue().to_pybytes())

    def compact(self, needed_from: int) -> None:
        """Combine all packs into one, without rewound rows and rows older than checkpoint `needed_from`.

        If another process removes a pack first, its own new pack already holds the rows.
        """
        listed = self.listed()
        old = [path for path, _, _ in listed.packs]
        # A single pack whose rows are all needed would only be written again.
        if len(old) < 2 and all(first >= needed_from for _, first, _ in listed.packs):
            return
        try:
            found = merge_packs([self._read(path) for path in old], listed)
        except FileNotFoundError:
            return
        found = found.filter(pc.field("checkpoint_id") >= needed_from)
        if found.num_rows:
            self.add(found)
        for path in old:
            with suppress(FileNotFoundError):
                self._fs.rm_file(path)

    def rewind(self, after: int, before: int) -> None:
        """Record that a rewind removes the output of the checkpoints between, both excluded. Call it before the
        removal.

        A collection in parallel may still write a pack that holds these checkpoints. None of their ids is ever used
        again.
        """
        record = {"version": PACK_VERSION, "after": after, "before": before}
        self._put(f"rewound-{after}-{before}.json", json.dumps(record, sort_keys=True).encode())

    def forget_growth(self, first: int, last: int) -> None:
        """Record that markers are removed which name the sizes of extended files. Call it before the removal.

        A rewind to a snapshot from `first` on and before `last` could not cut these files off any more.

        Args:
            first: the oldest checkpoint that published one of the files.
            last: the newest checkpoint that extended one of them.
        """
        known = self.listed().forgotten
        whole = min([first, *(one for one, _ in known)]), max([last, *(one for _, one in known)])
        if whole in known:
            return
        self._put(f"forgotten-{whole[0]}-{whole[1]}.json", json.dumps({"version": PACK_VERSION}).encode())
        for one in known:
            with suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._folder}/forgotten-{one[0]}-{one[1]}.json")

    def _put(self, name: str, content: bytes) -> None:
        # The folders above may be new, too.
        put_durably(self._fs, f"{self._folder}/{name}", content, parents=FOLDERS_ABOVE)


def merge_packs(packs: Sequence[pa.Table], listed: PackListing) -> pa.Table:
    """Return one row for each committed transaction of several packs."""
    found = pa.concat_tables([PACK_SCHEMA.empty_table(), *packs])
    for after, before in listed.rewound:
        field = pc.field("checkpoint_id")
        found = found.filter((field <= after) | (field >= before))
    # Packs that overlap hold the same number of files for a transaction, so `max` only selects one of them.
    once = found.group_by(["subtask", "checkpoint_id"]).aggregate([("files", "max")])
    return once.rename_columns({"files_max": "files"}).select(PACK_SCHEMA.names).cast(PACK_SCHEMA)
