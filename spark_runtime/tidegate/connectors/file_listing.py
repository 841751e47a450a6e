"""From paths, folders, globs and URLs to a sorted list of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsspec import AbstractFileSystem

from tidegate.connectors.storage import open_filesystem
from tidegate.contract.errors import PipelineError

_MAGIC = "*?["


@dataclass(frozen=True)
class FoundFile:
    """One file.

    Attributes:
        given: index of the path the user gave that led to it; its file system is that path's.
        path: within the file system.
        size_bytes: when it was listed; a file of another size is another file.
    """

    given: int
    path: str
    size_bytes: int


def find_files(urls: Sequence[str], storage_options: Mapping[str, Any]) -> list[FoundFile]:
    """All files: in the order of `urls`, and by path within each. Folders are searched to the bottom. Below a folder
    or a glob's fixed part, names that begin with `_` or `.` are passed over, and so are empty files.

    Raises:
        PipelineError: a path leads to no file, or cannot be listed.
    """
    found: list[FoundFile] = []
    seen: set[tuple[str, str]] = set()
    for given, url in enumerate(urls):
        filesystem, path = open_filesystem(url, storage_options)
        try:
            listed = _list_one(filesystem, path)
        except OSError as e:
            raise PipelineError(
                "Cannot list input files", where=url, cause=str(e), remedy="Check the path and its access rights"
            ) from e
        if not listed:
            raise PipelineError(
                "No input file matches", where=url, remedy="Check the path; hidden and empty files do not count"
            )
        for name, size_bytes in sorted(listed.items()):
            if (filesystem.to_json(), name) not in seen:
                seen.add((filesystem.to_json(), name))
                found.append(FoundFile(given, name, size_bytes))
    return found


def _list_one(filesystem: AbstractFileSystem, path: str) -> dict[str, int]:
    if not any(c in path for c in _MAGIC) or filesystem.exists(path):
        return _below(filesystem, path, path)
    fixed = path[: min(path.index(c) for c in _MAGIC if c in path)].rpartition("/")[0]
    found: dict[str, int] = {}
    for match in filesystem.glob(path):
        if not _is_hidden(match, fixed):
            found.update(_below(filesystem, match, match))
    return found


def _below(filesystem: AbstractFileSystem, path: str, base: str) -> dict[str, int]:
    """The visible, non-empty files at or below `path`, with their sizes."""
    if filesystem.isfile(path):
        size_bytes = int(filesystem.size(path))
        return {path: size_bytes} if size_bytes else {}
    details: dict[str, dict[str, Any]] = filesystem.find(path, detail=True)
    return {name: int(d["size"]) for name, d in details.items() if d.get("size") and not _is_hidden(name, base)}


def _is_hidden(path: str, base: str) -> bool:
    below = path[len(base) :] if path.startswith(base) else path
    return any(part.startswith(("_", ".")) for part in below.split("/"))
