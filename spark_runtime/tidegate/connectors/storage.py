"""File systems of the paths and URLs that users pass to connectors."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from tidegate.errors import MissingExtraError, PipelineError
from tidegate.extras import installation
from tidegate.jobs.records import RelativePaths
from tidegate.jobs.secrets import resolve_secrets

S3_PROTOCOLS = ("s3", "s3a")

_relative_paths: ContextVar[RelativePaths | None] = ContextVar("relative paths", default=None)


@contextmanager
def relative_paths(paths: RelativePaths | None) -> Iterator[None]:
    """Make `absolute_url` resolve relative paths with `paths` while the context is active.

    None: relative to the working directory of this process.
    """
    token = _relative_paths.set(paths)
    try:
        yield
    finally:
        _relative_paths.reset(token)


def _resolved(text: str, paths: RelativePaths) -> str:
    if paths.folder is None:
        raise PipelineError(
            f"path {text!r} is relative",
            cause="the Airflow task that submitted the job has no permanent working directory",
            remedy="Use an absolute path or a URL",
        )
    path = os.path.normpath(os.path.join(paths.folder, text))
    if paths.within is not None and os.path.commonpath([path, paths.within]) != os.path.normpath(paths.within):
        raise PipelineError(
            f"relative path {text!r} leads out of the DAG bundle",
            where=path,
            cause=f"relative paths of a job submitted by Airflow must be below {paths.within}",
            remedy="Use an absolute path or a URL",
        )
    return path


def absolute_url(path: str | os.PathLike[str]) -> str:
    """Return a URL unchanged, and a local path as an absolute path.

    A relative path is resolved in the folder that the submission recorded, so that every driver, slot and restore uses
    the same place on every machine. Without a submission, it is resolved in the working directory of this process.
    """
    text = os.fspath(path)
    if "://" in text or "::" in text:
        return text
    paths = _relative_paths.get()
    return os.path.abspath(text) if paths is None or os.path.isabs(text) else _resolved(text, paths)


def open_filesystem(url: str, storage_options: Mapping[str, Any] | None) -> tuple[AbstractFileSystem, str]:
    """Return the file system and the path in it. Resolves references to secrets; turns listing caches off.

    Raises:
        PipelineError: the protocol is unknown, its package is missing, or an option is refused.
        MissingExtraError: the package of S3 is missing.
    """
    options = dict(resolve_secrets(storage_options or {}))
    # Listings must show files that other processes have just written or removed.
    options.setdefault("use_listings_cache", False)
    try:
        filesystem, path = url_to_fs(url, **options)
    except (ImportError, ValueError, TypeError) as e:
        what = "the file system of the path cannot be opened"
        if isinstance(e, ImportError) and url.partition("://")[0] in S3_PROTOCOLS:
            remedy = f"Run `{installation('s3')}` on the machines of the driver and the slots"
            raise MissingExtraError(what, where=url, cause=str(e), remedy=remedy) from e
        remedy = "Check the URL's protocol, install its fsspec package, and check the names in storage_options"
        raise PipelineError(what, where=url, cause=str(e), remedy=remedy) from e
    return filesystem, path


def is_local(filesystem: AbstractFileSystem) -> bool:
    """Return whether paths are files of this machine, or mounted there. Then a rename is atomic, and fsync makes data
    durable.
    """
    return isinstance(filesystem, LocalFileSystem)


def sync_to_disk(path: str) -> None:
    """Make a local file's bytes, or a local folder's entries, durable."""
    with with_path(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def put_durably(
    filesystem: AbstractFileSystem, path: str, content: bytes, *, unfinished: str = "", parents: int = 0
) -> None:
    """Write a file, new or existing, so that readers see it whole, and it survives a crash of the machine.

    Args:
        unfinished: path of the local file before it is renamed; default: a hidden name in the same folder.
        parents: number of folders above the file's folder that may be new, whose entries must survive, too.
    """
    if not is_local(filesystem):
        filesystem.pipe_file(path, content)
        return
    folder, _, name = path.rpartition("/")
    os.makedirs(folder, exist_ok=True)
    unfinished = unfinished or f"{folder}/.{name}.{secrets.token_hex(4)}.tmp"
    with open(unfinished, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    for n in range(parents + 1):
        sync_to_disk(folder.rsplit("/", n)[0])


@contextmanager
def with_path(path: str) -> Iterator[None]:
    """Add the file path to an error of the operating system that lacks it.

    An error of a full disk (ENOSPC), and errors that Arrow converts, do not name the file.
    """
    try:
        yield
    except OSError as error:
        if path in str(error):
            raise
        if error.errno is None:
            raise type(error)(f"{error}: {path!r}") from error
        raise OSError(error.errno, error.strerror or os.strerror(error.errno), path) from error


def check_target_folder(filesystem: AbstractFileSystem, root: str, url: str) -> None:
    """Check that a sink can write into this folder, or create it.

    Raises:
        PipelineError: the path is a file, its bucket is missing, or this process may not write there.
    """
    try:
        if filesystem.isfile(root):
            raise PipelineError(
                "the path of the sink is a file, but must be a folder",
                where=url,
                remedy="Pass the path of a folder; the sink creates it if it does not exist",
            )
        if is_local(filesystem):
            _check_writable(root)
        elif _lacks_bucket(filesystem, root):
            raise FileNotFoundError(f"bucket {root.split('/', 1)[0]!r} does not exist")
        # Listing finds a missing right to read here, before the job runs.
        if filesystem.isdir(root):
            filesystem.ls(root)
    except OSError as e:
        raise PipelineError(
            "the sink cannot use the folder at its path",
            where=url,
            cause=str(e),
            remedy="Check that the bucket or the parent folder exists, and that the process may write there",
        ) from e


def list_folder(filesystem: AbstractFileSystem, folder: str) -> tuple[list[str], list[str]]:
    """Return the sorted paths of the files and of the folders directly in a folder; none when the folder is missing."""
    try:
        entries = filesystem.ls(folder, detail=True)
    except FileNotFoundError:
        return [], []
    # An object store may list the folder itself, as an empty object.
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
    # To create an entry in a folder, a process needs the right to search it (X_OK), too.
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"the user of the process may not write in {there}")


def _lacks_bucket(filesystem: AbstractFileSystem, root: str) -> bool:
    """Return whether an object store reports that the bucket is missing. An unclear answer (no permission to ask)
    counts as no.
    """
    protocols = {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
    if not protocols & {"s3", "gs", "abfs"}:
        return False
    try:
        return not filesystem.exists(root.split("/", 1)[0])
    except OSError:
        return False
