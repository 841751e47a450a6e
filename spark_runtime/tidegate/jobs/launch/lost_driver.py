"""Reports on a lost driver for clients on other machines: its place, and its last output."""

from __future__ import annotations

from contextlib import suppress

from tidegate.errors import StoreError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launch.desired_state import read_desired
from tidegate.jobs.launch.launcher import recorded_place
from tidegate.jobs.launch.launcher_registry import launcher_class
from tidegate.jobs.launches import newest_attempt, read_launch
from tidegate.jobs.process_output import LOG_TAIL_LINES, output_tail
from tidegate.jobs.records import Launch, Spec

_NO_AGENT = "no agent has launched a driver for the submission; check that `tidegate agent` supervises the job's root"


def lost_driver_report(job: JobDirectory, spec: Spec) -> tuple[str, str]:
    """Return one line about the newest launch of `spec`, and the last lines of its output, or "" if they cannot be read
    from here. Errors of the store are reported in the line, and not raised."""
    try:
        attempt = newest_attempt(job.store, job.layout, spec.number)
        tail = _stored_output_tail(job, spec.number, attempt or 1)
        if attempt == 0:
            desired = read_desired(job)
            wanted = desired is not None and (desired.state, desired.spec) == ("running", spec.number)
            return (_NO_AGENT if wanted else "no launch of the submission is recorded"), tail
        launch = read_launch(job.store, job.layout, spec.number, attempt)
    except StoreError as error:
        return f"the record of its launch cannot be read: {error}", ""
    return _launch_place(launch), output_tail(launch) or tail


def _launch_place(launch: Launch) -> str:
    try:
        place = launcher_class(launch.launcher).log_place(launch)
    except Exception:  # this host does not have the launcher, or it is another package's and raises anything
        place = recorded_place(launch)
    return f"launch {launch.attempt} by {launch.launcher}, {place}"


def _stored_output_tail(job: JobDirectory, spec: int, attempt: int) -> str:
    """Return the last lines of a launch's log in the job directory: the output, where the root is a local folder, or an
    agent's message about a launch that failed."""
    with suppress(StoreError):
        text = job.store.read(job.layout.launch_log(spec, attempt)).decode(errors="replace")
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
    return ""
