"""Where savepoints must not be: they are never deleted by the runtime, so not where it deletes (S2.3)."""

from __future__ import annotations

import os
import posixpath

from tidegate.errors import OptionError
from tidegate.jobs.layout import JobLayout


def check_savepoint_folder(root: str, layout: JobLayout, place: str, *, where: str) -> None:
    """Raise OptionError when `place` lies in the job's own folder of checkpoints.

    Args:
        root: URL of the job root.
        layout: of the job.
        place: absolute folder, URL, or folder below the root.
        where: what names the place, for the error.
    """
    inside = _normal(place if "://" in place or place.startswith("/") else f"{root}/{place}")
    checkpoints = _normal(f"{root}/{layout.checkpoints}")
    if f"{inside}/".startswith(f"{checkpoints}/"):
        raise OptionError(
            f"{place!r} lies in the job's folder of checkpoints",
            where=where,
            cause="what is there the job deletes, with retention=delete all of it when it has finished or is cancelled",
            remedy=f"Name another folder, or none: then savepoints go to {root}/{layout.savepoints}",
        )


def _normal(url: str) -> str:
    scheme, separator, path = url.removeprefix("file://").rpartition("://")
    return f"{scheme}{separator}{posixpath.normpath(path)}" if separator else os.path.realpath(path)
