"""State handles: where a state stream lies, and how to know that it is the one that was written (S5.4)."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.contract.errors import NotFoundError, SnapshotError

if TYPE_CHECKING:
    from tidegate.contract.store import Store
    from tidegate.snapshot.parts import StateKind

DEFAULT_THRESHOLD_BYTES = 20 * 1024
"""`state_size_threshold`: smaller streams live in `_metadata` (S5.4)."""


@dataclass(frozen=True)
class StateHandle:
    """One state stream. Exactly one of `path` and `inline` is set.

    Attributes:
        path: of the file, relative to the snapshot's folder, so that the folder can be moved; never leaves it.
        inline: the stream itself.
        size_bytes: of the stream.
        sha256: of the stream, hexadecimal.
        kinds: of the parts in it, so that a rescale loads only what it needs (S5.5); None: not told.
        staged: what its transactions have staged, as `contract.staged.StagedData.to_json()`, so that people can audit
            it without reading the state (S7.8).
    """

    path: str | None
    inline: bytes | None
    size_bytes: int
    sha256: str
    kinds: tuple[StateKind, ...] | None = None
    staged: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        assert (self.path is None) != (self.inline is None), "a state handle is either a path or inline"

    def to_json(self) -> dict[str, Any]:
        """JSON form, as in acknowledgements and `_metadata`."""
        document: dict[str, Any] = {"size_bytes": self.size_bytes, "sha256": self.sha256}
        if self.inline is not None:
            document["inline"] = base64.b64encode(self.inline).decode("ascii")
        else:
            document["path"] = self.path
        if self.kinds is not None:
            document["kinds"] = list(self.kinds)
        if self.staged:
            document["staged"] = list(self.staged)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StateHandle:
        """Inverse of `to_json`. Raises SnapshotError for anything else, also for a path that leaves the folder."""
        try:
            path, inline = document.get("path"), document.get("inline")
            data = None if inline is None else base64.b64decode(inline, validate=True)
            size_bytes, sha256 = int(document["size_bytes"]), str(document["sha256"])
            kinds = None if document.get("kinds") is None else tuple(document["kinds"])
            staged = tuple(dict(told) for told in document.get("staged", ()))
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
            where = str(document)[:200]
            raise SnapshotError("A state handle is not readable", where=where, cause=repr(error)) from error
        if (path is None) == (data is None):
            raise SnapshotError("A state handle is neither a path nor inline", where=str(document)[:200])
        return cls(None if path is None else checked_name(path), data, size_bytes, sha256, kinds, staged)


def checked_name(name: str) -> str:
    """`name` when it is a relative path of plain segments; else SnapshotError."""
    segments = name.split("/") if isinstance(name, str) else [""]
    if any(segment in ("", ".", "..") or "\\" in segment or ":" in segment for segment in segments):
        raise SnapshotError(
            f"A state file must lie within its snapshot's folder, {name!r} does not",
            cause="the metadata was changed by hand or by somebody else",
            remedy="Restore another snapshot",
        )
    return name


def joined(folder: str, name: str) -> str:
    """Path of `name` in `folder` of a store; `folder` may be empty: the store's root."""
    return f"{folder.rstrip('/')}/{name}" if folder else name


class StreamFactory:
    """Writes and reads the state streams of one snapshot folder; hides whether they are files or inline (S5.4).

    Blocks on the store: for snapshot writer threads and restores, never the loop. Safe from several threads, as its
    store is.
    """

    def __init__(self, store: Store, folder: str, threshold_bytes: int = DEFAULT_THRESHOLD_BYTES) -> None:
        """Args: folder: of the snapshot, relative to the store's root. threshold_bytes: smaller streams stay inline; 0:
        none."""
        self._store = store
        self._folder = folder
        self._threshold_bytes = threshold_bytes

    def store(self, name: str, data: bytes, kinds: tuple[StateKind, ...] | None = None) -> StateHandle:
        """Keep a stream durably, create-only.

        Args:
            name: file name within the folder; must be new: let it carry generation, run and a nonce.
            data: the stream.
            kinds: of the parts in it.

        Raises:
            AlreadyExistsError: there is a file of this name.
            StoreError: the store cannot write.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        if len(data) < self._threshold_bytes:
            return StateHandle(None, bytes(data), len(data), sha256, kinds)
        self._store.create(joined(self._folder, checked_name(name)), data)
        return StateHandle(name, None, len(data), sha256, kinds)

    def load(self, handle: StateHandle) -> bytes:
        """The stream of `handle`, checked for size and checksum.

        Raises:
            SnapshotError: missing or damaged; names the file.
            StoreError: the store cannot read.
        """
        if handle.inline is not None:
            return _checked(handle.inline, handle, f"{joined(self._folder, '_metadata')}, inline state")
        assert handle.path is not None
        path = joined(self._folder, checked_name(handle.path))
        try:
            data = self._store.read(path)
        except NotFoundError as error:
            raise SnapshotError(
                f"The state file {handle.path} is missing",
                where=path,
                cause="it was deleted, or the snapshot's folder was copied only in part",
                remedy="Restore another snapshot",
            ) from error
        return _checked(data, handle, path)


def _checked(data: bytes, handle: StateHandle, where: str) -> bytes:
    if len(data) != handle.size_bytes:
        what = f"has {len(data)} bytes, not the {handle.size_bytes} that were written"
    elif hashlib.sha256(data).hexdigest() != handle.sha256:
        what = "does not match its checksum"
    else:
        return data
    raise SnapshotError(
        f"The state file {handle.path or '(inline)'} is damaged: it {what}",
        where=where,
        cause="it was changed after it was written",
        remedy="Restore another snapshot",
    )
