"""Golden files of the graph document: what a version wrote stays readable, and is what the present version writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming import StatefulProcessor

import tidegate as td
from tidegate.connectors.found_schema import FOUND_SCHEMA, FoundSchema, found_schemas
from tidegate.jobs.restore.compatibility import RestoreTarget, SnapshotFacts, check_compatibility
from tidegate.plan.graph_document import GRAPH_DOCUMENT_VERSION, graph_document

GOLDEN = Path(__file__).parent / "golden"
OLDEST = 4
"""Of earlier versions there are none; what readers do without their fields is tested beside `restore_check`."""
ORDERS = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])


class Orders(td.DataGen):
    """A source class of a user's own, which had another name."""

    former_names = ("Purchases",)

    def found_schema(self) -> FoundSchema:
        return FoundSchema(ORDERS, "orders.jsonl")


class Count(StatefulProcessor):
    """With a state whose columns may be dropped."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n BIGINT, note STRING")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter(())


def document() -> dict[str, Any]:
    """Sources and sinks, a window with its late rows, a processor, and all that a document says of them."""
    p = td.Pipeline()
    orders = p.read(Orders(lambda n: {}, ORDERS), uid="orders").with_watermark("at", delay="10 s")
    minutes = orders.group_by("k").window(td.tumbling("1 min")).agg(total=td.sum("n"), uid="minutes")
    minutes.write(td.Discard(), uid="totals")
    seen = orders.group_by("k").transform_with_state(Count(), "k STRING", "Update", "None", uid="seen")
    seen.write(td.Discard(), uid="out")
    return graph_document(p.build())


def golden(version: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"graph-document-v{version}.json").read_text())
    return found


def schemas_of(graph: dict[str, Any]) -> dict[str, FoundSchema]:
    """Removed from the document: Arrow promises that it reads the bytes, not that it always writes the same."""
    found = {uid: FoundSchema.from_json(one, where=uid) for uid, one in found_schemas(graph).items()}
    for operator in graph["operators"]:
        del operator[FOUND_SCHEMA]
    return found


def test_the_document_is_what_the_golden_file_of_its_version_says() -> None:
    """A changed document needs a new version, and a golden file of that."""
    written, expected = document(), golden(GRAPH_DOCUMENT_VERSION)
    assert schemas_of(written) == schemas_of(expected) == {"orders": FoundSchema(ORDERS, "orders.jsonl")}
    assert written == expected


@pytest.mark.parametrize("version", range(OLDEST, GRAPH_DOCUMENT_VERSION + 1))
def test_a_snapshot_with_the_document_of_a_golden_file_is_restored(version: int) -> None:
    """S5.5: with state of every operator that keeps some."""
    graph = golden(version)
    handle = {"kinds": ["keyed"], "formats": ["rows"]}
    subtask = {"index": 0, "finished": False, "handle": handle}
    operators = [{"uid": one["uid"], "status": "running", "subtasks": [subtask]} for one in graph["operators"]]
    body = {"parallelism": 1, "max_parallelism": 128, "operators": operators, "graph": graph}
    verdict = check_compatibility(SnapshotFacts.from_body(body), RestoreTarget(document(), 1, 128))
    assert [finding for finding in verdict.findings if finding.verdict == "refused"] == []
