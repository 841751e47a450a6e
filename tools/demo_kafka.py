"""The demo of streams: departures from a Kafka topic appear, hour by hour, in an Iceberg table after an audit.

Starts a real Kafka broker and a real `airflow standalone`, writes departures of 2013 to a topic, triggers
`dags/kafka_to_iceberg.py` twice over REST, and compares the table, as pyiceberg reads it, with DuckDB's own
calculation. Exit code 0 only if each audited hour is in the table exactly once, and no other.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from airflow_home import REPOSITORY, AirflowFailed, AirflowHome, Standalone
from dag_run import DagRun
from demo import RUN_TIMEOUT_S, JobTeller, Story, job_ended, tell_failures
from flight_data import YEAR_BEGINS, write

from tidegate.errors import TidegateError
from tidegate.jobs.client.job_client import JobClient

sys.path.insert(0, str(REPOSITORY / "tests"))
from kafka_broker import KafkaBroker, missing

DAG_ID = "kafka_to_iceberg"
JOB_ID = "departures-to-iceberg"
TOPIC = "departures"
TABLE = "flights.hourly"
PARTITIONS = 2
PUBLISHED_DAYS = (2, 4)
"""Days that the two runs of the DAG publish. The topic then has the next day, too, which makes the watermark pass."""
SHOWN_ROWS = 8


def departures(flights: Path, days: range) -> list[tuple[str, bytes]]:
    """Return the departures of some days of the year in order of time: key and JSON of each record."""
    table = pq.read_table(flights, columns=["origin", "time_hour", "dep_delay"]).sort_by("time_hour")
    return [
        (row["origin"], json.dumps({**row, "time_hour": row["time_hour"].isoformat()}).encode())
        for row in table.to_pylist()
        if (row["time_hour"] - YEAR_BEGINS).days in days
    ]


def fill(broker: KafkaBroker, flights: Path, days: range) -> int:
    """Write departures to the topic, each airport to one partition. Return their number."""
    records = departures(flights, days)
    airports = sorted({key for key, _ in records})
    for partition in range(PARTITIONS):
        mine = {key for place, key in enumerate(airports) if place % PARTITIONS == partition}
        broker.produce(TOPIC, [value for key, value in records if key in mine], partition)
    return len(records)


def open_catalog(warehouse: Path) -> Any:
    """Return the catalog of the tables."""
    from pyiceberg.catalog import load_catalog

    places = {"uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": f"file://{warehouse}"}
    return load_catalog("default", type="sql", **places)


def published(warehouse: Path) -> pa.Table:
    """Return the rows of the table, as pyiceberg reads them; none if there is no table yet."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return open_catalog(warehouse).load_table(TABLE).scan().to_arrow()
    except NoSuchTableError:
        return pa.table({"origin": [], "window_start": [], "flights": []})


def expected(flights: Path, until: datetime) -> set[tuple[Any, ...]]:
    """Return airport, hour, flights and departures of all hours before `until`, by DuckDB."""
    found = duckdb.connect().execute(
        f"""SELECT origin, time_hour, count(*), count(dep_delay), sum(dep_delay) FROM '{flights}'
        WHERE time_hour < TIMESTAMP '{until:%Y-%m-%d %H:%M:%S}' GROUP BY ALL"""
    )
    return set(found.fetchall())


def difference(rows: pa.Table, wanted: set[tuple[Any, ...]]) -> tuple[int, int]:
    """Return how many of the wanted rows are missing, and how many rows are too many."""
    names = ("origin", "window_start", "flights", "departed", "minutes_late")
    found = [tuple(row[name] for name in names) for row in rows.to_pylist()] if rows.num_rows else []
    return len(wanted - set(found)), len(found) - len(wanted & set(found))


def run_once(airflow: Standalone, run_id: str, conf: Mapping[str, Any], client: JobClient, story: Story) -> bool:
    """Trigger the DAG, and follow it to its end. Return whether it succeeded."""
    dag_run = DagRun(airflow, DAG_ID, run_id)
    dag_run.trigger(conf)
    teller = JobTeller(client, story)
    for task_id, state, attempt in dag_run.follow(RUN_TIMEOUT_S, teller.look):
        story.tell(f"{task_id}: {state}{f' (try {attempt})' if attempt > 1 else ''}")
    if dag_run.state() != "success":
        tell_failures(dag_run, client)
        return False
    return True


def run(work: Path, story: Story) -> int:
    """Run the demo in folder `work`; return the exit code."""
    for stale in ("airflow", "jobs", "warehouse"):
        shutil.rmtree(work / stale, ignore_errors=True)
    write(work / "flights" / "data")
    flights, warehouse = work / "flights" / "data" / "flights.parquet", work / "warehouse"
    warehouse.mkdir(parents=True)
    open_catalog(warehouse).create_namespace(TABLE.partition(".")[0])
    home = AirflowHome(
        folder=work / "airflow",
        job_root=work / "jobs",
        flights=work / "flights",
        extra={"TIDEGATE_WAREHOUSE": str(warehouse)},
    )
    client = JobClient(str(home.job_root), JOB_ID)
    broker = KafkaBroker()
    broker.start()
    good = True
    try:
        broker.create_topic(TOPIC, PARTITIONS)
        story.tell(f"a Kafka broker runs at {broker.servers}")
        with job_ended(client), Standalone(home) as airflow:
            story.tell(f"airflow standalone is starting; its log is {airflow.log}")
            airflow.wait_until_ready()
            story.tell(f"airflow is ready at {home.url}")
            sent_days = 0
            for days in PUBLISHED_DAYS:
                sent = fill(broker, flights, range(sent_days, days + 1))
                sent_days = days + 1
                story.tell(f"{sent:,} departures were sent to the topic")
                until = YEAR_BEGINS + timedelta(days=days)
                before = published(warehouse).num_rows
                conf = {"servers": broker.servers, "until": f"{until.isoformat()}Z"}
                if not run_once(airflow, f"until-{until:%Y-%m-%d}", conf, client, story):
                    return 1
                rows = published(warehouse)
                story.tell(f"the table had {before} rows before the audit, and has {rows.num_rows} now")
                good = good and _is_whole(rows, flights, until, story)
            story.tell("stopping airflow")
    finally:
        broker.stop()
    print()
    print(duckdb.from_arrow(rows.sort_by([("window_start", "descending"), ("origin", "ascending")])).limit(SHOWN_ROWS))
    print("The audit failed." if not good else "Each audited hour is in the table once, and equal to DuckDB's.")
    return 0 if good else 1


def _is_whole(rows: pa.Table, flights: Path, until: datetime, story: Story) -> bool:
    """Return whether the table holds each hour before `until` once, and otherwise only later hours as they are."""
    early = rows.filter(pc.less(rows["window_start"], pa.scalar(until, rows["window_start"].type)))
    lost, extra = difference(early, expected(flights, until))
    later = rows.num_rows - early.num_rows
    story.tell(f"  {lost} hours lost, {extra} duplicated or wrong; {later} later hours were audited, too")
    return not lost and not extra


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--work", type=Path, default=REPOSITORY / ".work" / "demo-kafka", help="folder for all files of the demo"
    )
    parsed = parser.parse_args()
    if absent := missing():
        print(f"demo: a Kafka broker needs {absent}. Install it, and try again", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return run(parsed.work.resolve(), Story())
    except (AirflowFailed, TidegateError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; all its processes have been stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    print(f"demo: {time.monotonic() - began:.0f} s")
    sys.exit(code)
