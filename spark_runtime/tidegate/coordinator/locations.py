"""A snapshot's location: a folder below the root, or a URL of its own."""

from __future__ import annotations

from tidegate.contract.records import Spec
from tidegate.contract.store import Store, open_store


def open_location(root: Store, spec: Spec, location: str) -> tuple[Store, str]:
    """Store and folder of `location`. A location with a scheme, or an absolute path, is opened with the job's storage
    options; everything else lies below the root."""
    if "://" in location or location.startswith("/"):
        parent, _, folder = location.rstrip("/").rpartition("/")
        return open_store(parent or "/", spec.storage_options), folder
    return root, location
