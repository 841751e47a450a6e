"""A store that keeps its promises (create-only, atomic, durable on return) and nothing beyond them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from simulator.faults import Faults
from simulator.scheduler import Process, current_task
from tidegate.errors import AlreadyExistsError, NotFoundError, StoreError
from tidegate.jobs.stores.store import Names, Store, check_folder, check_path, join_path

STALE_LIST_MS = 40
"""How long a listing may lag behind, milliseconds."""
LATE_WRITE_MS = 400
"""How much later a dead process's unanswered write may still happen, milliseconds."""


@dataclass
class Disk:
    """The objects, shared by all processes.

    Attributes:
        objects: path -> bytes.
        on_create: told of every new object, with its path.
        on_delete: told of every object before it is deleted, with its path and who deletes it.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    created_ms: dict[str, int] = field(default_factory=dict)
    on_create: Callable[[str, str], None] = lambda path, by: None
    on_delete: Callable[[str, str], None] = lambda path, by: None

    def put(self, path: str, data: bytes, now_ms: int, by: str) -> None:
        """Write an object."""
        is_new = path not in self.objects
        self.objects[path] = data
        self.created_ms.setdefault(path, now_ms)
        if is_new:
            self.on_create(path, by)


class SimulatedStore(Store):
    """One process's view of the disk. Every call takes virtual time, may fail with or without effect, and is a place
    where the process may die or stall, before or after the effect."""

    def __init__(self, disk: Disk, process: Process, faults: Faults, base: str = "") -> None:
        self._disk = disk
        self._process = process
        self._faults = faults
        self._base = base

    @property
    def url(self) -> str:
        """Of the root."""
        return f"simulated://{self._base}"

    def create(self, path: str, data: bytes) -> None:
        """See `Store.create`."""
        key = self._key(path)
        self._write(key, lambda: self._create(key, bytes(data)), torn=bytes(data[: len(data) // 2]))

    def replace(self, path: str, data: bytes) -> None:
        """See `Store.replace`."""
        key = self._key(path)
        self._write(key, lambda: self._put(key, bytes(data)))

    def read(self, path: str) -> bytes:
        """See `Store.read`."""
        self._wait("read")
        data = self._disk.objects.get(self._key(path))
        if data is None:
            raise NotFoundError("there is no object", where=path)
        return data

    def exists(self, path: str) -> bool:
        """See `Store.exists`."""
        self._wait("read")
        return self._key(path) in self._disk.objects

    def list(self, folder: str) -> Names:
        """See `Store.list`; it may lag behind."""
        self._wait("list")
        prefix = self._prefix(folder)
        seen = [key for key in self._disk.objects if key.startswith(prefix)]
        if self._faults.strikes("stale_list"):
            since_ms = self._process.scheduler.now_ms - STALE_LIST_MS
            seen = [key for key in seen if self._disk.created_ms[key] <= since_ms]
        return sorted({key[len(prefix) :].split("/", 1)[0] for key in seen})

    def walk(self, folder: str) -> Names:
        """See `Store.walk`."""
        self._wait("list")
        prefix, base = self._prefix(folder), self._prefix("")
        return sorted(key[len(base) :] for key in self._disk.objects if key.startswith(prefix))

    def delete(self, path: str) -> None:
        """See `Store.delete`."""
        key = self._key(path)
        self._write(key, lambda: self._remove(key))

    def delete_folder(self, path: str) -> None:
        """See `Store.delete_folder`: object by object, so that a crash leaves some."""
        prefix = self._prefix(check_path(path))
        self._wait("delete")
        for key in [key for key in self._disk.objects if key.startswith(prefix)]:
            self._remove(key)
            if self._faults.strikes("driver_crash"):
                self._process.crash()

    def child(self, folder: str) -> SimulatedStore:
        """See `Store.child`."""
        return SimulatedStore(self._disk, self._process, self._faults, join_path(self._base, check_path(folder)))

    def local_path(self, path: str) -> str | None:
        """None."""
        return None

    def probe(self) -> None:
        """Nothing: this store is as it is."""

    # ------------------------------------------------------------ effects

    def _create(self, key: str, data: bytes) -> None:
        if key in self._disk.objects:
            raise AlreadyExistsError("there is an object already", where=key)
        self._put(key, data)

    def _put(self, key: str, data: bytes) -> None:
        self._disk.put(key, data, self._process.scheduler.now_ms, self._process.name)

    def _remove(self, key: str) -> None:
        if key in self._disk.objects:
            self._disk.on_delete(key, self._process.name)
            del self._disk.objects[key]
            self._disk.created_ms.pop(key, None)

    # ------------------------------------------------------------ time and faults

    def _write(self, key: str, effect: Callable[[], None], torn: bytes | None = None) -> None:
        """The request travels, takes effect, the answer travels; each step may be the last."""
        task = current_task()
        if task is None:
            effect()
            return
        process, faults = self._process, self._faults
        process.check_alive()
        kind = "driver" if process.name.startswith("driver") else "slot"
        if faults.strikes(f"{kind}_crash"):
            self._die_before(key, effect, torn)
        if faults.strikes(f"{kind}_stall"):
            process.stalled_until_ms = process.scheduler.now_ms + 100 + process.scheduler.upto(600)
        task.pause(process.scheduler.upto(4))
        if faults.strikes("store_error"):
            raise StoreError("the store did not take the request", where=key)
        effect()
        if faults.strikes("reply_lost"):
            task.pause(process.scheduler.upto(20))
            raise StoreError("the store did not answer", where=key)
        task.pause(process.scheduler.upto(2))
        if faults.strikes(f"{kind}_crash"):
            process.crash()

    def _die_before(self, key: str, effect: Callable[[], None], torn: bytes | None) -> None:
        """Die with a request on its way: it may be lost, arrive late, or leave a part under another name."""
        scheduler = self._process.scheduler
        if self._faults.strikes("late_write"):
            scheduler.after(scheduler.upto(LATE_WRITE_MS), lambda: _quietly(effect))
        elif torn is not None and self._faults.strikes("torn_write"):
            self._put(f"{key}.{scheduler.upto(10**6):06d}.tmp", torn)
        self._process.crash()

    def _wait(self, _what: str) -> None:
        self._process.check_alive()
        task = current_task()
        if task is None:
            return
        task.pause(self._process.scheduler.upto(2))
        if self._faults.strikes("store_error"):
            raise StoreError("the store did not answer", where=self.url)

    def _key(self, path: str) -> str:
        return join_path(self._base, check_path(path))

    def _prefix(self, folder: str) -> str:
        key = join_path(self._base, check_folder(folder)) if folder else self._base
        return f"{key}/" if key else ""


def _quietly(effect: Callable[[], None]) -> None:
    try:
        effect()
    except AlreadyExistsError:
        return
