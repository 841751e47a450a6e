"""A packed pipeline on real Spark: driver and slots take its code and its packages from the job directory alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from conftest import RealJob

from tidegate.cli.upkeep.pack import packed_pipeline
from tidegate.jobs.launch.local import launch_local

CODE = """
from dataclasses import dataclass

import pyarrow as pa
import tidegate_tiny_words
from tidegate import DataGen, Parquet, Pipeline


@dataclass(frozen=True)
class Arguments:
    out: str
    rows: int = 10


def build(arguments: Arguments) -> Pipeline:
    p = Pipeline()
    source = DataGen(tidegate_tiny_words.rows, pa.schema([("word", pa.string())]), rows=arguments.rows)
    p.read(source, uid="words").write(Parquet(arguments.out), uid="out")
    return p
"""
PACKAGE = """
def rows(numbers):
    return {"word": [f"word-{n}" for n in numbers.tolist()]}
"""


def install(words: Sequence[str]) -> None:
    """In the place of pip."""
    target = Path(words[words.index("--target") + 1])
    target.mkdir()
    (target / "tidegate_tiny_words.py").write_text(PACKAGE)


def test_slots_import_the_packages_that_were_packed(local_job: RealJob, tmp_path: Path) -> None:
    """S9.3: also when nothing of it lies where it was packed any more."""
    code, requirements, packed = tmp_path / "words.py", tmp_path / "requirements.txt", tmp_path / "words.zip"
    code.write_text(CODE)
    requirements.write_text("tidegate-tiny-words\n")
    data, _ = packed_pipeline(str(code), "words:build", str(requirements), install)
    packed.write_bytes(data)
    spec = local_job.client.submit(
        pipeline=str(packed),
        arguments={"rows": "25", "out": local_job.out},
        options=local_job.options,
        master=local_job.master,
    )
    code.unlink()
    packed.unlink()
    launch_local(local_job.client, spec)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert sorted(pq.read_table(local_job.out)["word"].to_pylist()) == sorted(f"word-{n}" for n in range(25))
