"""The demo: the whole life of a stateful Spark job, controlled by an Airflow DAG, on real data, with verified output.

Starts a real `airflow standalone` in a folder of its own, triggers `dags/flight_delays.py` over REST, prints the
progress, and compares the committed output with DuckDB's independent calculation. Exit code 0 only if every flight is
in the output exactly once.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_home import REPOSITORY, AirflowFailed, AirflowHome, Standalone
from dag_run import DagRun
from flight_data import write

from tidegate.errors import TidegateError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.status import JobView

DAG_ID = "flight_delays"
RUN_ID = "demo"
JOB_ID = f"flight-delays-{RUN_ID}"
RUN_TIMEOUT_S = 420.0
"""Time limit of the run; the whole demo must end within 8 minutes."""
STATUS_EVERY_S = 5.0
DRIVER_END_S = 20.0
"""Time limit for a driver to end by itself."""
LOG_LINES = 40
"""Number of lines of a failed task's log that are shown."""


class Story:
    """Prints lines with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def tell(self, text: str) -> None:
        """Print one line."""
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", flush=True)


class JobTeller:
    """Prints a job's status when it has changed, at most every few seconds."""

    def __init__(self, client: JobClient, story: Story) -> None:
        self._client, self._story = client, story
        self._last, self._due = "", 0.0

    def look(self) -> None:
        """Read the job directory, if the interval has passed."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + STATUS_EVERY_S
        with contextlib.suppress(TidegateError):
            line = status_line(self._client.view())
            if line != self._last:
                self._story.tell(f"  job: {line}")
                self._last = line


def status_line(view: JobView) -> str:
    """Return a job's status on one line. A source is included from its first heartbeat on."""
    sources = ", ".join(
        f"{s.uid} {s.records:,}{' (ended)' if s.end_of_data else ' (all played)' if s.played_all else ''}"
        for s in view.sources
        if s.records is not None
    )
    return f"{view.status.value}, {len(view.completed)} snapshots{', rows read: ' + sources if sources else ''}"


def checkpoint_table(view: JobView) -> str:
    """Return a table of every snapshot, oldest first."""
    rows = [("id", "kind", "status", "duration ms", "bytes", "alignment ms")]
    for c in view.checkpoints:
        duration = "" if c.duration_ms is None else f"{c.duration_ms:,}"
        rows.append(
            (
                str(c.checkpoint_id),
                c.kind,
                c.status,
                duration,
                number(c.metrics, "bytes"),
                number(c.metrics, "alignment_ms"),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = {1, 2}
    lines = [
        "  ".join(
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join((lines[0], "-" * len(lines[0]), *lines[1:]))


def number(metrics: Mapping[str, Any], name: str) -> str:
    """Return a metric as text; empty if it was not recorded."""
    value = metrics.get(name)
    return f"{value:,.0f}" if isinstance(value, int | float) else ""


@contextlib.contextmanager
def job_ended(client: JobClient) -> Iterator[None]:
    """Ensure that no driver of the job is left running."""
    try:
        yield
    finally:
        with contextlib.suppress(TidegateError):
            drivers = [
                driver
                for spec in client.specs()
                if (driver := find_local_driver(client.store, client.layout, spec.number)) is not None
            ]
            for driver in drivers:
                driver.kill(signal.SIGTERM)
            deadline = time.monotonic() + DRIVER_END_S
            while time.monotonic() < deadline and any(driver.is_running() for driver in drivers):
                time.sleep(0.2)
            for driver in drivers:
                driver.kill(signal.SIGKILL)


def run(work: Path, days: int | None, speed: float, story: Story) -> int:
    """Run the demo in folder `work`; return the exit code."""
    for stale in ("airflow", "jobs", "flights/out"):
        shutil.rmtree(work / stale, ignore_errors=True)
    write(work / "flights" / "data", days)
    story.tell(f"flight data is in {work / 'flights' / 'data'}")
    home = AirflowHome(folder=work / "airflow", job_root=work / "jobs", flights=work / "flights")
    (work / "jobs").mkdir(parents=True, exist_ok=True)
    client = JobClient(str(home.job_root), JOB_ID)
    with job_ended(client), Standalone(home) as airflow:
        story.tell(f"airflow standalone is starting; its log is {airflow.log}")
        airflow.wait_until_ready()
        story.tell(f"airflow is ready at {home.url}")
        dag_run = DagRun(airflow, DAG_ID, RUN_ID)
        dag_run.trigger({"speed": speed})
        teller = JobTeller(client, story)
        for task_id, state, attempt in dag_run.follow(RUN_TIMEOUT_S, teller.look):
            story.tell(f"{task_id}: {state}{f' (try {attempt})' if attempt > 1 else ''}")
        if dag_run.state() != "success":
            tell_failures(dag_run, client)
            return 1
        from_dag = dag_run.xcom("audit")
        story.tell("stopping airflow")
    return conclude(client, from_dag)


def tell_failures(dag_run: DagRun, client: JobClient) -> None:
    """Print the end of the failed tasks' logs and of the driver's log."""
    for task_id, task in dag_run.tasks().items():
        if task["state"] == "failed":
            tail = dag_run.log(task_id, task["try_number"]).splitlines()[-LOG_LINES:]
            print(f"\n--- log of {task_id} ---\n" + "\n".join(tail))
    with contextlib.suppress(TidegateError):
        print(
            "\n--- log of the driver ---\n"
            + "\n".join(line for text in client.logs().values() for line in text.splitlines()[-LOG_LINES:])
        )


def conclude(client: JobClient, from_dag: Mapping[str, Any]) -> int:
    """Print the table, audit the files on disk again, and return the exit code."""
    sys.path.insert(0, str(REPOSITORY / "dags"))
    from pipelines.flight_audit import audit, verdict

    view = client.view()
    audits = audit(client.specs()[-1].arguments)
    print(f"\n{checkpoint_table(view)}\n")
    for name, found in audits.items():
        same = "equal to DuckDB's calculation, row for row" if found["exact"] else "NOT equal to DuckDB's calculation"
        print(f"{name}: {same} ({found['rows_missing']} rows missing, {found['rows_extra']} extra)")
    print(verdict(audits))
    good = all(a["exact"] for a in audits.values()) and all(from_dag[name]["exact"] for name in audits)
    return 0 if good and view.status.value == "STOPPED" else 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--work", type=Path, default=REPOSITORY / ".work" / "demo", help="folder for all files of the demo"
    )
    parser.add_argument("--days", type=int, default=None, help="only the first DAYS of 2013 (in a --work of its own)")
    parser.add_argument("--speed", type=float, default=4.0, help="days of flights played per second")
    parsed = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return run(parsed.work.resolve(), parsed.days, parsed.speed, Story())
    except AirflowFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; all its processes have been stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
