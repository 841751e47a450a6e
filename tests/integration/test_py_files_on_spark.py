"""A packed pipeline that Spark brings along (--py-files) to a real standalone cluster, for the code of other jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import RealJob
from test_packed_pipeline_on_spark import CODE, install

from tidegate.cli.upkeep.pack import packed_pipeline
from tidegate.jobs.launch.launcher import LauncherSettings
from tidegate.jobs.launch.spark_submit import SparkSubmitLauncher

FLOW = """
from words import Arguments, build as packed


def build(args):
    return packed(Arguments(args["out"], int(args["rows"])))
"""


class BesideJob(RealJob):
    """A job whose pipeline is one file, which imports what Spark brings."""

    def begin(self, flow: Path, packed: Path, mode: str) -> None:
        """Submit, and launch by spark-submit."""
        spec = self.client.submit(
            pipeline=f"{flow}:build",
            arguments={"rows": 25, "out": self.out},
            options={**self.options, "execution_mode": mode, "restart_strategy": "none"},
            master=self.master,
            spark_conf={"spark.submit.pyFiles": str(packed), "spark.driver.memory": "512m"},
        )
        SparkSubmitLauncher(LauncherSettings("spark-submit")).launch(self.client, spec)
        self._pids.append(self.driver_pid())


@pytest.fixture
def beside_job(standalone_cluster: str, tmp_path: Path) -> Iterator[BesideJob]:
    """On the standalone cluster."""
    job = BesideJob(tmp_path, standalone_cluster)
    yield job
    job.end()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_driver_and_executors_import_code_and_packages_of_a_packed_pipeline_given_by_py_files(
    beside_job: BesideJob, tmp_path: Path, mode: str
) -> None:
    """S9.3: nothing of it lies where it was packed any more, and it is in no job directory."""
    code, flow = tmp_path / "code" / "words.py", tmp_path / "flow" / "flow.py"
    requirements, packed = tmp_path / "requirements.txt", tmp_path / "words.zip"
    for file, text in ((code, CODE), (flow, FLOW), (requirements, "tidegate-tiny-words\n")):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    data, _ = packed_pipeline(str(code), "words:build", str(requirements), install)
    packed.write_bytes(data)
    code.unlink()
    beside_job.begin(flow, packed, mode)
    view = beside_job.until(lambda view: view.status.value in ("FINISHED", "FAILED"), "its end", 400.0)
    assert view.status.value == "FINISHED", f"{view.failure}\n{beside_job.logs()[-4000:]}"
    assert sorted(pq.read_table(beside_job.out)["word"].to_pylist()) == sorted(f"word-{n}" for n in range(25))
