"""Directories for files that this user alone may write, because later processes trust their contents."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def private_cache_directory(base: Path | None, *names: str) -> Path | None:
    """Return `base`/tidegate/`names`, and create missing levels with mode 0700.

    Returns None if that fails, if there is no base, or if another user owns a level or can write to it.
    """
    if base is None:
        return None
    directory = base
    for name in ("tidegate", *names):
        directory = directory / name
        try:
            base.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            found = directory.stat()
        except OSError:
            return None
        if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            return None
        if not os.access(directory, os.W_OK | os.X_OK):
            return None
    return directory


def user_cache() -> Path | None:
    """Return the user's cache directory; None if the user has no home."""
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None
