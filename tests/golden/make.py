"""Make the golden jobs of this folder: whole job directories of one version, which every later version restores.

Run it with the interpreter of the version to keep: `python tests/golden/make.py <folder>`. For each state back end it
starts `pipelines/shop.py`, takes a savepoint in the middle, stops with a savepoint, and packs the folder: job
directory, committed output and pipeline. The same version then starts another job from the savepoint in the middle and
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
"""Rows a second after a restore: nobody has to wait for the rest."""
FOLDER = "@FOLDER@"
"""Stands for the absolute path of the job's folder in packed JSON files: sinks record it, and a test has its own."""
HERE = Path(__file__).parent
READERS = {".parquet": pa.parquet.read_table, ".csv": pa.csv.read_csv, ".jsonl": pa.json.read_json}


def run_verb(folder: Path, *arguments: str) -> str:
    """Run one verb of this interpreter's tidegate in a job's folder; its output."""
    command = [sys.executable, "-m", "tidegate.cli.main", *arguments, "--root", "jobs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arguments}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def pipeline_arguments(rate: int, out: Path) -> tuple[str, str]:
    """Arguments of `shop.build`, as a verb takes them."""
    return "--args-json", json.dumps({"rows": ROWS, "rate": rate, "out": str(out)})


def make(folder: Path, backend: str) -> None:
    """Start the job, take a savepoint in the middle, stop with another one."""
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
    """Restore the stopped job and let it end; all rows that it has committed, before and after."""
    run_verb(folder, "restore", "shop", "--wait", *pipeline_arguments(FASTER, folder / "out"))
    return committed_rows(folder / "out")


def branch(folder: Path) -> dict[str, list[str]]:
    """Start another job from the savepoint in the middle, with folders of its own; the rows that it commits."""
    snapshots = json.loads(run_verb(folder, "checkpoints", "shop", "--json"))["checkpoints"]
    savepoint = next(s["path"] for s in snapshots if s["kind"] == "savepoint")
    out = folder / "branch-out"
    code = ("--pipeline", "pipelines/shop.py:build", "--master", "local[2]")
    run_verb(
        folder, "restore", "branch", "--from", f"jobs/{savepoint}", *code, "--wait", *pipeline_arguments(FASTER, out)
    )
    return committed_rows(out)


def committed_rows(out: Path) -> dict[str, list[str]]:
    """Rows of each sink as JSON texts, sorted."""
    found: dict[str, list[str]] = {}
    for file in sorted(out.glob("*/*.*")):
        rows = READERS[file.suffix](file).to_pylist()
        found.setdefault(file.parent.name, []).extend(json.dumps(row, default=str, sort_keys=True) for row in rows)
    return {sink: sorted(rows) for sink, rows in found.items()}


def pack(folder: Path, archive: Path) -> None:
    """Put the job's folder into an archive that can be unpacked anywhere."""
    for file in folder.rglob("*.json"):
        file.write_text(file.read_text().replace(str(folder), FOLDER))
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        packed.add(folder, arcname=".")


def unpack(archive: Path, folder: Path) -> None:
    """The folder as it was packed, with its own path."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    for file in folder.rglob("*.json"):
        file.write_text(file.read_text().replace(FOLDER, str(folder)))


def main(out: Path) -> None:
    """Make, pack, and record what is expected of every later version."""
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
