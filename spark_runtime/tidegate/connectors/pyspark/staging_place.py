"""Folder in which a sink with a data source keeps messages, rows and markers: the job's own, or one of the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.storage import open_filesystem
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import OptionError
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store


@dataclass(frozen=True)
class StagingPlace:
    """A folder. Attributes: url; storage_options: fsspec options, which may be references to secrets."""

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, ctx: SinkContext, chosen: StagingPlace | None, where: str) -> StagingPlace:
        """Return the chosen place, or else the job's own folder. Raises OptionError if there is none."""
        if chosen is not None:
            return chosen
        if ctx.storage is None:
            raise OptionError(
                "the sink has no place for commit messages",
                where=where,
                cause="this runner of the pipeline has no job directory",
                remedy="Pass staging= with a folder that all slots and the driver share",
            )
        return cls(*ctx.storage)

    def opened(self, ctx: SinkContext) -> tuple[AbstractFileSystem, FileLayout]:
        """Return the file system, and the layout of the sink's files in it."""
        filesystem, root = open_filesystem(self.url, self.storage_options)
        return filesystem, FileLayout(root, ctx)

    def store(self) -> Store:
        """Return the folder as a store, whose creations are exclusive. Raises StoreError for other kinds."""
        return open_store(self.url, self.storage_options)
