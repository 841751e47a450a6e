"""Listing of files: from paths, folders, globs and URLs to a sorted list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem

from tidegate.connectors.storage import open_filesystem
from tidegate.errors import PipelineError

_MAGIC = "*?["


@dataclass(frozen=True)
class FoundFile:
    """One file, as it was listed.

    Attributes:
        `given`: index of the user's path that led to it, which determines its file system.
        path: path within the file system.
        size_bytes: size when it was listed; a file of another size counts as changed.
        mtime: time of writing as its file system reported it; None: not reported, or a snapshot of an older version
            lacks it.
        etag: ETag of the object; None: as for `mtime`. With an ETag, `mtime` is not compared, because listings round
            it.
    """

    given: int
    path: str
    size_bytes: int
    mtime: str | None = None
    etag: str | None = None

    def change(self, details: Mapping[str, Any]) -> str:
        """Return how a file with these fsspec details differs from the listed one; "": it does not."""
        now = pinned(self.given, self.path, details)
        if now.size_bytes != self.size_bytes:
            return f"the file had {self.size_bytes:,} bytes when the job started and has {now.size_bytes:,} now"
        if self.etag is not None and now.etag is not None:
            return (
                ""
                if self.etag == now.etag
                else f"the ETag of the file was {self.etag} when the job started and is {now.etag} now"
            )
        if self.mtime is not None and now.mtime is not None and self.mtime != now.mtime:
            return (
                f"when the job started, the file was last written at {_for_people(self.mtime)}; now, at "
                f"{_for_people(now.mtime)}"
            )
        return ""


def pinned(given: int, path: str, details: Mapping[str, Any]) -> FoundFile:
    """Return a file as fsspec describes it now. File systems use different names for the same facts."""
    etag = next((details[name] for name in ("ETag", "etag") if details.get(name)), None)
    times = (details.get(name) for name in ("mtime", "LastModified", "last_modified", "updated", "created"))
    mtime = next((time for time in times if time is not None), None)
    return FoundFile(
        given,
        path,
        int(details.get("size") or 0),
        None if mtime is None else _time_text(mtime),
        None if etag is None else str(etag).strip('"'),
    )


def _for_people(mtime: str) -> str:
    """Return a time as ISO 8601 in UTC, if it is in seconds since the epoch, as local file systems report it."""
    try:
        return datetime.fromtimestamp(float(mtime), UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return mtime


def _time_text(time: object) -> str:
    return time.isoformat() if isinstance(time, datetime) else str(time)


def find_files(urls: Sequence[str], storage_options: Mapping[str, Any]) -> list[FoundFile]:
    """Return all files: in the order of `urls`, and by path within each. Folders are searched recursively.

    Below a folder or the fixed part of a glob, names that begin with `_` or `.` are skipped, and so are empty files.

    Raises:
        PipelineError: a path leads to no file, or cannot be listed.
    """
    found: list[FoundFile] = []
    seen: set[tuple[str, str]] = set()
    for given, url in enumerate(urls):
        filesystem, path = open_filesystem(url, storage_options)
        try:
            listed = list_one(filesystem, path)
        except OSError as e:
            raise PipelineError(
                "the input files cannot be listed",
                where=url,
                cause=str(e),
                remedy="Check that the path exists and that the user of the process may read it",
            ) from e
        if not listed:
            raise PipelineError(
                "no input file matches the path",
                where=url,
                remedy="Check the path, and that it has files which are neither hidden nor empty",
            )
        for name, details in sorted(listed.items()):
            if (filesystem.to_json(), name) not in seen:
                seen.add((filesystem.to_json(), name))
                found.append(pinned(given, name, details))
    return found


def is_pattern(path: str) -> bool:
    """Return whether a path has characters of a glob."""
    return any(c in path for c in _MAGIC)


def fixed_part(path: str) -> str:
    """Return the folder above the first part of a path that is a glob; a path without a glob: the path."""
    if not is_pattern(path):
        return path
    return path[: min(path.index(c) for c in _MAGIC if c in path)].rpartition("/")[0]


def list_one(filesystem: AbstractFileSystem, path: str) -> dict[str, Mapping[str, Any]]:
    """Return the visible, non-empty files that a path leads to, with their details."""
    if not is_pattern(path) or filesystem.exists(path):
        return _below(filesystem, path, path)
    fixed = fixed_part(path)
    found: dict[str, Mapping[str, Any]] = {}
    for match in filesystem.glob(path):
        if not is_hidden(match, fixed):
            found.update(_below(filesystem, match, match))
    return found


def _below(filesystem: AbstractFileSystem, path: str, base: str) -> dict[str, Mapping[str, Any]]:
    """Return the visible, non-empty files at or below `path`, with their details."""
    if filesystem.isfile(path):
        details = filesystem.info(path)
        return {path: details} if details.get("size") else {}
    all_details: dict[str, dict[str, Any]] = filesystem.find(path, detail=True)
    return {name: d for name, d in all_details.items() if d.get("size") and not is_hidden(name, base)}


def is_hidden(path: str, base: str) -> bool:
    """Return whether a part of the path below `base` begins with `_` or `.`."""
    below = path[len(base) :] if path.startswith(base) else path
    return any(part.startswith(("_", ".")) for part in below.split("/"))
