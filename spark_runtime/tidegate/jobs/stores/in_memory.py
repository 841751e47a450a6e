"""Objects in this process's memory, for tests and trial runs. All stores of one process share the objects."""

from __future__ import annotations

import threading

from tidegate.errors import AlreadyExistsError, NotFoundError
from tidegate.jobs.stores.probe import probe_store
from tidegate.jobs.stores.store import Names, Store, check_folder, check_path, join_path

_objects: dict[str, bytes] = {}
_lock = threading.Lock()


class MemoryStore(Store):
    """The store of `memory://name`. Exclusive creation uses one lock. The objects are lost when the process ends."""

    def __init__(self, name: str) -> None:
        """Args: name: the text after memory://. The objects of `a/b` are also part of the store `a`."""
        self._base = check_folder(name.strip("/"))

    @property
    def url(self) -> str:
        """URL of the root."""
        return f"memory://{self._base}"

    def create(self, path: str, data: bytes) -> None:
        """See `Store.create`."""
        key = self._key(path)
        with _lock:
            if key in _objects:
                raise AlreadyExistsError(
                    "an object with this path exists already",
                    where=f"{self.url}/{path}",
                    remedy="Repeat the command: another process was faster",
                )
            # A copy, because the caller may change a buffer after the call.
            _objects[key] = bytes(data)

    def replace(self, path: str, data: bytes) -> None:
        """See `Store.replace`."""
        with _lock:
            _objects[self._key(path)] = bytes(data)

    def read(self, path: str) -> bytes:
        """See `Store.read`."""
        with _lock:
            data = _objects.get(self._key(path))
        if data is None:
            raise NotFoundError("there is no object with this path", where=f"{self.url}/{path}")
        return data

    def exists(self, path: str) -> bool:
        """See `Store.exists`."""
        with _lock:
            return self._key(path) in _objects

    def list(self, folder: str) -> Names:
        """See `Store.list`."""
        prefix = self._prefix(folder)
        with _lock:
            return sorted({key[len(prefix) :].split("/", 1)[0] for key in _objects if key.startswith(prefix)})

    def walk(self, folder: str) -> Names:
        """See `Store.walk`."""
        prefix, base = self._prefix(folder), self._prefix("")
        with _lock:
            return sorted(key[len(base) :] for key in _objects if key.startswith(prefix))

    def delete(self, path: str) -> None:
        """See `Store.delete`."""
        with _lock:
            _objects.pop(self._key(path), None)

    def delete_folder(self, path: str) -> None:
        """See `Store.delete_folder`."""
        prefix = self._prefix(check_path(path))
        with _lock:
            for key in [key for key in _objects if key.startswith(prefix)]:
                del _objects[key]

    def child(self, folder: str) -> MemoryStore:
        """See `Store.child`."""
        return MemoryStore(join_path(self._base, check_path(folder)))

    def local_path(self, path: str) -> str | None:
        """Return None: the objects are not in files."""
        return None

    def probe(self) -> None:
        """See `Store.probe`."""
        probe_store(self)

    def _key(self, path: str) -> str:
        return join_path(self._base, check_path(path))

    def _prefix(self, folder: str) -> str:
        key = join_path(self._base, check_folder(folder)) if folder else self._base
        return f"{key}/" if key else ""
