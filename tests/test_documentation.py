"""What the documents show works, and what they link to is there."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tidegate
from tidegate import Pusher, PushSource
from tidegate.connectors.interface import SourceContext, Split
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import CommandResult, encode
from tidegate.testing.in_process_job import InProcessJob

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])
LONGEST_EXAMPLE = 25
"""Lines; the examples are to be read at a glance."""


def example(containing: str, document: str = "README.md") -> str:
    """The document's Python example that contains the text."""
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / document).read_text(encoding="utf-8"), flags=re.DOTALL)
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


def test_the_index_lists_every_decision_record_once_with_its_title_and_without_gaps() -> None:
    folder = REPOSITORY / "docs" / "adr"
    records = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    lines = [
        f"| [{path.name[:4]}]({path.name}) | {path.read_text(encoding='utf-8').splitlines()[0].partition(': ')[2]} |"
        for path in records
    ]
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert [line for line in index.splitlines() if line.startswith("| [")] == lines


def test_every_decision_record_that_code_and_documents_cite_exists() -> None:
    numbers = {int(path.name[:4]) for path in (REPOSITORY / "docs" / "adr").glob("0*.md")}
    cited = {
        int(number)
        for folder in ("spark_runtime", "provider", "tests", "docs", "tools")
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in (".py", ".md")
        for number in re.findall(r"\bADR\s+(\d+)", path.read_text(encoding="utf-8"))
    }
    assert len(cited) > 5
    assert cited <= numbers


def headings(document: Path) -> set[str]:
    """Anchors of a document, as GitHub makes them of headings, and those that it sets itself."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_the_headings_that_a_document_links_to_exist(document: Path) -> None:
    found = re.findall(r"\]\(([^)#\s:]*\.md)?#([^)]+)\)", document.read_text(encoding="utf-8"))
    targets = {(document.parent / path if path else document, anchor) for path, anchor in found}
    assert [(path.name, anchor) for path, anchor in targets if anchor not in headings(path)] == []


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


def test_the_pipeline_of_the_kafka_page_builds() -> None:
    """Without a broker and without the secret, as in Airflow."""
    names: dict[str, object] = {}
    exec(compile(example("with_watermark", "docs/connectors/kafka.md"), "kafka.md", "exec"), names)
    build = names["build"]
    assert callable(build)
    graph = build({"out": "memory://kafka-page"}).build()
    assert {"orders", "per_minute", "out"} <= {node.uid for node in graph.nodes}


def test_the_settings_for_tls_of_the_kafka_page_are_known_to_the_client() -> None:
    """Without the files. A password in them would be refused."""
    from tidegate.connectors.kafka.cluster import KafkaCluster

    names: dict[str, object] = {}
    exec(compile(example("TLS = {", "docs/connectors/kafka.md"), "kafka.md", "exec"), names)
    settings = names["TLS"]
    assert isinstance(settings, dict) and callable(names["build"])
    assert KafkaCluster("broker1:9093", settings).settings["ssl.key.password"].startswith("secret:")
    page = (REPOSITORY / "docs/connectors/kafka.md").read_text().partition("### TLS")[2].partition("### Cost")[0]
    assert {f"`{name}`" for name in settings if name.startswith("ssl.")} <= set(re.findall(r"`[a-z.]+`", page))


def test_the_program_of_the_readme_takes_a_savepoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "delays.py").write_text("def build(args): ...\n")
    job = JobClient(str(tmp_path / "root"), "delays")
    job.submit(pipeline=f"{tmp_path}/delays.py:build", master="local[1]")
    text = example("import JobClient")
    taken = CommandResult("nightly-2026-11-23", True, "done", "", {"path": "delays/savepoints/1"}, 1, "")
    job.store.create(job.layout.result(taken.command_id), encode(taken))
    exec(compile(text.replace("/data/jobs", str(tmp_path / "root")), "README.md", "exec"), {})
    assert capsys.readouterr().out == "CREATED\ndelays/savepoints/1\n"
    sent = job.command(taken.command_id)
    assert sent is not None and (sent.verb, sent.issued_by) == ("savepoint", "nightly.py")
    assert len(text.splitlines()) <= LONGEST_EXAMPLE


def test_the_process_of_the_documents_tells_of_orders_that_are_not_paid_in_time(tmp_path: Path) -> None:
    """S5.1: run in this process to its end."""
    events = [(1, "order", 0), (2, "order", 1), (1, "paid", 4), (3, "order", 5), (2, "paid", 12), (3, "paid", 15)]
    events += [(4, "order", 40)]
    columns = [
        pa.array([order for order, _, _ in events]),
        pa.array([what for _, what, _ in events]),
        pa.array([datetime(2026, 1, 1, 0, minute) for _, _, minute in events], pa.timestamp("us")),
    ]
    pq.write_table(pa.table(columns, names=["order", "what", "time"]), tmp_path / "events.parquet")
    text = example("class Overdue", "docs/state.md")
    names: dict[str, Any] = {}
    exec(compile(text, "state.md", "exec"), names)
    arguments = {"events": str(tmp_path / "events.parquet"), "out": str(tmp_path / "out")}
    outcome = InProcessJob(lambda: names["build"](arguments), {"parallelism": 2}).submit().to_end()
    assert isinstance(outcome, RunEnded)
    found = sorted((row["order"], row["due"].minute) for row in pq.read_table(tmp_path / "out").to_pylist())
    assert found == [(2, 11), (4, 50)]


def test_the_broadcast_process_of_the_documents_tells_of_accounts_over_their_limit(tmp_path: Path) -> None:
    """S5.1: run in this process to its end."""
    pq.write_table(pa.table({"kind": ["card"], "most": [10]}), tmp_path / "limits.parquet")
    payments = {"account": [1, 1, 2, 2], "kind": ["card", "card", "card", "cash"], "amount": [6, 5, 9, 90]}
    pq.write_table(pa.table(payments), tmp_path / "payments.parquet")
    names: dict[str, Any] = {name: getattr(tidegate, name) for name in tidegate.__all__} | {"pa": pa, "pc": pc}
    exec(compile(example("class OverLimit", "docs/pipelines.md"), "pipelines.md", "exec"), names)
    arguments = {name: str(tmp_path / f"{name}.parquet") for name in ("limits", "payments")}
    arguments["out"] = str(tmp_path / "out")
    outcome = InProcessJob(lambda: names["build"](arguments)).submit().to_end()
    assert isinstance(outcome, RunEnded)
    rows = [tuple(row.values()) for row in pq.read_table(tmp_path / "out").to_pylist()]
    assert rows == [(1, "card", 11, 10)]


def test_the_joins_of_the_documents_bring_orders_payments_rates_and_shops_together(tmp_path: Path) -> None:
    """S8.2: run in this process to its end."""

    def at(*hours: int) -> pa.Array:
        return pa.array([datetime(2026, 1, 1) + timedelta(hours=hour) for hour in hours], pa.timestamp("us"))

    orders = {"order": [1, 2], "ordered": at(10, 20), "currency": ["USD", "USD"], "shop": [7, 8]}
    tables = {
        "orders": orders,
        "payments": {"order": [1, 2], "paid": at(15, 90), "amount": [5.0, 6.0]},
        "rates": {"currency": ["USD", "USD"], "published": at(1, 12), "rate": [0.5, 0.75]},
        "shops": {"id": [7], "name": ["Seven"]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    names: dict[str, Any] = {name: getattr(tidegate, name) for name in tidegate.__all__}
    text = example('uid="paid-orders"', "docs/pipelines.md")
    exec(compile(text, "pipelines.md", "exec"), names)
    arguments = {name: str(tmp_path / f"{name}.parquet") for name in tables} | {"out": str(tmp_path / "out")}
    outcome = InProcessJob(lambda: names["build"](arguments), {"parallelism": 2}).submit().to_end()
    assert isinstance(outcome, RunEnded)
    found = pq.read_table(tmp_path / "out").select(["order", "amount", "rate", "id", "name"])
    assert [tuple(row.values()) for row in found.to_pylist()] == [(1, 5.0, 0.5, 7, "Seven")]


def shown_pipeline(containing: str, given: dict[str, Any], arguments: dict[str, str]) -> None:
    """Run the example of docs/pipelines.md to its end. Args: given: names that it leaves to the reader."""
    names: dict[str, Any] = {name: getattr(tidegate, name) for name in tidegate.__all__} | {"pa": pa, "pc": pc} | given
    exec(compile(example(containing, "docs/pipelines.md"), "pipelines.md", "exec"), names)
    outcome = InProcessJob(lambda: names["build"](arguments)).submit().to_end()
    assert isinstance(outcome, RunEnded)


def test_the_side_outputs_shown_take_what_cannot_be_read(tmp_path: Path) -> None:
    times = pa.array([datetime(2024, 1, day) for day in (1, 1, 2)], pa.timestamp("us"))
    pq.write_table(pa.table({"time": times, "shop": ["a", "a", "b"], "amount": [3, None, 5]}), tmp_path / "o.parquet")
    arguments = {name: str(tmp_path / name) for name in ("bad", "late", "out")}
    shown_pipeline("def parse", {}, {"orders": str(tmp_path / "o.parquet"), **arguments})
    assert pq.read_table(tmp_path / "bad").to_pydict()["shop"] == ["a"]
    assert sorted(pq.read_table(tmp_path / "out")["total"].to_pylist()) == [3, 5]


def test_the_asynchronous_calls_shown_ask_for_every_row(tmp_path: Path) -> None:
    class Session:
        """Of a client library: answers with a name for each number that is posted."""

        def post(self, url: str, json: list[int]) -> Session:
            self.numbers = json
            return self

        async def __aenter__(self) -> Session:
            return self

        async def __aexit__(self, *error: object) -> None:
            return None

        async def json(self) -> list[str]:
            return [f"customer {number}" for number in self.numbers]

    pq.write_table(pa.table({"customer": list(range(1_200))}), tmp_path / "o.parquet")
    arguments = {name: str(tmp_path / name) for name in ("unanswered", "out")}
    given = {"session": Session, "URL": "https://customers"}
    shown_pipeline("async def customer", given, {"orders": str(tmp_path / "o.parquet"), **arguments})
    assert sorted(pq.read_table(tmp_path / "out")["name"].to_pylist()) == sorted(f"customer {n}" for n in range(1_200))


def test_the_stateful_processor_that_the_page_of_pipelines_shows_tells_of_orders(tmp_path: Path) -> None:
    times = [datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in (1, 1, 1, 9)]
    orders = {"order": ["a", "b", "a", "c"], "paid": [False, False, True, True], "time": times}
    pq.write_table(pa.table(orders), tmp_path / "orders.parquet")
    names: dict[str, Any] = {name: getattr(tidegate, name) for name in tidegate.__all__}
    exec(compile(example("class Overdue(StatefulProcessor)", "docs/pipelines.md"), "pipelines.md", "exec"), names)
    arguments = {"orders": str(tmp_path / "orders.parquet"), "out": str(tmp_path / "out")}
    outcome = InProcessJob(lambda: names["build"](arguments)).submit().to_end()
    assert isinstance(outcome, RunEnded)
    rows = [tuple(row.values()) for row in pq.read_table(tmp_path / "out").to_pylist()]
    assert rows == [("b", int(times[0].timestamp() * 1000) + 3_600_000)]


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


def rules_tool() -> ModuleType:
    """tools/rules.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("rules_tool", REPOSITORY / "tools" / "rules.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool
    spec.loader.exec_module(tool)
    return tool


def linked_tests() -> list[tuple[str, str]]:
    """(rule, test) of every row of the tables in docs/protocol.md."""
    text = (REPOSITORY / "docs" / "protocol.md").read_text(encoding="utf-8")
    return re.findall(r"^\| (S\d\.\d+) \| `(test_\w+)` \|$", text, flags=re.MULTILINE)


def test_every_test_that_the_protocol_names_exists_once_or_in_a_suite_and_cites_the_rule_beside_it() -> None:
    proofs = rules_tool().findings_of(REPOSITORY).proofs
    citing = {
        (str(rule), citation.name.rpartition("::")[2])
        for rule, citations in proofs.items()
        for citation in citations
        if not citation.whole_module
    }
    assert [row for row in linked_tests() if row not in citing] == []
    text = (REPOSITORY / "docs" / "protocol.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\btest_\w+", text))
    assert named == {test for _, test in linked_tests()}, "a test is named outside the tables, or a row is malformed"


def test_the_protocol_links_every_rule_of_the_core_to_a_test() -> None:
    semantics = rules_tool().findings_of(REPOSITORY).semantics
    core = {
        str(rule)
        for rule in semantics.rules
        if rule.section in (1, 2, 3, 4, 9) and semantics.open.get(rule, ("",))[0] != "whole"
    }
    assert core - {rule for rule, _ in linked_tests()} == set()


def test_every_module_that_the_protocol_names_exists() -> None:
    text = (REPOSITORY / "docs" / "protocol.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_]+/[a-z_]+\.py)`", text)
    assert len(named) > 8
    assert [path for path in named if not (REPOSITORY / "spark_runtime" / "tidegate" / path).exists()] == []


def test_the_push_source_of_the_documents_emits_what_its_feed_calls_back() -> None:
    subscribed: list[tuple[int, Any, Any]] = []
    feed = SimpleNamespace(
        subscribe=lambda shard, *, after, call: subscribed.append((shard, after, call)), unsubscribe=lambda: None
    )
    names: dict[str, Any] = {
        "PushSource": PushSource,
        "Pusher": Pusher,
        "Split": Split,
        "pa": pa,
        "partial": partial,
        "feed": feed,
    }
    exec(compile(example("class Orders", "docs/connectors/custom-sources.md"), "custom-sources.md", "exec"), names)
    source = names["Orders"]()
    reader = source.create_reader(SourceContext("orders", 0, 1))
    splits: Sequence[Split] = source.discover(1)
    reader.add_splits([replace(splits[2], position=7)])
    try:
        now_ms = 0
        while not subscribed:
            now_ms = reader.poll(now_ms).retry_at_ms
        ((shard, after, call),) = subscribed
        call(9, ["a", "b"])
        polled = reader.poll(now_ms)
        assert (shard, after) == (2, 7)
        assert polled.batch.to_pydict() == {"order": ["a", "b"]}
        assert [split.position for split in reader.snapshot()] == [9]
    finally:
        reader.close()


def names_of_the_code() -> tuple[set[str], set[str], set[str]]:
    """Classes, functions, and parameters and fields of both packages."""
    classes: set[str] = set()
    functions: set[str] = set()
    settings: set[str] = set()
    for package in ("spark_runtime", "provider"):
        for path in (REPOSITORY / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    classes.add(node.name)
                    fields = (
                        n.target.id
                        for n in node.body
                        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
                    )
                    settings.update(fields)
                elif isinstance(node, ast.FunctionDef):
                    functions.add(node.name)
                    settings.update(argument.arg for argument in (*node.args.args, *node.args.kwonlyargs))
    return classes, functions, settings


@pytest.mark.parametrize("system", ["flink", "structured-streaming", "dataflow"])
def test_what_newcomers_are_told_to_use_exists(system: str) -> None:
    """The second column of the tables: operators, verbs, flags, functions and settings."""
    classes, functions, settings = names_of_the_code()
    verbs = set(re.findall(r"^\| `([a-z-]+) ?", (REPOSITORY / "docs" / "cli.md").read_text(), re.MULTILINE))
    text = (REPOSITORY / "docs" / f"coming-from-{system}.md").read_text(encoding="utf-8")
    ours = [row.split(" | ")[1] for row in re.findall(r"^\| (.* \| .*) \|$", text, flags=re.MULTILINE)]
    codes = [code for cell in ours for code in re.findall(r"`([^`]+)`", cell)]
    assert len(codes) > 30
    cli = (REPOSITORY / "spark_runtime" / "tidegate" / "cli").rglob("*.py")
    flags = {flag for path in cli for flag in re.findall(r'"--([a-z-]+)"', path.read_text(encoding="utf-8"))}
    unknown = {
        *(c for c in codes if c.startswith("Tidegate") and c not in classes),
        *(c for c in codes if c.startswith("tidegate ") and c.split()[1] not in verbs),
        *(f for c in codes for f in re.findall(r"--([a-z-]+)", c) if f not in flags),
        *(f for c in codes for f in re.findall(r"\b([a-z_]+)\(", c) if f not in functions),
        *(s for c in codes for s in re.findall(r"\b([a-z_]+)=", c) if s not in settings),
    }
    assert unknown == set()


def test_the_trial_of_the_documents_passes() -> None:
    names: dict[str, Any] = {"pa": pa}
    exec("from tidegate import *\n" + example("def hourly", "docs/pipelines.md"), names)
    names["test_a_sale_after_its_hour_is_late"]()


def test_the_aggregate_of_ones_own_that_is_shown_gives_what_it_says() -> None:
    names: dict[str, Any] = {"np": np}
    names |= {"pa": pa, "pc": pc, "ArrowAggregate": tidegate.ArrowAggregate}
    exec(example("class WeightedMean", "docs/pipelines.md"), names)
    mean = names["WeightedMean"]()
    columns = [pa.array([1.0, 3.0, 5.0]), pa.array([1.0, 3.0, 2.0])]
    states = mean.accumulate(columns, np.array([0, 0, 1], np.int32), 2)
    assert mean.result(states).to_pylist() == [2.5, 5.0]
    assert mean.result(mean.merge(states, np.array([0, 0], np.int32), 1)).to_pylist() == [pytest.approx(20 / 6)]
