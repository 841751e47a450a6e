"""Cursors of watchers, which report changes of a job as events to other systems."""

from __future__ import annotations

from tidegate.errors import NotFoundError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import WatchCursor, encode, read_record
from tidegate.jobs.stores.store import Store


def read_cursor(store: Store, layout: JobLayout, watcher: str) -> WatchCursor | None:
    """Return the position of `watcher` in its events; None: it has not started. Raises StoreError, RecordError."""
    path = layout.watch_cursor(watcher)
    try:
        return read_record(store, path, WatchCursor)
    except NotFoundError:
        return None


def write_cursor(store: Store, layout: JobLayout, cursor: WatchCursor) -> None:
    """Replace the cursor of `cursor.watcher`. Raises StoreError."""
    store.replace(layout.watch_cursor(cursor.watcher), encode(cursor))
