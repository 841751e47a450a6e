"""Records of savepoints that users have deleted with `tidegate delete-savepoint`."""

from __future__ import annotations

from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import DeletedSavepoint, read_record
from tidegate.jobs.stores.store import Store


def deleted_savepoints(store: Store, layout: JobLayout) -> frozenset[str]:
    """Return the folders of the savepoints that users have deleted. Blocks: one request, and one for each record.

    A savepoint that is missing and not among these may have been moved. Raises RecordError, StoreError.
    """
    paths = [f"{layout.deletions}/{name}" for name in store.list(layout.deletions) if name.endswith(".json")]
    return frozenset(read_record(store, path, DeletedSavepoint).path for path in paths)
