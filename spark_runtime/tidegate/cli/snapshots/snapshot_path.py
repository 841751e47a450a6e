"""Opening the snapshot that a verb's arguments name, and reading its source positions."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from tidegate.cli import arguments
from tidegate.cli.environment import CliEnvironment
from tidegate.connectors.split_documents import SPLITS, split_documents
from tidegate.jobs.layout import METADATA_NAME
from tidegate.jobs.stores.store_registry import open_store
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.reader import SnapshotReader
from tidegate.state.state_reader import open_reader


def reader_of(args: argparse.Namespace, around: CliEnvironment) -> SnapshotReader:
    """Open the snapshot that the arguments name.

    The path is a URL, an absolute path, or a path below the working directory if a snapshot exists there. Else it is a
    path below the root. Raises SnapshotError, StoreError, OptionError.
    """
    options = arguments.storage_options(args, around.environment)
    path = os.path.expanduser(args.path)
    named = args.root or around.environment.get(arguments.ROOT_VARIABLE)
    is_here = os.path.isfile(os.path.join(path, METADATA_NAME))
    if "://" in path or path.startswith("/") or is_here or not named:
        return open_reader(path, options)
    return open_reader(path, options, root=open_store(named, options))


def current_splits(reader: SnapshotReader, uid: str) -> list[dict[str, Any]] | None:
    """Return a source's splits as JSON, with the positions that a restore resumes from; None: not a source."""
    known = reader.metadata.splits.get(uid)
    if known is None:
        return None
    found: dict[str, Mapping[str, Any]] = {split["split_id"]: split for split in known}
    operator = reader.metadata.operator(uid)
    if operator is not None and any(state.handle is not None for state in operator.subtasks):
        for rows in reader.tables(uid, SPLITS):
            # The states of readers have the newer positions. The metadata lists all splits as they were discovered.
            found.update({split["split_id"]: split for split in split_documents([StatePart(SPLITS, "list", rows)])})
    return [dict(split) for split in found.values()]
