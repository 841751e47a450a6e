"""A check that savepoints are not written to folders that the runtime deletes (S2.3)."""

from __future__ import annotations

import os
import posixpath

from tidegate.errors import OptionError
from tidegate.jobs.layout import JobLayout


def check_savepoint_folder(root: str, layout: JobLayout, place: str, *, where: str) -> None:
    """Raise OptionError when `place` is in the job's own folder of checkpoints.

    Args:
        root: URL of the job root.
        layout: paths of the job.
        place: absolute folder, URL, or folder below the root.
        where: the option or argument that names the place, for the error.
    """
    inside = _normal(place if "://" in place or place.startswith("/") else f"{root}/{place}")
    checkpoints = _normal(f"{root}/{layout.checkpoints}")
    # With the slashes, so that the folder of checkpoints itself matches, and a longer name beside it does not.
    if f"{inside}/".startswith(f"{checkpoints}/"):
        raise OptionError(
            f"savepoints cannot be written to {place!r}, which is in the folder of the job's checkpoints",
            where=where,
            cause="the job deletes files in that folder; with retention=delete, all of them when it is finished or "
            "cancelled",
            remedy=f"Name another folder, or none: then savepoints are written to {root}/{layout.savepoints}",
        )


def _normal(url: str) -> str:
    scheme, separator, path = url.removeprefix("file://").rpartition("://")
    return f"{scheme}{separator}{posixpath.normpath(path)}" if separator else os.path.realpath(path)
