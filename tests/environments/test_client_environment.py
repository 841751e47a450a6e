"""`pip install tidegate`: the client reads and commands jobs, and names the extra for the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from environment import Environment

pytestmark = [pytest.mark.slow, pytest.mark.gate, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def root(runtime: Environment, pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A job root with the unbounded job `digits`, which runs on Spark."""
    root = tmp_path_factory.mktemp("root")
    out = f"out={root}/out"
    started = runtime.tidegate(
        *("start", f"{pipeline}:build", "--job-id", "digits", "--root", str(root), "--arg", out),
        *("--master", "local[1]", "--option", "parallelism=1"),
    )
    assert started.returncode == 0, started.stderr
    yield str(root)
    runtime.tidegate("cancel", "digits", "--root", str(root))


def test_it_installs_neither_spark_nor_arrow(client: Environment) -> None:
    installed = client.distributions()
    assert {"tidegate", "fsspec", "pendulum"} <= installed
    assert installed.isdisjoint({"pyspark", "pyarrow", "numpy", "numba", "pandas", "apache-airflow"})


def test_it_reads_and_commands_a_running_job(client: Environment, root: str) -> None:
    assert client.tidegate("--help").returncode == 0
    commands = [("checkpoint", "digits"), ("savepoint", "digits"), ("checkpoints", "digits"), ("list",)]
    commands += [("status", "digits"), ("logs", "digits"), ("stop", "digits"), ("status", "digits")]
    answers = [client.tidegate(*words, "--root", root, "--json") for words in commands]
    assert [answer.returncode for answer in answers] == [0] * len(commands), [answer.stderr for answer in answers]
    taken, listed, jobs, *_, stopped = (json.loads(answer.stdout) for answer in answers[1:])
    assert Path(root, taken["path"], "_metadata").is_file()
    assert len(listed["checkpoints"]) >= 2 and [job["job_id"] for job in jobs["jobs"]] == ["digits"]
    assert stopped["status"] == "STOPPED"


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("start", ("start", "digits.py:build", "--job-id", "another")),
        ("restore", ("restore", "digits")),
        ("rescale", ("rescale", "digits", "--parallelism", "2")),
        ("gc", ("gc", "digits")),
        ("snapshot inspect", ("snapshot", "inspect", "digits/checkpoints/chk-1")),
    ],
)
def test_a_verb_of_the_runtime_names_the_extra_in_one_line(
    client: Environment, tmp_path: Path, verb: str, words: tuple[str, ...]
) -> None:
    done = client.tidegate(*words, "--root", str(tmp_path))
    assert done.returncode == 12
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tidegate: `tidegate {verb}` needs the runtime: the package")
    missing = "numba, numpy, pyarrow, pyspark are not installed"
    assert line.endswith(f'{missing}. Run: pip install "tidegate[spark]"')


def test_an_agent_that_would_launch_drivers_without_the_runtime_does_not_begin(
    client: Environment, tmp_path: Path
) -> None:
    done = client.tidegate("agent", "--root", str(tmp_path))
    assert done.returncode == 12
    (line,) = done.stderr.splitlines()
    assert client.python in line and "Set --python to an interpreter with tidegate[spark]" in line


@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("import tidegate; tidegate.Pipeline", "spark"),
        ("from tidegate import Delta", "spark"),
        ("from tidegate.testing import run", "spark"),
        ("import tidegate.spark.driver", "spark"),
        ("import airflow_tidegate.operators.start", "airflow"),
        ("from tidegate.jobs.stores.store_registry import open_store; open_store('s3://bucket/root')", "s3"),
    ],
)
def test_an_import_that_needs_an_extra_names_it(client: Environment, statement: str, extra: str) -> None:
    done = client.run("-c", statement)
    assert done.returncode == 1
    assert f'pip install "tidegate[{extra}]"' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("sink", "extra"),
    [("Delta('/tmp/table')", "delta"), ("Postgres('postgresql://127.0.0.1/db', table='t')", "postgres")],
)
def test_a_connector_without_its_library_names_its_extra(
    runtime: Environment, tmp_path: Path, sink: str, extra: str
) -> None:
    (tmp_path / "pipe.py").write_text(
        "import pyarrow as pa\n"
        "from tidegate import DataGen, Delta, Pipeline, Postgres\n"
        "def build():\n"
        "    p = Pipeline()\n"
        "    source = DataGen(lambda numbers: {'n': numbers}, pa.schema([('n', pa.int64())]), rows=1)\n"
        f"    p.read(source, uid='in').write({sink}, uid='out')\n"
        "    return p\n"
    )
    done = runtime.tidegate("start", f"{tmp_path}/pipe.py:build", "--job-id", "j", "--root", str(tmp_path / "root"))
    assert done.returncode in (3, 12), done.stderr
    assert f'pip install "tidegate[{extra}]"' in done.stderr.splitlines()[-1]
