"""Files of a local or mounted file system. Exclusive creation hard-links a finished temporary file."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from tidegate.errors import AlreadyExistsError, NotFoundError, StoreError
from tidegate.jobs.stores.probe import probe_store
from tidegate.jobs.stores.store import Names, ObjectStat, Store, check_folder, check_path, join_path

TEMPORARY_PREFIX = ".tidegate-tmp-"
"""Prefix of files that are being written. They are never listed. A crash can leave one over."""
MAX_FOLDER_CONFLICTS = 100
"""How often a deleter may remove a folder that it found empty, before the writer that needs it gives up."""


class LocalStore(Store):
    """A folder. Processes on other machines use it through a shared mount. The mount must support hard links."""

    def __init__(self, root: str) -> None:
        """Args: root: absolute path. The folder is made at the first write."""
        self._root = root.rstrip("/") or "/"

    @property
    def url(self) -> str:
        """Absolute path of the root."""
        return self._root

    def create(self, path: str, data: bytes) -> None:
        """See `Store.create`. Durable on return: the file and its folders are synchronised with fsync."""
        self.create_from_pieces(path, (data,))

    def create_from_pieces(self, path: str, pieces: Iterable[Any]) -> None:
        """See `Store.create_from_pieces`."""
        target = self._path(path)
        with self._errors(path), self._temporary(target, pieces) as temporary:
            try:
                # a link fails when the target exists; a rename would replace it
                os.link(temporary, target)
            except FileExistsError:
                raise AlreadyExistsError(
                    "a file with this path exists already",
                    where=target,
                    remedy="Repeat the command: another process was faster",
                ) from None
            _fsync_folder(os.path.dirname(target))

    def replace(self, path: str, data: bytes) -> None:
        """See `Store.replace`."""
        target = self._path(path)
        with self._errors(path), self._temporary(target, (data,)) as temporary:
            os.replace(temporary, target)
            _fsync_folder(os.path.dirname(target))

    def read(self, path: str) -> bytes:
        """See `Store.read`."""
        return self.read_range(path, 0, -1)

    def read_range(self, path: str, offset: int, size_bytes: int) -> bytes:
        """See `Store.read_range`. A `size_bytes` of -1 reads to the end."""
        target = self._path(path)
        with self._errors(path):
            try:
                with open(target, "rb") as file:
                    if size_bytes > 0:
                        # Python allocates the requested size, which may be far more than the file has.
                        size_bytes = max(0, min(size_bytes, os.fstat(file.fileno()).st_size - offset))
                    file.seek(offset)
                    return file.read(size_bytes)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise NotFoundError("there is no file with this path", where=target) from None

    def stat(self, path: str) -> ObjectStat:
        """See `Store.stat`."""
        target = self._path(path)
        with self._errors(path):
            try:
                found = os.stat(target)
            except (FileNotFoundError, NotADirectoryError):
                raise NotFoundError("there is no file with this path", where=target) from None
        return ObjectStat(found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def exists(self, path: str) -> bool:
        """See `Store.exists`."""
        target = self._path(path)
        with self._errors(path):
            try:
                # Not `os.path.isfile`, which takes a disk that does not answer for a missing file.
                return stat.S_ISREG(os.stat(target).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def list(self, folder: str) -> Names:
        """See `Store.list`."""
        with self._errors(folder):
            try:
                names = os.listdir(self._folder(folder))
            except FileNotFoundError:
                return []
            except NotADirectoryError:
                if not folder:
                    raise _root_is_a_file(self._root) from None
                return []
        return sorted(name for name in names if not name.startswith(TEMPORARY_PREFIX))

    def walk(self, folder: str) -> Names:
        """See `Store.walk`."""
        found: list[str] = []
        with self._errors(folder):
            for directory, _, names in os.walk(self._folder(folder), onerror=_unless_gone):
                relative = os.path.relpath(directory, self._root)
                inside = "" if relative == "." else relative.replace(os.sep, "/")
                found.extend(join_path(inside, name) for name in names if not name.startswith(TEMPORARY_PREFIX))
        return sorted(found)

    def delete(self, path: str) -> None:
        """See `Store.delete`. Also removes folders that become empty, as in an object store."""
        target = self._path(path)
        with self._errors(path):
            with suppress(FileNotFoundError):
                os.unlink(target)
            self._prune(os.path.dirname(target))

    def delete_folder(self, path: str) -> None:
        """See `Store.delete_folder`."""
        target = self._path(path)
        with self._errors(path):
            # Again, because `rmtree` gives up if another process deletes a file inside at the same time.
            while os.path.isdir(target):
                with suppress(FileNotFoundError):
                    shutil.rmtree(target)
            self._prune(os.path.dirname(target))

    def child(self, folder: str) -> LocalStore:
        """See `Store.child`."""
        return LocalStore(self._path(folder))

    def local_path(self, path: str) -> str | None:
        """See `Store.local_path`. "" returns the root."""
        return self._folder(path)

    def probe(self) -> None:
        """See `Store.probe`. A root that does not exist is not made: its nearest folder that exists is probed."""
        folder = self._root
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if os.path.isfile(folder):
            raise _root_is_a_file(folder)
        probe_store(LocalStore(folder))

    def _path(self, path: str) -> str:
        return os.path.join(self._root, check_path(path))

    def _folder(self, folder: str) -> str:
        return os.path.join(self._root, check_folder(folder)) if folder else self._root

    @contextmanager
    def _temporary(self, target: str, pieces: Iterable[Any]) -> Iterator[str]:
        """Yield a finished file beside `target` with these pieces. It is removed afterwards unless it was renamed."""
        folder = os.path.dirname(target)
        # Beside the target, because neither a hard link nor an atomic rename works across file systems.
        temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
        descriptor = _open_new(temporary)
        try:
            with open(descriptor, "wb") as file:
                file.writelines(pieces)
                file.flush()
                # Before the file gets its final name: after a crash, a
                # file with that name must never be empty or partial.
                os.fsync(file.fileno())
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _prune(self, folder: str) -> None:
        """Remove empty folders from `folder` upwards, but not the root."""
        while folder != self._root and folder.startswith(self._root.rstrip("/") + "/"):
            try:
                # It fails if the folder is not empty, so that no file of
                # another writer is lost, even one that has just arrived.
                os.rmdir(folder)
            except OSError:
                return
            folder = os.path.dirname(folder)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Convert errors of the operating system to StoreError."""
        try:
            yield
        except OSError as error:
            protected = isinstance(error, PermissionError) or error.errno == 30  # EROFS: read-only file system
            raise StoreError(
                "the process has no access to a file in the root" if protected else "the file system failed",
                where=os.path.join(self._root, path),
                cause=f"{type(error).__name__}: {error.strerror or error}",
                remedy="Give the user that runs this process read and write access to the root, or choose another root"
                if protected
                else "Check that the root is a folder on a file system with hard links and free space",
            ) from error


def _root_is_a_file(path: str) -> StoreError:
    return StoreError("the path is a file, not a folder", where=path, remedy="Correct the path of the root")


def _unless_gone(error: OSError) -> None:
    """Raise an error of `os.walk`, which would skip the folder, unless the folder does not exist."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _open_new(path: str) -> int:
    """Open a new file and make its folders. A folder that a deleter has just removed is made again."""
    for _ in range(MAX_FOLDER_CONFLICTS):
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            _make_folders(os.path.dirname(path))
    raise StoreError(
        "another process removes this folder each time it is made",
        where=os.path.dirname(path),
        remedy="Try again. If it fails again, find the process that deletes folders in the root",
    )


def _make_folders(folder: str) -> None:
    """Make `folder` and its missing parents, durably."""
    missing: list[str] = []
    while not os.path.isdir(folder):
        missing.append(folder)
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    for path in reversed(missing):
        # Not `os.makedirs`: the entry of each new folder in its parent must be made durable, too.
        with suppress(FileExistsError):
            os.mkdir(path)
        _fsync_folder(os.path.dirname(path))


def _fsync_folder(folder: str) -> None:
    """Make the entries of a folder durable, if the system supports it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
