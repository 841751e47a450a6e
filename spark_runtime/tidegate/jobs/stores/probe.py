"""Does a store keep its promises? Asked once, before anything is entrusted to it."""

from __future__ import annotations

import secrets

from tidegate.errors import AlreadyExistsError, NotFoundError, StoreError
from tidegate.jobs.stores.store import Store

PROBE_PREFIX = ".tidegate-probe-"


class StoreGuaranteeError(StoreError):
    """The store works, but not as `Store` says."""


def probe_store(store: Store) -> None:
    """See `Store.probe`. Leaves nothing behind, unless deleting is what does not work."""
    folder = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    path, first, second = f"{folder}/object", b"first " + secrets.token_bytes(8), b"second " + secrets.token_bytes(8)
    try:
        try:
            _probe_once(store, folder, path, first, second)
        finally:
            store.delete_folder(folder)
        if store.list(folder):
            raise _guarantee_error(store, "a deleted object is still listed")
    except StoreError as error:
        if isinstance(error, StoreGuaranteeError):
            raise
        raise StoreError(
            f"the root cannot be used: {error.what}",
            where=store.url,
            cause=error.cause,
            remedy=error.remedy or "Check that this process may create, read, list and delete objects there",
        ) from error


def _probe_once(store: Store, folder: str, path: str, first: bytes, second: bytes) -> None:
    try:
        store.read(path)
    except NotFoundError:
        pass
    else:
        raise _guarantee_error(store, "it returns an object that nobody wrote")
    store.create(path, first)
    if store.read(path) != first:
        raise _guarantee_error(store, "it does not return what was just created")
    try:
        store.create(path, second)
    except AlreadyExistsError:
        pass
    else:
        raise _guarantee_error(store, "a second create of one object succeeded, so two drivers could both reign")
    if store.read(path) != first:
        raise _guarantee_error(store, "a refused create changed the object")
    if store.list(folder) != ["object"]:
        raise _guarantee_error(store, "a listing does not show what was just created")
    store.replace(path, second)
    if store.read(path) != second:
        raise _guarantee_error(store, "it does not return what was just replaced")
    store.delete(path)
    if store.exists(path):
        raise _guarantee_error(store, "a deleted object is still there")


def _guarantee_error(store: Store, cause: str) -> StoreGuaranteeError:
    return StoreGuaranteeError(
        "the store breaks what the job directory stands on",
        where=store.url,
        cause=cause,
        remedy="Use another store or another path",
    )
