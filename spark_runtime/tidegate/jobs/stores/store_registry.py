"""`open_store`: opens the store for a URL, by the URL's scheme.

A kind of store is imported when a URL of its scheme is opened, so that no process loads a file system it does not use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from tidegate.errors import MissingExtraError, StoreError
from tidegate.extras import installation
from tidegate.jobs.secrets import resolve_secrets
from tidegate.jobs.stores.store import Store

SUPPORTED = "a local path, file://, s3:// and, within one process, memory://"


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store, for the URLs of a scheme.

    Attributes:
        target: "module:class", imported when a URL of the scheme is opened.
        package: package that the module needs besides fsspec; "": none.
        extra: extra of tidegate that installs `package`.
        takes_options: the class's second argument is the storage options, with secrets resolved.
    """

    target: str
    package: str = ""
    extra: str = ""
    takes_options: bool = False


_LOCAL = StoreKind("tidegate.jobs.stores.local_disk:LocalStore")
_S3 = StoreKind("tidegate.jobs.stores.s3:S3Store", package="s3fs", extra="s3", takes_options=True)
STORES: Mapping[str, StoreKind] = {
    "file": _LOCAL,
    "memory": StoreKind("tidegate.jobs.stores.in_memory:MemoryStore"),
    "s3": _S3,
    "s3a": _S3,
}
"""Kinds of stores by scheme. A URL without a scheme is a local path, opened as `file`."""


def open_store(url: str, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Open the store at `url`. Local and memory stores are not accessed yet; `probe` tests whether the store works.

    Args:
        url: local path, file://, s3://bucket/prefix or memory://name.
        storage_options: options of s3fs. Values may be references to secrets, which are resolved here.

    Raises:
        StoreError: the kind of store has no create-only writes.
        MissingExtraError: the package of the store is not installed.
        OptionError: a reference to a secret cannot be resolved.
    """
    if not isinstance(url, str | os.PathLike) or not os.fspath(url):
        raise StoreError(
            "the root of the jobs is not a path or URL, or is empty",
            where=repr(url),
            remedy=f"Set the root to {SUPPORTED}",
        )
    url = os.fspath(url)
    scheme, separator, location = url.partition("://")
    if not separator:
        scheme, location = "file", os.path.abspath(os.path.expanduser(url))
    elif scheme == "file":
        location = _path_of(url)
    if scheme not in STORES:
        raise StoreError(
            f"{scheme}:// is not a supported store",
            where=url,
            cause="tidegate must create an object only if it does not exist, or two drivers could run a job at once; "
            "it has no way to do that in this store",
            remedy=f"Use {SUPPORTED}",
        )
    kind = STORES[scheme]
    opened = _class_of(kind, url)
    store = opened(location, resolve_secrets(storage_options)) if kind.takes_options else opened(location)
    return cast(Store, store)


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise StoreError("the root is not a valid file URL", where=url, remedy="Write file:///absolute/path")
    return os.path.abspath(unquote(parts.path))


def _class_of(kind: StoreKind, url: str) -> Any:
    module, _, name = kind.target.partition(":")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        if not kind.package:
            raise
        raise MissingExtraError(
            f"{url.partition(':')[0]}:// needs the package {kind.package}",
            where=url,
            cause=str(error),
            remedy=f"Run: {installation(kind.extra)}",
        ) from error
