"""Durable records: golden files prove that what was written stays readable, byte for byte what is written."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tidegate.errors import CommandRefusedError, RecordError
from tidegate.jobs.artifacts.artifact import ArtifactManifest
from tidegate.jobs.artifacts.materialised_rows import Materialised
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph
from tidegate.jobs.codec import DurableRecord
from tidegate.jobs.decision_log import DecisionSnapshot
from tidegate.jobs.records import (
    Command,
    CommandResult,
    Decision,
    DeletedSavepoint,
    Desired,
    Launch,
    Owner,
    RelativePaths,
    RestoreFrom,
    Spec,
    StatusHint,
    WatchCursor,
    Withdrawn,
    canonical,
    decode,
    encode,
    to_document,
)

GOLDEN = Path(__file__).parent / "golden"
AT = "2026-11-21T09:25:00.000Z"

DECISION = Decision(
    number=7,
    kind="complete",
    generation=2,
    run_id="g2-r1",
    at=AT,
    nonce="5f0c",
    data={"checkpoint_id": 3, "kind": "checkpoint", "path": "flights/checkpoints/chk-3-g2", "metrics": {"bytes": 17}},
)

GRAPH = {
    "version": 2,
    "operators": [
        {
            "uid": "daily",
            "kind": "window",
            "stateful": True,
            "schema": "k: int64, n: int64",
            "inputs": ["flights"],
            "exchanges": ["hash"],
            "states": [
                {
                    "name": "windows",
                    "kind": "keyed",
                    "columns": [["key:k", "int64", True], ["count:n", "int64", True]],
                    "form": "size, offset in us of 86400000000, 0",
                    "renamed": {"key": "k"},
                    "fills": False,
                }
            ],
        }
    ],
}

RECORDS: dict[str, DurableRecord] = {
    "graph": PinnedGraph(2, 4, 128, GRAPH, AT, {"out": "Parquet('/lake/daily')"}, {"checkpoint_interval": "1 min"}),
    "spec": Spec(
        job_id="flights",
        number=2,
        submission_id="dag-run-1",
        pipeline="pipelines.flight_delays:build",
        artifact="0123456789abcdef" * 4,
        arguments={"out": "s3://lake/außen", "speed": 3600.5, "carriers": ["AA", "UA"], "limit": None},
        options={"parallelism": 2, "checkpoint_interval": "10 s"},
        master="spark://host:7077",
        spark_conf={"spark.executor.cores": "2"},
        storage_options={"key": "secret:env/KEY"},
        restore=RestoreFrom("savepoint", "flights/savepoints/savepoint-flights-4-g1", 4),
        lineage="00c0ffee",
        owner_dag="flight_delays",
        submitted_at=AT,
        submitted_by="airflow",
        relative_paths=RelativePaths("/bundle/dags", "/bundle"),
        secrets={"KAFKA_PASSWORD": "conn:my_kafka/password"},
    ),
    "spec_fresh": Spec(
        job_id="flights",
        number=1,
        submission_id="s",
        pipeline="p:build",
        artifact="f" * 64,
        arguments={},
        options={},
        master="local[2]",
        spark_conf={},
        storage_options={},
        restore=None,
        lineage="00c0ffee",
        owner_dag=None,
        submitted_at=AT,
        submitted_by="cli",
    ),
    "watch_cursor": WatchCursor("hourly-0a1b", AT, {"lineage": "00c0ffee", "boundary_us": 1_357_020_000_000_000}),
    "materialised": Materialised(1, "orders", ({"path": "j/f.parquet", "rows": 3, "size_bytes": 700},), AT),
    "launch": Launch(1, 2, "local", "host-1", AT, ("python", "-m", "tidegate.spark.driver"), "a1"),
    "launch_process": Launch(
        1, 2, "local", "host-1", AT, ("python",), "a1", 4711, "boot:123", "pid:[4026531836]", "/logs/launch.log"
    ),
    "desired": Desired("running", 1, AT, "cli"),
    "owner": Owner(1, "0c0ffee0", AT, "airflow:dag.task"),
    "decision": DECISION,
    "decision_fence": Decision(1, "fence", 1, "", AT, "5f0b", {"spec": 1, "launch": 1}),
    "decision_snapshot": DecisionSnapshot(1, (to_document(DECISION),)),
    "status": StatusHint(2, 41, "g2-r1", AT, {"sources": {"flights": {"records": 10}}, "watermark_us": None}),
    "command": Command("c-1", "stop", {"mode": "drain"}, 2, AT, AT, "alice"),
    "result": CommandResult("c-1", True, "done", "drained", {"checkpoint_id": 5}, 2, AT),
    "withdrawn": Withdrawn("c-1", AT, "alice"),
    "deleted_savepoint": DeletedSavepoint(7, "flights/savepoints/savepoint-flights-7-g1", AT, "alice"),
    "artifact": ArtifactManifest(({"path": "pipeline.py", "size_bytes": 3, "sha256": "a" * 64},)),
}


def golden(name: str) -> Path:
    """The golden file of the version that is written now."""
    return GOLDEN / f"{name}.v{RECORDS[name].VERSION}.json"


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_written_exactly_as_in_its_golden_file(name: str) -> None:
    assert encode(RECORDS[name]) == golden(name).read_bytes()


@pytest.mark.parametrize("name", RECORDS)
def test_a_golden_file_is_read_back_as_its_record(name: str) -> None:
    record = RECORDS[name]
    assert decode(golden(name).read_bytes(), type(record)) == record


@pytest.mark.parametrize("name", ["spec", "spec_fresh"])
def test_a_submission_of_the_version_before_is_read(name: str) -> None:
    record = RECORDS[name]
    assert isinstance(record, Spec)
    assert decode((GOLDEN / f"{name}.v1.json").read_bytes(), Spec) == replace(record, relative_paths=None, secrets={})


def test_a_submission_without_secrets_is_read() -> None:
    """As versions before this wrote it."""
    record = RECORDS["spec"]
    assert isinstance(record, Spec)
    document = json.loads(golden("spec").read_bytes())
    del document["secrets"]
    assert decode(json.dumps(document).encode(), Spec) == replace(record, secrets={})


def test_a_graph_that_was_pinned_without_options_is_read() -> None:
    """As versions before this wrote it."""
    record = RECORDS["graph"]
    assert isinstance(record, PinnedGraph)
    document = json.loads((GOLDEN / "graph.v1.json").read_bytes())
    del document["options"]
    assert decode(json.dumps(document).encode(), PinnedGraph) == replace(record, options={})


def test_a_graph_that_was_pinned_without_its_sinks_is_read() -> None:
    document = json.loads((GOLDEN / "graph.v1.json").read_bytes())
    del document["sinks"]
    record = RECORDS["graph"]
    assert isinstance(record, PinnedGraph)
    assert decode(json.dumps(document).encode(), PinnedGraph) == replace(record, sinks={})


def test_every_golden_file_has_its_record() -> None:
    older = {"spec.v1.json", "spec_fresh.v1.json"}
    assert {path.name for path in GOLDEN.glob("*.json")} == {golden(name).name for name in RECORDS} | older


@dataclass(frozen=True, slots=True)
class Second:
    """A record in its second version: `size` was called `bytes` in the first."""

    RECORD: ClassVar[str] = "sample"
    VERSION: ClassVar[int] = 2

    name: str
    size: int = 0

    @classmethod
    def upgrade(cls, document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "size": document["bytes"]}


@dataclass(frozen=True, slots=True)
class Third:
    """The same in its third version."""

    RECORD: ClassVar[str] = "sample"
    VERSION: ClassVar[int] = 3

    name: str


def test_the_version_before_is_read_through_its_upgrade() -> None:
    assert decode(b'{"record":"sample","v":1,"name":"a","bytes":3}', Second) == Second("a", 3)


def test_fields_that_a_reader_does_not_know_are_ignored() -> None:
    assert decode(b'{"record":"sample","v":2,"name":"a","size":1,"later":true}', Second) == Second("a", 1)


def test_a_newer_version_is_refused_with_the_advice_to_upgrade() -> None:
    with pytest.raises(
        RecordError, match=r"version 3, but this tidegate reads versions up to 2 \[specs/1\].*Upgrade tidegate"
    ):
        decode(b'{"record":"sample","v":3,"name":"a"}', Second, "specs/1")


def test_a_version_older_than_the_one_before_is_refused() -> None:
    with pytest.raises(RecordError, match="version 1, but this tidegate reads 2 and 3"):
        decode(b'{"record":"sample","v":1,"name":"a"}', Third)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"record":"other","v":2,"name":"a"}',
        b'{"record":"sample","name":"a"}',
        b'{"record":"sample","v":"2","name":"a"}',
        b'{"record":"sample","v":true,"name":"a"}',
        b'{"record":"sample","v":0,"name":"a"}',
        b'{"record":"sample","v":2}',
        b'{"record":"sample","v":2,"name":1}',
        b'{"record":"sample","v":2,"name":"a","size":"1"}',
        b'{"record":"sample","v":2,"name":"a","size":true}',
    ],
)
def test_damage_is_refused_naming_the_path(data: bytes) -> None:
    with pytest.raises(RecordError, match=r"the record 'sample' cannot be read \[some/path\]"):
        decode(data, Second, "some/path")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("spec", "arguments", []),
        ("spec", "restore", "latest"),
        ("spec", "restore", {"kind": "oldest"}),
        ("spec", "owner_dag", 3),
        ("launch", "command", "python"),
        ("launch", "command", [1]),
        ("decision", "kind", "guess"),
        ("command", "verb", "explode"),
        ("result", "ok", 1),
    ],
)
def test_a_field_of_a_wrong_type_is_refused(name: str, field: str, value: object) -> None:
    document = json.loads((GOLDEN / f"{name}.v1.json").read_bytes())
    document[field] = value
    with pytest.raises(RecordError, match="the record '.*' cannot be read"):
        decode(canonical(document), type(RECORDS[name]))


@pytest.mark.parametrize(("name", "field"), [("launch", "external_id"), ("desired", "launch")])
def test_a_record_from_before_a_field_was_there_is_read_with_its_default(name: str, field: str) -> None:
    document = json.loads((GOLDEN / f"{name}.v1.json").read_bytes())
    del document[field]
    assert decode(canonical(document), type(RECORDS[name])) == RECORDS[name]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", object(), {1, 2}])
def test_what_json_cannot_hold_is_refused_when_writing(value: object) -> None:
    with pytest.raises(RecordError, match="cannot be written as JSON"):
        encode(Decision(1, "status", 1, "", AT, "n", {"value": value}))


def test_canonical_bytes_do_not_depend_on_the_order_of_keys() -> None:
    assert canonical({"b": 1, "a": {"d": 1, "c": 2}}) == b'{"a":{"c":2,"d":1},"b":1}\n'


def test_a_refused_command_raises_with_its_message_and_code() -> None:
    result = CommandResult("c", False, "superseded", "meant for submission 1", {}, 2, AT)
    with pytest.raises(CommandRefusedError, match=r"meant for submission 1.*superseded"):
        result.raise_if_refused()
    done = CommandResult("c", True, "done", "", {}, 2, AT)
    assert done.raise_if_refused() is done
