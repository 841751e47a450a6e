"""Runs every conformance suite of a connector, and whole jobs on real systems while processes are killed.

`make connectors` prints a line for each connector, and last the sums. A connector counts if its class belongs to
`tidegate.connectors`, and all its conformance tests have passed. Lost and duplicated rows are differences between the
ledger of the generator and what an independent reader of the system sees. Each comparison first removes and repeats a
row, and must see both. A death counts as an interrupted commit if the decision log shows a checkpoint between the
pre-commit of the sinks and the entry that it is committed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
OWN = "tidegate.connectors."
WHOLE_JOBS = (
    "test_delta_job.py",
    "test_delta_mirror_on_spark.py",
    "test_delta_source_on_spark.py",
    "test_going_back_on_spark.py",
    "test_iceberg_on_spark.py",
    "test_kafka_on_spark.py",
    "test_kafka_sink_jobs.py",
    "test_kafka_to_kafka_on_spark.py",
    "test_postgres_jobs.py",
    "test_postgres_mirror_on_spark.py",
    "test_pyspark_source_on_spark.py",
    "test_watched_folder_on_spark.py",
)
"""Tests on real Spark and real systems, in tests/integration."""
FEWEST = {"source": 11, "sink": 9}
"""Fewest connectors that pass: with fewer, a suite is missing or was left out."""
FAILED = re.compile(r"^(?:FAILED|ERROR) ", re.MULTILINE)
LEFT_OUT = re.compile(r"^(\d+) (?:files of )?tests? needs? ", re.MULTILINE)


def suites() -> list[str]:
    """Return the test files with conformance suites of connectors."""
    folders = (REPOSITORY / "tests" / "unit" / "connectors", REPOSITORY / "tests" / "integration")
    files = (path for folder in folders for path in sorted(folder.glob("test_*.py")))
    return [str(path) for path in files if re.search(r"(Source|Sink)Conformance", path.read_text())]


def run(files: list[str], report: Path, *options: str) -> str:
    """Run tests with the report. Return their output, which is shown, too."""
    command = [sys.executable, "-m", "pytest", "-p", "connector_report", "-q", *options, *files]
    environment = {
        **os.environ,
        "TIDEGATE_CONNECTOR_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "tests" / "support"), os.environ.get("PYTHONPATH", "")]),
    }
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        # pytest may have ended before it could name a failed test.
        lines.append("\nFAILED the run of the tests\n" if not FAILED.search("".join(lines)) else "")
    return "".join(lines)


def conclude(entries: list[dict[str, Any]], output: str) -> int:
    """Print the results; return the exit code."""
    outcomes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for entry in entries:
        if entry["kind"] == "conformance":
            outcomes[entry["role"], entry["connector"]][entry["outcome"]] += 1
    passed: Counter[str] = Counter()
    for (role, connector), counts in sorted(outcomes.items()):
        whole = set(counts) == {"passed"}
        passed[role] += whole and connector.startswith(OWN)
        print(f"{role:6} {connector.rpartition(':')[2]:16} {dict(counts)}")
    ledgers = [entry for entry in entries if entry["kind"] == "ledger"]
    for entry in ledgers:
        facts = f"{entry['rows']:,} rows, {entry['lost']} lost, {entry['duplicated']} duplicated"
        print(f"ledger {entry['connectors']:24} {facts}")
    tests = sum(counts.total() for counts in outcomes.values())
    failed = len(FAILED.findall(output))
    skipped = sum(int(number) for number in LEFT_OUT.findall(output)) + sum(c["skipped"] for c in outcomes.values())
    deaths = [entry for entry in entries if entry["kind"] == "deaths"]
    died, interrupted = (sum(entry[name] for entry in deaths) for name in ("died", "interrupted"))
    lost, duplicated = (sum(entry[name] for entry in ledgers) for name in ("lost", "duplicated"))
    rows = sum(entry["rows"] for entry in ledgers)
    print(
        f"connectors: {passed['source']} sources, {passed['sink']} sinks, {tests} conformance tests, {failed} failed, "
        f"{lost} lost, {duplicated} duplicated, {rows} rows in {len(ledgers)} comparisons, {died} deaths of "
        f"runs, {interrupted} of them interrupted an open commit, skipped {skipped}"
    )
    too_few = any(passed[role] < fewest for role, fewest in FEWEST.items()) or not interrupted
    unchecked = not ledgers or not all(entry["checked_itself"] for entry in ledgers)
    return 1 if failed or lost or duplicated or skipped or too_few or unchecked else 0


def main() -> int:
    """Run everything."""
    with tempfile.TemporaryDirectory(prefix="connectors-") as folder:
        report = Path(folder, "report.jsonl")
        report.touch()
        output = run(suites(), report, "-n", "2", "--dist", "loadfile")
        output += run([str(REPOSITORY / "tests" / "integration" / name) for name in WHOLE_JOBS], report)
        return conclude([json.loads(line) for line in report.read_text().splitlines()], output)


if __name__ == "__main__":
    sys.exit(main())
