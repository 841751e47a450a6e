"""The location of a snapshot: a folder below the root, or its own URL."""

from __future__ import annotations

from tidegate.errors import StoreError
from tidegate.jobs.records import Spec
from tidegate.jobs.stores.store import Store, check_path
from tidegate.jobs.stores.store_registry import open_store


def open_location(root: Store, spec: Spec, location: str) -> tuple[Store, str]:
    """Return store and folder of `location`.

    A location with a scheme, or an absolute path, is opened with the job's storage options. All others must be below
    the root, else StoreError is raised.
    """
    if "://" in location or location.startswith("/"):
        parent, _, folder = location.rstrip("/").rpartition("/")
        return open_store(parent or "/", spec.storage_options), folder
    return root, check_path(location.rstrip("/"))


def probe_location(root: Store, spec: Spec, location: str) -> None:
    """Check whether a snapshot can be written to `location`, a new folder. Raises TidegateError if not.

    Blocks for about ten calls of the store.
    """
    store, folder = open_location(root, spec, location)
    parent, _, _ = folder.rpartition("/")
    try:
        (store.child(parent) if parent else store).probe()
    except StoreError as error:  # its texts are about a root: keep only the cause
        found = error.__cause__ if isinstance(error.__cause__, StoreError) else error
        raise StoreError(found.what, where=found.where or error.where, cause=found.cause) from error
