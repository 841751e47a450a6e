"""`make house`: prints figures of the code layout, one per line.

Cycles are counted between modules, and between the children of each package. Imports inside functions and for type
checkers count. The wheel is built. The size of an Airflow image with and without tidegate is measured in a fresh
environment (`tools/airflow_image.py`), which takes a minute and needs the package index.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

from airflow_image import added_bytes
from import_graph import all_cycles, import_graph, modules_of

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = (REPOSITORY / "spark_runtime", REPOSITORY / "provider")
IMPORT_RUNS = 3
"""Number of measurements; the fastest counts, because the first one fills the disk cache."""
NOT_SHIPPED = ("simulator", "state_suites", "store_suites", "conftest")
"""Parts of file names that must not be in the wheel."""


def build_wheel(folder: str) -> Path:
    """Build the wheel of this checkout.

    setuptools leaves a copy of the modules in `build` and would pack the stale ones of that copy the next time.
    """
    shutil.rmtree(REPOSITORY / "build", ignore_errors=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(REPOSITORY / "build", ignore_errors=True)
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


def loaded_by(code: str) -> tuple[int, float]:
    """Return the number of modules that are loaded after `code`, and the CPU seconds of the whole process."""
    tail = "import sys, time; print(len(sys.modules), time.process_time())"
    runs = []
    for _ in range(IMPORT_RUNS):
        command = [sys.executable, "-c", f"{code}\n{tail}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tempfile.gettempdir())
        modules, seconds = done.stdout.split()[-2:]
        runs.append((int(modules), float(seconds)))
    return runs[0][0], min(seconds for _, seconds in runs)


def status_verb(root: str) -> str:
    """Return code that runs `tidegate status` for a job that does not exist, which loads the modules of the verb."""
    arguments = ["status", "nobody", "--root", root]
    return f"from tidegate.cli.main import main\ntry:\n    main({arguments!r})\nexcept SystemExit:\n    pass"


def main() -> int:
    """Print the figures; return 1 if one of them exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-image", action="store_true", help="do not install Airflow")
    options = parser.parse_args()
    modules = modules_of(ROOTS)
    shipped = [path for path in modules.values() if path.name != "__init__.py"]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules.values()}
    folders = Counter(path.parent.relative_to(REPOSITORY).as_posix() for path in shipped)
    largest, size = folders.most_common(1)[0]
    cycles = all_cycles(import_graph(modules))
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(folder)
        wheel_mb = wheel.stat().st_size / 1e6
        extra = [name for name in zipfile.ZipFile(wheel).namelist() if any(part in name for part in NOT_SHIPPED)]
        image_mb = None if options.without_image else added_bytes(wheel) / 1e6
        status_modules, status_s = loaded_by(status_verb(folder))
    start_modules, start_s = loaded_by("import airflow_tidegate.operators.start")
    print(f"folders: {len(folders)}, the largest {largest} with {size} modules")
    print(f"modules: {len(shipped)}, the median has {statistics.median(lines[path] for path in shipped):.0f} lines")
    for cycle in cycles:
        print(f"cycle: {cycle}")
    print(f"`tidegate status`: {status_modules} modules, {status_s:.2f} CPU s")
    print(f"`import airflow_tidegate.operators.start`: {start_modules} modules, {start_s:.2f} CPU s")
    for name in extra:
        print(f"in the wheel, but not needed to run a job: {name}")
    image = "not measured" if image_mb is None else f"+{image_mb:.0f} MB"
    print(
        f"house: {len(modules)} files, {sum(lines.values())} lines, largest folder {size}, "
        f"import cycles {len(cycles)}, wheel {wheel_mb:.1f} MB, airflow image {image}"
    )
    return 1 if cycles or size > 20 or extra or status_modules >= 200 or (image_mb or 0) > 20 else 0


if __name__ == "__main__":
    raise SystemExit(main())
