"""A test of a store's guarantees, made once before a job uses the store."""

from __future__ import annotations

import secrets

from tidegate.errors import AlreadyExistsError, NotFoundError, StoreError
from tidegate.jobs.stores.store import Store

PROBE_PREFIX = ".tidegate-probe-"


class StoreGuaranteeError(StoreError):
    """The store can be used, but does not have the guarantees of `Store`."""


def probe_store(store: Store) -> None:
    """Test the guarantees of a store. See `Store.probe`. Leaves no objects unless deletion fails."""
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
            f"the root cannot be used for jobs: {error.what}",
            where=store.url,
            cause=error.cause,
            remedy=error.remedy or "Give this process the rights to create, read, list and delete objects in the root",
        ) from error


def _probe_once(store: Store, folder: str, path: str, first: bytes, second: bytes) -> None:
    try:
        store.read(path)
    except NotFoundError:
        pass
    else:
        raise _guarantee_error(store, "the store returns an object that nobody wrote")
    store.create(path, first)
    if store.read(path) != first:
        raise _guarantee_error(store, "the store does not return an object that was just created")
    try:
        store.create(path, second)
    except AlreadyExistsError:
        pass
    else:
        raise _guarantee_error(store, "a second create of one object succeeded, so two drivers could run one job")
    if store.read(path) != first:
        raise _guarantee_error(store, "a second create of one object failed, but changed the object")
    if store.list(folder) != ["object"]:
        raise _guarantee_error(store, "a listing does not show the object that was just created")
    store.replace(path, second)
    if store.read(path) != second:
        raise _guarantee_error(store, "the store does not return the new content of a replaced object")
    store.delete(path)
    if store.exists(path):
        raise _guarantee_error(store, "a deleted object still exists")


def _guarantee_error(store: Store, cause: str) -> StoreGuaranteeError:
    return StoreGuaranteeError(
        "the store does not have the guarantees that a job directory needs",
        where=store.url,
        cause=cause,
        remedy="Use another store as the root: a local folder, or S3",
    )
