"""What the documents show works, and what they link to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])
LONGEST_EXAMPLE = 25
"""Lines; the examples are to be read at a glance."""


def example(containing: str) -> str:
    """The README's Python example that contains the text."""
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    (found,) = (block for block in blocks if containing in block)
    return str(found)


def links(document: Path) -> list[str]:
    """Relative targets of a document's links."""
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    return [target for target in found if "://" not in target]


def anchors(document: Path) -> set[str]:
    """Numbers of the rules that a document defines: `S3.4`."""
    rules: set[str] = set()
    section = ""
    for line in document.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## (?:(S\d+) )?", line):
            section = heading[1] or ""
            if section:
                rules.add(section)
        elif section and (rule := re.match(r"(\d+)\. ", line)):
            rules.add(f"{section}.{rule[1]}")
    return rules


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_what_a_document_links_to_is_there(document: Path) -> None:
    assert [target for target in links(document) if not (document.parent / target).exists()] == []


def test_every_rule_that_code_and_tests_cite_is_in_the_semantics() -> None:
    defined = anchors(REPOSITORY / "docs" / "semantics.md")
    assert {"S1.1", "S7.8", "S9.4"} <= defined
    unknown = {
        f"{path.relative_to(REPOSITORY).as_posix()}: {rule}"
        for folder in ("spark_runtime", "provider", "tests", "docs")
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in (".py", ".md")
        for rule in re.findall(r"\bS[1-9]\.\d+\b", path.read_text(encoding="utf-8"))
        if rule not in defined
    }
    assert unknown == set()


def test_the_pipeline_of_the_readme_builds(tmp_path: Path) -> None:
    times = pa.array([datetime(2013, 1, 1, 5)], pa.timestamp("us"))
    flights = pa.table({"time_hour": times, "carrier": ["UA"], "dep_delay": [2.0]})
    pq.write_table(flights, tmp_path / "flights.parquet")
    pq.write_table(pa.table({"carrier": ["UA"], "name": ["United"]}), tmp_path / "airlines.parquet")
    names: dict[str, object] = {}
    text = example("def build(args)")
    exec(compile(text, "README.md", "exec"), names)
    arguments = {
        "flights": tmp_path / "flights.parquet",
        "airlines": tmp_path / "airlines.parquet",
        "out": tmp_path / "out",
    }
    build = names["build"]
    assert callable(build)
    graph = build({name: str(path) for name, path in arguments.items()}).build()
    assert {"flights", "airlines", "airline-name", "daily-delay", "out"} <= {node.uid for node in graph.nodes}
    assert len(text.splitlines()) <= LONGEST_EXAMPLE


def test_the_dag_of_the_readme_is_a_dag() -> None:
    text = example("with DAG(")
    check = "\nassert sorted(d.task_id for d in start.dag.tasks) == "
    check += "['checkpointed', 'drain', 'played', 'restore', 'start', 'suspend']\n"
    check += "assert start.dag.get_task('drain').upstream_task_ids == {'played'}\n"
    run = subprocess.run([sys.executable, "-c", text + check], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert len(text.splitlines()) <= LONGEST_EXAMPLE


def test_every_make_target_that_the_documents_name_exists() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE))
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    named = {name for text in texts for name in re.findall(r"(?:`|^)make ([a-z0-9-]+)", text, flags=re.MULTILINE)}
    assert {"demo", "test", "bench-w1"} <= named
    assert named <= targets
