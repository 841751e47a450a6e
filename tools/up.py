"""Run a real `airflow standalone` with this checkout's DAGs; prints URL and login. Ctrl-C stops it."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from airflow_home import REPOSITORY, AirflowFailed, AirflowHome, Standalone
from flight_data import write


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--work", type=Path, default=REPOSITORY / ".work" / "up", help="folder for all files of this Airflow"
    )
    work = parser.parse_args().work.resolve()
    over = threading.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: over.set())
    write(work / "flights" / "data")
    home = AirflowHome(folder=work / "airflow", job_root=work / "jobs", flights=work / "flights", password="admin")
    try:
        with Standalone(home) as airflow:
            print(f"airflow standalone is starting (log: {airflow.log})", flush=True)
            airflow.wait_until_ready()
            print(f"\n  {home.url}   login: {home.user} / {home.password}\n", flush=True)
            print(f"  jobs: {home.job_root}   DAGs: {home.dags}\n  Ctrl-C stops it.", flush=True)
            while not over.wait(1.0):
                if not airflow.is_running():
                    raise AirflowFailed(f"airflow standalone has ended by itself; see {airflow.log}")
            print("stopping", flush=True)
    except AirflowFailed as error:
        print(f"up: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
