"""Opening the file system behind a path or URL that a user gave to a connector."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from tidegate.errors import PipelineError
from tidegate.jobs.records import RelativePaths
from tidegate.jobs.secrets import resolve_secrets

_relative_paths: ContextVar[RelativePaths | None] = ContextVar("relative paths", default=None)


@contextmanager
def relative_paths(paths: RelativePaths | None) -> Iterator[None]:
    """Within the context `absolute` follows `paths`; None: the working directory of this process."""
    token = _relative_paths.set(paths)
    try:
        yield
    finally:
        _relative_paths.reset(token)


def _resolved(text: str, paths: RelativePaths) -> str:
    if paths.folder is None:
        raise PipelineError(
            f"the path {text!r} is relative",
            cause="the Airflow task that submitted the job has no working directory that lasts",
            remedy="Write an absolute path or a URL",
        )
    path = os.path.normpath(os.path.join(paths.folder, text))
    if paths.within is not None and os.path.commonpath([path, paths.within]) != os.path.normpath(paths.within):
        raise PipelineError(
            f"the relative path {text!r} leads out of the DAG bundle",
            where=path,
            cause=f"relative paths of a job from Airflow lie below {paths.within}",
            remedy="Write an absolute path or a URL",
        )
    return path


def absolute_url(path: str | os.PathLike[str]) -> str:
    """A URL as it is; a local path made absolute: in the folder that the submission recorded, so that every driver,
    slot and restore means the same place, wherever it runs; without a submission in the folder of this process."""
    text = os.fspath(path)
    if "://" in text or "::" in text:
        return text
    paths = _relative_paths.get()
    return os.path.abspath(text) if paths is None or os.path.isabs(text) else _resolved(text, paths)


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
    with with_path(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def with_path(path: str) -> Iterator[None]:
    """An error of the operating system says which file it is about: what comes of a full disk (ENOSPC) does not, nor
    what Arrow makes of it."""
    try:
        yield
    except OSError as error:
        if path in str(error):
            raise
        if error.errno is None:
            raise type(error)(f"{error}: {path!r}") from error
        raise OSError(error.errno, error.strerror or os.strerror(error.errno), path) from error


def check_target_folder(filesystem: AbstractFileSystem, root: str, url: str) -> None:
    """Whether a sink can write into this folder, or make it.

    Raises:
        PipelineError: it is a file, its bucket is missing, or this process may not write there.
    """
    try:
        if filesystem.isfile(root):
            raise PipelineError("The sink's path is a file", where=url, remedy="Name a folder, which may be missing")
        if is_local(filesystem):
            _check_writable(root)
        elif _lacks_bucket(filesystem, root):
            raise FileNotFoundError(f"there is no bucket {root.split('/', 1)[0]!r}")
        if filesystem.isdir(root):
            filesystem.ls(root)
    except OSError as e:
        raise PipelineError(
            "The sink's path cannot be used",
            where=url,
            cause=str(e),
            remedy="Check the path and its access rights",
        ) from e


def list_folder(filesystem: AbstractFileSystem, folder: str) -> tuple[list[str], list[str]]:
    """Paths of the files and of the folders right in a folder, sorted; none when it is missing."""
    try:
        entries = filesystem.ls(folder, detail=True)
    except FileNotFoundError:
        return [], []
    # An object store may show the folder itself, as an empty object.
    paths = {kind: [e["name"].rstrip("/") for e in entries if e["type"] == kind] for kind in ("file", "directory")}
    own = folder.strip("/")
    files, folders = (sorted(p for p in found if p.strip("/") != own) for found in paths.values())
    return files, folders


def _check_writable(root: str) -> None:
    there = root
    while not os.path.exists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise NotADirectoryError(f"{there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"no right to write in {there}")


def _lacks_bucket(filesystem: AbstractFileSystem, root: str) -> bool:
    """Whether an object store answers that the path's bucket is missing; an unclear answer (no right to ask) is no."""
    protocols = {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
    if not protocols & {"s3", "gs", "abfs"}:
        return False
    try:
        return not filesystem.exists(root.split("/", 1)[0])
    except OSError:
        return False
