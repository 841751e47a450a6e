"""`pip install "tidegate[airflow]"` beside Spark's own provider: no runtime, and jobs all the same.

The drivers have an environment of their own, which the connection's `python` names.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from environment import Environment

pytestmark = [pytest.mark.slow, pytest.mark.gate, pytest.mark.timeout(600)]

DAG = """
from airflow.sdk import DAG
from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.start import TidegateRunJobOperator, TidegateStartJobOperator
from airflow_tidegate.operators.stop import TidegateStopJobOperator
from airflow_tidegate.sensors.checkpoint import TidegateCheckpointSensor

with DAG("life", schedule=None, default_args={"job_id": "life"}) as life:
    start = TidegateStartJobOperator(task_id="start", pipeline="digits.py:build", arguments={"out": "/tmp/out"})
    taken = TidegateCheckpointSensor(task_id="taken", count=1)
    stop = TidegateStopJobOperator(task_id="stop", mode="suspend")
    start >> taken >> stop >> TidegateRestoreJobOperator(task_id="restore", from_=stop.output)

with DAG("bounded", schedule=None) as bounded:
    TidegateRunJobOperator(
        task_id="run",
        job_id="{{ params.job_id }}",
        pipeline="digits.py:build",
        arguments={"out": "{{ params.out }}", "count_rows": 5000, "by": "{{ params.by }}"},
        master="local[1]",
        options={"parallelism": 1},
        params={"job_id": "", "out": "", "by": "digit"},
        retries=0,
    )
"""
IMPORTS = """
import importlib, pkgutil, sys
import airflow_tidegate

names = [found.name for found in pkgutil.walk_packages(airflow_tidegate.__path__, "airflow_tidegate.")]
for name in names:
    importlib.import_module(name)
import airflow.providers.apache.spark.operators.spark_submit
runtime = {"numba", "pyarrow", "pyspark.sql"} & sys.modules.keys()
print(len(names), sorted(runtime))
"""
DRAWN = """
import sys

sys.path.insert(0, sys.argv[1])
import slim
from airflow.serialization.serialized_objects import DagSerialization

print(len(DagSerialization.to_dict(slim.life)["dag"]["tasks"]))
"""
RUN = """
import json, sys

sys.path.insert(0, sys.argv[1])
import slim

print("state", slim.bounded.test(run_conf=json.loads(sys.argv[2])).state)
"""
VIEW = """
import sys
from airflow_tidegate.hooks.tidegate import TidegateHook

view = TidegateHook().get_client(sys.argv[1]).view()
print(view.status.value, len(view.completed))
"""


class Airflow:
    """The environment with a home, a DAGs folder and a connection.

    Args:
        python: interpreter of the drivers, as the connection names it; None: it names none.
    """

    def __init__(self, environment: Environment, home: Path, pipeline: Path, python: str | None) -> None:
        home.mkdir()
        self.environment, self.dags, self.root = environment, home / "dags", home / "jobs"
        extra = {} if python is None else {"python": python}
        connection = {"conn_type": "tidegate", "host": str(self.root), "extra": extra}
        self.variables = {
            "AIRFLOW_HOME": str(home / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW_CONN_TIDEGATE_DEFAULT": json.dumps(connection),
        }
        self.dags.mkdir()
        (self.dags / "slim.py").write_text(DAG)
        (self.dags / "digits.py").write_text(pipeline.read_text())
        migrated = self.python("-m", "airflow", "db", "migrate")
        assert migrated.returncode == 0, migrated.stderr

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS`."""
        return self.environment.run(*words, **self.variables)

    def run(self, **params: str) -> tuple[bool, str]:
        """Run the DAG `bounded`: whether it succeeded, and what the process wrote."""
        done = self.python("-c", RUN, str(self.dags), json.dumps(params))
        assert "state " in done.stdout, done.stdout + done.stderr
        return "state success" in done.stdout, done.stdout + done.stderr


@pytest.fixture(scope="module")
def airflow(
    slim_airflow: Environment, runtime: Environment, pipeline: Path, tmp_path_factory: pytest.TempPathFactory
) -> Airflow:
    """An Airflow whose connection names the drivers' interpreter."""
    return Airflow(slim_airflow, tmp_path_factory.mktemp("slim") / "home", pipeline, runtime.python)


def test_it_stands_beside_the_provider_of_spark(slim_airflow: Environment) -> None:
    installed = slim_airflow.distributions()
    assert {"tidegate", "pyspark-client", "apache-airflow-providers-apache-spark"} <= installed
    assert installed.isdisjoint({"pyspark", "numba", "llvmlite"})
    done = slim_airflow.run("-c", IMPORTS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-2]) > 50 and done.stdout.strip().endswith("[]")


def test_it_draws_a_dag(airflow: Airflow) -> None:
    drawn = airflow.python("-c", DRAWN, str(airflow.dags))
    assert drawn.stdout.split()[-1:] == ["4"], drawn.stderr


def test_it_runs_a_job_whose_driver_has_another_environment(airflow: Airflow, tmp_path: Path) -> None:
    out = tmp_path / "out"
    succeeded, words = airflow.run(job_id="digits", out=str(out), by="digit")
    assert succeeded, words
    rows = [json.loads(line) for file in out.glob("part-*.jsonl") for line in file.read_text().splitlines()]
    counts: Counter[int] = Counter()
    for row in rows:
        counts[row["digit"]] += row["n"]
    assert counts == dict.fromkeys(range(10), 500)
    view = airflow.python("-c", VIEW, "digits")
    status, snapshots = view.stdout.split()[-2:]
    assert status == "FINISHED" and int(snapshots) >= 1, view.stderr


def test_an_error_in_the_pipeline_reaches_the_airflow_task(airflow: Airflow, tmp_path: Path) -> None:
    succeeded, words = airflow.run(job_id="wrong", out=str(tmp_path / "out"), by="digti")
    assert not succeeded
    assert "there is no column 'digti'" in words and "did you mean 'digit'?" in words
    assert "digits.py:" in words


def test_without_an_interpreter_for_drivers_one_line_says_so(
    slim_airflow: Environment, pipeline: Path, tmp_path: Path
) -> None:
    airflow = Airflow(slim_airflow, tmp_path / "home", pipeline, python=None)
    succeeded, words = airflow.run(job_id="digits", out=str(tmp_path / "out"), by="digit")
    assert not succeeded
    (line,) = {line for line in words.splitlines() if line.startswith("airflow") and "cannot run a driver" in line}
    assert slim_airflow.python in line and 'Set "python" to an interpreter with tidegate[spark]' in line
    assert not airflow.root.exists() or not list(airflow.root.rglob("specs/*"))
