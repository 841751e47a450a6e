"""Make the golden jobs of this folder: job directories of one version, which every later version restores.

Run it with the interpreter of the version to keep: `python tests/golden/make.py <folder>`. For each state back end it
starts `pipelines/shop.py`, takes a savepoint mid-stream, stops with a savepoint, and packs the folder: job
directory, committed output and pipeline. The same version then starts another job from the first savepoint and
resumes the stopped one; `expected.json.xz` has the rows that both committed.
"""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

BACKENDS = ("heap", "rocksdb")
ROWS = 1500
RATE = 20
SAVEPOINT_AT = 500
FASTER = 100_000
"""Rows a second after a restore, so that a test does not wait for the rate of the first run."""
PLACEHOLDERS = {"folder": "@FOLDER@", "python": "@PYTHON@"}
"""In packed JSON files instead of absolute paths: of the job's folder, which sinks record, and of the interpreter."""
HERE = Path(__file__).parent
READERS = {".parquet": pa.parquet.read_table, ".csv": pa.csv.read_csv, ".jsonl": pa.json.read_json}


def run_verb(folder: Path, *arguments: str) -> str:
    """Run a verb of this interpreter's tidegate in a job's folder, and return its output."""
    command = [sys.executable, "-m", "tidegate.cli.main", *arguments, "--root", "jobs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arguments}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def pipeline_arguments(rate: int, out: Path) -> tuple[str, str]:
    """Return the flag that passes the arguments of `shop.build`."""
    return "--args-json", json.dumps({"rows": ROWS, "rate": rate, "out": str(out)})


def make(folder: Path, backend: str) -> None:
    """Start the job, take a savepoint mid-stream, then stop with another savepoint."""
    shutil.copytree(HERE / "pipelines", folder / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    options = {"parallelism": 2, "state_backend": backend, "checkpoint_interval": "8 s"}
    chosen = [text for name, value in options.items() for text in ("--option", f"{name}={value}")]
    start = ("start", "pipelines/shop.py:build", "--job-id", "shop", "--master", "local[2]")
    run_verb(folder, *start, *pipeline_arguments(RATE, folder / "out"), *chosen)
    while (
        max(s.get("records") or 0 for s in json.loads(run_verb(folder, "status", "shop", "--json"))["sources"])
        < SAVEPOINT_AT
    ):
        time.sleep(0.2)
    run_verb(folder, "savepoint", "shop")
    run_verb(folder, "stop", "shop")


def resume(folder: Path) -> dict[str, list[str]]:
    """Restore the stopped job and wait for its end. Return all rows that it committed, before and after the stop."""
    run_verb(folder, "restore", "shop", "--wait", *pipeline_arguments(FASTER, folder / "out"))
    return committed_rows(folder / "out")


def branch(folder: Path) -> dict[str, list[str]]:
    """Start another job from the mid-stream savepoint, with its own output folder. Return the rows that it commits."""
    snapshots = json.loads(run_verb(folder, "checkpoints", "shop", "--json"))["checkpoints"]
    savepoint = next(s["path"] for s in snapshots if s["kind"] == "savepoint")
    out = folder / "branch-out"
    code = ("--pipeline", "pipelines/shop.py:build", "--master", "local[2]")
    run_verb(
        folder, "restore", "branch", "--from", f"jobs/{savepoint}", *code, "--wait", *pipeline_arguments(FASTER, out)
    )
    return committed_rows(out)


def committed_rows(out: Path) -> dict[str, list[str]]:
    """Return the rows of each sink as JSON texts, sorted."""
    found: dict[str, list[str]] = {}
    for file in sorted(out.glob("*/*.*")):
        rows = READERS[file.suffix](file).to_pylist()
        found.setdefault(file.parent.name, []).extend(json.dumps(row, default=str, sort_keys=True) for row in rows)
    return {sink: sorted(rows) for sink, rows in found.items()}


def pack(folder: Path, archive: Path) -> None:
    """Put the job's folder into an archive that can be unpacked anywhere."""
    for file in folder.rglob("*.json"):
        text = file.read_text().replace(str(folder), PLACEHOLDERS["folder"])
        file.write_text(text.replace(sys.executable, PLACEHOLDERS["python"]))
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        packed.add(folder, arcname=".")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a job into a folder, whose path and interpreter the job's files then name."""
    with tarfile.open(archive) as packed:
        # Python 3.11 before 3.11.4 has no filters and ignores the attribute.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder)
    for file in folder.rglob("*.json"):
        text = file.read_text().replace(PLACEHOLDERS["folder"], str(folder))
        file.write_text(text.replace(PLACEHOLDERS["python"], sys.executable))


def main(out: Path) -> None:
    """Make and pack the jobs, and record the rows that every later version must commit, too."""
    out.mkdir(parents=True)
    expected = {}
    with tempfile.TemporaryDirectory() as scratch:
        for backend in BACKENDS:
            made, unpacked = Path(scratch) / backend, Path(scratch) / f"{backend}-again"
            make(made, backend)
            pack(made, out / f"{backend}.tar.xz")
            unpack(out / f"{backend}.tar.xz", unpacked)
            expected[backend] = {"branch": branch(unpacked), "resume": resume(unpacked)}
            print(
                backend, {how: {sink: len(rows) for sink, rows in of.items()} for how, of in expected[backend].items()}
            )
    with lzma.open(out / "expected.json.xz", "wt") as file:
        json.dump(expected, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
