"""Opening the file system behind a path or URL that a user gave to a connector."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from tidegate.contract.errors import PipelineError
from tidegate.contract.secrets import resolve_secrets


def absolute(path: str | os.PathLike[str]) -> str:
    """A URL as it is; a local path made absolute in the folder of this process, so that `explain()` shows what is
    meant and slots that run elsewhere are found to build another pipeline instead of reading or writing another
    place."""
    text = os.fspath(path)
    return text if "://" in text or "::" in text else os.path.abspath(text)


def open_filesystem(url: str, storage_options: Mapping[str, Any] | None) -> tuple[AbstractFileSystem, str]:
    """The file system and the path in it. Listing caches are off; references to secrets are resolved here.

    Raises:
        PipelineError: the protocol is unknown, its package is missing, or an option is refused.
    """
    options = dict(resolve_secrets(storage_options or {}))
    options.setdefault("use_listings_cache", False)
    try:
        filesystem, path = url_to_fs(url, **options)
    except (ImportError, ValueError, TypeError) as e:
        raise PipelineError(
            "Cannot open this file system",
            where=url,
            cause=str(e),
            remedy="Check the URL's protocol, install its fsspec package, and check the names in storage_options",
        ) from e
    return filesystem, path


def is_local(filesystem: AbstractFileSystem) -> bool:
    """Whether paths are files of this machine (or mounted as such): then rename is atomic and fsync makes durable."""
    return isinstance(filesystem, LocalFileSystem)


def sync_to_disk(path: str) -> None:
    """Make a local file's bytes, or a local folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
