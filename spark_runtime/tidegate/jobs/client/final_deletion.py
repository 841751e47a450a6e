"""Deletion of the checkpoints of a job that was cancelled after its driver had died (S2.3)."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.errors import StoreError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.history.verdicts import find_verdicts
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Spec
from tidegate.jobs.status import JobStatus, JobView


def deletes_checkpoints(view: JobView, spec: Spec) -> bool:
    """Return whether the option `retention` requires the deletion of the checkpoints: the job is CANCELED, but not by a
    stop, because a stop keeps the state."""
    asked = JobOptions.from_mapping(spec.options).retention == "delete"
    return asked and view.status is JobStatus.CANCELED and not view.stop


def delete_checkpoints(job: JobDirectory, spec: Spec, check: Callable[[], object]) -> None:
    """Delete what a driver deletes when its job is cancelled: all checkpoints, and the files that they share.

    Savepoints stay, and so does every snapshot that waits for a verdict or for an approved commit. Blocks on the store.
    May be repeated. Ends without an error when a newer submission exists, which may start from the remaining
    checkpoints. `tidegate gc` deletes files that a slot of the dead driver writes later.

    Args:
        spec: submission that was cancelled.
        check: called before each deletion; raises FencedError when a newer generation exists.

    Raises:
        StoreError: something could not be deleted.
    """
    store, layout = job.store, job.layout
    verdicts = find_verdicts(job.specs(), job.decisions(), spec.number)
    pinned = {verdicts.views[n].path for n in verdicts.pinned}
    try:
        shared = list(store.list(layout.shared))  # listed first, so that no file of a later generation is in it
        for name in sorted(store.list(layout.checkpoints)):
            if f"{layout.checkpoints}/{name}" not in pinned:
                check()
                if job.specs()[-1].number != spec.number:
                    return
                store.delete_folder(f"{layout.checkpoints}/{name}")
        if pinned:
            return  # pinned checkpoints may use any of the shared files
        for name in shared:
            check()
            if job.specs()[-1].number != spec.number:
                return
            store.delete(layout.shared_file(name))
    except StoreError as error:
        raise StoreError(
            "the job is cancelled, but not all of its checkpoints could be deleted",
            where=f"job {job.job_id}, retention=delete",
            cause=str(error),
            remedy="Run `tidegate cancel` again: it deletes the rest",
        ) from error
