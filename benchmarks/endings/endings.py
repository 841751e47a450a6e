"""Measures what happens to rows when a job ends: tidegate and Flink, six cases, event-time and processing-time windows.

    python benchmarks/endings/endings.py --write

Creates an environment with PyPI's apache-flink below .work; runs the same cases on tidegate (real Spark), in Flink's
SQL and in its DataStream API; prints the tables, and with `--write` puts them into docs/endings.md. It takes about 20
minutes, most of them waiting for processing-time windows to close.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import put, tables

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from results import machine  # noqa: E402

DOCUMENT = REPOSITORY / "docs" / "endings.md"
WORK = REPOSITORY / ".work" / "endings"
FLINK = "apache-flink==2.3.0"
FLINK_PYTHONS = ((3, 10), (3, 11), (3, 12))
"""Python versions that it has wheels for and that this project's scripts support."""
SIDES = {
    "tidegate": ("tidegate_job.py",),
    "Flink, SQL": ("flink_job.py", "sql"),
    "Flink, DataStream": ("flink_job.py", "datastream"),
}


def flink_python(folder: Path) -> Path:
    """Return an interpreter with apache-flink, installed on the first call. FLINK_PYTHON chooses its Python."""
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if done.exists() and done.read_text() == FLINK:
        return python
    base = os.environ.get("FLINK_PYTHON", sys.executable)
    told = subprocess.run(
        [base, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=True
    )
    if tuple(map(int, told.stdout.split())) not in FLINK_PYTHONS:
        raise SystemExit(
            f"{base} is Python {'.'.join(told.stdout.split())}, but {FLINK} has packages for Python 3.10, 3.11 and 3.12"
            " only. Set FLINK_PYTHON to one of these, such as FLINK_PYTHON=python3.12"
        )
    print(f"installing {FLINK} into {folder} (once; some 700 MB)", file=sys.stderr)
    environment = {**pip_settings(), **os.environ}
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", base, str(folder)], env=environment, check=True)
    install = [*uv, "pip", "install", "--quiet", "--python", str(python), FLINK]
    subprocess.run(install, env=environment, check=True)
    done.write_text(FLINK)
    return python


def pip_settings() -> dict[str, str]:
    """Return pip's package mirror and certificates as environment variables for uv, which does not read pip's
    settings."""
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    found = dict(re.findall(r"^(?:global|install|:env:)\.(index-url|cert)='(.*)'$", told.stdout, flags=re.MULTILINE))
    names = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}
    return {names[name]: value for name, value in found.items()}


def play(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Play all lives on one side: {"version", "lives"}."""
    (folder / "log").mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "FLINK_LOG_DIR": str(folder / "log")}
    subprocess.run([*command, str(folder)], env=environment, check=True)
    return dict(json.loads((folder / "lives.json").read_text(encoding="utf-8")))


def java_version() -> str:
    """Return the version of the Java that both use."""
    told = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "([^"]+)"', told)
    return found[1] if found else "unknown"


def lines_of(command: str, sides: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines for the document."""
    versions = f"tidegate {sides['tidegate']['version']}. Flink {sides['Flink, SQL']['version']}"
    intro = f"`{command}`: {versions}. Parallelism 1; Java {java_version()}; {machine()}."
    return [intro, "", *tables({side: facts["lives"] for side, facts in sides.items()})]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/endings.md")
    parser.add_argument("--in-process", action="store_true", help="play tidegate's lives without Spark")
    parser.add_argument("--resume", action="store_true", help="keep the results of an interrupted run")
    parser.add_argument("--work", type=Path, default=WORK, help="folder for jobs, their output and Flink's environment")
    parsed = parser.parse_args(arguments)
    work: Path = parsed.work.resolve()
    python = flink_python(work / "flink")
    if not parsed.resume:
        shutil.rmtree(work / "runs", ignore_errors=True)
    sides = {}
    for number, side in enumerate(SIDES):
        print(f"{side}:", file=sys.stderr)
        runs_on = Path(sys.executable) if side == "tidegate" else python
        script, *api = SIDES[side]
        script = "in_process_job.py" if side == "tidegate" and parsed.in_process else script
        sides[side] = play([str(runs_on), str(HERE / script), *api], work / "runs" / str(number))
    command = "make flink-endings" + (" IN_PROCESS=1" if parsed.in_process else "")
    lines = lines_of(command, sides)
    print("\n".join(lines))
    if parsed.write:
        DOCUMENT.write_text(put(DOCUMENT.read_text(encoding="utf-8"), lines), encoding="utf-8")


if __name__ == "__main__":
    main()
