"""The store: named byte objects below one root, with the two writes that the job directory needs (S1.4, S9.2).

`create` is atomic and exclusive: of any number of writers, on any machines, exactly one wins, and no reader sees a part
of an object. `replace` is atomic. Each kind of store has its own module. `store_registry.open_store` chooses it by URL,
and refuses kinds without these writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from tidegate.errors import StoreError

Names = list[str]
"""Sorted names or paths. The alias is needed in classes with a method `list`."""

_OUTSIDE = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """Size of an object, and time of its last write by the store's clock; None: the store does not report it."""

    size_bytes: int
    modified: datetime | None


@runtime_checkable
class Store(Protocol):
    """Objects below one root. Paths are relative, separated by `/`, without empty, `.` or `..` segments.

    Every method may block on I/O, and may be called from any thread. Nothing is cached, so a listing is current. Every
    method raises StoreError when the store cannot be reached or refuses access. After such an error of `create` or
    `replace` the object may or may not exist.
    """

    @property
    def url(self) -> str:
        """URL of the root; `open_store(url)` opens the same objects."""

    def create(self, path: str, data: bytes) -> None:
        """Create an object and its folders. Durable on return.

        Raises AlreadyExistsError, and changes nothing, when the object exists. A writer can get this error after an own
        attempt that failed with an unclear error but succeeded: compare a nonce in `data`.
        """

    def create_from_pieces(self, path: str, pieces: Iterable[Any]) -> None:
        """Create an object from consecutive buffers, if possible without joining them. Otherwise as `create`.

        The buffers are iterated once.
        """
        self.create(path, b"".join(pieces))

    def replace(self, path: str, data: bytes) -> None:
        """Write an object, new or existing. Readers see the old or the new content, always complete."""

    def read(self, path: str) -> bytes:
        """Return the content of an object. Raises NotFoundError when it does not exist."""

    def read_range(self, path: str, offset: int, size_bytes: int) -> bytes:
        """Return `size_bytes` bytes of an object from `offset` on, or fewer at its end.

        Raises NotFoundError when it does not exist.
        """
        return self.read(path)[offset : offset + size_bytes]

    def stat(self, path: str) -> ObjectStat:
        """Return size and last write of an object. Raises NotFoundError when it does not exist."""
        return ObjectStat(len(self.read(path)), None)

    def exists(self, path: str) -> bool:
        """Return whether an object exists at `path`. A folder is not an object."""

    def list(self, folder: str) -> Names:
        """Return the names of objects and folders directly in `folder` ("": the root), sorted; [] if none exist."""

    def walk(self, folder: str) -> Names:
        """Return the paths, relative to the root, of all objects below `folder`, sorted; [] if none exist."""

    def delete(self, path: str) -> None:
        """Delete an object, if it exists."""

    def delete_folder(self, path: str) -> None:
        """Delete all objects below `path`, if any exist. Not atomic."""

    def child(self, folder: str) -> Store:
        """Return the store of the objects below `folder`."""

    def local_path(self, path: str) -> str | None:
        """Return the absolute path of an object on this machine's file system; None if it has none."""

    def probe(self) -> None:
        """Test create and its exclusiveness, read, replace, list and delete below `.tidegate-probe-<nonce>`.

        Deletes its objects. Raises StoreError with the reason when a guarantee does not hold.
        """


def check_path(path: str) -> str:
    """Return `path` if it stays below the root. Raises StoreError otherwise."""
    if isinstance(path, str) and path and "\\" not in path and "\x00" not in path:
        if _OUTSIDE.isdisjoint(path.split("/")):
            return path
    raise StoreError(
        f"{path!r} is not a relative path below the root", remedy="Write a path such as 'a/b', without '..' and '\\\\'"
    )


def check_folder(folder: str) -> str:
    """Return `folder` without a trailing slash; "" is the root. Raises StoreError if it leaves the root."""
    folder = folder.rstrip("/") if folder != "/" else folder
    return check_path(folder) if folder else ""


def join_path(folder: str, name: str) -> str:
    """Return the path of `name` in `folder`; "" is the root."""
    return f"{folder}/{name}" if folder else name
