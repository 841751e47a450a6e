"""From paths, folders, globs and URLs to a sorted list of files."""

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
    """One file.

    Attributes:
        given: index of the path the user gave that led to it; its file system is that path's.
        path: within the file system.
        size_bytes: when it was listed; a file of another size is another file.
        mtime: when it was written, as its file system said then; None: it did not, or a snapshot of an older version
            has not kept it.
        etag: of the object; None: as before. Where there is one, `mtime` is not compared: listings round it.
    """

    given: int
    path: str
    size_bytes: int
    mtime: str | None = None
    etag: str | None = None

    def change(self, details: Mapping[str, Any]) -> str:
        """How a file with these details, of fsspec, differs from the one that was listed; "": it does not."""
        now = pinned(self.given, self.path, details)
        if now.size_bytes != self.size_bytes:
            return f"{self.size_bytes:,} bytes when the job started, {now.size_bytes:,} now"
        if self.etag is not None and now.etag is not None:
            return "" if self.etag == now.etag else f"its ETag was {self.etag} when the job started, it is {now.etag}"
        if self.mtime is not None and now.mtime is not None and self.mtime != now.mtime:
            return (
                f"it was written at {_for_people(self.mtime)} when the job started, at {_for_people(now.mtime)} since"
            )
        return ""


def pinned(given: int, path: str, details: Mapping[str, Any]) -> FoundFile:
    """A file as fsspec describes it now. File systems name the same facts differently."""
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
    """Seconds since the epoch, as local file systems give them, as ISO 8601 in UTC."""
    try:
        return datetime.fromtimestamp(float(mtime), UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return mtime


def _time_text(time: object) -> str:
    return time.isoformat() if isinstance(time, datetime) else str(time)


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
        for name, details in sorted(listed.items()):
            if (filesystem.to_json(), name) not in seen:
                seen.add((filesystem.to_json(), name))
                found.append(pinned(given, name, details))
    return found


def _list_one(filesystem: AbstractFileSystem, path: str) -> dict[str, Mapping[str, Any]]:
    if not any(c in path for c in _MAGIC) or filesystem.exists(path):
        return _below(filesystem, path, path)
    fixed = path[: min(path.index(c) for c in _MAGIC if c in path)].rpartition("/")[0]
    found: dict[str, Mapping[str, Any]] = {}
    for match in filesystem.glob(path):
        if not _is_hidden(match, fixed):
            found.update(_below(filesystem, match, match))
    return found


def _below(filesystem: AbstractFileSystem, path: str, base: str) -> dict[str, Mapping[str, Any]]:
    """The visible, non-empty files at or below `path`, with what is known of them."""
    if filesystem.isfile(path):
        details = filesystem.info(path)
        return {path: details} if details.get("size") else {}
    all_details: dict[str, dict[str, Any]] = filesystem.find(path, detail=True)
    return {name: d for name, d in all_details.items() if d.get("size") and not _is_hidden(name, base)}


def _is_hidden(path: str, base: str) -> bool:
    below = path[len(base) :] if path.startswith(base) else path
    return any(part.startswith(("_", ".")) for part in below.split("/"))
