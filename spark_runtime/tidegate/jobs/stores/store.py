"""The store: named byte objects below one root, with the two writes the job directory stands on (semantics S1.4, S9.2).

`create` is atomic and exclusive: of any number of writers, on any machines, exactly one wins, and no reader ever sees
part of an object. `replace` is atomic. How each kind of store does it is in its own module;
`store_registry.open_store` chooses by URL and refuses what cannot do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from tidegate.errors import StoreError

Names = list[str]
"""Sorted names or paths."""

_OUTSIDE = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """An object's size and, by the store's clock, when it was last written; None: the store does not tell."""

    size_bytes: int
    modified: datetime | None


@runtime_checkable
class Store(Protocol):
    """Objects below one root. Paths are relative, `/`-separated, without empty, `.` or `..` segments.

    Every method may block on I/O and may be called from any thread. Nothing is cached: a listing shows what is there.
    Any method raises StoreError when the store cannot be reached or refuses access; after such an error of `create` or
    `replace` it is unknown whether the object is there.
    """

    @property
    def url(self) -> str:
        """Of the root; `open_store(url)` opens the same objects."""

    def create(self, path: str, data: bytes) -> None:
        """Write a new object, durable on return, with its folders. AlreadyExistsError, changing nothing, when there is
        one. A writer whose own unclear first attempt had succeeded may see AlreadyExistsError: compare a nonce in
        `data`."""

    def create_from_pieces(self, path: str, pieces: Sequence[Any]) -> None:
        """`create` of some buffers, one after the other; without putting them together where the store can."""
        self.create(path, b"".join(pieces))

    def replace(self, path: str, data: bytes) -> None:
        """Write an object, whether or not there is one; readers see the old or the new one, whole."""

    def read(self, path: str) -> bytes:
        """The whole object. NotFoundError when there is none."""

    def read_range(self, path: str, offset: int, size_bytes: int) -> bytes:
        """`size_bytes` bytes of the object from `offset` on, fewer where it ends before. NotFoundError when there is
        none."""
        return self.read(path)[offset : offset + size_bytes]

    def stat(self, path: str) -> ObjectStat:
        """Size and age of an object. NotFoundError when there is none."""
        return ObjectStat(len(self.read(path)), None)

    def exists(self, path: str) -> bool:
        """Whether there is an object (not: a folder) at `path`."""

    def list(self, folder: str) -> Names:
        """Names of objects and folders directly in `folder` ("": the root), sorted; [] when there is none."""

    def walk(self, folder: str) -> Names:
        """Paths, relative to the root, of all objects below `folder`, sorted; [] when there is none."""

    def delete(self, path: str) -> None:
        """Remove an object; none there is fine."""

    def delete_folder(self, path: str) -> None:
        """Remove every object below `path`; none there is fine. Not atomic."""

    def child(self, folder: str) -> Store:
        """The store of the objects below `folder`."""

    def local_path(self, path: str) -> str | None:
        """Absolute path of the object on this machine's file system, None where it has none."""

    def probe(self) -> None:
        """Try create, its exclusiveness, read, replace, list and delete below `.tidegate-probe-<nonce>` and clean up.
        StoreError with the reason when anything is not as promised."""


def check_path(path: str) -> str:
    """`path` when it stays below the root; else StoreError."""
    if isinstance(path, str) and path and "\\" not in path and "\x00" not in path:
        if _OUTSIDE.isdisjoint(path.split("/")):
            return path
    raise StoreError(f"{path!r} is not a path below the root", remedy="Use a relative path without '..'")


def check_folder(folder: str) -> str:
    """`folder` without trailing slash; "" is the root. StoreError when it leaves the root."""
    folder = folder.rstrip("/") if folder != "/" else folder
    return check_path(folder) if folder else ""


def join_path(folder: str, name: str) -> str:
    """`name` in `folder`; "" is the root."""
    return f"{folder}/{name}" if folder else name
